#include "check/model_checks.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

namespace attnsmith::check {
namespace {

// Keys of the longest sequence: past the window, so that masking is seen, else enough for several tiles.
std::int64_t longest_kv(const AttentionSpec& spec) {
    constexpr std::int64_t kPlain = 1100;
    return spec.window_left ? std::max(kPlain, *spec.window_left + 140) : kPlain;
}

Case model_case(const ModelAttention& attention, const std::string& what) {
    Case test;
    test.group = "models";
    test.name = attention.name + (what.empty() ? "" : " " + what);
    test.spec = attention.request.spec;
    test.sizes = attention.request.sizes;
    test.slack = 2;
    test.spec.lse = true;  // with this many keys a lost one shows in the log-sum-exp first
    return test;
}

std::vector<Case> decode_cases(const ModelAttention& attention) {
    const std::int64_t longest = longest_kv(attention.request.spec);
    Case batch = model_case(attention, "");
    batch.q_storage = QStorage::dense;
    batch.steps = {{{1, 1, 1, 1, 1}, {longest, 1, 0, 257, 700}}};
    // A cache has them behind its columns as often as elsewhere.
    batch.layout.inline_scales = is_per_token(attention.request.spec.kv_scale);
    // The kernel that a server with one user would get: KV is split over the whole GPU.
    Case single = model_case(attention, "batch 1");
    single.q_storage = QStorage::dense;
    single.sizes = PlanSizes{1, 1, longest};
    single.steps = {{{1}, {longest}}};
    return {batch, single};
}

std::vector<Case> prefill_cases(const ModelAttention& attention) {
    const std::int64_t longest = longest_kv(attention.request.spec);
    Case fresh = model_case(attention, "");
    fresh.steps = {{{longest / 2, 0, 33, 1}, {longest / 2, 0, 33, 1}}};
    Case continued = model_case(attention, "onto a cache");
    continued.steps = {{{130, 17, 64}, {longest, 400, 64}}};
    return {fresh, continued};
}

AppendCase append_case(const ModelAttention& append, const std::string& what) {
    AppendCase test;
    test.group = "models";
    test.name = append.name + (what.empty() ? "" : " " + what);
    test.spec = append.request.spec;
    test.has_q = test.spec.head_dim_ckv == 0 || test.spec.head_dim_kpe > 0;
    return test;
}

}  // namespace

std::vector<Case> model_cases(const ModelAttention& attention) {
    if (attention.request.spec.op == Op::append) return {};
    return attention.phase == "decode" ? decode_cases(attention) : prefill_cases(attention);
}

std::vector<AppendCase> append_cases(const ModelAttention& attention) {
    if (attention.request.spec.op != Op::append) return {};
    AppendCase decode = append_case(attention, "");
    decode.q_lens = {1, 1, 0, 1, 1}, decode.kv_lens = {1100, 1, 0, 257, 700};
    AppendCase prompts = append_case(attention, "of prompts");
    prompts.q_lens = {130, 17, 64}, prompts.kv_lens = {1100, 400, 64};
    return {decode, prompts};
}

std::vector<CaseResult> run_model_checks(Runtime& runtime, const Model& model,
                                         const ModelCheckOptions& options, const CheckProgress& progress) {
    struct Pending {
        std::string phase;
        std::function<CaseResult()> run;
        std::shared_future<Kernel> kernel;  // compiles while earlier cases run
    };
    const RunOptions run{options.seed, options.threads, options.reference_budget, {}};
    std::vector<Pending> pending;
    for (const ModelAttention& attention : model.attentions) {
        for (Case& test : model_cases(attention)) {
            auto kernel = runtime.prepare_async(test.spec, test.plan_sizes());
            pending.push_back({attention.phase,
                               [&, test = std::move(test)] { return run_case(runtime, test, run); },
                               std::move(kernel)});
        }
        for (AppendCase& test : append_cases(attention)) {
            auto kernel = runtime.prepare_async(test.spec, {});
            pending.push_back({attention.phase,
                               [&, test = std::move(test)] { return run_append(runtime, test, run); },
                               std::move(kernel)});
        }
    }
    std::vector<CaseResult> results;
    for (const Pending& next : pending) {
        next.kernel.wait();  // what it throws, running the case meets again and reports
        results.push_back(next.run());
        results.back().phase = next.phase;
        if (progress)
            progress(results.back(), static_cast<int>(results.size()), static_cast<int>(pending.size()));
    }
    return results;
}

}  // namespace attnsmith::check
