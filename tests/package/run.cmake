# cmake -DBUILD=... -DCOMPILER=... -DGENERATOR=... -DWORK=... -P: installs BUILD into a fresh prefix, then builds and
# runs the outside project against it alone.
file(REMOVE_RECURSE ${WORK})
foreach(command
    "--install;${BUILD};--prefix;${WORK}/prefix"
    "-S;${CMAKE_CURRENT_LIST_DIR};-B;${WORK}/build;-G;${GENERATOR};-DCMAKE_CXX_COMPILER=${COMPILER};\
-DCMAKE_PREFIX_PATH=${WORK}/prefix"
    "--build;${WORK}/build")
  execute_process(COMMAND ${CMAKE_COMMAND} ${command} COMMAND_ERROR_IS_FATAL ANY)
endforeach()
execute_process(COMMAND ${WORK}/build/outside COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE_RECURSE ${WORK})
