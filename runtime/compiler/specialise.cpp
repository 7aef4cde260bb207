#include "compiler/specialise.hpp"

#include <fmt/format.h>

#include "abi/attention_wgmma.h"
#include "compiler/embedded.hpp"
#include "planner/attention_wgmma.hpp"

namespace attnsmith::compiler {
namespace {

using planner::Family;
using planner::KernelConfig;

// The element type's name in common/element.cuh.
std::string_view element_type(DType dtype) { return dtype == DType::f16 ? "f16" : "bf16"; }
std::string_view index_type(DType dtype) { return dtype == DType::i64 ? "int64" : "int32"; }

class ConfigStruct {
  public:
    void type(std::string_view name, std::string_view type) {
        text_ += fmt::format("    using {} = {};\n", name, type);
    }
    void constant(std::string_view name, int value) {
        text_ += fmt::format("    static constexpr int {} = {};\n", name, value);
    }
    void flag(std::string_view name, bool value) {
        text_ += fmt::format("    static constexpr bool {} = {};\n", name, value);
    }
    void line(std::string_view line) { text_ += fmt::format("    {}\n", line); }
    std::string text(const std::string& functions = {}) const {
        return "struct Config {\n" + text_ + functions + "};\n";
    }

  private:
    std::string text_;
};

ConfigStruct common_attention_config(const KernelConfig& kernel) {
    ConfigStruct config;
    config.type("Element", element_type(kernel.dtype));
    config.type("Index", index_type(kernel.index_dtype));
    config.constant("head_dim_qk", kernel.head_dim_qk);
    config.constant("head_dim_vo", kernel.head_dim_vo);
    config.constant("tile_q", kernel.tile_q);
    config.constant("tile_kv", kernel.tile_kv);
    config.constant("stages", kernel.stages);
    config.flag("queries_in_registers", kernel.queries_in_registers);
    config.flag("paged", kernel.paged);
    config.flag("softcap", kernel.softcap);
    config.flag("alibi", kernel.alibi);
    return config;
}

std::string attention_mma_config(const KernelConfig& kernel) {
    ConfigStruct config = common_attention_config(kernel);
    config.constant("warps_q", kernel.warps_q);
    config.constant("warps_kv", kernel.warps_kv);
    config.constant("alignment", kernel.alignment);
    config.line("static constexpr abi::AttentionShape shape{head_dim_qk, head_dim_vo, tile_q,   tile_kv,");
    config.line("                                           stages,      warps_q,     warps_kv, paged};");
    return config.text();
}

// A member function that issues one wgmma.mma_async m64nNk16: d[N / 8][4] = A B, or += where `add`, with B in
// shared memory, by rows where `transposed`. PTX gives the instruction one operand a register, so it is
// written out for its N.
std::string wgmma_function(std::string_view name, DType dtype, int n, bool a_in_registers, bool transposed) {
    const int count = n / 2;
    std::string d, outputs;
    for (int i = 0; i < count; ++i) {
        d += fmt::format("{}%{}", i == 0 ? "" : ",", i);
        outputs += fmt::format("{}\"+f\"(d[{}][{}])", i == 0 ? "" : ", ", i / 4, i % 4);
    }
    const int a_operands = a_in_registers ? 4 : 1;
    const int b = count + a_operands, add = b + 1;
    const std::string a = a_in_registers
                              ? fmt::format("{{%{}, %{}, %{}, %{}}}", count, count + 1, count + 2, count + 3)
                              : fmt::format("%{}", count);
    // Signs, and of matrices in shared memory whether they are transposed.
    const std::string immediates = fmt::format("1, 1, {}{}", a_in_registers ? "" : "0, ", transposed ? 1 : 0);
    return fmt::format(
        "    static __device__ void {}(float (&d)[{}][4], {}, uint64 b, int32 add) {{\n"
        "        asm volatile(\"{{.reg .pred add; setp.ne.b32 add, %{}, 0; \"\n"
        "            \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {{{}}}, {}, %{}, add, {};}}\"\n"
        "            : {}\n"
        "            : {}, \"l\"(b), \"r\"(add));\n"
        "    }}\n",
        name, n / 8, a_in_registers ? "const uint32 (&a)[4]" : "uint64 a", add, n, element_type(dtype),
        element_type(dtype), d, a, b, immediates, outputs,
        a_in_registers ? R"("r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))" : R"("l"(a))");
}

std::string attention_wgmma_config(const KernelConfig& kernel) {
    const planner::WarpgroupRegisters registers = planner::warpgroup_registers(kernel);
    ConfigStruct config = common_attention_config(kernel);
    config.constant("consumers", kernel.tile_q / abi::kWgmmaRows);
    config.flag("gather", kernel.gather);
    config.constant("consumer_registers", registers.consumer);
    config.constant("producer_registers", registers.producer);
    config.line("static constexpr abi::WgmmaShape shape{head_dim_qk, head_dim_vo, tile_q, tile_kv, stages};");
    return config.text(
        wgmma_function("multiply_queries", kernel.dtype, kernel.tile_kv, kernel.queries_in_registers, false) +
        wgmma_function("multiply_values", kernel.dtype, kernel.head_dim_vo, true, true));
}

std::string merge_config(const KernelConfig& kernel) {
    ConfigStruct config;
    config.type("Element", element_type(kernel.dtype));
    config.type("Index", index_type(kernel.index_dtype));
    config.constant("head_dim_vo", kernel.head_dim_vo);
    config.constant("tile_q", kernel.tile_q);
    config.constant("alignment", kernel.alignment);
    config.flag("paged", kernel.paged);
    return config.text();
}

std::string merge_states_config(const KernelConfig& kernel) {
    ConfigStruct config;
    config.type("Element", element_type(kernel.dtype));
    config.constant("head_dim_vo", kernel.head_dim_vo);
    config.constant("tile_q", kernel.tile_q);
    config.constant("threads", kernel.threads());
    config.constant("alignment", kernel.alignment);
    return config.text();
}

struct Template {
    std::string config;
    std::string arguments;     // the parameter's type, of abi/
    std::string shared_bytes;  // an expression
};

Template template_of(const KernelConfig& kernel) {
    switch (kernel.family) {
        case Family::attention_mma:
            return {attention_mma_config(kernel), "AttentionArguments",
                    "attnsmith::abi::attention_shared(attnsmith::Config::shape).total"};
        case Family::attention_wgmma:
            return {attention_wgmma_config(kernel), "WgmmaArguments",
                    "attnsmith::abi::wgmma_shared(attnsmith::Config::shape).total"};
        case Family::merge_splits:
            return {merge_config(kernel), "AttentionArguments", "0"};
        case Family::merge_states:
            return {merge_states_config(kernel), "MergeArguments", "0"};
    }
    throw Error("specialise: unknown kernel family");
}

}  // namespace

