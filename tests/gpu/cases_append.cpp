// Op append: every byte of the cache, of the written q and of the memory around them, against a reference
// that does the same operations on the CPU.
#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "catalogue.hpp"
#include "check/append.hpp"
#include "cuda_driver.hpp"

namespace attnsmith::gpu_tests {
namespace {

using check::AppendCase;
using check::IndexArrays;
using check::PageList;

// Three sequences: a few new tokens behind others, one alone, and a whole prompt.
AppendCase append(DType dtype, std::int64_t head_dim, std::int64_t q_heads, std::int64_t kv_heads) {
    AppendCase test;
    test.spec.op = Op::append;
    test.spec.dtype = dtype;
    test.spec.head_dim_qk = head_dim;
    test.spec.q_heads = q_heads;
    test.spec.kv_heads = kv_heads;
    test.q_lens = {3, 1, 21};
    test.kv_lens = {40, 17, 21};
    return test;
}

AppendCase latents(DType dtype, std::int64_t ckv, std::int64_t kpe, std::int64_t q_heads) {
    AppendCase test = append(dtype, 0, q_heads, 1);
    test.spec.head_dim_ckv = ckv;
    test.spec.head_dim_kpe = kpe;
    test.has_q = kpe > 0;
    return test;
}

AppendCase paged(AppendCase test, std::int64_t page_size, PageOrder order = PageOrder::NHD) {
    test.spec.kv = KvStorage::paged;
    test.spec.page_size = page_size;
    test.spec.page_order = order;
    return test;
}

AppendCase by_table(AppendCase test) {
    test.spec.slots = Slots::table;
    return test;
}

AppendCase rotated(AppendCase test, Rope rope, std::int64_t rotary_dim = 0) {
    test.spec.rope = rope;
    test.spec.rotary_dim = rotary_dim;
    return test;
}

AppendCase normed(AppendCase test, bool values = false) {
    test.spec.k_norm = true;
    test.spec.q_norm = test.spec.head_dim_ckv == 0;
    test.spec.v_norm = values;
    return test;
}

AppendCase stored_as(AppendCase test, DType kv_dtype, KvScale scale = KvScale::none) {
    test.spec.kv_dtype = kv_dtype;
    test.spec.kv_scale = scale;
    return test;
}

void add_case(Catalogue& catalogue, const std::string& name, AppendCase test) {
    test.group = "append";
    test.name = name;
    TestCase entry{
        test.group, name, {}, [spec = test.spec](Runtime& runtime) { (void)runtime.prepare(spec, {}); }};
    entry.run = [test = std::move(test)](const Context& context) {
        return check::run_append(context.runtime, test, context.run_options());
    };
    catalogue.push_back(std::move(entry));
}

const char* word_of(Rope rope) { return rope == Rope::half ? "half" : "interleaved"; }

// Every way to say where tokens go, for both inputs.
void add_storages(Catalogue& catalogue) {
    for (const bool table : {false, true}) {
        const std::string slots = table ? "table" : "mapping";
        for (const bool in_a_row : {true, false}) {
            const std::string form = in_a_row ? "tokens" : "batch";
            const auto with = [&](AppendCase test) {
                test.in_a_row = in_a_row;
                return rotated(table ? by_table(test) : test, Rope::half);
            };
            add_case(catalogue, fmt::format("dense {} {}", slots, form),
                     with(append(DType::bf16, 128, 4, 2)));
            for (const std::int64_t page_size : {1, 16, 64, 24}) {
                for (const PageOrder order : {PageOrder::NHD, PageOrder::HND}) {
                    add_case(catalogue,
                             fmt::format("pages of {} {} {} {}", page_size, to_string(order), slots, form),
                             with(paged(append(DType::bf16, 128, 4, 2), page_size, order)));
                }
            }
        }
    }
    AppendCase compressed = by_table(paged(rotated(append(DType::fp16, 64, 4, 2), Rope::half), 16));
    compressed.page_list = PageList::compressed;
    add_case(catalogue, "compressed pages", compressed);
    AppendCase rows = by_table(paged(rotated(append(DType::fp16, 64, 4, 2), Rope::half), 16));
    rows.table_rows = true;
    rows.q_lens = {3, 1, 3}, rows.kv_lens = {21, 17, 21};  // as many keys in the row that another has
    add_case(catalogue, "table rows in another order", rows);
    AppendCase one = paged(append(DType::bf16, 128, 4, 2), 16);
    one.one_cache = true;
    add_case(catalogue, "k and v in one cache", one);
}

void add_head_dims(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        for (const std::int64_t dim : {8, 64, 72, 80, 96, 128, 200, 256, 264, 512}) {
            const AppendCase test = paged(append(dtype, dim, 5, 5), 16);
            add_case(catalogue, fmt::format("dim {} {}", dim, word(dtype)), test);
            for (const Rope rope : {Rope::half, Rope::interleaved})
                add_case(catalogue,
                         fmt::format("dim {} {} normed and rotated, {}", dim, word(dtype), word_of(rope)),
                         normed(rotated(test, rope), rope == Rope::half));
        }
        AppendCase unequal = paged(append(dtype, 192, 6, 3), 16);
        unequal.spec.head_dim_vo = 128;
        add_case(catalogue, fmt::format("dim 192x128 {}", word(dtype)),
                 normed(rotated(unequal, Rope::half), true));
        add_case(catalogue, fmt::format("dim 192x128 {} to e4m3", word(dtype)),
                 stored_as(rotated(unequal, Rope::half), DType::e4m3, KvScale::head));
    }
}

// Rotary columns that end within chunks of 8, halves that begin within them, and rows of two chunks a lane.
void add_rotations(Catalogue& catalogue) {
    for (const auto& [dim, rotary] : {std::pair<std::int64_t, std::int64_t>{128, 64},
                                      {128, 2},
                                      {128, 20},
                                      {96, 24},
                                      {80, 32},
                                      {64, 62},
                                      {256, 64},
                                      {512, 128},
                                      {512, 256},
                                      {512, 300},
                                      {512, 384},
                                      {512, 510}}) {
        for (const Rope rope : {Rope::half, Rope::interleaved}) {
            AppendCase test = normed(rotated(append(DType::bf16, dim, 4, 2), rope, rotary));
            test.table_in_fp32 = rotary % 4 != 0;
            test.weights_in_fp32 = rotary % 8 != 0;
            add_case(catalogue, fmt::format("{} of {} columns, {}", rotary, dim, word_of(rope)), test);
        }
    }
    for (const Rope rope : {Rope::half, Rope::interleaved}) {
        for (const std::int64_t rotary : {128, 20}) {
            AppendCase test = rotated(append(DType::bf16, 128, 4, 2), rope, rotary);
            test.spec.rope_table = RopeTable::frequencies;
            add_case(catalogue, fmt::format("frequencies, {} of 128 columns, {}", rotary, word_of(rope)),
                     test);
            test.spec.rope_factor = 1.25;
            for (const std::int64_t far : {5000, 131071, 1048575, 16777217, 1000000007})
                test.positions.emplace_back(static_cast<std::int64_t>(test.positions.size()), far);
            add_case(catalogue,
                     fmt::format("frequencies of far positions, {} columns, {}", rotary, word_of(rope)),
                     test);
        }
    }
    AppendCase own = by_table(paged(rotated(append(DType::fp16, 128, 4, 2), Rope::half), 16));
    own.own_positions = true;
    add_case(catalogue, "positions that are not by length", own);
}

void add_stored(Catalogue& catalogue) {
    for (const DType stored : {DType::e4m3, DType::e5m2}) {
        for (const KvScale scale : {KvScale::none, KvScale::tensor, KvScale::head}) {
            for (const std::int64_t dim : {64, 128, 256, 512, 80}) {
                AppendCase test = stored_as(
                    paged(append(dim % 128 == 0 ? DType::bf16 : DType::fp16, dim, 4, 2), 16), stored, scale);
                test.bytes = dim == 64;
                add_case(catalogue,
                         fmt::format("{} scale {} dim {}", to_string(stored), to_string(scale), dim),
                         rotated(test, Rope::half));
            }
        }
        AppendCase queries = normed(rotated(append(DType::bf16, 128, 8, 2), Rope::half));
        queries.spec.q_dtype = stored;
        add_case(catalogue, fmt::format("q as {}", to_string(stored)), queries);
        add_case(catalogue, fmt::format("q, k and v as {}", to_string(stored)),
                 stored_as(queries, stored, KvScale::tensor));
        for (const float bad : {0.0f, -1.0f, HUGE_VALF, std::nanf("")}) {
            AppendCase test = stored_as(append(DType::bf16, 64, 4, 2), stored, KvScale::head);
            test.k_scale = bad;
            test.status.bits |= kStatusScaleNotPositive;
            add_case(catalogue, fmt::format("{} with a scale of {}", to_string(stored), bad), test);
        }
    }
}

void add_latents(Catalogue& catalogue) {
    for (const bool table : {false, true}) {
        for (const bool inputs : {false, true}) {
            for (const bool caches : {false, true}) {
                AppendCase test =
                    normed(rotated(paged(latents(DType::bf16, 512, 64, 16), 64), Rope::interleaved));
                if (table) test = by_table(test);
                test.latents_apart = inputs, test.caches_apart = caches, test.latent_heads = inputs;
                const std::string name =
                    fmt::format("latents {}{}{}", table ? "table" : "mapping", inputs ? ", inputs apart" : "",
                                caches ? ", caches apart" : "");
                add_case(catalogue, name, test);
                add_case(catalogue, name + ", to e4m3", stored_as(test, DType::e4m3, KvScale::tensor));
            }
        }
    }
    for (const std::int64_t ckv : {64, 192, 256, 512})
        add_case(catalogue, fmt::format("latents of {} without a position", ckv),
                 normed(latents(DType::fp16, ckv, 0, 4)));
    AppendCase dense = rotated(latents(DType::bf16, 256, 32, 4), Rope::half, 12);
    dense.in_a_row = false;
    add_case(catalogue, "latents in a dense cache", dense);
}

// Scales that are computed: of rows and blocks, in tensors of their own and within the cache's rows.
void add_computed_scales(Catalogue& catalogue) {
    for (const KvScale scale : {KvScale::token_head, KvScale::block128}) {
        const std::string name(to_string(scale));
        for (const DType stored : {DType::e4m3, DType::e5m2}) {
            const std::string to = fmt::format("{} of {}", name, to_string(stored));
            for (const bool is_inline : {false, true}) {
                const auto with = [&](AppendCase test) {
                    test.inline_scales = is_inline;
                    return stored_as(normed(rotated(test, Rope::half), true), stored, scale);
                };
                const std::string where = is_inline ? ", inline" : "";
                add_case(catalogue, to + where + ", dense", with(append(DType::bf16, 128, 4, 2)));
                for (const PageOrder order : {PageOrder::NHD, PageOrder::HND}) {
                    AppendCase test = with(paged(append(DType::fp16, 128, 5, 5), 16, order));
                    test.in_a_row = order == PageOrder::NHD;
                    add_case(catalogue, fmt::format("{}{}, {}", to, where, to_string(order)), test);
                    test.bytes = true;
                    add_case(catalogue, fmt::format("{}{}, {}, by table", to, where, to_string(order)),
                             by_table(test));
                }
            }
            AppendCase plain = stored_as(paged(append(DType::bf16, 64, 4, 4), 16), stored, scale);
            add_case(catalogue, to + ", neither norm nor rope", plain);
            // Zeros, the least magnitudes, the largest ones, and what is no number, each in rows of its own.
            plain.values = {{0, 0, -1, 0.0f},       {1, 1, 5, NAN},         {2, 2, 63, HUGE_VALF},
                            {3, 0, 0, -NAN},        {3, 1, 9, -HUGE_VALF},  {4, 0, -1, 0x1p-133f},
                            {4, 1, -1, 0x1p-120f},  {5, 3, 7, 0x1.fep127f}, {6, 2, -1, -0.0f},
                            {24, 3, -1, -0x1p-126f}};
            add_case(catalogue, to + ", special values", plain);
            AppendCase normal = normed(rotated(plain, Rope::half));
            normal.values = {{0, 0, -1, 0.0f}, {1, 1, 5, NAN}, {2, 2, 63, HUGE_VALF}, {6, 2, -1, -0.0f}};
            add_case(catalogue, to + ", special values, normed and rotated", normal);
            AppendCase skipped = plain;
            skipped.slots = {{0, -1}, {3, -7}, {24, -1}};
            add_case(catalogue, to + ", skipped tokens", skipped);
            skipped.inline_scales = true;
            add_case(catalogue, to + ", skipped tokens, inline", skipped);
            AppendCase twice = plain;
            twice.values = {};
            twice.spec.check_slots = true;
            twice.twins = {{3, 24}};
            twice.status.bits |= kStatusSlotWrittenTwice;
            add_case(catalogue, to + ", a slot written twice", twice);
        }
        for (const std::int64_t dim : {16, 48, 80, 112})
            for (const Rope rope : {Rope::half, Rope::interleaved})
                add_case(catalogue, fmt::format("{} of {} columns, {}", name, dim, word_of(rope)),
                         stored_as(normed(rotated(paged(append(DType::bf16, dim, 7, 7), 16), rope)),
                                   DType::e4m3, scale));
        AppendCase decode =
            stored_as(rotated(paged(append(DType::bf16, 128, 32, 8), 16), Rope::half), DType::e4m3, scale);
        decode.q_lens.assign(64, 1), decode.kv_lens.assign(64, 33);
        add_case(catalogue, name + ", 64 tokens of decode", by_table(decode));
        AppendCase prompt = decode;
        prompt.q_lens = {700}, prompt.kv_lens = {700};
        add_case(catalogue, name + ", a prompt of 700", prompt);
    }
    for (const std::int64_t dim : {192, 256, 384, 512})
        add_case(catalogue, fmt::format("token_head of {} columns", dim),
                 stored_as(normed(rotated(paged(append(DType::bf16, dim, 4, 2), 16), Rope::half), true),
                           DType::e4m3, KvScale::token_head));
    AppendCase unequal = paged(append(DType::bf16, 192, 6, 3), 16);
    unequal.spec.head_dim_vo = 128;
    add_case(catalogue, "token_head of 192x128 columns",
             stored_as(rotated(unequal, Rope::half), DType::e5m2, KvScale::token_head));
}

// One scale for latent and position, or scales of the latent's blocks beside a position of 16 bits.
void add_computed_scales_of_latents(Catalogue& catalogue) {
    for (const KvScale scale : {KvScale::token_head, KvScale::block128}) {
        const std::string name = fmt::format("{} of latents", to_string(scale));
        for (const DType stored : {DType::e4m3, DType::e5m2}) {
            for (const bool is_inline : {false, true}) {
                for (const bool apart : {false, true}) {
                    for (const bool table : {false, true}) {
                        AppendCase test = stored_as(
                            normed(rotated(paged(latents(DType::bf16, 512, 64, 16), 64), Rope::interleaved)),
                            stored, scale);
                        if (table) test = by_table(test);
                        test.inline_scales = is_inline;
                        // Behind one scale the position lies at a multiple of 4 bytes.
                        if (is_inline && apart && scale == KvScale::token_head) test.spec.alignment = 4;
                        test.latents_apart = test.caches_apart = test.latent_heads = apart;
                        add_case(
                            catalogue,
                            fmt::format("{}, {}{}{}{}", name, to_string(stored), is_inline ? ", inline" : "",
                                        apart ? ", apart" : "", table ? ", by table" : ""),
                            test);
                    }
                }
            }
        }
        for (const std::int64_t ckv : {128, 256, 512}) {
            AppendCase alone = stored_as(normed(latents(DType::fp16, ckv, 0, 4)), DType::e4m3, scale);
            add_case(catalogue, fmt::format("{} of {} without a position", name, ckv), alone);
            AppendCase dense =
                stored_as(rotated(latents(DType::bf16, ckv, 32, 4), Rope::half, 12), DType::e4m3, scale);
            dense.in_a_row = false;
            // Every block has a largest of its own, and one is of zeros.
            for (std::int64_t d = 128; d < 256; ++d) dense.values.push_back({45, 0, d, 0.0f});
            dense.values.push_back({46, 0, 127, 1000.0f});
            dense.values.push_back({47, 0, ckv - 1, HUGE_VALF});
            dense.values.push_back({48, 0, 0, NAN});
            std::erase_if(dense.values, [&](const AppendCase::Value& value) { return value.column >= ckv; });
            add_case(catalogue, fmt::format("{} of {}, dense", name, ckv), dense);
        }
    }
    AppendCase narrow =
        stored_as(rotated(latents(DType::bf16, 64, 64, 4), Rope::half), DType::e4m3, KvScale::token_head);
    add_case(catalogue, "token_head of latents of 64", narrow);
    // A latent of zeros has the scale of its position.
    narrow.values = {{2, 0, -1, 0.0f}};
    narrow.latents_apart = true;
    add_case(catalogue, "token_head of latents of zeros", narrow);
}

void add_layouts(Catalogue& catalogue) {
    for (const int alignment : {16, 8, 4, 2}) {
        for (const bool to_fp8 : {false, true}) {
            AppendCase test = normed(rotated(append(DType::bf16, 128, 6, 2), Rope::half));
            test.spec.alignment = alignment;
            // In 8-bit tensors a base of so many elements is half as many bytes.
            test.pad = alignment / 2;
            test.base = to_fp8 ? alignment : alignment / 2;
            if (to_fp8) test = stored_as(test, DType::e4m3, KvScale::tensor);
            add_case(catalogue, fmt::format("aligned to {}{}", alignment, to_fp8 ? ", to e4m3" : ""), test);
            test = paged(by_table(test), 16, PageOrder::HND);
            test.in_a_row = false;
            add_case(catalogue, fmt::format("aligned to {}{}, pages", alignment, to_fp8 ? ", to e4m3" : ""),
                     test);
        }
    }
    for (const bool in_a_row : {true, false}) {
        AppendCase fused = normed(rotated(paged(append(DType::bf16, 128, 8, 2), 16), Rope::half));
        fused.fused = true;
        fused.in_a_row = in_a_row;
        const std::string name =
            fmt::format("a fused tensor of q, k and v, {}", in_a_row ? "tokens" : "batch");
        add_case(catalogue, name, fused);
        fused.in_place = true;
        add_case(catalogue, name + ", in place", fused);
    }
    for (const Rope rope : {Rope::half, Rope::interleaved}) {
        for (const std::int64_t dim : {64, 512}) {
            AppendCase test = normed(rotated(append(DType::fp16, dim, 7, 7), rope));
            test.in_place = true;
            add_case(catalogue, fmt::format("q in place, dim {}, {}", dim, word_of(rope)), test);
            test.has_k = false;
            test.spec.k_norm = false;
            add_case(catalogue, fmt::format("q alone in place, dim {}, {}", dim, word_of(rope)), test);
        }
    }
    AppendCase keys = rotated(paged(append(DType::bf16, 128, 8, 8), 16), Rope::half);
    keys.has_q = false;
    add_case(catalogue, "k and v alone", keys);
    add_case(catalogue, "k and v alone by table", by_table(keys));
    AppendCase queries = by_table(rotated(paged(append(DType::bf16, 128, 8, 8), 16), Rope::half));
    queries.has_k = false;
    add_case(catalogue, "q alone by table", queries);
    for (const bool table : {false, true}) {
        AppendCase wide = rotated(paged(append(DType::bf16, 128, 4, 2), 16), Rope::half);
        if (table) wide = by_table(wide);
        wide.wide_indices = true;
        wide.own_positions = table;
        add_case(catalogue, fmt::format("int64 slots and positions{}", table ? " by table" : ""), wide);
        wide.spec.index_dtype = DType::int64;
        add_case(catalogue, fmt::format("int64 indices{}", table ? " by table" : ""), wide);
    }
}

void add_sizes(Catalogue& catalogue) {
    const AppendCase usual = rotated(paged(append(DType::bf16, 128, 32, 8), 16), Rope::half);
    for (const bool table : {false, true}) {
        const std::string slots = table ? "table" : "mapping";
        AppendCase decode = table ? by_table(usual) : usual;
        decode.q_lens.assign(64, 1);
        decode.kv_lens.clear();
        for (std::int64_t n = 0; n < 64; ++n) decode.kv_lens.push_back(1 + n * 7 % 50);
        add_case(catalogue, "64 tokens of decode " + slots, decode);
        AppendCase many = decode;
        many.spec.q_heads = 2, many.spec.kv_heads = 1;
        many.q_lens.assign(2100, 1);
        many.kv_lens.assign(2100, 2);
        many.q_lens[7] = many.q_lens[1025] = many.q_lens[2099] = 0;  // sequences without new tokens
        add_case(catalogue, "2100 sequences " + slots, many);
        AppendCase prompt = table ? by_table(usual) : usual;
        prompt.q_lens = {700}, prompt.kv_lens = {700};
        add_case(catalogue, "a prompt of 700 " + slots, prompt);
        AppendCase one = table ? by_table(usual) : usual;
        one.q_lens = {1}, one.kv_lens = {1};
        add_case(catalogue, "one token " + slots, one);
        AppendCase none = table ? by_table(usual) : usual;
        none.q_lens = {0, 0}, none.kv_lens = {5, 3};
        add_case(catalogue, "no tokens " + slots, none);
        AppendCase padded = table ? by_table(usual) : usual;
        padded.padding = 11;
        add_case(catalogue, "tokens of no sequence " + slots, padded);
    }
    for (const std::int64_t heads : {1, 3, 17, 128})
        add_case(catalogue, fmt::format("{} heads", heads),
                 normed(rotated(paged(append(DType::fp16, 64, heads, heads), 16), Rope::half), true));
}

// What the host cannot know, and a kernel has to survive: it reports it, and writes nothing of the token.
void add_hostile(Catalogue& catalogue) {
    constexpr std::int64_t kFar = std::int64_t{1} << 40;
    for (const bool dense : {true, false}) {
        const AppendCase usual = rotated(
            dense ? append(DType::bf16, 128, 4, 2) : paged(append(DType::bf16, 128, 4, 2), 16), Rope::half);
        const std::string name = dense ? "dense, " : "paged, ";
        AppendCase skipped = usual;
        skipped.slots = {{0, -1}, {3, -7}, {24, -1}};
        add_case(catalogue, name + "skipped tokens", skipped);
        AppendCase far = usual;
        far.wide_indices = true;
        far.slots = {{0, kFar}, {5, -kFar}, {9, (std::int64_t{1} << 31) + 3}, {11, INT64_MAX}};
        far.status.bits |= kStatusSlotOutOfRange;
        add_case(catalogue, name + "slots far behind the cache", far);
        AppendCase next = usual;
        next.slots = {{2, dense ? 3 * 43 : (3 + 2 + 2 + 5) * 16}};  // one behind the last
        next.status.bits |= kStatusSlotOutOfRange;
        add_case(catalogue, name + "the slot behind the last", next);
        AppendCase positions = usual;
        positions.rope_positions = 50;
        positions.positions = {{0, 50}, {1, 49}, {7, -1}, {8, INT32_MAX}, {9, INT32_MIN}};
        positions.status.bits |= kStatusPositionOutOfRange;
        add_case(catalogue, name + "positions out of the table", positions);
    }
    const AppendCase usual = by_table(paged(rotated(append(DType::bf16, 128, 4, 2), Rope::half), 16));
    AppendCase longer = usual;
    longer.spoil = [](IndexArrays& arrays) { arrays.kv_lens[1] = 5000; };
    longer.unwritten = {1};
    longer.status.bits |= kStatusKvLenClamped;
    add_case(catalogue, "a length behind the bound", longer);
    AppendCase shorter = usual;
    shorter.q_lens = {3, 1, 4}, shorter.kv_lens = {40, 17, 21};
    shorter.spoil = [](IndexArrays& arrays) { arrays.kv_lens[1] = 0; };
    shorter.unwritten = {1};
    shorter.status.bits |= kStatusSlotOutOfRange;
    add_case(catalogue, "more new tokens than keys", shorter);
    AppendCase pages = usual;
    pages.spoil = [](IndexArrays& arrays) { arrays.page_table[1 * 3 + 1] = -5; };
    pages.unwritten = {1};
    pages.status.bits |= kStatusPageOutOfRange;
    add_case(catalogue, "a page that is none", pages);
    AppendCase ends = usual;
    ends.spoil = [](IndexArrays& arrays) { arrays.q_indptr[3] = 100000; };
    ends.unwritten = {2};
    ends.status.bits |= kStatusQLenClamped;
    add_case(catalogue, "offsets that end behind the tokens", ends);
    AppendCase rows = usual;
    rows.table_rows = true;
    rows.q_lens = {1, 1, 1}, rows.kv_lens = {20, 20, 20};
    rows.spoil = [](IndexArrays& arrays) { arrays.table_rows[0] = 3; };
    rows.unwritten = {0};
    rows.status.bits |= kStatusPageOutOfRange;
    add_case(catalogue, "a row that the table has not", rows);
    AppendCase lens = by_table(rotated(append(DType::bf16, 128, 4, 2), Rope::half));
    lens.in_a_row = false;
    lens.spoil = [](IndexArrays& arrays) { arrays.q_lens[0] = 22; };
    lens.unwritten = {0};
    lens.status.bits |= kStatusQLenClamped;
    add_case(catalogue, "more new tokens than the batch has room for", lens);
}

// Two writers of one slot are told, wherever they are in the launch; nothing else is. Where they are, each
// element is one of theirs.
void add_checked(Catalogue& catalogue) {
    for (const bool dense : {true, false}) {
        AppendCase usual = rotated(
            dense ? append(DType::bf16, 64, 4, 2) : paged(append(DType::bf16, 64, 4, 2), 16), Rope::half);
        usual.spec.check_slots = true;
        const std::string name = dense ? "checked slots, dense, " : "checked slots, paged, ";
        add_case(catalogue, name + "each of its own", usual);
        AppendCase skipped = usual;
        skipped.slots = {{0, -1}, {1, -1}, {2, -1}, {9, -5}, {24, -5}};
        add_case(catalogue, name + "skipped tokens", skipped);
        AppendCase far = usual;
        far.wide_indices = true;
        // The lower halves of slots that are none are those of others, and of the kernel's own marks.
        far.slots = {{0, (std::int64_t{1} << 40) + 3}, {1, 3},          {2, -1},
                     {5, (std::int64_t{1} << 32) - 1}, {6, 0xfffffffe}, {7, 0xfffffffe}};
        far.status.bits |= kStatusSlotOutOfRange;
        if (dense) add_case(catalogue, name + "slots far behind the cache", far);
        AppendCase positions = usual;
        positions.rope_positions = 50;
        positions.twins = {{4, 7}};
        positions.positions = {{4, 50}};  // which is not written, so that the other is alone
        positions.status.bits |= kStatusPositionOutOfRange;
        add_case(catalogue, name + "one that has no position", positions);
        for (const auto& [first, second] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {3, 24}, {23, 24}}) {
            AppendCase twice = usual;
            twice.wide_indices = first == 3;
            twice.twins = {{first, second}};
            twice.status.bits |= kStatusSlotWrittenTwice;
            add_case(catalogue, fmt::format("{}tokens {} and {}", name, first, second), twice);
        }
    }
    // Tokens of one tile, of two, of those that are half of the circle apart, and of the first and the last.
    AppendCase many = append(DType::fp16, 8, 1, 1);
    many.spec.check_slots = true;
    for (const std::int64_t tokens : {127, 128, 129, 700, 1024, 3000}) {
        many.q_lens = many.kv_lens = {tokens};
        many.twins.clear();
        many.status.bits &= ~kStatusSlotWrittenTwice;
        add_case(catalogue, fmt::format("checked slots of {} tokens, each of its own", tokens), many);
        many.status.bits |= kStatusSlotWrittenTwice;
        for (const auto& [first, second] : {std::pair<std::int64_t, std::int64_t>{0, tokens - 1},
                                            {tokens / 2 - 1, tokens - 2},
                                            {tokens - 33, tokens - 1},
                                            {tokens / 3, tokens / 3 + 1}}) {
            many.twins = {{first, second}};
            add_case(catalogue, fmt::format("checked slots of {} tokens, {} and {}", tokens, first, second),
                     many);
        }
    }
    AppendCase latent = rotated(paged(latents(DType::bf16, 512, 64, 16), 64), Rope::interleaved);
    latent.spec.check_slots = true;
    latent.twins = {{1, 4}, {20, 8}};
    latent.status.bits |= kStatusSlotWrittenTwice;
    add_case(catalogue, "checked slots of latents", latent);
    AppendCase queries = rotated(append(DType::bf16, 64, 4, 2), Rope::half);
    queries.spec.check_slots = true;
    queries.has_k = false;
    queries.twins = {{0, 1}};  // q alone is written, and not there
    add_case(catalogue, "checked slots without a cache", queries);
}

