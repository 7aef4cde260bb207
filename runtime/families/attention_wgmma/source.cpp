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

// Where a column of a tile lies, from the tile's first.
int column_offset(int column, int element_bytes, int panel_bytes) {
    const int columns = abi::wgmma_panel_columns(element_bytes);
    return column / columns * panel_bytes + column % columns * element_bytes;
}

// What is multiplied.
std::string element_of(const Kernel& kernel) {
    const DType widened = abi::wgmma_widens(kernel.shape()) ? kWidenedTo : kernel.key_value;
    return Constant{"KeyValue", Constant::Kind::element, static_cast<int>(widened)}.text();
}

// O += P V, where V has so many columns. P is in registers.
Product product_with_values(const Kernel& kernel, int columns) {
    Product values{.name = "multiply_values",
                   .type = element_of(kernel),
                   .n = columns,
                   .transposed = true,
                   .accumulate = true};
    for (int key = 0; key < kernel.tile_kv; key += 16) values.b_steps.push_back(key * abi::kWgmmaPanelBytes);
    return values;
}

std::vector<Product> products(const Kernel& kernel) {
    const abi::WgmmaLayout layout = abi::wgmma_layout(kernel.shape());
    const abi::StorageBytes bytes = storage_bytes(kernel);
    Product queries{.name = "multiply_queries", .type = element_of(kernel), .n = kernel.tile_kv};
    for (int column = 0; column < kernel.head_dim_qk; column += 16) {
        if (!kernel.queries_in_registers)
            queries.a_steps.push_back(column_offset(column, bytes.query, layout.q_panel));
        queries.b_steps.push_back(column_offset(column, abi::kWgmmaOperandBytes, layout.kv_panel));
    }
    return {queries, product_with_values(kernel, kernel.head_dim_vo)};
}

// S is a sum over pieces of the columns, and of latents over the position's, which are in a panel; O is made
// in pieces, by weights from shared memory.
std::vector<Product> wide_products(const Kernel& kernel) {
    const abi::WgmmaLayout layout = abi::wgmma_layout(kernel.shape());
    const abi::StorageBytes bytes = storage_bytes(kernel);
    const int columns = abi::wgmma_piece_columns(kernel.shape(), false);
    const auto queries = [&](std::string_view name, int of_columns, bool accumulate) {
        Product product{
            .name = name, .type = element_of(kernel), .n = kernel.tile_kv, .accumulate = accumulate};
        for (int column = 0; column < of_columns; column += 16) {
            product.a_steps.push_back(column_offset(column, bytes.query, layout.q_panel));
            product.b_steps.push_back(column_offset(column, abi::kWgmmaOperandBytes, layout.kv_panel));
        }
        return product;
    };
    Product values = product_with_values(kernel, abi::wgmma_piece_columns(kernel.shape(), true));
    for (int key = 0; key < kernel.tile_kv; key += 16)
        values.a_steps.push_back(key * abi::kWgmmaOperandBytes);
    std::vector<Product> all{queries("multiply_first_queries", columns, false),
                             queries("multiply_more_queries", columns, true), values};
    if (kernel.latent && kernel.head_dim_qk > 0)
        all.push_back(queries("multiply_positions", kernel.head_dim_qk, true));
    return all;
}

}  // namespace

SourceParts source(const KernelConfig& config) {
    const auto kernel = config.as<Kernel>();
    std::string functions;
    for (const Product& product : kernel.is_wide() ? wide_products(kernel) : products(kernel))
        functions += wgmma_function(product);
    return {.header = "attention/wgmma/kernel.cuh",
            .members =
                "    static constexpr abi::WgmmaShape shape{\n"
                "        head_dim_qk, head_dim_vo, tile_q, tile_kv, stages, gather, shares, absolute_cuts, "
                "latent,\n"
                "        {sizeof(Query), sizeof(KeyValue), sizeof(Output), sizeof(Position)}};\n" +
                functions,
            .arguments = "WgmmaArguments",
            .shared_bytes = "attnsmith::abi::wgmma_layout(attnsmith::Config::shape).total"};
}

}  // namespace attnsmith::families::attention_wgmma
