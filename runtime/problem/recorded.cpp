#include "problem/recorded.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "attnsmith/coverage.hpp"
#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"
#include "problem/request_fields.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith {
namespace problem {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kSchema = "attnsmith.recorded/1";
// What every line begins with that a program wrote: so that one which was cut off is known for what it is.
constexpr std::string_view kBegin = R"({"schema": "attnsmith.recorded/1", "request": {)";

bool is_of_spec(const RequestField& field) {
    return field.role == FieldRole::attention || field.role == FieldRole::choice;
}

ordered_json spec_json(const Problem& problem) {
    ordered_json request = ordered_json::object();
    for (const RequestField& field : request_fields()) {
        if (field.get != nullptr && is_of_spec(field) && counts(field, problem.spec.op))
            request[std::string(field.name)] = field.get({problem.spec, problem.sizes, {}});
    }
    return request;
}

// The same request with nothing given but what has to be.
Problem without_choices(const Problem& problem) {
    AttentionSpec least;
    least.op = problem.spec.op;
    least.head_dim_qk = problem.spec.head_dim_qk;
    least.head_dim_vo = problem.spec.op == Op::merge ? problem.spec.head_dim_vo : 0;
    least.q_heads = problem.spec.q_heads;
    return validate(least, {});
}

std::string flag_text(std::string_view name, const ordered_json& value) {
    std::string flag(name);
    std::ranges::replace(flag, '_', '-');
    if (value == true) return fmt::format(" --{}", flag);
    return fmt::format(" --{} {}", flag, value.is_string() ? value.get<std::string>() : value.dump());
}

// A line that a process was killed in, or that another one's was appended to: the whole record at its end, if
// there is one.
std::optional<std::string_view> after_torn(std::string_view line) {
    const std::size_t last = line.rfind(kBegin);
    if (last == line.npos || last == 0) return std::nullopt;
    return line.substr(last);
}

bool is_torn(std::string_view line) {
    const bool begins = line.size() < kBegin.size() ? kBegin.starts_with(line) : line.starts_with(kBegin);
    return begins && !json::accept(line);
}

AttentionSpec parse_record(std::string_view line) {
    const json record = parse_json_object(line, {.what = "record"});
    for (const auto& item : record.items()) {
        if (item.key() != "schema" && item.key() != "request")
            throw InvalidRequest(field_name(item.key()), "an unknown field", "schema and request alone");
    }
    const auto schema = record.find("schema");
    if (schema == record.end() || *schema != kSchema)
        throw InvalidRequest("schema", schema == record.end() ? "nothing" : describe(*schema),
                             std::string(kSchema));
    const auto request = record.find("request");
    if (request == record.end()) throw InvalidRequest("request", "nothing", "a request");
    if (request->is_object()) {
        for (const auto& item : request->items()) {
            const RequestField* const field = find_field(item.key());
            if (field != nullptr && !is_of_spec(*field))
                throw InvalidRequest(item.key(), describe(item.value()),
                                     "nothing: a record has no sizes and no sm");
        }
    }
    return request_from_json(*request).spec;
}

class RecordedFile {
  public:
    explicit RecordedFile(std::string_view name) : name_(name) {}

    void read(std::string_view text) {
        for (int number = 1; !text.empty(); ++number) {
            const std::size_t whole = text.size(), end = std::min(text.find('\n'), whole);
            std::string_view line = text.substr(0, end);
            text.remove_prefix(std::min(end + 1, text.size()));
            if (line.ends_with('\r')) line.remove_suffix(1);
            const bool is_ended = end < whole;
            if (!line.empty()) read_line(line, fmt::format("{}:{}", name_, number), is_ended);
        }
    }

    Coverage result() && {
        if (coverage_.attentions.empty() && coverage_.unsupported.empty())
            throw InvalidRequest(name_, "a file without a whole record",
                                 fmt::format("lines of schema {}", kSchema));
        return std::move(coverage_);
    }

  private:
    // `is_ended`: by a line feed. A last line without one is torn where it is no JSON, whoever wrote it.
    void read_line(std::string_view line, const std::string& place, bool is_ended) {
        if (is_torn(line) || (!is_ended && line.starts_with('{') && !json::accept(line))) {
            coverage_.skipped.push_back({place, "the line is torn: the program that wrote it ended there"});
            if (const auto rest = after_torn(line)) read_line(*rest, place, is_ended);
            return;
        }
        try {
            add(parse_record(line), place);
        } catch (const InvalidRequest& error) {
            throw InvalidRequest(fmt::format("{}: {}", place, error.field()), error.value(),
                                 error.accepted());
        } catch (const Unsupported& error) {
            coverage_.unsupported.push_back({place, error.what()});
        }
    }

    void add(const AttentionSpec& spec, const std::string& place) {
        if (!seen_.insert(request_json({spec, {}})).second) return;
        ModelAttention& attention = coverage_.attentions.emplace_back();
        attention.name = place;
        attention.request.spec = spec;
    }

    const std::string name_;
    std::unordered_set<std::string> seen_;
    Coverage coverage_;
};

}  // namespace

std::string recorded_line(const Problem& problem) {
    return fmt::format("{}{}}}\n", kBegin, request_json(problem).substr(1));
}

std::string request_json(const Problem& problem) { return spec_json(problem).dump(); }

std::string request_flags(const Problem& problem) {
    const ordered_json given = spec_json(problem);
    ordered_json defaults = spec_json(without_choices(problem));
    defaults["op"] = to_string(Op::attention);
    const bool one_head_dim =
        problem.spec.head_dim_qk == problem.spec.head_dim_vo || problem.spec.op == Op::merge;
    std::string flags;
    for (const auto& [name, value] : given.items()) {
        if (name == "head_dim_qk" || name == "head_dim_vo") {
            if (!one_head_dim) flags += flag_text(name, value);
        } else if (name == "q_heads" || value != defaults.at(name)) {
            flags += flag_text(name, value);
        }
    }
    if (one_head_dim) flags = flag_text("head_dim", problem.spec.head_dim_vo) + flags;
    return flags.substr(1);
}

}  // namespace problem

Coverage recorded_coverage(std::string_view text, std::string_view file) {
    problem::RecordedFile recorded(file);
    recorded.read(text);
    return std::move(recorded).result();
}

}  // namespace attnsmith
