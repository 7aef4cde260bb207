// What the source of a wgmma kernel states beside its constants: the products that it consists of.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "families/attention_wgmma/kernel.hpp"

namespace attnsmith::families::attention_wgmma {
namespace {

// A product that the Config states (kernel_templates/common/wgmma_product.cuh).
struct Product {
    std::string_view name;
    int n = 0;      // columns of B
    int steps = 0;  // of 16 columns of A
    bool a_in_registers = false;
    bool of_values = false;   // B is V, stored by rows
    bool accumulates = true;  // else d is overwritten
};

std::string declaration(const Kernel& kernel, const Product& product) {
    const DType multiplied = abi::is_quantized(kernel.operand_stage) ? kWidenedTo : kernel.key_value;
    return fmt::format(
        "    ATTNSMITH_WGMMA_{}({}, {}, {}, {}, {}, {})\n", product.a_in_registers ? "REGISTERS" : "TILE",
        product.name, Constant{"", Constant::Kind::element, static_cast<int>(multiplied)}.text(), product.n,
        product.steps, product.of_values ? "VALUES" : "KEYS", product.accumulates ? "ADD" : "SET");
}

int steps_of(int columns) { return abi::padded_head_dim(columns) / 16; }

// S = Q K^T, and O += P V with P in registers.
std::vector<Product> products(const Kernel& kernel) {
    return {{.name = "multiply_queries",
             .n = kernel.tile_kv,
             .steps = steps_of(kernel.head_dim_qk),
             .a_in_registers = kernel.queries_in_registers,
             .accumulates = false},
            {.name = "multiply_values",
             .n = kernel.head_dim_vo,
             .steps = steps_of(kernel.tile_kv),
             .a_in_registers = true,
             .of_values = true}};
}

// S is a sum over pieces of the columns, and of latents over the position's, which are in a panel; O is made
// in pieces, by weights from shared memory.
std::vector<Product> wide_products(const Kernel& kernel) {
    const int columns = abi::piece_columns(kernel.shape(), false);
    const auto queries = [&](std::string_view name, int of_columns, bool accumulates) {
        return Product{
            .name = name, .n = kernel.tile_kv, .steps = steps_of(of_columns), .accumulates = accumulates};
    };
    std::vector<Product> all{queries("multiply_first_queries", columns, false),
                             queries("multiply_more_queries", columns, true),
                             {.name = "multiply_values",
                              .n = abi::piece_columns(kernel.shape(), true),
                              .steps = steps_of(kernel.tile_kv),
                              .of_values = true}};
    if (kernel.latent && kernel.head_dim_qk > 0)
        all.push_back(queries("multiply_positions", kernel.head_dim_qk, true));
    return all;
}

}  // namespace

SourceParts source(const KernelConfig& config) {
    const auto kernel = config.as<Kernel>();
    std::string functions;
    for (const Product& product : kernel.is_wide() ? wide_products(kernel) : products(kernel))
        functions += declaration(kernel, product);
    return {.header = "attention/wgmma/kernel.cuh",
            .members =
                "    static constexpr abi::PersistentShape shape =\n"
                "        abi::persistent_shape(Constants{}, abi::storage_bytes<Constants>());\n" +
                functions,
            .arguments = "PersistentArguments",
            .shared_bytes = "attnsmith::abi::persistent_layout(attnsmith::Config::shape).total"};
}

}  // namespace attnsmith::families::attention_wgmma