// A captured launch follows the slots that are in memory when it is replayed.
std::string replayed(const Context& context) {
    AppendCase test = normed(rotated(paged(append(DType::bf16, 128, 8, 2), 16), Rope::half));
    test.group = "append";
    test.name = "in a graph";
    check::RunOptions options = context.run_options();
    options.launch = [](const Runtime&, const Call& call) {
        const CurrentContext current;
        const TestStream stream;
        const CapturedGraph graph(stream, [&] { call.launch(stream.get()); });
        graph.launch(stream);
        stream.synchronize();
    };
    const CaseResult mapped = check::run_append(context.runtime, test, options);
    if (!mapped.passed()) return mapped.detail;
    const CaseResult tabled = check::run_append(context.runtime, by_table(test), options);
    return tabled.passed() ? "" : tabled.detail;
}

// A graph that was captured once tells of the slots that it finds at each launch, and of those alone.
std::string replayed_checks(const Context& context) {
    constexpr std::int64_t kTokens = 300;
    AttentionSpec spec{.op = Op::append, .dtype = DType::bf16, .head_dim_qk = 64, .q_heads = 2};
    spec.check_slots = true;
    const Kernel kernel = context.runtime.prepare(spec, {});
    const Buffer rows = context.runtime.allocate(kTokens * 2 * 64 * 2);
    const Buffer k_cache = context.runtime.allocate(kTokens * 2 * 64 * 2);
    const Buffer v_cache = context.runtime.allocate(kTokens * 2 * 64 * 2);
    Buffer slots = context.runtime.allocate(kTokens * sizeof(std::int32_t));
    const auto row = Tensor::contiguous(rows.data(), DType::bf16, {kTokens, 2, 64});
    const Call call = kernel.bind(
        AppendTensors{.k = row,
                      .v = row,
                      .k_cache = Tensor::contiguous(k_cache.data(), DType::bf16, {1, kTokens, 2, 64}),
                      .v_cache = Tensor::contiguous(v_cache.data(), DType::bf16, {1, kTokens, 2, 64}),
                      .slot_mapping = Tensor::contiguous(slots.data(), DType::int32, {kTokens})});
    std::vector<std::int32_t> mapping(kTokens);
    const auto upload = [&] { slots.upload(mapping.data(), mapping.size() * sizeof(std::int32_t)); };
    std::iota(mapping.begin(), mapping.end(), 0);
    upload();
    const CurrentContext current;
    const TestStream stream;
    const CapturedGraph graph(stream, [&] { call.launch(stream.get()); });
    for (int n = 0; n < 6; ++n) {
        const bool twice = n % 2 == 1;
        mapping[250] = twice ? n : 250;
        upload();
        call.clear_status(stream.get());
        graph.launch(stream);
        if (call.status(stream.get()).slot_written_twice() != twice)
            return fmt::format("launch {} of the graph has slot_written_twice {}", n + 1, !twice);
    }
    return "";
}

