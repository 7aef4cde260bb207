# attnsmith_add_part(NAME [EXCEPT FILE...] [FILES FILE...] [LINK ARGUMENT...]): the objects attnsmith_NAME, of every .cpp of the
# folder and of those in it. EXCEPT: other targets' files. FILES: generated ones. LINK: as target_link_libraries() takes them.
# Which part may include which is checked by tests/cpu/architecture.
function(attnsmith_add_part name)
  cmake_parse_arguments(PARSE_ARGV 1 part "" "" "EXCEPT;FILES;LINK")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  list(REMOVE_ITEM sources "" ${part_EXCEPT})
  set(target attnsmith_${name})
  add_library(${target} OBJECT ${sources} ${part_FILES})
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/runtime
    ${PROJECT_SOURCE_DIR}/runtime/include ${PROJECT_BINARY_DIR}/runtime/include ${PROJECT_SOURCE_DIR}/kernel_templates)
  target_link_libraries(${target} ${part_LINK})
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  attnsmith_compile_in_units(${target})
endfunction()
