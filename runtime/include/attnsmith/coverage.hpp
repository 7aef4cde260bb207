// All that a program will run, as one list of attentions to build kernels for: requests and models whose
// words have several values, and what programs recorded of themselves (RuntimeOptions::record_file).
//
//   attnsmith::Coverage coverage = attnsmith::model_coverage(config_json, R"({"kv": ["paged", "dense"]})");
//   coverage.add(attnsmith::recorded_coverage(lines, "staging.jsonl"));
//   attnsmith::PrewarmReport report = runtime.prewarm(coverage, {80, 90});
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/export.h"
#include "attnsmith/spec.hpp"

namespace attnsmith {

// What was left out because it says nothing: a page size of dense KV, for example, or a line of a recorded
// file that a process was killed in.
struct SkippedPart {
    // The combination of values, or the file and line.
    std::string name{};
    // Why the part says nothing, in one sentence.
    std::string reason{};

    bool operator==(const SkippedPart&) const = default;
};

// Attentions, what of them cannot be served, and what a reader must know of the list.
struct ATTNSMITH_API Coverage {
    // Each attention once. Its name says which values are its own, where words have several:
    // "full_attention/decode (kv dense)". A request's attention has neither a phase nor layers, and no name
    // where no word has several values.
    std::vector<ModelAttention> attentions{};
    // What no kernel serves.
    std::vector<UnsupportedPart> unsupported{};
    // What may be planned wrong.
    std::vector<ModelWarning> warnings{};
    // What was left out, since it says nothing.
    std::vector<SkippedPart> skipped{};

    // Adds what the other has and this lacks. A `prefix` such as "llama/" goes before the names of its
    // attentions, unsupported and skipped parts, and before the fields of its warnings.
    void add(Coverage other, std::string_view prefix = {});
    // Gives the attentions' specs, each once. Runtime::prewarm() of them does not report the other members;
    // Runtime::prewarm() of the Coverage does.
    [[nodiscard]] std::vector<AttentionSpec> specs() const;
};

// Reads a JSON request. Words that a program chooses (dtype, lse, kv, page_order, page_size, index_dtype,
// alignment, o_dtype, kv_dtype, kv_scale, precision, consistency, slots, rope_table, q_dtype, check_slots)
// may be arrays; the coverage has all combinations of their values. Combinations that cannot be are skipped
// by name; those that no kernel serves are unsupported. A suffix of sm that says nothing, as in "90f", is a
// warning. Throws InvalidRequest naming the field.
[[nodiscard]] ATTNSMITH_API Coverage request_coverage(std::string_view json);
// Reads a Hugging Face config.json (its text) with the options of parse_model_options(). Words that a program
// chooses may be arrays (see request_coverage()); the coverage has all combinations of their values. Throws
// as parse_model() does.
[[nodiscard]] ATTNSMITH_API Coverage model_coverage(std::string_view config_json,
                                                    std::string_view options_json = "{}");
// Reads a Hugging Face config.json (its text) once with each of these options, and gives each attention once.
// Its name says what its options have and others have not: "full_attention/decode (kv dense)". Throws
// InvalidRequest for an empty list, and as parse_model() does.
[[nodiscard]] ATTNSMITH_API Coverage model_coverage(std::string_view config_json,
                                                    const std::vector<ModelOptions>& variants);
// Gives the coverage of these requests, each once. Those that no kernel can serve are unsupported. Each is
// named by its op, and where there are several by its place in the list, counted from 0: "attention 2".
// Throws InvalidRequest naming the place and the field: "requests[2].q_heads".
[[nodiscard]] ATTNSMITH_API Coverage coverage_of(const std::vector<AttentionRequest>& requests);

// Reads what programs recorded: `lines` is the text of a file whose lines are each {"schema":
// "attnsmith.recorded/1", "request": {...}}, a request without sizes and sm. `name` is what messages call the
// text; no file of that name is opened. Gives each spec once, named by where it stands: "NAME:3". Torn lines,
// of processes that were killed, are skipped by name. Throws InvalidRequest naming `name` and the line, for a
// text without any record, and where the two arguments seem to be swapped.
[[nodiscard]] ATTNSMITH_API Coverage recorded_coverage(std::string_view lines, std::string_view name);

// Writes {"attentions", "unsupported", "warnings", "skipped": [{"name", "reason"}]}; what the first three
// hold is said at to_json(const Model&).
[[nodiscard]] ATTNSMITH_API std::string to_json(const Coverage& coverage);

}  // namespace attnsmith
