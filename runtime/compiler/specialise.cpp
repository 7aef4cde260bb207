#include "compiler/specialise.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

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

using Constants = std::vector<std::pair<std::string, std::string>>;

struct Config {
    std::string text;
    Constants constants;
};

class ConfigStruct {
  public:
    void type(std::string_view name, std::string_view type) {
        text_ += fmt::format("    using {} = {};\n", name, type);
        constants_.emplace_back(name, type);
    }
    void constant(std::string_view name, int value) { add("int", name, fmt::format("{}", value)); }
    void flag(std::string_view name, bool value) { add("bool", name, fmt::format("{}", value)); }
    void line(std::string_view line) { text_ += fmt::format("    {}\n", line); }
    Config written(const std::string& functions = {}) const {
        return {"struct Config {\n" + text_ + functions + "};\n", constants_};
    }

  private:
    void add(std::string_view type, std::string_view name, const std::string& value) {
        text_ += fmt::format("    static constexpr {} {} = {};\n", type, name, value);
        constants_.emplace_back(name, value);
    }

    std::string text_;
    Constants constants_;
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

Config attention_mma_config(const KernelConfig& kernel) {
    ConfigStruct config = common_attention_config(kernel);
    config.constant("warps_q", kernel.warps_q);
    config.constant("warps_kv", kernel.warps_kv);
    config.constant("alignment", kernel.alignment);
    config.line("static constexpr abi::AttentionShape shape{head_dim_qk, head_dim_vo, tile_q,   tile_kv,");
    config.line("                                           stages,      warps_q,     warps_kv, paged};");
    return config.written();
}

// A member function that issues all of a product's wgmma.mma_async m64nNk16, each for 16 more columns of A:
// d[N / 8][4] = A B, or += where `accumulate`. PTX gives an instruction one operand a register, so it is
// written out for its N. All are one asm statement: NVRTC takes a tenth longer where the hundred registers
// pass from one statement to the next.
struct Product {
    std::string_view name;
    DType dtype{};
    int n = 0;
    std::vector<int> a_steps{};  // bytes from A's start to each step's; none where A is in registers
    std::vector<int> b_steps{};
    bool transposed = false;  // B is stored by rows
    bool accumulate = false;
};

std::string wgmma_function(const Product& product) {
    const bool a_in_registers = product.a_steps.empty();
    const int d_count = product.n / 2;
    const int steps = static_cast<int>(product.b_steps.size());
    const auto registers = [](int first, int count) {
        std::string list;
        for (int i = 0; i < count; ++i) list += fmt::format("{}%{}", i == 0 ? "" : ",", first + i);
        return "{" + list + "}";
    };
    std::string d, a;
    for (int i = 0; i < d_count; ++i)
        d += fmt::format("{}\"{}f\"(d[{}][{}])", i == 0 ? "" : ", ", product.accumulate ? '+' : '=', i / 4,
                         i % 4);
    const int a_count = a_in_registers ? 4 * steps : 1;
    if (!a_in_registers) a = "\"r\"(a), ";
    for (int i = 0; a_in_registers && i < a_count; ++i) a += fmt::format("\"r\"(a[{}][{}]), ", i / 4, i % 4);

    // A step's matrix descriptor, see abi/attention_wgmma.h: the start's, so many bytes further.
    const auto descriptor = [&](std::string_view name, int start, int bytes) {
        return fmt::format("add.s32 start, %{}, {}; mov.b64 {}, {{start, {}}}; ", start, bytes / 16, name,
                           abi::kWgmmaDescriptorUpper);
    };
    // Signs, and of matrices in shared memory whether they are transposed.
    const std::string immediates =
        fmt::format("1, 1, {}{}", a_in_registers ? "" : "0, ", product.transposed ? 1 : 0);
    std::string text;
    for (int step = 0; step < steps; ++step) {
        const auto at = static_cast<std::size_t>(step);
        text += "\"\n            \"";
        if (step == 0) text += fmt::format("setp.ne.b32 add, {}, 0; ", product.accumulate ? 1 : 0);
        if (step == 1 && !product.accumulate) text += "setp.ne.b32 add, 1, 0; ";
        text += descriptor("b", d_count + a_count, product.b_steps[at]);
        if (!a_in_registers) text += descriptor("a", d_count, product.a_steps[at]);
        text +=
            fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {}, {}, b, add, {}; ", product.n,
                        element_type(product.dtype), element_type(product.dtype), registers(0, d_count),
                        a_in_registers ? registers(d_count + 4 * step, 4) : "a", immediates);
    }
    return fmt::format(
        "    static __device__ void {}(float (&d)[{}][4], {}, uint32 b) {{\n"
        "        asm volatile(\"{{.reg .pred add; .reg .b32 start; .reg .b64 a, b;{}}}\"\n"
        "            : {}\n"
        "            : {}\"r\"(b));\n"
        "    }}\n",
        product.name, product.n / 8,
        a_in_registers ? fmt::format("const uint32 (&a)[{}][4]", steps) : "uint32 a", text, d, a);
}

