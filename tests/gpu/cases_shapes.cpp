// Head dims, head counts and sequence lengths.
#include <fmt/format.h>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

struct Dims {
    std::int64_t qk, vo;
};

constexpr Dims kDims[] = {{8, 8},     {16, 16},   {24, 24},   {40, 40},   {64, 64},   {72, 72},   {80, 80},
                          {96, 96},   {112, 112}, {120, 120}, {128, 128}, {160, 160}, {192, 192}, {200, 200},
                          {248, 248}, {256, 256}, {192, 128}, {64, 128},  {128, 64},  {256, 64},  {64, 256},
                          {72, 40},   {264, 264}, {320, 320}, {384, 384}, {488, 488}, {512, 512}, {320, 256},
                          {256, 320}, {512, 64},  {72, 512}};

std::string dims_word(const Dims& dims) {
    return dims.qk == dims.vo ? fmt::format("{}", dims.qk) : fmt::format("{}/{}", dims.qk, dims.vo);
}

struct Heads {
    std::int64_t q, kv;
};

constexpr Heads kHeads[] = {{1, 1}, {3, 3},  {4, 2},  {6, 2},  {8, 2},  {10, 2}, {14, 2},
                            {8, 1}, {16, 1}, {32, 1}, {71, 1}, {28, 4}, {12, 4}, {64, 8}};

void add_prefill_lengths(Catalogue& catalogue, bool is_causal) {
    for (const std::int64_t n :
         {1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 255, 257, 1000, 2048}) {
        const DType dtype = n % 2 ? DType::fp16 : DType::bf16;
        Case test = with_lengths(dense(attention(dtype, 128, 4, 2)), {n, n});
        test.spec.lse = true;
        add(catalogue, "lengths", fmt::format("prefill {}{}", n, is_causal ? " causal" : ""),
            is_causal ? causal(test) : test);
    }
}

void add_unequal_lengths(Catalogue& catalogue) {
    constexpr std::pair<std::int64_t, std::int64_t> kPairs[] = {
        {1, 2},    {1, 64},     {2, 65},     {3, 1000},  {16, 17},  {17, 300}, {64, 129},
        {65, 512}, {100, 1033}, {128, 2000}, {2, 1},     {17, 16},  {64, 63},  {100, 1},
        {129, 64}, {200, 77},   {300, 17},   {257, 256}, {500, 130}};
    for (const auto& [q, kv] : kPairs) {
        Case test = with_lengths(ragged(causal(attention(DType::fp16, 64, 4, 2))), {q, q, 1}, {kv, kv, kv});
        test.spec.lse = true;
        add(catalogue, "causal", fmt::format("q {} kv {}", q, kv), test);
        add(catalogue, "lengths", fmt::format("q {} kv {}", q, kv),
            with_lengths(ragged(attention(DType::bf16, 64, 4, 2)), {q, 2, q}, {kv, kv, kv}));
    }
}

Case maybe(Case test, bool sink, bool lse) {
    test.spec.sink = sink;
    test.spec.lse = lse;
    return test;
}

void add_empty_of(Catalogue& catalogue, const std::string& name, const Case& base) {
    for (const bool sink : {false, true}) {
        const std::string suffix = sink ? " sink" : "";
        const Case with_sink = maybe(base, sink, true);
        add(catalogue, "empty", name + " some" + suffix,
            with_lengths(with_sink, {0, 40, 0, 7, 30, 0}, {0, 40, 90, 0, 130, 0}));
        add(catalogue, "empty", name + " all kv" + suffix, with_lengths(with_sink, {5, 1, 70}, {0, 0, 0}));
        Case nothing = with_lengths(with_sink, {0, 0, 0}, {0, 0, 0});
        nothing.slack = 4;
        nothing.sizes = PlanSizes{3, 16, 16};
        add(catalogue, "empty", name + " everything" + suffix, nothing);
        Case no_queries = with_lengths(with_sink, {0, 0}, {33, 64});
        no_queries.slack = 1;
        no_queries.sizes = PlanSizes{2, 16, 64};
        add(catalogue, "empty", name + " all q" + suffix, no_queries);
    }
}