TranslationUnit specialise(const KernelConfig& kernel, const SpecialiseOptions& options) {
    const std::string_view family = planner::to_string(kernel.family);
    const Template parts = template_of(kernel);
    TranslationUnit unit;
    unit.entry = fmt::format("attnsmith_{}", family);
    unit.program.name = unit.entry + ".cu";
    unit.program.target = kernel.target;
    unit.program.source = fmt::format(
        "// {name}\n"
        "#include \"attention/{family}.cuh\"\n\n"
        "namespace attnsmith {{\n{config}}}  // namespace attnsmith\n\n"
        "extern \"C\" __global__ void __launch_bounds__({threads}, {ctas})\n"
        "{entry}(const __grid_constant__ attnsmith::abi::{arguments} arguments) {{\n"
        "    attnsmith::{family}<attnsmith::Config>(arguments);\n"
        "}}\n\n"
        "extern \"C\" __device__ unsigned {symbol} = {shared_bytes};\n",
        fmt::arg("name", kernel.name()), fmt::arg("family", family), fmt::arg("config", parts.config),
        fmt::arg("arguments", parts.arguments), fmt::arg("threads", kernel.threads()),
        fmt::arg("ctas", kernel.ctas_per_sm), fmt::arg("entry", unit.entry),
        fmt::arg("symbol", kSharedBytesSymbol), fmt::arg("shared_bytes", parts.shared_bytes));
    unit.program.headers = reachable_headers(unit.program.source);
    unit.program.options = {"--std=c++20", "--ptxas-options=-v"};
    if (options.line_info) unit.program.options.push_back("-lineinfo");
    return unit;
}

}  // namespace attnsmith::compiler
