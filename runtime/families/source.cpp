#include "families/source.hpp"

#include <fmt/format.h>

#include "families/family.hpp"

namespace attnsmith::families {

Source source_of(const KernelConfig& kernel) {
    const std::string_view family = kernel.family->name();
    const SourceParts parts = kernel.family->source(kernel);
    std::string constants;
    for (const Constant& constant : kernel.constants.list())
        constants += fmt::format("    {}\n", constant.declaration());
    const std::string entry = fmt::format("attnsmith_{}", family);
    return {entry, fmt::format("// {name}\n"
                               "#include \"{header}\"\n\n"
                               "namespace attnsmith {{\n"
                               "struct Constants {{\n{constants}}};\n"
                               "struct Config : Constants {{\n{members}}};\n"
                               "}}  // namespace attnsmith\n\n"
                               "extern \"C\" __global__ void __launch_bounds__({threads}, {ctas})\n"
                               "{entry}(const __grid_constant__ attnsmith::abi::{arguments} arguments) {{\n"
                               "    attnsmith::{family}<attnsmith::Config>(arguments);\n"
                               "}}\n\n"
                               "extern \"C\" __device__ unsigned {symbol} = {shared_bytes};\n",
                               fmt::arg("name", kernel.name()), fmt::arg("header", parts.header),
                               fmt::arg("family", family), fmt::arg("constants", constants),
                               fmt::arg("members", parts.members), fmt::arg("arguments", parts.arguments),
                               fmt::arg("threads", kernel.threads), fmt::arg("ctas", kernel.ctas_per_sm),
                               fmt::arg("entry", entry), fmt::arg("symbol", kSharedBytesSymbol),
                               fmt::arg("shared_bytes", parts.shared_bytes))};
}

}  // namespace attnsmith::families
