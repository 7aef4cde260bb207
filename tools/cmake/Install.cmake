# Install rules. What is installed needs nothing but threads and libdl: find_package(attnsmith) works on a machine
# that has none of what the library was built with.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/attnsmith)
install(TARGETS attnsmith_static attnsmith_shared EXPORT attnsmith-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(EXPORT attnsmith-targets NAMESPACE attnsmith:: DESTINATION ${package} COMPONENT development)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/runtime/include/attnsmith ${PROJECT_BINARY_DIR}/runtime/include/attnsmith
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/attnsmith-config.cmake.in
  ${PROJECT_BINARY_DIR}/attnsmith-config.cmake INSTALL_DESTINATION ${package}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attnsmith-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attnsmith-config.cmake ${PROJECT_BINARY_DIR}/attnsmith-config-version.cmake
  DESTINATION ${package} COMPONENT development)

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/runtime/planner/plan.schema.json
  ${PROJECT_SOURCE_DIR}/runtime/planner/tuning.schema.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/attnsmith COMPONENT runtime)

if(TARGET attnsmith_cli)
  install(TARGETS attnsmith_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
endif()
