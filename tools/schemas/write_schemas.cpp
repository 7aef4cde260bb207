// attnsmith_write_schemas FOLDER writes the JSON schemas of all reports that have a table, as files of
// FOLDER. With --check before FOLDER it writes nothing, and names the files that are not as they would be
// written.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "problem/report/schema.hpp"
#include "reports/tables/cache.hpp"
#include "reports/tables/places.hpp"
#include "reports/tables/prewarm.hpp"

namespace attnsmith::problem {

template <>
struct Schema<std::chrono::system_clock::time_point> {
    static nlohmann::ordered_json schema() { return reference("common", "utc_time"); }
};

namespace {

using Json = nlohmann::ordered_json;

// One of the reports of a schema, which has a `variant` where there are several.
struct Document {
    std::string_view schema, about, variant;
    Properties properties;
};

template <class Report>
Document document() {
    using Table = ReportTable<Report>;
    Document one{Table::schema, Table::about, {}, properties_of<Report>()};
    if constexpr (requires { Table::variant; }) one.variant = Table::variant;
    return one;
}

// All that have a schema.
std::vector<Document> documents() {
    return {document<CacheClearReport>(),  document<CacheExplanations>(),  document<CacheExportReport>(),
            document<CacheImageReport>(),  document<CacheGcReport>(),      document<CacheImportReport>(),
            document<SigningKey>(),        document<CacheListing>(),       document<CachePushReport>(),
            document<CacheRemoveReport>(), document<CacheStatistics>(),    document<CacheVerification>(),
            document<PrewarmReport>(),     document<engine::PullReport>(), document<engine::CachePlaces>()};
}

bool has(const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
}

// What all variants always have is required; one of them has what it has besides.
Json schema_of(const std::vector<Document>& variants, const std::string& name) {
    std::string title = "attnsmith " + name;
    std::ranges::replace(title, '-', ' ');
    Json json = {{"$schema", "http://json-schema.org/draft-07/schema#"},
                 {"$id", fmt::format("urn:attnsmith:{}/1", name)},
                 {"title", title},
                 {"description", variants.front().about},
                 {"type", "object"}};
    Json properties = Json::object();
    std::vector<std::string> shared = variants.front().properties.required;
    for (const Document& one : variants) {
        for (const auto& property : one.properties.properties.items())
            if (!properties.contains(property.key())) properties[property.key()] = property.value();
        std::erase_if(shared, [&](const std::string& field) { return !has(one.properties.required, field); });
    }
    json["required"] = shared;
    if (variants.size() > 1) {
        for (const Document& one : variants) {
            Json required = Json::array();
            for (const std::string& field : one.properties.required)
                if (!has(shared, field)) required.push_back(field);
            json["oneOf"].push_back({{"description", one.variant}, {"required", required}});
        }
    }
    json["properties"] = properties;
    return json;
}

template <class Report>
void define(Json& definitions) {
    using Table = ReportTable<Report>;
    Json definition = {{"description", Table::about}};
    definition.update(list_schema<Report>());
    definitions[std::string(Table::list)] = definition;
}

// What several schemas share, also those that are written by hand.
Json shared_schema() {
    Json definitions = Json::object();
    define<PrewarmRefusal>(definitions);
    define<SkippedPart>(definitions);
    define<ModelWarning>(definitions);
    define<CacheUnreadable>(definitions);
    define<CacheBadEntry>(definitions);
    return {{"$schema", "http://json-schema.org/draft-07/schema#"},
            {"$id", "urn:attnsmith:reports/1"},
            {"title", "Lists that several of attnsmith's reports have"},
            {"definitions", definitions}};
}

std::string on_one_line(const Json& json) {
    if (!json.is_structured()) return json.dump();
    std::string text;
    for (const auto& item : json.items()) {
        if (!text.empty()) text += ", ";
        if (json.is_object()) text += Json(item.key()).dump() + ": ";
        text += on_one_line(item.value());
    }
    return json.is_object() ? "{" + text + "}" : "[" + text + "]";
}

// A value on one line if there is room, after `used` columns.
std::string text_of(const Json& json, std::size_t indent, std::size_t used) {
    constexpr std::size_t kColumns = 118;
    const std::string line = on_one_line(json);
    if (!json.is_structured() || (indent > 0 && used + line.size() <= kColumns)) return line;
    const std::string inner(indent + 2, ' ');
    std::string text;
    for (const auto& item : json.items()) {
        const std::string name = json.is_object() ? Json(item.key()).dump() + ": " : std::string();
        text += text.empty() ? "\n" : ",\n";
        text += inner + name + text_of(item.value(), indent + 2, inner.size() + name.size() + 1);
    }
    text += "\n" + std::string(indent, ' ');
    return json.is_object() ? "{" + text + "}" : "[" + text + "]";
}

// By file name.
std::map<std::string, std::string> files() {
    std::map<std::string, std::vector<Document>> by_name;
    for (Document& one : documents()) {
        std::string name(one.schema.substr(one.schema.find('.') + 1));
        by_name[name.substr(0, name.find('/'))].push_back(std::move(one));
    }
    std::map<std::string, std::string> files = {{"reports", text_of(shared_schema(), 0, 0)}};
    for (const auto& [name, variants] : by_name) files[name] = text_of(schema_of(variants, name), 0, 0);
    return files;
}

std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

int run(const std::filesystem::path& folder, bool check) {
    int wrong = 0;
    for (const auto& [name, schema] : files()) {
        const std::filesystem::path path = folder / (name + ".schema.json");
        const std::string text = schema + "\n";
        if (read(path) == text) continue;
        if (check) {
            fmt::print(
                "{} is not what the tables in runtime/reports/tables say; run attnsmith_write_schemas\n",
                path.string());
            ++wrong;
            continue;
        }
        std::ofstream file(path, std::ios::binary);
        file << text;
        file.close();
        if (!file) throw std::runtime_error(path.string() + " cannot be written");
        fmt::print("{}\n", path.string());
    }
    return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace attnsmith::problem

int main(int count, char** arguments) {
    try {
        const bool check = count == 3 && std::string_view(arguments[1]) == "--check";
        if (!check && count != 2) throw std::runtime_error("usage: attnsmith_write_schemas [--check] FOLDER");
        return attnsmith::problem::run(arguments[count - 1], check);
    } catch (const std::exception& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
