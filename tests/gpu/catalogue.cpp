#include "catalogue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include <chrono>
#include <utility>

#include "check/judge.hpp"
#include "check/kernel_choice.hpp"

namespace attnsmith::gpu_tests {

Case attention(DType dtype, std::int64_t head_dim_qk, std::int64_t head_dim_vo, std::int64_t q_heads,
               std::int64_t kv_heads) {
    Case test;
    test.spec.dtype = dtype;
    test.spec.head_dim_qk = head_dim_qk;
    test.spec.head_dim_vo = head_dim_vo;
    test.spec.q_heads = q_heads;
    test.spec.kv_heads = kv_heads;
    return test;
}

Case attention(DType dtype, std::int64_t head_dim, std::int64_t q_heads, std::int64_t kv_heads) {
    return attention(dtype, head_dim, head_dim, q_heads, kv_heads);
}

Case dense(Case test) {
    test.q_storage = check::QStorage::dense;
    test.spec.kv = KvStorage::dense;
    return test;
}

Case ragged(Case test) {
    test.q_storage = check::QStorage::ragged;
    test.spec.kv = KvStorage::ragged;
    return test;
}

Case paged(Case test, std::int64_t page_size, PageOrder order) {
    test.q_storage = check::QStorage::ragged;
    test.spec.kv = KvStorage::paged;
    test.spec.page_size = page_size;
    test.spec.page_order = order;
    return test;
}

Case causal(Case test) {
    test.spec.mask = Mask::causal;
    return test;
}

Case with_lengths(Case test, std::vector<std::int64_t> q_lens, std::vector<std::int64_t> kv_lens) {
    Step step;
    step.kv_lens = kv_lens.empty() ? q_lens : std::move(kv_lens);
    step.q_lens = std::move(q_lens);
    test.steps.push_back(std::move(step));
    return test;
}

Case with_mixed_lengths(Case test) {
    return with_lengths(std::move(test), {200, 40, 150, 1, 0, 70}, {200, 333, 60, 270, 9, 513});
}

namespace {

// With more keys than this |o| nears the elementwise tolerance, and only the log-sum-exp would miss some.
constexpr std::int64_t kManyKeys = 1000;

bool has_many_keys(const Case& test) {
    for (const Step& step : test.steps)
        for (const std::int64_t n : step.kv_lens)
            if (n > kManyKeys) return true;
    return false;
}

// Whether the case is worth running with precision high, too: it names no kernel of another precision, and
// its logits are ordinary.
bool has_twin(const Case& test) {
    using check::Values;
    constexpr std::string_view kElsewhere[] = {"models", "fuzz", "scale"};
    constexpr std::int64_t kMostHeadDim = 256;  // wider ones are refused by name
    return std::max(test.spec.head_dim_qk, test.spec.head_dim_vo) <= kMostHeadDim &&
           test.spec.op == Op::attention && test.spec.precision == Precision::standard && !test.kernel &&
           test.spec.consistency == Consistency::standard &&  // bitwise has no kernel of precision high
           !test.spec.o_dtype && !test.spec.kv_dtype && test.values <= Values::large_v &&
           std::ranges::find(kElsewhere, test.group) == std::end(kElsewhere);
}

// What is promised of precision high, it is promised for logits to 30 (docs/numerics.md).
void keep_biases_ordinary(Case& test) {
    constexpr float kMostBias = 20.0f;  // with the product's, which are a few
    std::int64_t distance = 0;
    for (const Step& step : test.steps)
        for (const std::int64_t n : step.kv_lens) distance = std::max(distance, n);
    float steepest = 0.0f;
    for (const float slope : test.alibi_slopes) steepest = std::max(steepest, std::abs(slope));
    if (steepest * static_cast<float>(distance) <= kMostBias) return;
    for (float& slope : test.alibi_slopes) slope *= kMostBias / (steepest * static_cast<float>(distance));
}

void add_twin(Catalogue& catalogue, Case test) {
    test.spec.precision = Precision::high;
    keep_biases_ordinary(test);
    if (catalogue.size() % 2 == 0) test.spec.o_dtype = DType::fp32;
    const std::string name = test.group + ": " + test.name;
    add(catalogue, "high", name, std::move(test));
}

}  // namespace

void add(Catalogue& catalogue, const std::string& group, const std::string& name, Case test) {
    test.group = group;
    test.name = name;
    if (has_many_keys(test)) test.spec.lse = true;
    if (has_twin(test)) add_twin(catalogue, test);
    TestCase entry{group, name, {}, [test](Runtime& runtime) { check::prepare_case(runtime, test); }, false};
    entry.run = [test = std::move(test)](const Context& context) {
        return check::run_case(context.runtime, test, context.run_options());
    };
    catalogue.push_back(std::move(entry));
}

void add(Catalogue& catalogue, const std::string& group, const std::string& name,
         std::function<std::string(const Context&)> body) {
    TestCase entry{group, name, {}, {}, true};
    entry.run = [group, name, body = std::move(body)](const Context& context) {
        return check::judge(group, name, [&](CaseResult& result) {
            result.detail = body(context);
            if (!result.detail.empty()) result.outcome = check::Outcome::failed;
        });
    };
    catalogue.push_back(std::move(entry));
}

void add_over_kernels(Catalogue& catalogue, const std::string& group, const std::string& name,
                      const Case& test, Splitting splitting) {
    constexpr std::int64_t kChunk = 128;
    const std::vector<check::KernelChoice> choices = check::kernel_choices(test.spec);
    if (choices.empty()) add(catalogue, group, name, test);
    int n = 0;
    for (const check::KernelChoice& choice : choices) {
        ++n;
        for (const std::int64_t chunk : {std::int64_t{0}, kChunk}) {
            const bool wanted =
                splitting == Splitting::both ||
                (splitting == Splitting::alternate ? n % 2 == 0 : splitting == Splitting::always) ==
                    (chunk > 0);
            if (!wanted) continue;
            Case with = test;
            with.kernel = choice;
            with.kernel->chunk = check::chunk_of(choice, chunk);
            add(catalogue, group, name + ", " + to_string(*with.kernel), with);
        }
    }
}

std::string word(DType dtype) { return dtype == DType::fp16 ? "f16" : "bf16"; }

Catalogue make_catalogue(const std::string& models, std::uint64_t seed) {
    Catalogue catalogue;
    add_dims(catalogue);
    add_heads(catalogue);
    add_lengths(catalogue);
    add_masks(catalogue);
    add_chunks(catalogue);
    add_causal_blocks(catalogue);
    add_scores(catalogue);
    add_storage(catalogue);
    add_strides(catalogue);
    add_split(catalogue);
    add_shares(catalogue);
    add_mla(catalogue);
    add_fp8(catalogue);
    add_token_scales(catalogue);
    add_bitwise(catalogue);
    add_extremes(catalogue);
    add_bounds(catalogue);
    add_clamp(catalogue);
    add_specials(catalogue);
    add_kernels(catalogue);
    add_far(catalogue);
    add_graphs(catalogue);
    add_serving(catalogue);
    add_serving_loop(catalogue);
    add_concurrency(catalogue);
    add_precision(catalogue);
    add_fuzz(catalogue, seed);
    add_models(catalogue, models);
    add_merge(catalogue);
    add_merged(catalogue);
    add_append(catalogue);
    add_top_k(catalogue);
    add_input(catalogue);
    return catalogue;
}

std::string refusal(const char* field, const std::function<void()>& action) {
    try {
        action();
    } catch (const InvalidRequest& error) {
        return error.field() == field ? "" : fmt::format("refused {}, expected {}", error.field(), field);
    }
    return fmt::format("nothing was thrown; expected InvalidRequest naming {}", field);
}

}  // namespace attnsmith::gpu_tests
