# Builds the projects of examples/ as users would: against the installed package, static and shared, in C++
# and in C, by CMake and by pkg-config, and with the source tree as a subdirectory; runs them each time; and looks at
# what the shared library needs and exports.
# cmake -DSOURCE=... -DBUILD=... -DWORK=... -DGENERATOR=... -DCXX=... -DC=... -DVERSION=... -DREADELF=... -DNM=...
#       [-DPKG_CONFIG=...] [-DLAUNCHER=ccache] [-DUNITS=ON] [-DCUDA_INCLUDE=... -DNVRTC_INCLUDE=...] -P consumer_test.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "exit ${status} from: ${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(build_and_run name)
  message(STATUS "the outside project, ${name}")
  run(${CMAKE_COMMAND} -S ${SOURCE}/examples/cpp -B ${WORK}/${name} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
      -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} ${ARGN})
  run(${CMAKE_COMMAND} --build ${WORK}/${name})
  run_first_program(${WORK}/${name}/first_program)
endfunction()

# A first program, in C++ or in C, either launches or says why it cannot; an exit code other than 0 and 1 is a crash.
function(run_first_program program)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env ATTNSMITH_CACHE_DIR=${WORK}/cache ${ARGN} ${program}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT "${status}: ${output}" MATCHES "^(0: the mean of ones is one|0: launched and done|1: .*CUDA driver)")
    message(FATAL_ERROR "${program}: exit ${status}; it printed:\n${output}")
  endif()
endfunction()

function(build_and_run_c name)
  message(STATUS "the outside project in C, ${name}")
  run(${CMAKE_COMMAND} -S ${SOURCE}/examples/c -B ${WORK}/c-${name} -G ${GENERATOR} -DCMAKE_C_COMPILER=${C}
      -DCMAKE_PREFIX_PATH=${prefix} ${ARGN})
  run(${CMAKE_COMMAND} --build ${WORK}/c-${name})
  run_first_program(${WORK}/c-${name}/c_first_program)
endfunction()

# By pkg-config alone, in C and, as the README has it, in C++: from a prefix that was moved, since nothing in the file names
# where it was.
function(compile_by_pkg_config name)
  message(STATUS "programs by pkg-config, ${name}")
  run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${pkgconfig} ${PKG_CONFIG} --cflags --libs ${ARGN} attnsmith)
  string(REGEX REPLACE "[ \t\n]+" ";" flags "${output}")
  list(REMOVE_ITEM flags "")
  if(ARGN)  # the archive of our own, shared libraries for the rest
    list(TRANSFORM flags REPLACE "^-lattnsmith$" "-l:libattnsmith.a")
  endif()
  run(${C} ${SOURCE}/examples/c/first_program.c -o ${WORK}/pkg-config-${name} ${flags})
  cmake_path(GET pkgconfig PARENT_PATH libraries)
  run_first_program(${WORK}/pkg-config-${name} LD_LIBRARY_PATH=${libraries})
  run(${CXX} -std=c++20 ${SOURCE}/examples/cpp/first_program.cpp -o ${WORK}/pkg-config-${name}-cpp ${flags})
  run_first_program(${WORK}/pkg-config-${name}-cpp LD_LIBRARY_PATH=${libraries})
endfunction()

# The libraries that a file asks the loader for.
function(needed file)
  run(${READELF} -d ${file})
  string(REPLACE "[" "<" output "${output}")  # a bracket in an element would join it to the next
  string(REPLACE "]" ">" output "${output}")
  string(REGEX MATCHALL "\\(NEEDED\\)[^<]*<[^>]*" entries "${output}")
  list(TRANSFORM entries REPLACE ".*<" "")
  set(needed "${entries}" PARENT_SCOPE)
  set(dynamic "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
set(prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})

file(GLOB_RECURSE installed RELATIVE ${prefix} ${prefix}/*)
foreach(wanted IN ITEMS "bin/attnsmith" "include/attnsmith/attnsmith.hpp" "include/attnsmith/attnsmith.h" "include/attnsmith/version.h"
    "include/attnsmith/standard_library.hpp"
    "share/attnsmith/LICENSE" "share/attnsmith/THIRD_PARTY_NOTICES" "lib.*/pkgconfig/attnsmith.pc" "lib.*/libattnsmith.a" "lib.*/libattnsmith.so"
    "share/man/man1/attnsmith.1" "share/man/man1/attnsmith-cache-ls.1" "share/bash-completion/completions/attnsmith"
    "share/zsh/site-functions/_attnsmith" "share/fish/vendor_completions.d/attnsmith.fish")
  if(NOT installed MATCHES "(^|;)${wanted}(;|$)")
    message(FATAL_ERROR "the installation has no ${wanted}; it has: ${installed}")
  endif()
