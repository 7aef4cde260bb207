// The fields of a request, as one table. JSON, its normalised output, the C structs, hashes, the command
// line's flags and their help all come from it, so a word means the same everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "attnsmith/attnsmith.h"
#include "attnsmith/spec.hpp"

namespace attnsmith::problem {

enum class FieldType : std::uint8_t { integer, number, boolean, word, sm_list };

// Who decides on a field's value.
enum class FieldRole : std::uint8_t {
    attention,  // the attention itself: a model's config.json says it
    choice,     // the program that runs it: may be given beside a model, and as a list of values
    size,       // a launch: may be given beside a model, to plan for
    device,     // the machine
};

// The structs of the C ABI that say a request.
struct CRequest {
    attnsmith_spec spec{};
    attnsmith_sizes sizes{};
};

// What is null does not apply: head_dim is said by other fields, sm is no member of a struct.
struct RequestField {
    std::string_view name;  // "page_size": the JSON field; the flag is --page-size
    FieldType type;
    std::string_view help;  // one line, no full stop
    // Reads a JSON value into the request; `field` is the name, for messages. Throws InvalidRequest, as the
    // others do.
    void (*set)(AttentionRequest& request, std::string_view field, const nlohmann::json& value);
    nlohmann::ordered_json (*get)(const AttentionRequest& request) = nullptr;  // of a normalised request
    void (*from_c)(AttentionRequest& request, std::string_view field, const CRequest& given) = nullptr;
    void (*to_c)(const AttentionRequest& request, CRequest& c) = nullptr;
    // A field that may be given beside a model. What an absent option leaves open stays as it is.
    void (*from_options)(AttentionRequest& request, const ModelOptions& options) = nullptr;
    void (*to_options)(const AttentionRequest& request, ModelOptions& options) = nullptr;
    std::uint64_t (*bits)(const AttentionRequest& request) = nullptr;  // equal for equal values: for hashes
    // What can be said of the field alone: refuses a value, or takes another spelling for one.
    void (*check)(AttentionRequest& request, std::string_view field) = nullptr;
    std::vector<std::string_view> (*words)() = nullptr;  // that a word field accepts
    FieldRole role = FieldRole::attention;
    bool of_pages = false;    // says nothing but of paged KV
    bool of_latents = false;  // says nothing of ops without latents
    bool of_append = false;   // says nothing of other ops
};

// In the order of the normalised JSON. "op" comes first.
std::span<const RequestField> request_fields();

// Whether a field says anything of what the op computes. What does not is not in the normalised JSON.
bool counts(std::string_view field, Op op);
// The same of a request: of op append, fields of latents count with a head_dim_ckv, and then those of heads
// do not.
bool counts(std::string_view field, const AttentionSpec& spec);
// Whether it is of latents: their columns take the place of head dims.
bool is_latent(const AttentionSpec& spec);
// Whether an AttentionSpec has it: it is neither a size nor the machine.
bool is_of_spec(const RequestField& field);
// Whether a request without the field has no value for it, as for a window or a softcap.
bool is_absent_by_default(const RequestField& field);
// Equal for equal specs, and seldom for others.
std::size_t hash_of(const AttentionSpec& spec);
// Throws InvalidRequest for the first field that does not count for the request's op and is not at its
// default.
void refuse_other_fields(const AttentionRequest& request);
// RequestField::check of every field that counts.
void check_each_field(AttentionRequest& request);

// Null when there is no such field.
const RequestField* find_field(std::string_view name);

// The JSON value of a flag's text, e.g. "16" -> 16. Text that is no value of the field's type stays a string,
// which request_from_json refuses naming the field. "" is true for a boolean, so that --lse alone works; "on"
// and "off" are true and false.
nlohmann::json flag_value(const RequestField& field, std::string_view text);
// The same of a field that a program chooses, whose text may be a list, "16,8" -> [16, 8].
nlohmann::json flag_values(const RequestField& field, std::string_view text);

// What parse_request does after the text is read: fields {"op": ..., ...} -> validated, normalised request.
AttentionRequest request_from_json(const nlohmann::json& object);

}  // namespace attnsmith::problem
