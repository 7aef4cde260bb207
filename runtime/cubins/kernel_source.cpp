#include "cubins/kernel_source.hpp"

#include <fmt/format.h>

#include "cache/entries/entry.hpp"
#include "settings/environment.hpp"

namespace attnsmith::engine {
namespace {

// Raised when the same fields come to mean other machine code, or entries are written otherwise: old ones
// are then left alone.
constexpr std::int64_t kKeyFormat = 3;

}  // namespace

KernelSource kernel_source(const families::KernelConfig& kernel, const TranslationOptions& options) {
    KernelSource source;
    source.kernel = kernel;
    source.unit = translation_unit(kernel, options);
    const compiler::Program& program = source.unit.program;
    cache::FieldHasher hasher;
    hasher.add("key format", kKeyFormat);
    hasher.add("entry format", std::int64_t{cache::kEntryFormat});
    hasher.add("target", program.target);
    for (const std::string& option : program.options) hasher.add("option", option);
    for (const auto& [name, value] : compiler_environment()) hasher.add("environment " + name, value);
    // They are in the source, too: here they tell people what differs between two kernels.
    for (const families::Constant& constant : kernel.constants.list())
        hasher.add(fmt::format("constant {}", constant.name), constant.text());
    hasher.add("source", program.source);
    for (const compiler::Header& header : program.headers)
        hasher.add(fmt::format("header {}", header.name), header.text);
    source.key = hasher.digest();
    source.fields_json = hasher.fields_json();
    return source;
}

}  // namespace attnsmith::engine
