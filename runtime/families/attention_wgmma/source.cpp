// The Config's product functions, which PTX has written out for each size.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "families/attention_wgmma/kernel.hpp"

namespace attnsmith::families::attention_wgmma {
namespace {

// A member function that issues all of a product's wgmma.mma_async m64nNk16, each for 16 more columns of A:
// d[N / 8][4] = A B, or += where `accumulate`. PTX gives an instruction one operand a register, so it is
// written out for its N. All are one asm statement: NVRTC takes a tenth longer where the hundred registers
// pass from one statement to the next.
struct Product {
    std::string_view name;
    std::string type{};  // of the elements, as PTX calls it
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
        text += fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {}, {}, b, add, {}; ",
                            product.n, product.type, product.type, registers(0, d_count),
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

}  // namespace

SourceParts source(const KernelConfig& config) {
    const auto kernel = config.as<Kernel>();
    const abi::WgmmaLayout layout = abi::wgmma_layout(kernel.shape());
    const abi::StorageBytes bytes = storage_bytes(kernel);
    const std::string type =
        Constant{"KeyValue", Constant::Kind::element, static_cast<int>(kernel.key_value)}.text();
    Product queries{.name = "multiply_queries", .type = type, .n = kernel.tile_kv};
    for (int column = 0; column < kernel.head_dim_qk; column += 16) {
        const auto offset = [&](int element_bytes, int panel_bytes) {
            const int columns = abi::wgmma_panel_columns(element_bytes);
            return column / columns * panel_bytes + column % columns * element_bytes;
        };
        if (!kernel.queries_in_registers) queries.a_steps.push_back(offset(bytes.query, layout.q_panel));
        queries.b_steps.push_back(offset(bytes.key_value, layout.kv_panel));
    }
    Product values{.name = "multiply_values",
                   .type = type,
                   .n = kernel.head_dim_vo,
                   .transposed = true,
                   .accumulate = true};
    for (int key = 0; key < kernel.tile_kv; key += 16) values.b_steps.push_back(key * abi::kWgmmaPanelBytes);
    return {.header = "attention/wgmma/kernel.cuh",
            .members =
                "    static constexpr abi::WgmmaShape shape{\n"
                "        head_dim_qk, head_dim_vo, tile_q, tile_kv, stages, gather, shares, absolute_cuts,\n"
                "        {sizeof(Query), sizeof(KeyValue), sizeof(Output)}};\n" +
                wgmma_function(queries) + wgmma_function(values),
            .arguments = "WgmmaArguments",
            .shared_bytes = "attnsmith::abi::wgmma_layout(attnsmith::Config::shape).total"};
}

}  // namespace attnsmith::families::attention_wgmma
