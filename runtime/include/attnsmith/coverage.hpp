// All that a program will run, as one list of attentions to build kernels for: requests and models whose
// words have several values, and what programs recorded of themselves (RuntimeOptions::record_file).
//
//   attnsmith::Coverage coverage = attnsmith::model_coverage(config_json, R"({"kv": ["paged", "dense"]})");
//   coverage.add(attnsmith::recorded_coverage(text, "staging.jsonl"));
//   attnsmith::PrewarmReport report = runtime.prewarm(coverage.specs(), sms);
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/export.h"
#include "attnsmith/spec.hpp"

namespace attnsmith {

// What was left out because it says nothing: a page size of dense KV, say, or a line of a recorded file that
// a process was killed in.
struct SkippedPart {
    std::string name{};    // the combination of values, or the file and line
    std::string reason{};  // one sentence

    bool operator==(const SkippedPart&) const = default;
};

// Attentions, what of them cannot be served, and what a reader must know of the list.
struct ATTNSMITH_API Coverage {
    // Each once. Its name says which values are its own, where words have several: "full_attention/decode (kv
    // dense)". A request's attention has neither a phase nor layers, and where no word has several values no
    // name.
    std::vector<ModelAttention> attentions{};
    std::vector<UnsupportedPart> unsupported{};  // what no kernel serves
    std::vector<ModelWarning> warnings{};        // what may be planned wrong
    std::vector<SkippedPart> skipped{};          // what was left out

    // Adds what the other has and this lacks. A `prefix` goes before the names of its attentions, unsupported
    // and skipped parts and of its warnings' fields: "llama/".
    void add(Coverage other, std::string_view prefix = {});
    // The attentions' specs, each once: what Runtime::prewarm() takes.
    std::vector<AttentionSpec> specs() const;
};

// A JSON request, of which the words that a program chooses (dtype, lse, kv, page_order, page_size,
// index_dtype, alignment, o_dtype, precision, consistency) may be arrays: all combinations of their values.
// Combinations that cannot be are skipped by name; those that are of no built kind are unsupported. A suffix
// of sm that says nothing, as in "90f", is a warning. Throws InvalidRequest naming the field.
ATTNSMITH_API Coverage request_coverage(std::string_view json);
// The same of a Hugging Face config.json and the options of parse_model_options().
ATTNSMITH_API Coverage model_coverage(std::string_view config_json, std::string_view options_json = "{}");

// The text of a recorded file: on each line {"schema": "attnsmith.recorded/1", "request": {...}}, a request
// without sizes and sm. Each spec once, named by where it stands: "FILE:3". Torn lines, of processes that
// were killed, are skipped by name. Throws InvalidRequest naming the file and the line, and for a file with
// no record at all.
ATTNSMITH_API Coverage recorded_coverage(std::string_view text, std::string_view file);

// As to_json(Model) without its "model_type", and "skipped": [{"name", "reason"}].
ATTNSMITH_API std::string to_json(const Coverage& coverage);

}  // namespace attnsmith