endforeach()

file(GLOB schemas RELATIVE ${SOURCE}/runtime ${SOURCE}/runtime/schemas/*.json)
foreach(schema IN LISTS schemas)
  if(NOT "share/attnsmith/${schema}" IN_LIST installed)
    message(FATAL_ERROR "the installation has no share/attnsmith/${schema}")
  endif()
endforeach()
# The installed command is the one that its man page is of.
run(${prefix}/bin/attnsmith --version)

file(GLOB_RECURSE library ${prefix}/libattnsmith.so.${VERSION})
needed(${library})
if(needed MATCHES "cuda|nvrtc|fmt|json|xxhash")
  message(FATAL_ERROR "the shared library is linked to what it must open at run time or hold itself: ${needed}")
endif()
string(REGEX MATCH "^(0\\.[0-9]+|[0-9]+)" abi ${VERSION})
if(NOT dynamic MATCHES "SONAME[^<]*<libattnsmith\\.so\\.${abi}>")
  message(FATAL_ERROR "the shared library's SONAME is not libattnsmith.so.${abi}:\n${dynamic}")
endif()

# What else may stand before the name of one of ours in a demangled symbol.
set(ours "(std::optional<attnsmith::[A-Za-z]+> |typeinfo for |typeinfo name for |vtable for |VTT for |guard variable for |(non-)?virtual thunk to )?attnsmith::")
run(${NM} --dynamic --defined-only --demangle --format=posix ${library})
string(REPLACE "\n" ";" symbols "${output}")
list(FILTER symbols EXCLUDE REGEX "^(${ours}|attnsmith_|ATTNSMITH_${abi} |$)")
if(symbols)
  list(JOIN symbols "\n" symbols)
  message(FATAL_ERROR "the shared library exports what is not in attnsmith:: :\n${symbols}")
endif()

# A program may link an fmt of its own beside the static library, whose fmt is compiled by another name.
file(GLOB_RECURSE archive ${prefix}/libattnsmith.a)
run(${NM} --defined-only --demangle --format=posix ${archive})
if(NOT output MATCHES "fmt::in_attnsmith::" OR output MATCHES "fmt::v[0-9]+::")
  message(FATAL_ERROR "the static library holds an fmt that a program's own could clash with, or none")
endif()

build_and_run(static -DCMAKE_PREFIX_PATH=${prefix})
needed(${WORK}/static/first_program)
if(needed MATCHES "libattnsmith")
  message(FATAL_ERROR "attnsmith::attnsmith is not the static library by default: ${needed}")
endif()

# The archive and the C++ compiler are all that a program needs.
run(${CXX} -std=c++20 -Wall -Wextra -Werror ${SOURCE}/tests/consumer/cache_program.cpp -I${prefix}/include ${archive} -ldl
    -pthread -o ${WORK}/cache_program)
run(${CMAKE_COMMAND} -E env ATTNSMITH_CACHE_DIR=${WORK}/cache ${WORK}/cache_program)

build_and_run(shared -DCMAKE_PREFIX_PATH=${prefix} -DATTNSMITH_SHARED=ON)
needed(${WORK}/shared/first_program)
if(NOT "libattnsmith.so.${abi}" IN_LIST needed)
  message(FATAL_ERROR "with ATTNSMITH_SHARED the program does not use the shared library: ${needed}")
endif()

build_and_run_c(static)
needed(${WORK}/c-static/c_first_program)
if(needed MATCHES "libattnsmith")
  message(FATAL_ERROR "a C project's attnsmith::attnsmith is not the static library by default: ${needed}")
endif()
build_and_run_c(shared -DATTNSMITH_SHARED=ON)

if(PKG_CONFIG)
  file(RENAME ${prefix} ${WORK}/moved)
  file(GLOB_RECURSE pkgconfig ${WORK}/moved/attnsmith.pc)
  cmake_path(GET pkgconfig PARENT_PATH pkgconfig)
  compile_by_pkg_config(shared)
  compile_by_pkg_config(static --static)
else()
  message(STATUS "SKIPPED: pkg-config is not installed")
endif()

# Not optimised and without debug information: it is built for this test alone.
set(subdirectory -DATTNSMITH_SOURCE=${SOURCE} -DCMAKE_BUILD_TYPE=None -DCMAKE_UNITY_BUILD=${UNITS})
if(CUDA_INCLUDE)
  list(APPEND subdirectory -DATTNSMITH_CUDA_INCLUDE=${CUDA_INCLUDE} -DATTNSMITH_NVRTC_INCLUDE=${NVRTC_INCLUDE})
endif()
build_and_run(subdirectory ${subdirectory})
file(REMOVE_RECURSE ${WORK})
