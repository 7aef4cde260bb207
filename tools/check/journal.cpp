#include "check/journal.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

namespace attnsmith::check {
namespace {

using nlohmann::json;

constexpr std::string_view kSchema = "attnsmith.gpu-journal/1";

// What a passed case has. Each field is named once, for writing and for reading.
template <class Result, class Visit>
void visit_fields(Result& result, const Visit& visit) {
    visit("group", result.group);
    visit("name", result.name);
    visit("phase", result.phase);
    visit("detail", result.detail);
    visit("backend", result.backend);
    visit("kernel", result.kernel);
    visit("toolchain", result.toolchain);
    visit("max_abs_error", result.max_abs_error);
    visit("element_ratio", result.element_ratio);
    visit("pooled_ratio", result.pooled_ratio);
    visit("rounding_ratio", result.rounding_ratio);
    visit("vacuous_pools", result.vacuous_pools);
    visit("lse_ratio", result.lse_ratio);
    visit("milliseconds", result.milliseconds);
}

template <class Header, class Visit>
void visit_header(Header& header, const Visit& visit) {
    visit("sources", header.sources);
    visit("gpu", header.gpu);
    visit("driver", header.driver);
    visit("seed", header.seed);
}

json to_json(const JournalHeader& header) {
    json line{{"schema", kSchema}};
    visit_header(header, [&](const char* name, const auto& value) { line[name] = value; });
    return line;
}

// A line that was cut off becomes a value of no type, which is no object.
json parsed(const std::string& line) { return json::parse(line, nullptr, false); }

bool is_header(const json& line) {
    return line.is_object() && line.contains("schema") && line["schema"] == kSchema;
}

}  // namespace

std::optional<std::uint64_t> Journal::seed_of(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line) && line.empty()) {
    }
    const json first = parsed(line);
    if (!is_header(first) || !first.contains("seed") || !first["seed"].is_number_unsigned())
        return std::nullopt;
    return first["seed"].get<std::uint64_t>();
}

Journal::Journal(std::string path, const JournalHeader& header) : path_(std::move(path)) {
    read(header);
    file_.open(path_, std::ios::app);
    // Behind a line that was cut off.
    if (file_) file_ << "\n" << to_json(header).dump() << std::endl;
    if (!file_) throw std::runtime_error(fmt::format("journal {}: cannot be written", path_));
}

void Journal::read(const JournalHeader& header) {
    std::ifstream file(path_);
    double last = 0;
    bool has_begun = false;
    for (std::string text; std::getline(file, text);) {
        if (text.empty()) continue;
        const json line = parsed(text);
        if (is_header(line)) {
            visit_header(header, [&](const char* name, const auto& value) {
                if (line.contains(name) && line[name] == json(value)) return;
                throw std::runtime_error(fmt::format(
                    "journal {}: its {} is {}, and this run's is {}; remove the file, or name another", path_,
                    name, line.value(name, json()).dump(), json(value).dump()));
            });
            has_begun = true;
            seconds_before_ += std::exchange(last, 0);
        } else if (!has_begun) {
            throw std::runtime_error(fmt::format("journal {}: is none; name another file", path_));
        } else if (line.is_object() && line.contains("seconds")) {
            CaseResult result;
            visit_fields(result, [&](const char* name, auto& value) {
                if (line.contains(name) && !line[name].is_null()) line[name].get_to(value);
            });
            last = line["seconds"].get<double>();
            passed_[result.full_name()] = std::move(result);
        }
    }
    seconds_before_ += last;
}

const CaseResult* Journal::passed(const std::string& full_name) const {
    const auto found = passed_.find(full_name);
    return found == passed_.end() ? nullptr : &found->second;
}

void Journal::add(const CaseResult& result, double seconds) {
    if (!result.passed()) return;  // it is to run again
    json line{{"seconds", seconds}};
    visit_fields(result, [&](const char* name, const auto& value) { line[name] = value; });
    file_ << line.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
    if (!file_) throw std::runtime_error(fmt::format("journal {}: cannot be written", path_));
}

}  // namespace attnsmith::check
