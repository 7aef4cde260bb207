// Words with several values: the product of them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/coverage.hpp"

namespace attnsmith::problem {

inline constexpr std::string_view kNoPages = "only paged KV has pages";  // why words of pages are skipped

// One value of each choice.
struct Variant {
    nlohmann::json words = nlohmann::json::object();
    std::string
        label;  // the values that others do not have: "kv dense, alignment 8"; empty where there is one alone
};

// Whether it has pages; `otherwise` is what is stored where its words do not say. Throws InvalidRequest.
bool is_paged(const Variant& variant, KvStorage otherwise);

// The object with these choices in place of its own.
nlohmann::json with_choices(const nlohmann::json& object, const Variant& variant);

// "name (kv dense)", or the name where there is no label.
std::string labelled(std::string name, const Variant& variant);

// What each of the options has and others have not: "kv dense, alignment 8"; empty where they are equal.
std::vector<std::string> labels_of(const std::vector<ModelOptions>& options);

// All combinations of the values in an object whose choices (FieldRole::choice) may be arrays, in the order
// of the table of fields. Where no KV is paged, words of pages are left out and go to `skipped`; `kv` is what
// is stored where the object does not say. A type of o that does not go with one of q is skipped, too, unless
// none does. Throws InvalidRequest for an empty array, and for too many combinations.
std::vector<Variant> variants_of(const nlohmann::json& object, KvStorage kv,
                                 std::vector<SkippedPart>& skipped);

}  // namespace attnsmith::problem
