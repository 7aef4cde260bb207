#include "cubins/translation_unit.hpp"

#include "compiler/embedded.hpp"
#include "families/source.hpp"

namespace attnsmith::engine {

TranslationUnit translation_unit(const families::KernelConfig& kernel, const TranslationOptions& options) {
    families::Source source = families::source_of(kernel);
    TranslationUnit unit;
    unit.program.name = source.entry + ".cu";
    unit.program.target = kernel.target;
    unit.program.headers = compiler::reachable_headers(source.text);
    unit.program.source = std::move(source.text);
    unit.program.options = {"--std=c++20", "--ptxas-options=-v"};
    if (options.line_info) unit.program.options.push_back("-lineinfo");
    unit.entry = std::move(source.entry);
    return unit;
}

}  // namespace attnsmith::engine
