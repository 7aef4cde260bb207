#include "cli/asked/asked.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cli/asked/field_flags.hpp"
#include "cli/asked/model_flags.hpp"
#include "cli/asked/read_document.hpp"
#include "cli/program/files.hpp"
#include "models/coverage/coverage.hpp"
#include "models/options.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::cli {
namespace {

using problem::RequestField;

constexpr std::string_view kRequestDocument = "request";

void read_models(const Command& command, Asked& asked) {
    refuse_flags_beside(command, "model", [](const RequestField& field) {
        return is_of_device(field) || problem::is_model_option(field);
    });
    const std::vector<std::string> paths = command.texts("model");
    for (const std::string& path : paths)
        asked.add(read_model_coverage(command, path), paths.size() > 1 ? model_name(path) + "/" : "");
    asked.listed = true;
}

// Those that the request does not say and that are not as usual. Of attention: a merge has no kv_len.
void fill_sizes(nlohmann::json& object, const PlanSizes& sizes) {
    if (object.contains("op") && object["op"] == to_string(Op::merge)) return;
    for (const auto& [name, size, usual] : {std::tuple("batch", sizes.batch, PlanSizes{}.batch),
                                            std::tuple("q_len", sizes.q_len, PlanSizes{}.q_len),
                                            std::tuple("kv_len", sizes.kv_len, PlanSizes{}.kv_len)}) {
        if (size != usual && !object.contains(name)) object[name] = size;
    }
}

// Tiles and splits follow the sizes, and those of one query and one key are seldom what is meant.
std::string sizes_note(const nlohmann::json& object) {
    const std::string op = object.value("op", std::string(to_string(Op::attention)));
    if (op != to_string(Op::attention) && op != to_string(Op::mla)) return {};
    for (const char* name : {"batch", "q_len", "kv_len"})
        if (object.contains(name)) return {};
    return "planned for 1 sequence of 1 query and 1 key, as no sizes are given: add --batch, --q-len and "
           "--kv-len";
}

void read_request(const Command& command, const PlanSizes& sizes, Asked& asked) {
    refuse_flags_beside(command, "request", is_of_device);
    const std::string path = command.text("request").value();
    const std::string text = read_text(path);
    asked.add(read_document(path, kRequestDocument, [&] {
        nlohmann::json object = problem::parse_json_object(text, {.what = kRequestDocument});
        fill_sizes(object, sizes);
        Coverage coverage = problem::coverage_of_request(object);
        if (command.has("sm") && !object.value("sm", nlohmann::json()).is_null())
            throw BadUsage(
                fmt::format("--sm cannot be given beside {}, which says \"sm\"", shown_name(path)));
        if (asked.sms.empty()) warn_of_sms(object.value("sm", nlohmann::json()));
        asked.note = sizes_note(object);
        return coverage;
    }));
    if (asked.sms.empty() && !asked.attentions.empty()) asked.sms = asked.attentions.front().request.sm;
}

bool has_recorded(const Command& command) { return command.knows("recorded") && command.has("recorded"); }

void read_flags(const Command& command, const PlanSizes& sizes, Asked& asked) {
    nlohmann::json object = nlohmann::json::object();
    for (const RequestField* field : given_fields(command))
        object[std::string(field->name)] = value_of(command, *field);
    fill_sizes(object, sizes);
    try {
        asked.add(problem::coverage_of_request(object));
        asked.note = sizes_note(object);
    } catch (const InvalidRequest& error) {
        // Who gives --kv beside --recorded may mean what is recorded.
        if (!has_recorded(command) || error.value() != "nothing") throw;
        throw BadUsage(
            fmt::format("{}; --{} beside --recorded begins a request of its own: what is recorded is "
                        "built as it is",
                        error.what(), flag_of(given_fields(command).front()->name)));
    }
}

void read_recorded(const Command& command, Asked& asked) {
    for (const std::string& path : command.texts("recorded")) {
        asked.add(recorded_coverage(read_long_text(path), shown_name(path)));
    }
    asked.listed = true;
}

}  // namespace

void add_request_flags(Command& command, const PlanSizes& sizes) {
    const AttentionRequest defaults{.spec = {}, .sizes = sizes, .sm = {}};
    for (const RequestField& field : problem::request_fields())
        add_field(command, field, "Request", FieldSource::either, true, defaults);
    command.add_value("request", "FILE", "read the request from a JSON file; - is standard input");
    command.add_list(
        "model", "FILE",
        "all attentions of a Hugging Face config.json, or of the folder that holds one, or of several "
        "such; - is standard input");
    command.add_value("tensor-parallel", "N",
                      fmt::format("GPUs that a model's heads are divided over (default {})",
                                  ModelOptions().tensor_parallel));
}

bool has_request(const Command& command) {
    return command.has("model") || command.has("request") || !given_fields(command).empty();
}

void add_recorded_flag(Command& command) {
    command.add_list("recorded", "FILE",
                     "what programs recorded with ATTNSMITH_RECORD=FILE; - is standard input");
}

Asked read_asked(const Command& command, const PlanSizes& sizes) {
    if (command.has("model") && command.has("request"))
        throw BadUsage("--request cannot be given beside --model");
    for (const char* flag : {"tensor-parallel", "strict"}) {
        if (command.knows(flag) && command.has(flag) && !command.has("model"))
            throw BadUsage(fmt::format("--{} is for --model", flag));
    }
    if (!command.has("model")) refuse_engine_without_model(command);
    const auto fields = given_fields(command);
    const bool by_flags =
        !std::ranges::all_of(fields, [](const auto* field) { return is_of_device(*field); });
    Asked asked;
    asked.sms = read_sms(command);
    if (command.has("model")) {
        read_models(command, asked);
    } else if (command.has("request")) {
        read_request(command, sizes, asked);
    } else if (by_flags) {
        read_flags(command, sizes, asked);
    } else if (!has_recorded(command)) {
        throw BadUsage(fmt::format(
            "nothing is asked for: give --model FILE, --request FILE, {}or a request by flags (--head-dim, "
            "--q-heads, ...)",
            command.knows("recorded") ? "--recorded FILE, " : ""));
    }
    if (has_recorded(command)) read_recorded(command, asked);
    asked.listed = asked.listed || asked.attentions.size() + asked.unsupported.size() > 1;
    return asked;
}

}  // namespace attnsmith::cli
