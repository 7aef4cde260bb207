// The fields of a request, as one table. JSON, its normalised output, the command line's flags and their help
// all come from it, so a word means the same everywhere.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string_view>

#include "attnsmith/spec.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::problem {

enum class FieldType : std::uint8_t { integer, number, boolean, word, sm_list };

// Who decides on a field's value.
enum class FieldRole : std::uint8_t {
    attention,  // the attention itself: a model's config.json says it
    choice,     // the program that runs it: may be given beside a model, and as a list of values
    size,       // a launch: may be given beside a model, to plan for
    device,     // the machine
};

struct RequestField {
    std::string_view name;  // "page_size": the JSON field; the flag is --page-size
    FieldType type;
    std::string_view help;       // one line, no full stop
    std::optional<Words> words;  // of a word field: words_of() has them

    // Reads a JSON value into the request; `field` is the name, for messages. Throws InvalidRequest.
    using Setter = void (*)(AttentionRequest& request, std::string_view field, const nlohmann::json& value);
    using Getter = nlohmann::ordered_json (*)(const AttentionRequest& request);
    Setter set;
    Getter get;  // of a normalised request; null where other fields say it (head_dim)
    FieldRole role = FieldRole::attention;
    bool of_pages = false;  // says nothing but of paged KV
};

// In the order of the normalised JSON. "op" comes first.
std::span<const RequestField> request_fields();

// Whether a field says anything of what the op computes. What does not is not in the normalised JSON.
bool counts(const RequestField& field, Op op);
// Throws InvalidRequest for the first field that does not count for the request's op and is not at its
// default.
void refuse_other_fields(const AttentionRequest& request);

// Null when there is no such field.
const RequestField* find_field(std::string_view name);

// The JSON value of a flag's text, e.g. "16" -> 16. Text that is no value of the field's type stays a string,
// which request_from_json refuses naming the field. "" is true for a boolean, so that --lse alone works; "on"
// and "off" are true and false.
nlohmann::json flag_value(const RequestField& field, std::string_view text);
// The same of a field that a program chooses, whose text may be a list, "16,8" -> [16, 8].
nlohmann::json flag_values(const RequestField& field, std::string_view text);

// A sentence for each suffix in a value of `sm` that is taken but says nothing, as in "100f". Throws
// InvalidRequest.
std::vector<std::string> unused_sm_suffixes(const nlohmann::json& value);

// What parse_request does after the text is read: fields {"op": ..., ...} -> validated, normalised request.
AttentionRequest request_from_json(const nlohmann::json& object);

}  // namespace attnsmith::problem
