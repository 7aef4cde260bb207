# What the library is built with. Installed packages are taken first; what is missing is fetched at a pinned version.
# All of it is header-only, compiled into our own files or needed at build time alone: the library itself links nothing
# but libdl and threads.
include(FetchContent)
find_package(Threads REQUIRED)

# HEADERS_ONLY: the files are wanted, not what their own CMakeLists.txt would build.
function(attnsmith_fetch name url hash)
  message(STATUS "attnsmith: ${name} is not installed; fetching it (where GitHub cannot be reached, "
    "tools/setup/setup.sh --tests installs what is missing)")
  set(folder)
  if("HEADERS_ONLY" IN_LIST ARGN)
    set(folder SOURCE_SUBDIR no-such-folder)
  endif()
  FetchContent_Declare(${name} URL ${url} URL_HASH SHA256=${hash} DOWNLOAD_EXTRACT_TIMESTAMP ON ${folder})
endfunction()

find_package(fmt 9 QUIET)
if(NOT TARGET fmt::fmt-header-only)
  attnsmith_fetch(fmt https://github.com/fmtlib/fmt/releases/download/10.2.1/fmt-10.2.1.zip
    312151a2d13c8327f5c9c586ac6cf7cddc1658e8f53edae0ec56509c8fa516c9)
  FetchContent_MakeAvailable(fmt)
endif()
# fmt from its headers, compiled once: as a header-only library it costs every file that formats some 2.5 s. It goes by
# a namespace of ours, so that a program may link an fmt of its own beside the static library.
add_library(attnsmith_fmt OBJECT ${CMAKE_CURRENT_LIST_DIR}/compiled_fmt.cpp)
target_include_directories(attnsmith_fmt SYSTEM PUBLIC
  $<TARGET_PROPERTY:fmt::fmt-header-only,INTERFACE_INCLUDE_DIRECTORIES>)
target_compile_definitions(attnsmith_fmt PUBLIC
  "FMT_BEGIN_NAMESPACE=namespace fmt { inline namespace in_attnsmith {" "FMT_END_NAMESPACE=} }")
target_compile_features(attnsmith_fmt PUBLIC cxx_std_20)
set_target_properties(attnsmith_fmt PROPERTIES POSITION_INDEPENDENT_CODE ON)

find_package(nlohmann_json 3.9 QUIET)
if(NOT TARGET nlohmann_json::nlohmann_json)
  attnsmith_fetch(nlohmann_json https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
    d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)
  FetchContent_MakeAvailable(nlohmann_json)
endif()
# Without the parts that nothing here uses: they would include <filesystem>, <ranges> and <istream> everywhere.
add_library(attnsmith_json INTERFACE)
target_link_libraries(attnsmith_json INTERFACE nlohmann_json::nlohmann_json)
target_compile_definitions(attnsmith_json INTERFACE JSON_HAS_FILESYSTEM=0 JSON_HAS_RANGES=0 JSON_NO_IO)

# Hash library: one header, all of it inlined.
find_path(ATTNSMITH_XXHASH_INCLUDE xxhash.h)
if(NOT ATTNSMITH_XXHASH_INCLUDE)
  attnsmith_fetch(xxhash https://github.com/Cyan4973/xxHash/archive/refs/tags/v0.8.2.tar.gz
    baee0c6afd4f03165de7a4e67988d16f0f2b257b51d0e3cb91909302a26a79c4 HEADERS_ONLY)
  FetchContent_MakeAvailable(xxhash)
  set(ATTNSMITH_XXHASH_INCLUDE ${xxhash_SOURCE_DIR})
endif()
add_library(attnsmith_xxhash INTERFACE)
target_include_directories(attnsmith_xxhash SYSTEM INTERFACE ${ATTNSMITH_XXHASH_INCLUDE})
target_compile_definitions(attnsmith_xxhash INTERFACE XXH_INLINE_ALL)

# cuda.h and nvrtc.h, for their types alone: a toolkit's, or those of the Python wheels that tools/setup fetches.
find_path(ATTNSMITH_CUDA_INCLUDE cuda.h
  HINTS ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} $ENV{CUDA_PATH} ${PROJECT_SOURCE_DIR}/build/cuda
  PATHS /usr/local/cuda /opt/cuda PATH_SUFFIXES include)
find_path(ATTNSMITH_NVRTC_INCLUDE nvrtc.h HINTS ${ATTNSMITH_CUDA_INCLUDE})
if(NOT ATTNSMITH_CUDA_INCLUDE OR NOT ATTNSMITH_NVRTC_INCLUDE)
  message(FATAL_ERROR "attnsmith: cuda.h and nvrtc.h were not found. Install a CUDA toolkit (12.0 or newer), or run "
    "tools/setup/setup.sh, which takes the headers from PyPI's nvidia-cuda-runtime and nvidia-cuda-nvrtc wheels, "
    "or set ATTNSMITH_CUDA_INCLUDE and ATTNSMITH_NVRTC_INCLUDE to the folders that hold them.")
endif()
add_library(attnsmith_cuda_headers INTERFACE)
target_include_directories(attnsmith_cuda_headers SYSTEM INTERFACE ${ATTNSMITH_CUDA_INCLUDE} ${ATTNSMITH_NVRTC_INCLUDE})

if(ATTNSMITH_TOOLS)
  find_package(CLI11 2.1 QUIET)
  if(NOT TARGET CLI11::CLI11)
    attnsmith_fetch(cli11 https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.2.tar.gz
      f2d893a65c3b1324c50d4e682c0cdc021dd0477ae2c048544f39eed6654b699a)
    FetchContent_MakeAvailable(cli11)
  endif()
endif()

if(ATTNSMITH_TESTS)
  find_package(Catch2 QUIET)
  if(NOT TARGET Catch2::Catch2)
    attnsmith_fetch(Catch2 https://github.com/catchorg/Catch2/archive/refs/tags/v3.5.4.tar.gz
      b7754b711242c167d8f60b890695347f90a1ebc95949a045385114165d606dbb)
    FetchContent_MakeAvailable(Catch2)
  endif()
  find_path(ATTNSMITH_VALIJSON_INCLUDE valijson/validator.hpp HINTS ${PROJECT_SOURCE_DIR}/build/valijson)
  if(NOT ATTNSMITH_VALIJSON_INCLUDE)
    attnsmith_fetch(valijson https://github.com/tristanpenman/valijson/archive/refs/tags/v1.0.tar.gz
      6b9f0bc89880feb3fe09aa469cd81f6168897d2fbb4e715853da3b94afd3779a HEADERS_ONLY)
    FetchContent_MakeAvailable(valijson)
    set(ATTNSMITH_VALIJSON_INCLUDE ${valijson_SOURCE_DIR}/include)
  endif()
endif()
