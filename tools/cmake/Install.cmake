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

# What a program written in C is to be linked with, besides: the C++ compiler's own libraries.
set(ATTNSMITH_CXX_RUNTIME ${CMAKE_CXX_IMPLICIT_LINK_LIBRARIES})
list(FILTER ATTNSMITH_CXX_RUNTIME INCLUDE REGEX "^(stdc\\+\\+|c\\+\\+|c\\+\\+abi|m)$")
list(REMOVE_DUPLICATES ATTNSMITH_CXX_RUNTIME)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/attnsmith-config.cmake.in
  ${PROJECT_BINARY_DIR}/attnsmith-config.cmake INSTALL_DESTINATION ${package}
  NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/attnsmith-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/attnsmith-config.cmake ${PROJECT_BINARY_DIR}/attnsmith-config-version.cmake
  DESTINATION ${package} COMPONENT development)

# The folder from which pkg-config's file is found, to the prefix: the installation can be moved.
file(RELATIVE_PATH ATTNSMITH_PKGCONFIG_UP /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" ATTNSMITH_PKGCONFIG_UP ${ATTNSMITH_PKGCONFIG_UP})
list(TRANSFORM ATTNSMITH_CXX_RUNTIME PREPEND -l OUTPUT_VARIABLE ATTNSMITH_PRIVATE_LIBRARIES)
foreach(library IN LISTS CMAKE_DL_LIBS)
  list(APPEND ATTNSMITH_PRIVATE_LIBRARIES -l${library})
endforeach()
list(APPEND ATTNSMITH_PRIVATE_LIBRARIES -pthread)
list(JOIN ATTNSMITH_PRIVATE_LIBRARIES " " ATTNSMITH_PRIVATE_LIBRARIES)
configure_file(${CMAKE_CURRENT_LIST_DIR}/attnsmith.pc.in ${PROJECT_BINARY_DIR}/attnsmith.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/attnsmith.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/THIRD_PARTY_NOTICES
  DESTINATION ${CMAKE_INSTALL_DATADIR}/attnsmith COMPONENT runtime)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/runtime/schemas DESTINATION ${CMAKE_INSTALL_DATADIR}/attnsmith COMPONENT runtime)

if(TARGET attnsmith_cli)
  install(TARGETS attnsmith_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT runtime)
  if(TARGET attnsmith_documents)
    install(DIRECTORY ${ATTNSMITH_DOCUMENTS}/ DESTINATION ${CMAKE_INSTALL_DATADIR} COMPONENT runtime)
  endif()
endif()
