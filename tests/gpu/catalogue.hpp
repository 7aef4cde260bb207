// The suite's test cases, by group. A group is named for what it shows.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check/case.hpp"
#include "check/run_case.hpp"

namespace attnsmith::gpu_tests {

using check::Case;
using check::CaseResult;
using check::Step;

struct Context {
    Runtime& runtime;
    std::uint64_t seed = 0;
    int threads = 0;

    check::RunOptions run_options() const { return {seed, threads, 2e9, {}}; }
};

struct TestCase {
    std::string group;
    std::string name;
    std::function<CaseResult(const Context&)> run;
    std::function<void(Runtime&)> ahead;  // prepares its kernel; null: none that is known before
    bool runs_alone = false;              // no other case beside it, as for one that captures or counts

    std::string full_name() const { return group + "/" + name; }
};

using Catalogue = std::vector<TestCase>;

// The whole suite. `models` is a folder of config.json files; `seed` draws the cases of the group "fuzz".
Catalogue make_catalogue(const std::string& models, std::uint64_t seed);

void add_dims(Catalogue& catalogue);           // every head dim and dtype
void add_heads(Catalogue& catalogue);          // ratios of query heads to key/value heads
void add_lengths(Catalogue& catalogue);        // odd lengths, empty sequences
void add_masks(Catalogue& catalogue);          // causal, windows
void add_chunks(Catalogue& catalogue);         // attention_chunk
void add_causal_blocks(Catalogue& catalogue);  // causal_block
void add_scores(Catalogue& catalogue);         // softcap, sinks, ALiBi, all together
void add_storage(Catalogue& catalogue);        // dense, ragged, paged
void add_strides(Catalogue& catalogue);        // views, alignment classes
void add_split(Catalogue& catalogue);          // long KV, few queries
void add_shares(Catalogue& catalogue);         // equal shares of keys, found on the device
void add_extremes(Catalogue& catalogue);       // extreme logits and values
void add_bounds(Catalogue& catalogue);         // one Call, many lengths
void add_clamp(Catalogue& catalogue);          // lengths and page ids beyond their bounds
void add_kernels(Catalogue& catalogue);        // every kernel that planning could choose, here or elsewhere
void add_specials(Catalogue& catalogue);       // NaN, infinity, evicted keys, large equal logits
void add_far(Catalogue& catalogue);            // elements more than 2^31 and 2^32 from a tensor's first
void add_mla(Catalogue& catalogue);            // op mla: latent attention
void add_fp8(Catalogue& catalogue);            // keys and values of 8 bits
void add_token_scales(Catalogue& catalogue);   // likewise, whose tokens have scales of their own
void add_bitwise(Catalogue& catalogue);        // consistency bitwise: equal bits, and right ones
void add_merge(Catalogue& catalogue);          // op merge: its kernel against an fp64 merge
void add_merged(Catalogue& catalogue);         // op merge after attention over parts of the keys
void add_append(Catalogue& catalogue);         // op append: tokens into a cache, bit for bit
void add_top_k(Catalogue& catalogue);          // op top_k: columns of the largest scores, bit for bit
void add_precision(Catalogue& catalogue);      // O in fp32, precision high
void add_input(Catalogue& catalogue);          // requests and tensors that must be refused
void add_graphs(Catalogue& catalogue);         // CUDA graphs
void add_serving(Catalogue& catalogue);        // one call for all layers, sets of kernels, graphs that stay
void add_serving_loop(Catalogue& catalogue);   // continuous batching, by graphs captured once
void add_concurrency(Catalogue& catalogue);    // threads, several runtimes, many launches
void add_fuzz(Catalogue& catalogue, std::uint64_t seed);
void add_models(Catalogue& catalogue, const std::string& folder);

// A case with these heads; full mask, ragged q, dense kv where nothing else is set.
Case attention(DType dtype, std::int64_t head_dim_qk, std::int64_t head_dim_vo, std::int64_t q_heads,
               std::int64_t kv_heads);
Case attention(DType dtype, std::int64_t head_dim, std::int64_t q_heads, std::int64_t kv_heads);

// Storage, in one word each.
Case dense(Case test);
Case ragged(Case test);
Case paged(Case test, std::int64_t page_size = 16, PageOrder order = PageOrder::NHD);
Case causal(Case test);

// One step of these lengths; equal ones where the second list is left out.
Case with_lengths(Case test, std::vector<std::int64_t> q_lens, std::vector<std::int64_t> kv_lens = {});
// Same lengths, keys before the queries, more queries than keys (rows without a key), and single queries.
Case with_mixed_lengths(Case test);

void add(Catalogue& catalogue, const std::string& group, const std::string& name, Case test);
// A test that is a program of its own, and runs alone: it throws, or returns why it failed; empty is a pass.
void add(Catalogue& catalogue, const std::string& group, const std::string& name,
         std::function<std::string(const Context&)> body);

// The case once with every kernel that planning can choose for its spec on any SM. Where there is none it is
// added as it is, and fails by the refusal's name.
enum class Splitting : std::uint8_t { never, always, alternate, both };
void add_over_kernels(Catalogue& catalogue, const std::string& group, const std::string& name,
                      const Case& test, Splitting splitting);

// Lengths and page ids that a kernel must clamp and report, all of f16 with head dim 64.
std::vector<std::pair<std::string, Case>> hostile_cases();

// Masks and transforms of logits, by name: what each makes of a spec without any.
struct ScoreChange {
    const char* name;
    void (*change)(AttentionSpec& spec);
};
const std::vector<ScoreChange>& score_changes();

std::string word(DType dtype);

// Runs `action`. Empty where it throws InvalidRequest naming just `field`, else what happened instead.
std::string refusal(const char* field, const std::function<void()>& action);

}  // namespace attnsmith::gpu_tests
