# What the Python wheel takes from a build: the shared library, as one file, since wheels hold no links.
install(FILES $<TARGET_FILE:attnsmith_shared> DESTINATION attnsmith COMPONENT python
  RENAME ${CMAKE_SHARED_LIBRARY_PREFIX}attnsmith${CMAKE_SHARED_LIBRARY_SUFFIX})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION attnsmith COMPONENT python)
target_link_options(attnsmith_shared PRIVATE LINKER:--strip-all)
