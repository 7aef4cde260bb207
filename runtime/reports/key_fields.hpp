// The labelled fields of a kernel's key, and which of them differ between two kernels.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace attnsmith::engine {

// One of what went into a key, in words: a long value as its length and digest.
struct KeyField {
    std::string label, value;

    bool operator==(const KeyField&) const = default;
};

// The fields in a KernelSource's text; empty where the text is another's.
std::vector<KeyField> read_fields(std::string_view fields_json);
// The same of an entry's metadata.
std::vector<KeyField> stored_fields(const std::string& entry_metadata);

// A label may stand several times, as options do: its values stand together.
using FieldsByLabel = std::map<std::string, std::string>;
FieldsByLabel by_label(const std::vector<KeyField>& fields);

// Empty where that side has no such field.
struct FieldDifference {
    std::string label, here, there;
};
std::vector<FieldDifference> differences(const FieldsByLabel& here, const FieldsByLabel& there);

}  // namespace attnsmith::engine
