#include "reports/key_fields.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cache/digest/digest.hpp"
#include "cubins/cubin_entry.hpp"

namespace attnsmith::engine {
namespace {

std::string value_text(const cache::HashedField& field) {
    if (!field.value_digest) return field.value;
    return fmt::format("{} bytes, digest {}", field.bytes, field.value_digest->hex());
}

}  // namespace

std::vector<KeyField> read_fields(std::string_view fields_json) {
    std::vector<KeyField> fields;
    for (const cache::HashedField& field :
         cache::parse_fields(fields_json).value_or(std::vector<cache::HashedField>{}))
        fields.push_back({field.label, value_text(field)});
    return fields;
}

std::vector<KeyField> stored_fields(const std::string& entry_metadata) {
    const nlohmann::ordered_json metadata = parse_metadata(entry_metadata);
    const auto fields = metadata.is_object() ? metadata.find("key_fields") : metadata.end();
    return fields == metadata.end() ? std::vector<KeyField>{} : read_fields(fields->dump());
}

FieldsByLabel by_label(const std::vector<KeyField>& fields) {
    FieldsByLabel values;
    for (const auto& [label, value] : fields) {
        std::string& all = values[label];
        all += all.empty() ? value : " " + value;
    }
    return values;
}

std::vector<FieldDifference> differences(const FieldsByLabel& here, const FieldsByLabel& there) {
    std::vector<FieldDifference> found;
    for (const auto& [label, value] : here) {
        const auto other = there.find(label);
        if (other == there.end())
            found.push_back({label, value, {}});
        else if (other->second != value)
            found.push_back({label, value, other->second});
    }
    for (const auto& [label, value] : there) {
        if (!here.contains(label)) found.push_back({label, {}, value});
    }
    return found;
}

}  // namespace attnsmith::engine
