#include "problem/request/recorded.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "attnsmith/coverage.hpp"
#include "attnsmith/error.hpp"
#include "problem/json_text.hpp"
#include "problem/request/ops.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith {
namespace problem {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::string_view kSchema = "attnsmith.recorded/1";
// What every line begins with that a program wrote: so that one which was cut off is known for what it is.
constexpr std::string_view kBegin = R"({"schema": "attnsmith.recorded/1", "request": {)";

ordered_json spec_json(const Problem& problem) {
    ordered_json request = ordered_json::object();
    for (const RequestField& field : request_fields()) {
        if (field.get != nullptr && is_of_spec(field) && counts(field.name, problem.spec))
            request[std::string(field.name)] = field.get({problem.spec, problem.sizes, {}});
    }
    return request;
}

bool has_two_head_dims(Op op) { return counts("head_dim_qk", op); }

// The same request with nothing given but what has to be.
Problem without_choices(const Problem& problem) {
    AttentionRequest request;
    AttentionSpec& least = request.spec;
    least.op = problem.spec.op;
    least.head_dim_qk = problem.spec.head_dim_qk;
    least.head_dim_vo = has_two_head_dims(problem.spec.op) ? 0 : problem.spec.head_dim_vo;
    for (const std::string_view name : op_request(least.op).without_default) {
        const RequestField& field = *find_field(name);
        field.set(request, name, field.get({problem.spec, problem.sizes, {}}));
    }
    least.q_heads = problem.spec.q_heads;
    return validate(least, {});
}

std::string flag_text(std::string_view name, const ordered_json& value) {
    std::string flag(name);
    std::ranges::replace(flag, '_', '-');
    if (value == true) return fmt::format(" --{}", flag);
    return fmt::format(" --{} {}", flag, value.is_string() ? value.get<std::string>() : value.dump());
}

// How much of the text its first value takes, if that is an object that ends: up to the brace that closes it.
std::size_t length_of_object(std::string_view text) {
    if (!text.starts_with('{')) return text.npos;
    int depth = 0;
    bool in_text = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (in_text) {
            if (text[i] == '\\')
                ++i;
            else
                in_text = text[i] != '"';
        } else if (text[i] == '"') {
            in_text = true;
        } else if (text[i] == '{') {
            ++depth;
        } else if (text[i] == '}' && --depth == 0) {
            return i + 1;
        }
    }
    return text.npos;
}

// What of a line is read by itself. Several processes' records may stand on one line, whole ones and such as
// a process was killed in: a new one begins where the beginning of a record is, which stands in no JSON text,
// and where an object has ended and another follows.
std::vector<std::string_view> records_of(std::string_view line) {
    if (json::accept(line)) return {line};
    std::vector<std::string_view> records;
    while (!line.empty()) {
        std::string_view part = line.substr(0, line.find(kBegin, 1));
        line.remove_prefix(part.size());
        while (!part.empty()) {
            const std::string_view object = part.substr(0, length_of_object(part));
            records.push_back(json::accept(object) ? object : part);
            part.remove_prefix(records.back().size());
            part.remove_prefix(std::min(part.find_first_not_of(" \t"), part.size()));
        }
    }
    return records;
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
            const std::size_t whole = text.size(), end = std::min(text.find_first_of("\r\n"), whole);
            const std::string_view line = text.substr(0, end);
            text.remove_prefix(end);
            text.remove_prefix(text.starts_with("\r\n") ? 2 : std::min<std::size_t>(1, text.size()));
            const std::string place = fmt::format("{}:{}", name_, number);
            const std::vector<std::string_view> records = records_of(line);
            for (const std::string_view& record : records)
                read_record(record, place, end < whole || &record != &records.back());
        }
    }

    Coverage result() && {
        if (coverage_.attentions.empty() && coverage_.unsupported.empty())
            throw InvalidRequest(name_, "a file without a whole record",
                                 fmt::format("lines of schema {}", kSchema));
        return std::move(coverage_);
    }

  private:
    // `is_ended`: by the end of a line, or by the next record. What ends with the file is torn where it is no
    // JSON, whoever wrote it.
    void read_record(std::string_view line, const std::string& place, bool is_ended) {
        // No JSON has a NUL.
        if (line.find('\0') != line.npos) {
            coverage_.skipped.push_back(
                {place, "NUL bytes instead of a line: the machine stopped before the line was on the disk"});
            return;
        }
        if (is_torn(line) || (!is_ended && line.starts_with('{') && !json::accept(line))) {
            coverage_.skipped.push_back({place, "the line is torn: the program that wrote it ended there"});
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
    defaults["op"] = to_string(AttentionSpec{}.op);
    const bool one_head_dim =
        counts("head_dim", problem.spec) &&
        (problem.spec.head_dim_qk == problem.spec.head_dim_vo || !has_two_head_dims(problem.spec.op));
    const std::span<const std::string_view> without_default = op_request(problem.spec.op).without_default;
    const auto has_no_default = [&](std::string_view name) {
        return name == "q_heads" || std::ranges::find(without_default, name) != without_default.end();
    };
    std::string flags;
    for (const auto& [name, value] : given.items()) {
        if (name == "head_dim_qk" || name == "head_dim_vo") {
            if (!one_head_dim) flags += flag_text(name, value);
        } else if (has_no_default(name) || value != defaults.at(name)) {
            flags += flag_text(name, value);
        }
    }
    if (one_head_dim) flags = flag_text("head_dim", problem.spec.head_dim_vo) + flags;
    return flags.substr(1);
}

}  // namespace problem

Coverage recorded_coverage(std::string_view lines, std::string_view name) {
    const auto has_records = [](std::string_view text) { return text.find('{') != text.npos; };
    if (has_records(name) && !has_records(lines))
        throw InvalidRequest("lines", problem::quote(lines),
                             "the text of a recorded file; what messages call it is the second argument");
    problem::RecordedFile recorded(name);
    recorded.read(lines);
    return std::move(recorded).result();
}

}  // namespace attnsmith
