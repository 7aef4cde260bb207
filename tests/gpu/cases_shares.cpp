// Equal shares of a launch's keys, which CTAs find from the lengths on the device, and whose results they
// join: mixes of lengths, tiles of unequal work, any number of CTAs, and a workspace that is not as it has to
// be.
#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "catalogue.hpp"
#include "check/kernel_choice.hpp"
#include "check/storage.hpp"
#include "cuda_driver.hpp"

namespace attnsmith::gpu_tests {
namespace {

using Numbers = std::vector<std::int64_t>;

// A CTA looks at so many sequences at once.
constexpr std::int64_t kBatches[] = {64, 200, 300};

Numbers all(std::int64_t batch, std::int64_t length) {
    return Numbers(static_cast<std::size_t>(batch), length);
}

// The case for one of the kernels that are made for so many rows at least, and the keys that a share of its
// has at least.
Case forced(Case test, int rows, std::int64_t keys, int ctas = 0) {
    for (const check::KernelChoice& choice : check::kernel_choices(test.spec)) {
        if (choice.wgmma || choice.tile_q < rows) continue;
        if (test.kernel && test.kernel->tile_q <= choice.tile_q) continue;
        test.kernel = choice;
        test.kernel->chunk = check::chunk_of(choice, keys);
        test.kernel->ctas = ctas;
    }
    if (!test.kernel) throw std::logic_error(fmt::format("no kernel has tiles of {} rows", rows));
    return test;
}

Case decode(DType dtype = DType::bf16) {
    Case test = paged(causal(attention(dtype, 128, 8, 2)));
    test.spec.lse = true;
    return test;
}

struct Mix {
    std::string name;
    Numbers q_lens, kv_lens;
};

std::vector<Mix> mixes() {
    std::vector<Mix> mixes;
    for (const std::int64_t batch : kBatches) {
        Mix long_one{fmt::format("one long of {}", batch), all(batch, 1), {}};
        for (std::int64_t b = 0; b < batch; ++b) long_one.kv_lens.push_back(b % 3 == 0 ? 0 : b % 40);
        long_one.kv_lens[static_cast<std::size_t>(batch * 2 / 3)] = 30001;
        mixes.push_back(long_one);
        for (const std::int64_t at : {std::int64_t{0}, batch / 2, batch - 1}) {
            Mix alone{fmt::format("all empty but {} of {}", at, batch), all(batch, 1), all(batch, 0)};
            alone.kv_lens[static_cast<std::size_t>(at)] = 9000;
            mixes.push_back(alone);
        }
        Mix gaps{fmt::format("no queries of every other of {}", batch), {}, {}};
        for (std::int64_t b = 0; b < batch; ++b) {
            gaps.q_lens.push_back(b % 2);
            gaps.kv_lens.push_back(b % 4 < 2 ? 700 : b);
        }
        mixes.push_back(gaps);
        mixes.push_back({fmt::format("no keys of {}", batch), all(batch, 1), all(batch, 0)});
        mixes.push_back({fmt::format("equal ones of {}", batch), all(batch, 1), all(batch, 512)});
    }
    mixes.push_back({"one key each of 500", all(500, 1), all(500, 1)});
    mixes.push_back({"one query of 500", all(500, 0), all(500, 33)});
    mixes.back().q_lens[499] = 1;
    Mix stairs{"stairs of 129", all(129, 1), all(129, 0)};
    std::iota(stairs.kv_lens.begin(), stairs.kv_lens.end(), 1);
    mixes.push_back(stairs);
    return mixes;
}

void add_mixes(Catalogue& catalogue) {
    for (const Mix& mix : mixes()) {
        const Case planned = with_lengths(decode(), mix.q_lens, mix.kv_lens);
        add(catalogue, "shares", mix.name, planned);
        for (const std::int64_t keys : {1, 1000})
            add(catalogue, "shares", fmt::format("{}, shares of {} keys", mix.name, keys),
                forced(planned, 16, keys));
        Case compressed = decode(DType::fp16);
        compressed.page_list = check::PageList::compressed;
        compressed.spec.index_dtype = DType::int64;
        add(catalogue, "shares", mix.name + ", compressed int64",
            with_lengths(compressed, mix.q_lens, mix.kv_lens));
        Case high = ragged(attention(DType::bf16, 64, 4, 2));
        high.spec.precision = Precision::high;
        high.spec.o_dtype = DType::fp32;
        high.spec.lse = high.spec.sink = true;
        add(catalogue, "shares", mix.name + ", ragged high", with_lengths(high, mix.q_lens, mix.kv_lens));
    }
}

// A chunk of a prompt beside decodes, which all have the kernel of the decodes.
Case beside_decodes(Case test) {
    test.spec.lse = true;
    test = with_lengths(test, {1, 1, 700, 1, 0, 33, 1, 5}, {5000, 1, 3000, 0, 70, 33, 9000, 128});
    test = with_lengths(test, {300, 1, 1, 1, 100, 1, 1, 337}, {300, 9000, 1, 64, 5000, 0, 65, 337});
    test.sizes = PlanSizes{8, 1, 9000};
    test.max_q_len = 700, test.max_kv_len = 9000;
    test.slack = 50;
    return test;
}

void add_chunks_beside_decodes(Catalogue& catalogue) {
    const std::pair<const char*, Case> bases[] = {
        {"paged 128", paged(causal(attention(DType::bf16, 128, 8, 2)))},
        {"ragged 64", ragged(causal(attention(DType::fp16, 64, 12, 4)))},
        {"paged HND full", paged(attention(DType::bf16, 128, 16, 2), 64, PageOrder::HND)}};
    for (const auto& [word, base] : bases) {
        const Case test = beside_decodes(base);
        const std::string name = fmt::format("a chunk beside decodes, {}", word);
        add(catalogue, "shares", name, test);
        for (const int ctas : {0, 3, 66, 132})
            add(catalogue, "shares", fmt::format("{}, {} CTAs", name, ctas), forced(test, 16, 128, ctas));
    }
}

// Later tiles of a sequence have more blocks than earlier ones, or fewer, or none.
void add_unequal_tiles(Catalogue& catalogue) {
    struct Bounds {
        std::string name;
        std::int64_t left, right, chunk;  // negative, or 0: none
    };
    const Bounds all_bounds[] = {{"causal", -1, 0, 0},
                                 {"left 100", 100, -1, 0},
                                 {"left 1000, right 50", 1000, 50, 0},
                                 {"right 300", -1, 300, 0},
                                 {"causal, left 127", 127, 0, 0},
                                 {"chunk 300", -1, -1, 300},
                                 {"causal, chunk 64", -1, 0, 64},
                                 {"left 500, chunk 777", 500, -1, 777}};
    for (const Bounds& bounds : all_bounds) {
        Case test = ragged(attention(DType::bf16, 64, 4, 2));
        if (bounds.left >= 0) test.spec.window_left = bounds.left;
        if (bounds.right >= 0) test.spec.window_right = bounds.right;
        if (bounds.chunk > 0) test.spec.attention_chunk = bounds.chunk;
        test.spec.lse = test.spec.sink = true;
        // The fourth sequence has rows before its first key.
        test = with_lengths(test, {200, 1, 90, 333, 0, 1}, {1500, 4000, 90, 100, 800, 0});
        for (const int rows : {16, 64})
            for (const int ctas : {0, 5, 40})
                add(catalogue, "shares",
                    fmt::format("tiles of {} rows, {}, {} CTAs", rows, bounds.name, ctas),
                    forced(test, rows, 64, ctas));
    }
}

void add_scores_of_shares(Catalogue& catalogue) {
    const Numbers q_lens{1, 1, 3, 0, 1, 40}, kv_lens{7000, 1, 300, 100, 0, 2049};
    const auto add_one = [&](const std::string& name, Case test) {
        test.spec.lse = true;
        test = with_lengths(test, q_lens, kv_lens);
        add(catalogue, "shares", name, test);
        add(catalogue, "shares", name + ", 31 CTAs", forced(test, 16, 128, 31));
    };
    const Case base = paged(causal(attention(DType::fp16, 64, 8, 2)));
    Case sink = base, softcap = base, alibi = base, every = base;
    sink.spec.sink = true;
    add_one("sink", sink);
    softcap.spec.softcap = 20.0;
    softcap.values = check::Values::peaked;
    add_one("softcap", softcap);
    alibi.spec.alibi = true;
    add_one("alibi", alibi);
    every.spec.sink = every.spec.alibi = true;
    every.spec.softcap = 30.0;
    every.spec.window_left = 3000;
    add_one("sink, alibi, softcap and a window", every);
    every.spec.precision = Precision::high;
    add_one("sink, alibi, softcap and a window, high", every);
}

void add_dims_of_shares(Catalogue& catalogue) {
    const std::pair<std::int64_t, std::int64_t> all_dims[] = {{40, 40}, {64, 64}, {192, 128}, {256, 256}};
    for (const auto& [qk, vo] : all_dims) {
        for (const Precision precision : {Precision::standard, Precision::high}) {
            Case test = paged(causal(attention(DType::bf16, qk, vo, 6, 2)));
            test.spec.precision = precision;
            test.spec.lse = true;
            test = with_lengths(test, {1, 1, 0, 20, 1}, {3333, 2, 90, 1000, 0});
            const char* const word = precision == Precision::high ? " high" : "";
            for (const int ctas : {0, 17})
                add(catalogue, "shares", fmt::format("dims {}/{}{}, {} CTAs", qk, vo, word, ctas),
                    forced(test, 16, 64, ctas));
        }
    }
    for (const std::int64_t dim : {320, 512}) {
        Case test = with_lengths(paged(causal(attention(DType::bf16, dim, 6, 2))), {1, 1, 0, 20, 1},
                                 {3333, 2, 90, 1000, 0});
        test.spec.lse = true;
        for (const int rows : {16, 32})
            for (const int ctas : {0, 17})
                add(catalogue, "shares", fmt::format("dim {}, {} rows, {} CTAs", dim, rows, ctas),
                    forced(test, rows, 64, ctas));
    }
    // wgmma's of head dims above 256, with 64 rows of four tokens.
    for (const std::int64_t dim : {384, 512}) {
        Case test = with_lengths(paged(causal(attention(DType::bf16, dim, 32, 2))), {4, 1, 0, 20, 3},
                                 {3333, 2, 90, 1000, 700});
        test.spec.lse = test.spec.sink = true;
        for (const check::KernelChoice& choice : check::kernel_choices(test.spec)) {
            if (!choice.wgmma || !choice.shares) continue;
            for (const int ctas : {1, 7, 60, 132}) {
                Case forced = test;
                forced.kernel = choice;
                forced.kernel->chunk = check::chunk_of(choice, 64);
                forced.kernel->ctas = ctas;
                add(catalogue, "shares", fmt::format("wgmma, dim {}, {} CTAs", dim, ctas), forced);
            }
        }
    }
    // Heads of one token that take several tiles, the last of which is nearly empty.
    Case wide =
        with_lengths(paged(causal(attention(DType::bf16, 64, 142, 2))), {1, 1, 3, 0}, {5000, 1, 777, 9});
    wide.spec.lse = true;
    add(catalogue, "shares", "groups of 71", wide);
    for (const int ctas : {0, 11, 100})
        add(catalogue, "shares", fmt::format("groups of 71, {} CTAs", ctas), forced(wide, 16, 64, ctas));
}

// With one CTA nothing is joined, with two one tile is, and so on. The parts are joined in their order
// whichever CTA comes last, so that the bits are those of the first launch.
void add_counts_of_ctas(Catalogue& catalogue) {
    Case test = with_lengths(decode(), {1, 1, 1, 0, 1, 30}, {9000, 64, 1, 100, 0, 2000});
    test.launches = 5;
    Case prefill = with_lengths(dense(causal(attention(DType::fp16, 64, 4, 2))), {130, 100}, {1000, 1000});
    prefill.spec.lse = true;
    prefill.launches = 5;
    Case high = test;
    high.spec.precision = Precision::high;
    for (const auto& [name, base] : {std::pair{"paged", test}, {"dense", prefill}, {"paged high", high}}) {
        for (const check::KernelChoice& choice : check::kernel_choices(base.spec)) {
            for (const int ctas : {1, 2, 7, 66, 131}) {
                Case with = base;
                with.kernel = choice;
                with.kernel->chunk = check::chunk_of(choice, 64);
                with.kernel->ctas = ctas;
                add(catalogue, "shares", fmt::format("{}, {}", name, to_string(*with.kernel)), with);
            }
        }
    }
}

void add_repeated(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        Case test = with_lengths(decode(dtype), all(37, 1), all(37, 0));
        for (std::size_t b = 0; b < 37; ++b) test.steps[0].kv_lens[b] = static_cast<std::int64_t>(b * b * 5);
        test.launches = 50;
        add(catalogue, "shares", "50 launches, " + word(dtype), test);
    }
}

// Counts that are left from something else: the launch says so, and one with a cleared workspace is right.
std::string not_zeroed(const Context& context, Case test, bool captured) {
    test.group = "shares";
    const CurrentContext current;
    const TestStream stream;
    check::Storage storage(context.runtime, test, context.seed);
    storage.load(test.steps.at(0));
    const Kernel kernel = check::prepare_case(context.runtime, test);
    const std::size_t bytes = storage.workspace_bytes(kernel);
    Buffer memory = context.runtime.allocate(bytes);
    const Call call = kernel.bind(storage.tensors(), storage.batch(), Workspace{memory.data(), bytes});
    const CapturedGraph graph(stream, [&] { call.launch(stream.get()); });
    const auto launch = [&](int garbage) {
        std::vector<std::byte> words(kWorkspaceZeroedBytes, static_cast<std::byte>(garbage));
        std::memset(words.data(), 0, 4);  // the status itself is clear
        memory.upload(words.data(), words.size());
        storage.poison_outputs();
        if (captured) {
            graph.launch(stream);
        } else {
            call.launch(stream.get());
        }
        stream.synchronize();
        return call.status();
    };
    if (launch(0)) return "a workspace of zeros is reported";
    const auto right = storage.read_outputs();
    if (const std::string row = storage.unwritten(right); !row.empty()) return row;
    for (const int garbage : {0x7f, 0xff}) {
        const CallStatus status = launch(garbage);
        if (!status.workspace_not_zeroed()) return fmt::format("words of {:#x} are not reported", garbage);
        if (status.q_len_clamped() || status.kv_len_clamped() || status.page_out_of_range())
            return "lengths are reported, which are right";
    }
    if (launch(0)) return "a workspace that was zeroed again is reported";
    const auto again = storage.read_outputs();
    return again.o == right.o && again.lse == right.lse ? "" : "zeroed again, the bits differ";
}

void add_not_zeroed(Catalogue& catalogue) {
    const Case decodes = with_lengths(decode(), {1, 1, 1}, {20000, 5, 3000});
    const Case prefill =
        forced(with_lengths(ragged(causal(attention(DType::fp16, 64, 4, 2))), {200, 70}, {2000, 70}), 64, 64);
    for (const bool captured : {false, true}) {
        const std::string how = captured ? ", replayed" : "";
        add(catalogue, "shares", "a workspace that is not zeroed, decode" + how,
            [=](const Context& context) { return not_zeroed(context, decodes, captured); });
        add(catalogue, "shares", "a workspace that is not zeroed, prefill" + how,
            [=](const Context& context) { return not_zeroed(context, prefill, captured); });
    }
}

}  // namespace

void add_shares(Catalogue& catalogue) {
    add_mixes(catalogue);
    add_chunks_beside_decodes(catalogue);
    add_unequal_tiles(catalogue);
    add_scores_of_shares(catalogue);
    add_dims_of_shares(catalogue);
    add_counts_of_ctas(catalogue);
    add_repeated(catalogue);
    add_not_zeroed(catalogue);
}

}  // namespace attnsmith::gpu_tests
