# What the Python wheel takes from a build: the shared library, as one file, since wheels hold no links, the command,
# and the library of attnsmith.jax where there is one. They bring their own libstdc++, so that none needs one as new as
# the compiler's on the user's machine, nor meets the one that another package has loaded. libgcc stays shared: its
# unwinder is every library's, and a static one of GCC 12 needs a newer glibc than all the rest.
install(FILES $<TARGET_FILE:attnsmith_shared> DESTINATION attnsmith COMPONENT python
  RENAME ${CMAKE_SHARED_LIBRARY_PREFIX}attnsmith${CMAKE_SHARED_LIBRARY_SUFFIX})
install(PROGRAMS $<TARGET_FILE:attnsmith_cli> DESTINATION attnsmith/bin COMPONENT python)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/runtime/schemas DESTINATION attnsmith COMPONENT python)
set(binaries attnsmith_shared attnsmith_cli)
if(TARGET attnsmith_jax)
  install(FILES $<TARGET_FILE:attnsmith_jax> DESTINATION attnsmith COMPONENT python)
  list(APPEND binaries attnsmith_jax)
endif()
if(TARGET attnsmith_native)
  install(FILES $<TARGET_FILE:attnsmith_native> DESTINATION attnsmith COMPONENT python)
  list(APPEND binaries attnsmith_native)
endif()
if(TARGET attnsmith_tvm_ffi)
  install(FILES $<TARGET_FILE:attnsmith_tvm_ffi> DESTINATION attnsmith COMPONENT python)
  list(APPEND binaries attnsmith_tvm_ffi)
endif()
add_custom_target(attnsmith_wheel DEPENDS ${binaries})
if(TARGET attnsmith_torch)
  # With torch's own libstdc++, since it throws through torch.
  install(FILES $<TARGET_FILE:attnsmith_torch> DESTINATION attnsmith COMPONENT python)
  add_dependencies(attnsmith_wheel attnsmith_torch)
endif()
foreach(target IN LISTS binaries)
  # Parts of libstdc++ that nothing uses go: they would need a newer glibc.
  target_link_options(${target} PRIVATE LINKER:--strip-all LINKER:--gc-sections -static-libstdc++)
endforeach()
