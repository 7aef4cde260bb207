# Writes a C++ file with the text of every kernel template.
# cmake -DROOT=kernel_templates -DFILES=a;b -DOUTPUT=x.cpp -P EmbedTemplates.cmake
set(text "// Generated from kernel_templates/; do not edit.\n#include \"compiler/embedded.hpp\"\n\n")
string(APPEND text "namespace attnsmith::compiler {\nnamespace {\n\nconstexpr EmbeddedFile kFiles[] = {\n")
foreach(file IN LISTS FILES)
  file(READ ${ROOT}/${file} content)
  string(APPEND text "    {\"${file}\", R\"attnsmith(${content})attnsmith\"},\n")
endforeach()
string(APPEND text "};\n\n}  // namespace\n\nstd::span<const EmbeddedFile> embedded_files() { return kFiles; }\n\n}  // namespace attnsmith::compiler\n")
file(WRITE ${OUTPUT} "${text}")
