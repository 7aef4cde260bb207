// One field of a request: how JSON, the C structs, options and hashes read and write it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
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
    nlohmann::ordered_json (*option)(const ModelOptions& options) = nullptr;  // null where it is absent
    std::uint64_t (*bits)(const AttentionRequest& request) = nullptr;  // equal for equal values: for hashes
    // What can be said of the field alone: refuses a value, or takes another spelling for one.
    void (*check)(AttentionRequest& request, std::string_view field) = nullptr;
    std::vector<std::string_view> (*words)() = nullptr;  // that a word field accepts
    FieldRole role = FieldRole::attention;
    bool of_pages = false;  // says nothing but of paged KV
};

}  // namespace attnsmith::problem