void add_empty(Catalogue& catalogue) {
    const Case base = causal(attention(DType::bf16, 64, 4, 2));
    add_empty_of(catalogue, "dense", dense(base));
    add_empty_of(catalogue, "ragged", ragged(base));
    add_empty_of(catalogue, "paged", paged(base));
    Case compressed = paged(base);
    compressed.page_list = check::PageList::compressed;
    add_empty_of(catalogue, "compressed", compressed);
    // Tensors that have no element at all.
    Case no_rows = with_lengths(ragged(base), {0, 0}, {0, 0});
    no_rows.sizes = PlanSizes{2, 1, 1};
    add(catalogue, "empty", "tensors of no tokens", no_rows);
    Case decode = with_lengths(maybe(paged(attention(DType::fp16, 128, 8, 2)), true, true), {1, 1, 1, 1},
                               {0, 5000, 0, 1});
    add(catalogue, "empty", "decode beside a long sequence", decode);
}

}  // namespace

void add_dims(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        for (const Dims& dims : kDims) {
            Case prefill = with_lengths(dense(causal(attention(dtype, dims.qk, dims.vo, 4, 2))), {133, 70});
            prefill.spec.lse = dims.qk % 16 == 0;
            add(catalogue, "dims", fmt::format("{} {} prefill", word(dtype), dims_word(dims)), prefill);
            Case decode = with_lengths(paged(attention(dtype, dims.qk, dims.vo, 8, 2)), {1, 1, 1, 1, 1, 1, 1},
                                       {300, 17, 1, 64, 129, 16, 700});
            decode.spec.lse = dims.qk % 16 != 0;
            add(catalogue, "dims", fmt::format("{} {} decode", word(dtype), dims_word(dims)), decode);
        }
    }
}

void add_heads(Catalogue& catalogue) {
    for (const Heads& heads : kHeads) {
        const std::string name = fmt::format("{}:{}", heads.q, heads.kv);
        const Case base = attention(DType::bf16, 64, heads.q, heads.kv);
        add(catalogue, "heads", name + " prefill",
            with_lengths(ragged(causal(base)), {37, 1, 80}, {150, 64, 80}));
        Case decode = with_lengths(paged(base), {1, 1, 1, 1}, {300, 17, 1, 65});
        decode.spec.lse = true;
        decode.spec.sink = true;  // one sink a query head shows that heads of a group are told apart
        add(catalogue, "heads", name + " decode", decode);
        // A few queries a sequence: group and queries share the tile of rows.
        add(catalogue, "heads", name + " speculative",
            with_lengths(dense(causal(base)), {3, 3, 3}, {100, 100, 100}));
    }
}

void add_lengths(Catalogue& catalogue) {
    add_prefill_lengths(catalogue, false);
    add_prefill_lengths(catalogue, true);
    add_unequal_lengths(catalogue);
    std::vector<std::int64_t> every;
    for (std::int64_t n = 0; n <= 140; ++n) every.push_back(n);
    add(catalogue, "lengths", "every length to 140",
        with_lengths(ragged(causal(attention(DType::fp16, 64, 2, 1))), every));
    std::vector<std::int64_t> ones(every.size(), 1);
    add(catalogue, "lengths", "decode of every length to 140",
        with_lengths(paged(attention(DType::fp16, 128, 4, 1)), ones, every));
    add(catalogue, "lengths", "batch of 3000",
        with_lengths(ragged(attention(DType::bf16, 64, 2, 1)), std::vector<std::int64_t>(3000, 1),
                     std::vector<std::int64_t>(3000, 5)));
    add_empty(catalogue);
}

}  // namespace attnsmith::gpu_tests
