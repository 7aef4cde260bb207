// Op merge by itself: random states against an fp64 merge.
#include <fmt/format.h>

#include "catalogue.hpp"
#include "check/merge.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::MergeCase;
using check::MergeLse;

MergeCase merge(DType dtype, std::int64_t head_dim, std::int64_t heads, std::int64_t tokens, int states) {
    MergeCase test;
    test.spec.op = Op::merge;
    test.spec.dtype = dtype;
    test.spec.head_dim_vo = head_dim;
    test.spec.q_heads = heads;
    test.spec.lse = true;
    test.tokens = tokens;
    test.states = states;
    return test;
}

void add_case(Catalogue& catalogue, const std::string& name, MergeCase test) {
    test.group = "merge";
    test.name = name;
    TestCase entry{
        test.group, name, {}, [spec = test.spec](Runtime& runtime) { (void)runtime.prepare(spec, {}); }};
    entry.run = [test = std::move(test)](const Context& context) {
        return check::run_merge(context.runtime, test, context.run_options());
    };
    catalogue.push_back(std::move(entry));
}

// Every head dim; tokens and heads so that rows fill no CTA evenly.
void add_head_dims(Catalogue& catalogue) {
    for (std::int64_t dim = 8; dim <= 512; dim += dim < 264 ? 8 : 248) {
        const DType dtype = dim % 16 == 0 ? DType::bf16 : DType::fp16;
        add_case(catalogue, fmt::format("dim {} {}", dim, word(dtype)), merge(dtype, dim, 3, 37, 3));
        if (dim % 64 != 0) continue;
        add_case(catalogue, fmt::format("dim {} f16", dim), merge(DType::fp16, dim, 5, 41, 2));
    }
}

void add_state_counts(Catalogue& catalogue) {
    for (int states = 1; states <= static_cast<int>(MergeTensors::kMaxStates); ++states) {
        const DType dtype = states % 2 ? DType::fp16 : DType::bf16;
        MergeCase test = merge(dtype, 64, 4, 19, states);
        test.lse = states % 3 == 0 ? MergeLse::gaps : MergeLse::near;
        test.spec.lse = states % 4 != 0;
        add_case(catalogue, fmt::format("{} states", states), test);
    }
}

void add_sizes(Catalogue& catalogue) {
    for (const std::int64_t tokens : {0, 1, 2, 31, 1000})
        add_case(catalogue, fmt::format("{} tokens", tokens), merge(DType::bf16, 128, 8, tokens, 2));
    for (const std::int64_t heads : {1, 7, 32, 128})
        add_case(catalogue, fmt::format("{} heads", heads), merge(DType::fp16, 128, heads, 33, 4));
    add_case(catalogue, "one row of 8", merge(DType::fp16, 8, 1, 1, 2));
    add_case(catalogue, "many rows of 8", merge(DType::bf16, 8, 16, 5000, 2));
    MergeCase without = merge(DType::bf16, 128, 8, 100, 3);
    without.spec.lse = false;
    add_case(catalogue, "no lse", without);
}

void add_values(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        const std::string name = word(dtype);
        MergeCase test = merge(dtype, 128, 4, 50, 5);
        test.lse = MergeLse::large;
        add_case(catalogue, name + " large lse", test);
        test.lse = MergeLse::gaps;
        add_case(catalogue, name + " states without keys, o NaN", test);
        test.lse = MergeLse::no_keys;
        add_case(catalogue, name + " no keys at all, o NaN", test);
        test.lse = MergeLse::near;
        for (const int state : {0, 4}) {
            test.nan_state = state;
            add_case(catalogue, fmt::format("{} a NaN lse in state {}", name, state), test);
        }
        // fmaxf passes over a NaN: it must not be taken for a row without keys.
        MergeCase lone = merge(dtype, 64, 2, 3, 1);
        lone.nan_state = 0;
        add_case(catalogue, name + " a NaN lse alone", lone);
    }
}

void add_layouts(Catalogue& catalogue) {
    for (const int alignment : {16, 8, 4, 2}) {
        const std::int64_t unit = alignment / 2;  // elements
        for (const DType dtype : {DType::fp16, DType::bf16}) {
            for (const std::int64_t dim : {64, 72}) {
                // Bases and strides that meet this class and no higher one.
                MergeCase test = merge(dtype, dim, 6, 45, 5);
                test.spec.alignment = alignment;
                test.pad = test.base = unit;
                test.lse_stride = 3;
                test.lse = MergeLse::gaps;
                const std::string name = fmt::format("{} {} aligned to {}", word(dtype), dim, alignment);
                add_case(catalogue, name, test);
                test.heads_first = true;
                add_case(catalogue, name + " [h, tokens, d]", test);
            }
        }
    }
}

void add_in_place(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        for (const auto& [states, place] : {std::pair{1, 0}, {2, 0}, {2, 1}, {9, 4}, {32, 31}}) {
            MergeCase test = merge(dtype, 128, 8, 77, states);
            test.in_place = place;
            test.lse = MergeLse::gaps;
            test.spec.lse = states != 9;
            add_case(catalogue, fmt::format("{} {} states in place of {}", word(dtype), states, place), test);
        }
    }
    MergeCase strided = merge(DType::bf16, 40, 6, 77, 3);
    strided.in_place = 1;
    strided.pad = 8;
    strided.lse_stride = 2;
    strided.heads_first = true;
    add_case(catalogue, "strided in place", strided);
}

}  // namespace

void add_merge(Catalogue& catalogue) {
    add_head_dims(catalogue);
    add_state_counts(catalogue);
    add_sizes(catalogue);
    add_values(catalogue);
    add_layouts(catalogue);
    add_in_place(catalogue);
}

}  // namespace attnsmith::gpu_tests
