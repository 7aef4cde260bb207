// Op mla: latents that are keys and values at once, in every storage, with the columns of the position beside
// them or apart, for any number of heads and queries.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

using Numbers = std::vector<std::int64_t>;

constexpr std::int64_t kLatent = 512, kPosition = 64;  // DeepSeek-V2's and V3's
constexpr double kScale = 0.13523;                     // 1/sqrt(192), times the square of YaRN's mscale

Case latent(DType dtype, std::int64_t q_heads, std::int64_t ckv = kLatent, std::int64_t kpe = kPosition) {
    Case test;
    test.spec.op = Op::mla;
    test.spec.dtype = dtype;
    test.spec.head_dim_ckv = ckv;
    test.spec.head_dim_kpe = kpe;
    test.spec.q_heads = q_heads;
    // As large as the models' is beside keys of 576 columns N(0, 1), whose products they keep smaller.
    test.spec.scale = kScale * std::sqrt(192.0) / std::sqrt(static_cast<double>(ckv + kpe)) / 2;
    test.spec.lse = true;
    return test;
}

Numbers all(std::int64_t batch, std::int64_t length) {
    return Numbers(static_cast<std::size_t>(batch), length);
}

// Lengths to 8k, a few of them long, some empty.
Numbers mixed_keys(std::int64_t batch) {
    Numbers keys;
    for (std::int64_t b = 0; b < batch; ++b)
        keys.push_back(b % 7 == 3 ? 0 : b % 11 == 5 ? 8192 - b : 1 + b * 37 % 700);
    return keys;
}

void add_batches(Catalogue& catalogue) {
    for (const std::int64_t batch : {1, 2, 7, 33, 64, 157}) {
        for (const DType dtype : {DType::fp16, DType::bf16}) {
            for (const std::int64_t page : {1, 16, 64}) {
                Case test = paged(latent(dtype, 16), page);
                test.layout.latents_apart = page == 16;
                test.layout.latent_heads = page == 64;
                add(catalogue, "mla", fmt::format("{} batch {} pages of {}", word(dtype), batch, page),
                    with_lengths(test, all(batch, 1), mixed_keys(batch)));
            }
        }
    }
}

void add_heads_and_queries(Catalogue& catalogue) {
    // Groups of more than 64 are divided, into equal parts and others, and by more of these than divide the
    // SMs.
    for (const std::int64_t heads : {1, 8, 9, 16, 32, 63, 64, 71, 126, 127, 128, 320}) {
        const DType dtype = heads % 2 == 0 ? DType::bf16 : DType::fp16;
        for (const std::int64_t queries : {1, 2, 3, 5, 16, 17}) {
            Case test = paged(causal(latent(dtype, heads)), queries % 2 == 0 ? 64 : 16);
            test.layout.latents_apart = queries % 3 == 0;
            add(catalogue, "mla", fmt::format("{} {} heads, {} queries causal", word(dtype), heads, queries),
                with_lengths(test, {queries, queries, 1, queries, 0}, {queries, 1000, 33, 4097, 50}));
            if (queries != 5) continue;
            test.spec.alignment = 8;  // where wgmma serves it leaves mma nothing on sm_90
            add(catalogue, "mla", fmt::format("{} {} heads, alignment 8", word(dtype), heads),
                with_lengths(test, {queries, 1, 1, queries, 0}, {queries, 1000, 33, 4097, 50}));
        }
    }
}

void add_storages(Catalogue& catalogue) {
    for (const bool apart : {false, true}) {
        for (const DType dtype : {DType::fp16, DType::bf16}) {
            Case test = latent(dtype, 20);
            test.layout.latents_apart = apart;
            test.layout.pad = 8;
            const std::string parts = apart ? "apart" : "in one";
            const Numbers queries{5, 1, 0, 17, 40}, keys{300, 2000, 64, 17, 39};
            for (const bool heads : {false, true}) {
                test.layout.latent_heads = heads;
                const std::string axes = heads ? ", with an axis of heads" : "";
                for (const Mask mask : {Mask::full, Mask::causal}) {
                    test.spec.mask = mask;
                    const std::string name =
                        fmt::format("{} {}{} {}", word(dtype), parts, axes, to_string(mask));
                    add(catalogue, "mla", name + " dense", with_lengths(dense(test), queries, keys));
                    add(catalogue, "mla", name + " ragged", with_lengths(ragged(test), queries, keys));
                    Case compressed = paged(test, 3);
                    compressed.page_list = check::PageList::compressed;
                    compressed.spec.index_dtype = DType::int64;
                    add(catalogue, "mla", name + " compressed int64",
                        with_lengths(compressed, queries, keys));
                    Case no_lse = paged(test, 5);
                    no_lse.spec.lse = false;
                    no_lse.spec.o_dtype = DType::fp32;
                    add(catalogue, "mla", name + " to fp32",
                        with_lengths(no_lse, {5, 1, 0, 17, 40}, {300, 900, 64, 17, 39}));
                }
            }
        }
    }
}