std::string what_a_call_says(const Context& context) {
    AttentionSpec spec{.op = Op::append, .dtype = DType::bf16, .head_dim_qk = 64, .q_heads = 2};
    const Kernel kernel = context.runtime.prepare(spec, {});
    if (kernel.workspace_bytes({1, 8, 8}) != kWorkspaceZeroedBytes)
        return "an append wants another workspace";
    const Buffer memory = context.runtime.allocate(std::size_t{1} << 16);
    const auto at = [&](std::int64_t place, DType dtype, std::initializer_list<std::int64_t> shape) {
        return Tensor::contiguous(static_cast<std::byte*>(memory.data()) + place * 8192, dtype, shape);
    };
    const Tensor row = at(0, DType::bf16, {0, 2, 64}), slots = at(1, DType::int32, {0});
    const Call none = kernel.bind(AppendTensors{.k = row,
                                                .v = row,
                                                .k_cache = at(2, DType::bf16, {1, 4, 2, 64}),
                                                .v_cache = at(3, DType::bf16, {1, 4, 2, 64}),
                                                .slot_mapping = slots});
    none.launch();
    if (none.status()) return "the status of no tokens is not clear";
    if (none.describe() != "nothing to launch") return "0 tokens: " + none.describe();
    try {
        static_cast<void>(kernel.bind(AttentionTensors{}, {}));
    } catch (const InvalidRequest& error) {
        return error.field() == "op" ? "" : "refused " + error.field();
    }
    return "tensors of another op were bound";
}

}  // namespace

void add_append(Catalogue& catalogue) {
    add_storages(catalogue);
    add_head_dims(catalogue);
    add_rotations(catalogue);
    add_stored(catalogue);
    add_latents(catalogue);
    add_computed_scales(catalogue);
    add_computed_scales_of_latents(catalogue);
    add_layouts(catalogue);
    add_sizes(catalogue);
    add_hostile(catalogue);
    add_checked(catalogue);
    add(catalogue, "append", "in a graph", replayed);
    add(catalogue, "append", "checked slots in a graph", replayed_checks);
    add(catalogue, "append", "workspace and description", what_a_call_says);
}

}  // namespace attnsmith::gpu_tests
