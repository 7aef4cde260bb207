#include "engine/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/needed_kernels.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/json_text.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::engine {
namespace {

using Json = nlohmann::ordered_json;

// As FieldHasher::fields_json() writes them. Empty where the metadata is another's.
std::vector<KeyField> parse_fields(const nlohmann::json& fields) {
    std::vector<KeyField> parsed;
    if (!fields.is_array()) return parsed;
    for (const nlohmann::json& field : fields) {
        try {
            std::string value = field.contains("value") ? field.at("value").get<std::string>()
                                                        : fmt::format("{} bytes, digest {}",
                                                                      field.at("bytes").get<std::uint64_t>(),
                                                                      field.at("digest").get<std::string>());
            parsed.push_back({field.at("label").get<std::string>(), std::move(value)});
        } catch (const nlohmann::json::exception&) {
            return {};
        }
    }
    return parsed;
}

std::vector<KeyField> fields_of(const KernelEntry& kernel) {
    const auto metadata = nlohmann::json::parse(kernel.entry.metadata, nullptr, false);
    const auto fields = metadata.is_object() ? metadata.find("key_fields") : metadata.end();
    return fields == metadata.end() ? std::vector<KeyField>{} : parse_fields(*fields);
}

// A label may stand several times, as options do.
std::map<std::string, std::string> by_label(const std::vector<KeyField>& fields) {
    std::map<std::string, std::string> values;
    for (const auto& [label, value] : fields) {
        std::string& all = values[label];
        all += all.empty() ? value : " " + value;
    }
    return values;
}

// An entry, with its fields read once for all the kernels that are compared with it.
struct Stored {
    const KernelEntry* kernel;
    std::map<std::string, std::string> fields;  // empty where the metadata is another's
};

std::vector<Stored> read_fields(std::span<const KernelEntry> kernels) {
    std::vector<Stored> stored;
    for (const KernelEntry& kernel : kernels) stored.push_back({&kernel, by_label(fields_of(kernel))});
    return stored;
}

std::vector<FieldDifference> differences(const std::map<std::string, std::string>& here,
                                         const std::map<std::string, std::string>& there) {
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

std::optional<NearestEntry> nearest_entry(const std::vector<KeyField>& fields,
                                          std::span<const Stored> stored) {
    const auto here = by_label(fields);
    std::optional<NearestEntry> nearest;
    for (const Stored& other : stored) {
        if (other.fields.empty()) continue;
        std::vector<FieldDifference> found = differences(here, other.fields);
        if (!nearest || found.size() < nearest->differences.size())
            nearest = NearestEntry{*other.kernel, std::move(found)};
    }
    return nearest;
}

std::vector<KernelEntry> entries_of(const cache::Digest& key, std::span<const KernelEntry> stored) {
    std::vector<KernelEntry> entries;
    std::ranges::copy_if(stored, std::back_inserter(entries),
                         [&](const KernelEntry& kernel) { return kernel.entry.key == key; });
    return entries;
}

void look_at_entries(const cache::Store& store, Explanation& one) {
    one.hit = std::ranges::any_of(one.entries, [&](const KernelEntry& kernel) {
        const cache::ListedEntry& entry = kernel.entry;
        return store.load({entry.key, entry.version, entry.layer, entry.path}).ok();
    });
}

Json to_json(const Explanation& one) {
    Json json = {{"name", one.name},        {"sm", one.sm},
                 {"key", one.key.hex()},    {"state", one.hit ? "hit" : "miss"},
                 {"fields", Json::array()}, {"entries", Json::array()}};
    for (const auto& [label, value] : one.fields)
        json["fields"].push_back({{"label", label}, {"value", value}});
    for (const KernelEntry& kernel : one.entries) json["entries"].push_back(entry_json(kernel));
    if (one.nearest) {
        json["nearest"] = {{"entry", entry_json(one.nearest->kernel)}, {"differences", Json::array()}};
        for (const auto& [label, here, there] : one.nearest->differences)
            json["nearest"]["differences"].push_back({{"label", label}, {"here", here}, {"there", there}});
    }
    return json;
}

}  // namespace

std::vector<Explanation> explain(std::span<const KernelSource> sources, std::span<const KernelEntry> stored) {
    const std::vector<Stored> others = read_fields(stored);
    std::vector<Explanation> explanations;
    for (const KernelSource& source : sources) {
        Explanation& one = explanations.emplace_back();
        one.name = source.kernel.name();
        one.sm = source.kernel.sm;
        one.key = source.key;
        one.fields = parse_fields(nlohmann::json::parse(source.fields_json));
        one.entries = entries_of(source.key, stored);
        if (one.entries.empty()) one.nearest = nearest_entry(one.fields, others);
    }
    return explanations;
}

std::optional<Explanation> explain(const cache::Digest& key, std::span<const KernelEntry> stored) {
    Explanation one;
    one.key = key;
    one.entries = entries_of(key, stored);
    if (one.entries.empty()) return std::nullopt;
    one.name = one.entries.front().name;
    one.sm = one.entries.front().sm;
    one.fields = fields_of(one.entries.front());
    return one;
}

Explanation explain_key(const cache::Store& store, std::string_view digits, const KernelList& stored) {
    constexpr std::size_t kFewestDigits = 4, kAllDigits = 32;
    constexpr std::string_view kHexDigits = "0123456789abcdef";
    std::string wanted(digits);
    std::ranges::transform(wanted, wanted.begin(), [](char c) {
        return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    if (wanted.size() < kFewestDigits || wanted.size() > kAllDigits ||
        wanted.find_first_not_of(kHexDigits) != wanted.npos) {
        throw InvalidRequest("key", problem::quote(digits),
                             "32 hexadecimal digits, as `attnsmith cache ls` prints, or the first 4 or more");
    }
    std::set<cache::Digest> keys;
    for (const KernelEntry& kernel : stored.kernels) {
        if (kernel.entry.key.hex().starts_with(wanted)) keys.insert(kernel.entry.key);
    }
    if (keys.empty()) {
        const std::string unread =
            stored.unreadable.empty() ? std::string() : "; " + unreadable_text(stored.unreadable);
        throw CacheError(fmt::format(
            "no entry has the key {}; `attnsmith cache ls` lists those that there are{}", wanted, unread));
    }
    if (keys.size() > 1)
        throw CacheError(fmt::format("{} keys begin with {}; give more of its digits", keys.size(), wanted));
    Explanation one = explain(*keys.begin(), stored.kernels).value();
    look_at_entries(store, one);
    return one;
}

Explained explain(const Runtime::Impl& runtime, std::span<const AttentionSpec> specs,
                  std::span<const int> sms, std::vector<PrewarmRefusal>& refused) {
    std::vector<KernelSource> sources;
    for (const planner::KernelConfig& kernel : needed_kernels(specs, sms, runtime.tuning, refused))
        sources.push_back(runtime.cubins.source_of(kernel));
    KernelList stored = list_kernels(runtime.cubins.store());
    Explained explained{explain(sources, stored.kernels), std::move(stored.unreadable)};
    for (Explanation& one : explained.kernels) look_at_entries(runtime.cubins.store(), one);
    return explained;
}

Explained explain(const Runtime::Impl& runtime, const nlohmann::json& options) {
    const auto key = options.find("key"), request = options.find("request");
    if ((key == options.end()) == (request == options.end()))
        throw InvalidRequest("key", key == options.end() ? "nothing" : "a key and a request",
                             "a key or a request, one of the two");
    if (key != options.end()) {
        if (!key->is_string()) throw InvalidRequest("key", problem::describe(*key), "a text");
        KernelList stored = list_kernels(runtime.cubins.store());
        Explanation one = explain_key(runtime.cubins.store(), key->get_ref<const std::string&>(), stored);
        return {{std::move(one)}, std::move(stored.unreadable)};
    }
    const AttentionRequest asked = parse_request(request->dump());
    if (asked.sm.empty()) throw InvalidRequest("request.sm", "nothing", "compute capabilities");
    std::vector<PrewarmRefusal> refused;
    Explained explained = explain(runtime, {&asked.spec, 1}, asked.sm, refused);
    if (!refused.empty()) throw Unsupported(refused.front().reason, {});
    return explained;
}

nlohmann::ordered_json explain_json(const cache::Store& store, const Explained& explained) {
    Json json = {{"schema", "attnsmith.cache-explain/1"},
                 {"directories", directories_json(store.options())},
                 {"kernels", Json::array()}};
    for (const Explanation& one : explained.kernels) json["kernels"].push_back(to_json(one));
    json["unreadable"] = unreadable_json(explained.unreadable);
    return json;
}

}  // namespace attnsmith::engine