void add_latent_dims(Catalogue& catalogue) {
    for (const std::int64_t ckv : {64, 128, 192, 256, 320, 384, 448, 512}) {
        for (const std::int64_t kpe : {0, 8, 16, 24, 32, 48, 64}) {
            if (ckv % 128 != 0 && kpe % 16 != 0) continue;
            Case test = paged(causal(latent(kpe % 32 == 0 ? DType::bf16 : DType::fp16, 12, ckv, kpe)), 32);
            test.layout.latents_apart = ckv % 128 == 0;
            const std::string name = fmt::format("{}+{}", ckv, kpe);
            add(catalogue, "mla", name, with_lengths(test, {1, 4, 30}, {700, 65, 31}));
            if (kpe % 16 == 8)
                add(catalogue, "mla", name + " pages of 1",
                    with_lengths(paged(test, 1), {1, 4, 30}, {700, 65, 31}));
        }
    }
}

// Those that other SMs would take, too: sm_89's within its 99 KB, for one.
void add_kernels_of_latents(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        const Case test = paged(causal(latent(dtype, 48)), 64);
        add_over_kernels(catalogue, "mla", fmt::format("{} 48 heads", word(dtype)),
                         with_lengths(test, {1, 2, 9, 0}, {5000, 1, 300, 20}), Splitting::both);
    }
    for (const int alignment : {8, 4, 2}) {
        Case test = causal(latent(DType::bf16, 7));
        test.spec.alignment = alignment;
        test.layout.base = alignment / 2;
        test.layout.pad = alignment / 2;
        add(catalogue, "mla", fmt::format("alignment {}", alignment),
            with_lengths(dense(test), {3, 1, 20}, {500, 33, 20}));
    }
    Case bitwise = paged(causal(latent(DType::bf16, 16)), 64);
    bitwise.spec.consistency = Consistency::bitwise;
    for (const auto& [ckv, kpe] : {std::pair{512, 64}, {448, 0}, {448, 24}}) {
        bitwise.spec.head_dim_ckv = ckv, bitwise.spec.head_dim_kpe = kpe;
        add_over_kernels(catalogue, "mla", fmt::format("bitwise {}+{}", ckv, kpe),
                         with_lengths(bitwise, {1, 3, 64, 0}, {6000, 500, 64, 9}), Splitting::both);
    }
    bitwise.spec.head_dim_ckv = kLatent, bitwise.spec.head_dim_kpe = kPosition;
    for (const std::int64_t kpe : {0, 8, 24, 48}) {  // an odd number of 16 columns, for slices of 8 keys
        Case narrow = paged(causal(latent(DType::fp16, 24, 256, kpe)), 32);
        narrow.layout.latents_apart = true;
        narrow.spec.consistency = Consistency::bitwise;
        add(catalogue, "mla", fmt::format("bitwise 256+{}", kpe),
            with_lengths(narrow, {1, 3, 64, 0}, {3000, 500, 64, 9}));
    }
    bitwise.spec.q_heads = 128;
    add(catalogue, "mla", "bitwise, 128 heads", with_lengths(bitwise, {1, 3, 1}, {6000, 500, 64}));
}

void add_evicted_latents(Catalogue& catalogue) {
    // One call for batches of other lengths, with sequences that come and go.
    Case test = paged(causal(latent(DType::bf16, 128)), 64);
    test.spare_table_rows = 5;
    test = with_lengths(test, all(9, 1), {100, 0, 8000, 1, 64, 65, 4000, 777, 2});
    test = with_lengths(test, all(9, 1), {0, 0, 0, 0, 0, 0, 0, 0, 0});
    test = with_lengths(test, {1, 0, 1, 0, 1, 0, 1, 0, 1}, {8000, 5, 3, 5, 1, 5, 900, 5, 64});
    add(catalogue, "mla", "one call, many lengths", test);
    Case beside = paged(causal(latent(DType::fp16, 16)), 16);
    beside = with_lengths(beside, {1, 1, 300, 1, 0, 33}, {5000, 1, 3000, 0, 70, 33});
    add(catalogue, "mla", "a chunk beside decodes", beside);
}

}  // namespace

void add_mla(Catalogue& catalogue) {
    add_batches(catalogue);
    add_heads_and_queries(catalogue);
    add_storages(catalogue);
    add_latent_dims(catalogue);
    add_kernels_of_latents(catalogue);
    add_evicted_latents(catalogue);
}

}  // namespace attnsmith::gpu_tests