Config attention_wgmma_config(const KernelConfig& kernel) {
    const planner::WarpgroupRegisters registers = planner::warpgroup_registers(kernel);
    ConfigStruct config = common_attention_config(kernel);
    config.constant("consumers", kernel.tile_q / abi::kWgmmaRows);
    config.flag("gather", kernel.gather);
    config.constant("consumer_registers", registers.consumer);
    config.constant("producer_registers", registers.producer);
    config.line(
        "static constexpr abi::WgmmaShape shape{head_dim_qk, head_dim_vo, tile_q, tile_kv, stages, gather};");
    const abi::WgmmaShared shared = abi::wgmma_shared(planner::wgmma_shape(kernel));
    Product queries{.name = "multiply_queries", .dtype = kernel.dtype, .n = kernel.tile_kv};
    for (int column = 0; column < kernel.head_dim_qk; column += 16) {
        const int panel = column / abi::kWgmmaPanel, in_panel = column % abi::kWgmmaPanel * 2;
        if (!kernel.queries_in_registers) queries.a_steps.push_back(panel * shared.q_panel + in_panel);
        queries.b_steps.push_back(panel * shared.kv_panel + in_panel);
    }
    Product values{.name = "multiply_values",
                   .dtype = kernel.dtype,
                   .n = kernel.head_dim_vo,
                   .transposed = true,
                   .accumulate = true};
    for (int key = 0; key < kernel.tile_kv; key += 16) values.b_steps.push_back(key * abi::kWgmmaPanel * 2);
    return config.written(wgmma_function(queries) + wgmma_function(values));
}

Config merge_config(const KernelConfig& kernel) {
    ConfigStruct config;
    config.type("Element", element_type(kernel.dtype));
    config.type("Index", index_type(kernel.index_dtype));
    config.constant("head_dim_vo", kernel.head_dim_vo);
    config.constant("tile_q", kernel.tile_q);
    config.constant("alignment", kernel.alignment);
    config.flag("paged", kernel.paged);
    return config.written();
}

Config merge_states_config(const KernelConfig& kernel) {
    ConfigStruct config;
    config.type("Element", element_type(kernel.dtype));
    config.constant("head_dim_vo", kernel.head_dim_vo);
    config.constant("tile_q", kernel.tile_q);
    config.constant("threads", kernel.threads());
    config.constant("alignment", kernel.alignment);
    return config.written();
}

struct Template {
    Config config;
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
    Template parts = template_of(kernel);
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
        fmt::arg("name", kernel.name()), fmt::arg("family", family), fmt::arg("config", parts.config.text),
        fmt::arg("arguments", parts.arguments), fmt::arg("threads", kernel.threads()),
        fmt::arg("ctas", kernel.ctas_per_sm), fmt::arg("entry", unit.entry),
        fmt::arg("symbol", kSharedBytesSymbol), fmt::arg("shared_bytes", parts.shared_bytes));
    unit.constants = std::move(parts.config.constants);
    unit.program.headers = reachable_headers(unit.program.source);
    unit.program.options = {"--std=c++20", "--ptxas-options=-v"};
    if (options.line_info) unit.program.options.push_back("-lineinfo");
    return unit;
}

}  // namespace attnsmith::compiler
