# cmake -DCASE=... -DGENERATOR=... -DSOURCE=... -DWORK=... -P: configuring must fail, and say why.
if(CASE STREQUAL "fast_math")
  set(arguments "-DCMAKE_CXX_FLAGS=-O2 -ffast-math")
  set(expected "CMAKE_CXX_FLAGS holds -ffast-math" "Remove -ffast-math")
elseif(CASE STREQUAL "missing")  # several at once, told together
  set(arguments -DCMAKE_DISABLE_FIND_PACKAGE_TBB=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON
    -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)
  set(expected libtbb-dev libcli11-dev nlohmann-json3-dev "apt-get install")
elseif(CASE STREQUAL "wrong_blas")  # a cblas.h of another library: found, but useless [R42]
  file(WRITE ${WORK}/other/cblas.h "/* no cblas_sgemm */")
  set(arguments -DBG_openblas_INCLUDE_DIR=${WORK}/other)
  set(expected "cblas_sgemm" libopenblas-dev)
else()
  message(FATAL_ERROR "no case ${CASE}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build -G ${GENERATOR} ${arguments}
  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
file(REMOVE_RECURSE ${WORK})
if(result EQUAL 0)
  message(FATAL_ERROR "configuring succeeded")
endif()
string(REGEX REPLACE "[ \n]+" " " output "${output}")
foreach(text ${expected})
  string(FIND "${output}" "${text}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "the message lacks '${text}': ${output}")
  endif()
endforeach()
