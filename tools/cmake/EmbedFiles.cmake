# attnsmith_embed_files(OUTPUT.cpp HEADER NAMESPACE ROOT FILE...): a C++ file that defines NAMESPACE::embedded_files(),
# which HEADER declares, with the text of every FILE below ROOT.
#
# The function sets up the build's step; the step itself runs this same file:
# cmake -DHEADER=x.hpp -DNAMESPACE=a::b -DROOT=folder -DFILES=a;b -DOUTPUT=x.cpp -P EmbedFiles.cmake
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(ATTNSMITH_EMBED_FILES ${CMAKE_CURRENT_LIST_FILE})
  function(attnsmith_embed_files output header namespace root)
    list(TRANSFORM ARGN PREPEND ${root}/ OUTPUT_VARIABLE paths)
    add_custom_command(OUTPUT ${output}
      COMMAND ${CMAKE_COMMAND} -DHEADER=${header} -DNAMESPACE=${namespace} -DROOT=${root} "-DFILES=${ARGN}"
              -DOUTPUT=${output} -P ${ATTNSMITH_EMBED_FILES}
      DEPENDS ${paths} ${ATTNSMITH_EMBED_FILES} VERBATIM)
  endfunction()
  return()
endif()

set(text "// Generated from ${ROOT}; do not edit.\n#include \"${HEADER}\"\n\n")
string(APPEND text "namespace ${NAMESPACE} {\nnamespace {\n\nconstexpr problem::EmbeddedFile kFiles[] = {\n")
foreach(file IN LISTS FILES)
  file(READ ${ROOT}/${file} content)
  string(APPEND text "    {\"${file}\", R\"attnsmith(${content})attnsmith\"},\n")
endforeach()
string(APPEND text "};\n\n}  // namespace\n\n"
  "std::span<const problem::EmbeddedFile> embedded_files() { return kFiles; }\n\n}  // namespace ${NAMESPACE}\n")
file(WRITE ${OUTPUT} "${text}")
