# What keeps a build short. Most of its time goes to the headers of JSON, of fmt and of the standard library, which
# each file parses again: ten files of a target at a time are compiled as one, which takes half the time. A compiler
# cache knows single files better, and builds with one hold that each file includes what it uses.
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_UNITY_BUILD AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_UNITY_BUILD ON)
endif()
# Whoever turns it on, a project around this one too: files that are compiled as one must not give a name twice, and this is
# how many the test consumer has seen together.
set(CMAKE_UNITY_BUILD_BATCH_SIZE 10)
