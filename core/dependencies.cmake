# Finds what Boostgrad's libraries need. One file for both uses: CMakeLists.txt includes it for the build, and it is
# installed beside boostgradConfig.cmake, so that an outside project's find_package(boostgrad) finds the same things.
#
# Nothing is REQUIRED here: every missing dependency adds a line that names its Debian package to
# BG_MISSING, so that one message can tell all that has to be installed.

include(CMakePushCheckState)
include(CheckCXXSourceCompiles)

set(BG_MISSING "")
macro(bg_missing what package)
  string(APPEND BG_MISSING "\n  ${what}  (Debian/Ubuntu: ${package})")
  list(APPEND BG_MISSING_PACKAGES ${package})
endmacro()

# bg_find_library(<target> <what> <package> <header> <header subfolders> <library>...): imported target from a plain
# search, with pkg-config's answer (when there is one) as a hint. Libraries that ship no CMake package on all systems.
find_package(PkgConfig QUIET)
function(bg_find_library target what package pkg header subfolders)
  if(TARGET ${target})
    return()
  endif()
  if(PKG_CONFIG_FOUND)
    pkg_check_modules(BG_PC_${pkg} QUIET ${pkg})
  endif()
  find_path(BG_${pkg}_INCLUDE_DIR ${header} HINTS ${BG_PC_${pkg}_INCLUDE_DIRS} PATH_SUFFIXES ${subfolders})
  mark_as_advanced(BG_${pkg}_INCLUDE_DIR)
  set(libraries "")
  set(found ${BG_${pkg}_INCLUDE_DIR})
  foreach(library ${ARGN})
    find_library(BG_${library}_LIBRARY ${library} HINTS ${BG_PC_${pkg}_LIBRARY_DIRS} PATH_SUFFIXES ${subfolders})
    mark_as_advanced(BG_${library}_LIBRARY)
    list(APPEND libraries ${BG_${library}_LIBRARY})
    if(NOT BG_${library}_LIBRARY)
      set(found FALSE)
    endif()
  endforeach()
  if(NOT found)
    bg_missing("${what}" ${package})
    set(BG_MISSING "${BG_MISSING}" PARENT_SCOPE)
    set(BG_MISSING_PACKAGES "${BG_MISSING_PACKAGES}" PARENT_SCOPE)
    return()
  endif()
  add_library(${target} INTERFACE IMPORTED)
  set_target_properties(${target} PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${BG_${pkg}_INCLUDE_DIR}" INTERFACE_LINK_LIBRARIES "${libraries}")
endfunction()

find_package(Threads QUIET)
if(NOT Threads_FOUND)
  bg_missing("POSIX threads" libc6-dev)
endif()
if(BG_PARALLEL STREQUAL "tbb")
  find_package(TBB 2021 QUIET CONFIG)
  if(NOT TBB_FOUND)
    bg_missing("oneTBB 2021 or newer" libtbb-dev)
  endif()
endif()
bg_find_library(boostgrad::openblas "OpenBLAS" libopenblas-dev openblas cblas.h "openblas-pthread;openblas" openblas)
bg_find_library(boostgrad::hwy "Google Highway" libhwy-dev libhwy hwy/highway.h "" hwy hwy_contrib)
bg_find_library(boostgrad::zip "libzip" libzip-dev libzip zip.h "" zip)
bg_find_library(boostgrad::utf8proc "utf8proc" libutf8proc-dev libutf8proc utf8proc.h "" utf8proc)
find_package(ZLIB QUIET)
if(NOT ZLIB_FOUND)
  bg_missing("zlib" zlib1g-dev)
endif()
find_package(nlohmann_json QUIET)
if(NOT nlohmann_json_FOUND)
  bg_missing("nlohmann-json" nlohmann-json3-dev)
endif()

# A BLAS may be found whose cblas.h is another one's, or lacks the C interface altogether: compile and link a call.
if(TARGET boostgrad::openblas)
  cmake_push_check_state(RESET)
  set(CMAKE_REQUIRED_LIBRARIES boostgrad::openblas)
  set(CMAKE_REQUIRED_QUIET TRUE)
  check_cxx_source_compiles("
    #include <cblas.h>
    int main() {
      const float a = 2, b = 3;
      float c = 0;
      openblas_set_num_threads(1);
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1.0f, &a, 1, &b, 1, 0.0f, &c, 1);
      return c == 6 ? 0 : 1;
    }" BG_CBLAS_WORKS)
  cmake_pop_check_state()
  if(NOT BG_CBLAS_WORKS)
    unset(BG_CBLAS_WORKS CACHE)  # look again at the next configure
    bg_missing("OpenBLAS with its C interface (${BG_openblas_INCLUDE_DIR}/cblas.h and ${BG_openblas_LIBRARY} do not \
compile and link a call of cblas_sgemm together)" libopenblas-dev)
  endif()
endif()
