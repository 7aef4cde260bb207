# What keeps a build of everything short. Most of its time goes to the headers of JSON, of fmt and of the standard
# library, and the next largest part to optimising code that runs once.

# attnsmith_precompile(TARGET): those headers are parsed once for all files of the target. With a compiler cache they
# are not: a cache knows a file by all that it includes, and a precompiled header is another one in every build. So
# each file has to include what it uses, which builds with a cache hold.
function(attnsmith_precompile target)
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    target_precompile_headers(${target} PRIVATE
      <fmt/format.h> <nlohmann/json.hpp>
      <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <filesystem> <functional> <map> <memory>
      <mutex> <optional> <set> <span> <stop_token> <string> <string_view> <thread> <tuple> <unordered_map> <utility>
      <variant> <vector>)
  endif()
endfunction()

# attnsmith_optimise_little(TARGET REGEX): the target's files of such names read configs, put reports together or print,
# once for a command.
function(attnsmith_optimise_little target regex)
  get_target_property(files ${target} SOURCES)
  list(FILTER files INCLUDE REGEX ${regex})
  set_property(SOURCE ${files} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-Og>)
endfunction()
