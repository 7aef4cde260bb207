#include "engine/explain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "engine/needed_kernels.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/json_text.hpp"

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

// Constants say what a source's digest only counts, so they come first.
std::vector<FieldDifference> differences(const std::vector<KeyField>& here,
                                         const std::vector<KeyField>& there) {
    const auto own = by_label(here), others = by_label(there);
    std::vector<FieldDifference> found;
    for (const auto& [label, value] : own) {
        const auto other = others.find(label);
        if (other == others.end())
            found.push_back({label, value, {}});
        else if (other->second != value)
            found.push_back({label, value, other->second});
    }
    for (const auto& [label, value] : others) {
        if (!own.contains(label)) found.push_back({label, {}, value});
    }
    return found;
}

std::optional<NearestEntry> nearest_entry(const Explanation& of, std::span<const KernelEntry> stored) {
    std::optional<NearestEntry> nearest;
    for (const KernelEntry& kernel : stored) {
        const std::vector<KeyField> fields = fields_of(kernel);
        if (fields.empty()) continue;
        std::vector<FieldDifference> found = differences(of.fields, fields);
        if (!nearest || found.size() < nearest->differences.size())
            nearest = NearestEntry{kernel, std::move(found)};
    }
    return nearest;
}

std::vector<KernelEntry> entries_of(const cache::Digest& key, std::span<const KernelEntry> stored) {
    std::vector<KernelEntry> entries;
    std::ranges::copy_if(stored, std::back_inserter(entries),
                         [&](const KernelEntry& kernel) { return kernel.entry.key == key; });
    return entries;
}

Json to_json(const Explanation& one) {
    Json json = {{"name", one.name},        {"sm", one.sm},
                 {"key", one.key.hex()},    {"state", one.entries.empty() ? "miss" : "hit"},
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

Explanation explain(const KernelSource& source, std::span<const KernelEntry> stored) {
    Explanation one;
    one.name = source.kernel.name();
    one.sm = source.kernel.sm;
    one.key = source.key;
    one.fields = parse_fields(nlohmann::json::parse(source.fields_json));
    one.entries = entries_of(source.key, stored);
    if (one.entries.empty()) one.nearest = nearest_entry(one, stored);
    return one;
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

std::vector<Explanation> explain(Runtime::Impl& runtime, const nlohmann::json& options) {
    const auto key = options.find("key"), request = options.find("request");
    if ((key == options.end()) == (request == options.end()))
        throw InvalidRequest("key", key == options.end() ? "nothing" : "a key and a request",
                             "a key or a request, one of the two");
    const std::vector<KernelEntry> stored = list_kernels(runtime.cubins.store());
    if (key != options.end()) {
        const auto digest = key->is_string() ? cache::Digest::parse(key->get<std::string>()) : std::nullopt;
        if (!digest) throw InvalidRequest("key", problem::describe(*key), kKeyText);
        auto one = explain(*digest, stored);
        if (!one) throw CacheError(fmt::format("no entry has the key {}", digest->hex()));
        return {*std::move(one)};
    }
    const AttentionRequest asked = parse_request(request->dump());
    if (asked.sm.empty()) throw InvalidRequest("request.sm", "nothing", "compute capabilities");
    std::vector<PrewarmRefusal> refused;
    std::vector<Explanation> explanations;
    for (const planner::KernelConfig& kernel :
         needed_kernels({&asked.spec, 1}, asked.sm, runtime.tuning, refused))
        explanations.push_back(explain(runtime.cubins.source_of(kernel), stored));
    if (!refused.empty()) throw Unsupported(refused.front().reason, {});
    return explanations;
}

nlohmann::ordered_json explain_json(const cache::Store& store, std::span<const Explanation> explanations) {
    Json json = {{"schema", "attnsmith.cache-explain/1"},
                 {"directories", directories_json(store.options())},
                 {"kernels", Json::array()}};
    for (const Explanation& one : explanations) json["kernels"].push_back(to_json(one));
    return json;
}

}  // namespace attnsmith::engine
