// CUDA graphs and streams: one captured launch stays right while lengths, page tables and data change.
#include <memory>

#include "catalogue.hpp"
#include "cuda_driver.hpp"

namespace attnsmith::gpu_tests {
namespace {

// The case with its first launch captured and every launch a replay of that graph.
CaseResult replay(const Context& context, const Case& test) {
    const CurrentContext current;
    const TestStream stream;
    std::unique_ptr<CapturedGraph> graph;
    check::RunOptions options = context.run_options();
    options.launch = [&](const Runtime&, const Call& call) {
        if (!graph) graph = std::make_unique<CapturedGraph>(stream, [&] { call.launch(stream.get()); });
        graph->launch(stream);
        stream.synchronize();
    };
    return check::run_case(context.runtime, test, options);
}

CaseResult on_stream(const Context& context, const Case& test) {
    const CurrentContext current;
    const TestStream stream;
    check::RunOptions options = context.run_options();
    options.launch = [&](const Runtime& runtime, const Call& call) {
        call.launch(stream.get());
        runtime.synchronize(stream.get());
    };
    return check::run_case(context.runtime, test, options);
}

using Runner = CaseResult (*)(const Context&, const Case&);

void add_with(Catalogue& catalogue, const std::string& group, const std::string& name, Case test,
              Runner runner) {
    add(catalogue, group, name, test);
    test.group = group;
    test.name = name;
    catalogue.back().run = [test = std::move(test), runner](const Context& context) {
        return runner(context, test);
    };
    catalogue.back().runs_alone = true;
}

Case prefill_steps(Case test) {
    test = with_lengths(std::move(test), {64, 1, 100, 17}, {64, 300, 100, 40});
    test = with_lengths(std::move(test), {0, 0, 0, 0}, {0, 0, 0, 0});
    test = with_lengths(std::move(test), {100, 100, 100, 100}, {300, 100, 1, 0});
    test = with_lengths(std::move(test), {1, 99, 64, 65}, {129, 300, 64, 65});
    test.spec.lse = true;
    return test;
}

Case decode_steps(Case test) {
    for (const std::int64_t n : {1, 6000, 65, 0, 4097})
        test = with_lengths(std::move(test), {1, 1, 1}, {n, 6000 - n, n / 2});
    test.sizes = PlanSizes{3, 1, 6000};
    test.spec.lse = true;
    return test;
}

// Mixes of lengths that have nothing in common but their bounds: which CTA has which keys is another in each.
Case mixed_steps(Case test) {
    constexpr std::size_t kBatch = 200;
    const std::vector<std::int64_t> ones(kBatch, 1), none(kBatch, 0);
    std::vector<std::int64_t> queries = ones, keys(kBatch, 7);
    keys[66] = 8000;
    test = with_lengths(std::move(test), queries, keys);
    test = with_lengths(std::move(test), queries, ones);
    keys = none;
    keys.back() = 8000;
    test = with_lengths(std::move(test), queries, keys);
    test = with_lengths(std::move(test), queries, none);
    for (std::size_t b = 0; b < kBatch; ++b) {
        queries[b] = b % 3 != 0;
        keys[b] = static_cast<std::int64_t>(b % 2 ? 0 : b);
    }
    test = with_lengths(std::move(test), queries, keys);
    test = with_lengths(std::move(test), none, keys);
    test = with_lengths(std::move(test), ones, std::vector<std::int64_t>(kBatch, 300));
    test.sizes = PlanSizes{static_cast<std::int64_t>(kBatch), 1, 300};
    test.max_kv_len = 8000;
    test.spec.lse = true;
    test.launches = 3;
    return test;
}

}  // namespace

void add_graphs(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        const Case base = causal(attention(dtype, 128, 8, 2));
        const std::string name = word(dtype);
        Case compressed = paged(base, 16, PageOrder::HND);
        compressed.page_list = check::PageList::compressed;
        add_with(catalogue, "graph", name + " ragged prefill", prefill_steps(ragged(base)), replay);
        add_with(catalogue, "graph", name + " dense prefill", prefill_steps(dense(base)), replay);
        add_with(catalogue, "graph", name + " paged prefill", prefill_steps(paged(base)), replay);
        add_with(catalogue, "graph", name + " paged decode, split", decode_steps(paged(base)), replay);
        add_with(catalogue, "graph", name + " compressed decode, split", decode_steps(compressed), replay);
        add_with(catalogue, "graph", name + " paged decode, other mixes", mixed_steps(paged(base)), replay);
        add_with(catalogue, "graph", name + " compressed decode, other mixes", mixed_steps(compressed),
                 replay);
        Case own = decode_steps(paged(base));
        own.call_owns_workspace = true;
        add_with(catalogue, "graph", name + " the call's own workspace", own, replay);
        add_with(catalogue, "stream", name + " prefill", prefill_steps(paged(base)), on_stream);
        add_with(catalogue, "stream", name + " decode", decode_steps(paged(base)), on_stream);
    }
    // A clamp inside a graph is reported, and the next replay is right.
    Case clamped = decode_steps(paged(causal(attention(DType::fp16, 64, 4, 2))));
    clamped.steps[1].status.bits |= kStatusKvLenClamped;
    clamped.steps[1].spoil = [](check::IndexArrays& arrays) { arrays.kv_lens[0] = 1 << 30; };
    add_with(catalogue, "graph", "a clamp between replays", clamped, replay);
}

}  // namespace attnsmith::gpu_tests
