#include "cli/asked.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "cli/byte_size.hpp"
#include "cli/files.hpp"
#include "cli/output.hpp"
#include "engine/cache_report.hpp"
#include "problem/model_options.hpp"
#include "problem/request_fields.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::cli {
namespace {

using problem::FieldType;
using problem::RequestField;

constexpr const char* kRequestGroup = "Request";

bool is_model_field(std::string_view name) {
    const auto fields = problem::model_request_fields();
    return std::ranges::find(fields, name) != fields.end();
}

std::string flag_of(std::string_view field) {
    std::string flag(field);
    std::ranges::replace(flag, '_', '-');
    return flag;
}

std::string kind_of(const RequestField& field) {
    switch (field.type) {
        case FieldType::integer:
            return "N";
        case FieldType::number:
            return "X";
        case FieldType::sm_list:
            return "SM[,SM...]";
        case FieldType::word:
            return fmt::format("{}", fmt::join(problem::words_of(*field.words), "|"));
        case FieldType::boolean:
            break;
    }
    return "";
}

void add_field(Command& command, const RequestField& field, const std::string& group) {
    const std::string help(field.help);
    if (field.type == FieldType::boolean) return command.add_boolean(flag_of(field.name), help, group);
    command.add_value(flag_of(field.name), kind_of(field), help, group);
}

// The fields whose flags were given, in the table's order.
std::vector<const RequestField*> given_fields(const Command& command) {
    std::vector<const RequestField*> fields;
    for (const RequestField& field : problem::request_fields()) {
        if (command.has(flag_of(field.name))) fields.push_back(&field);
    }
    return fields;
}

nlohmann::json value_of(const Command& command, const RequestField& field) {
    return problem::flag_value(field, command.text(flag_of(field.name)).value());
}

void set_field(const Command& command, AttentionRequest& request, std::string_view name) {
    const RequestField& field = *problem::find_field(name);
    if (command.has(flag_of(name))) field.set(request, field.name, value_of(command, field));
}

ModelOptions model_options(const Command& command) {
    nlohmann::json object = nlohmann::json::object();
    for (const std::string_view name : problem::model_request_fields()) {
        if (!command.has(flag_of(name))) continue;
        object[std::string(name)] = value_of(command, *problem::find_field(name));
    }
    ModelOptions options = problem::model_options_from_json(object);
    options.tensor_parallel = command.integer("tensor-parallel", 1, 1 << 20, options.tensor_parallel);
    return options;
}

void refuse_flags_beside(const Command& command, const char* source, bool (*accepted)(std::string_view)) {
    for (const RequestField* field : given_fields(command)) {
        if (accepted(field->name)) continue;
        throw BadUsage(fmt::format("--{} cannot be given beside --{}", flag_of(field->name), source));
    }
}

CacheTrust read_trust(const std::string& text) {
    if (text == "owner") return CacheTrust::owner;
    if (text == "group") return CacheTrust::group;
    if (text == "all") return CacheTrust::all;
    throw InvalidRequest("cache-trust", problem::quote(text), "owner, group or all");
}

Toolchain read_toolchain(const std::string& text) {
    if (text == "newest") return Toolchain::newest;
    if (text == "exact") return Toolchain::exact;
    throw InvalidRequest("toolchain", problem::quote(text), "newest or exact");
}

ModelAttention unnamed(AttentionRequest request) {
    ModelAttention attention;
    attention.request = std::move(request);
    return attention;
}

Asked read_model_source(const Command& command) {
    refuse_flags_beside(command, "model",
                        [](std::string_view name) { return name == "sm" || is_model_field(name); });
    Model model = read_model(command, command.text("model").value());
    return {.model = true,
            .attentions = std::move(model.attentions),
            .unsupported = std::move(model.unsupported),
            .sms = read_sms(command)};
}

Asked read_request_source(const Command& command) {
    refuse_flags_beside(command, "request", [](std::string_view name) { return name == "sm"; });
    const std::string path = command.text("request").value();
    std::vector<int> sms = read_sms(command);
    const std::string text = read_text(path);
    try {
        AttentionRequest request = parse_request(text);
        if (sms.empty()) sms = request.sm;
        return {.attentions = {unnamed(std::move(request))}, .unsupported = {}, .sms = std::move(sms)};
    } catch (const InvalidRequest& error) {
        throw BadUsage(fmt::format("{}: {}", path == "-" ? "standard input" : path, error.what()));
    }
}

Asked read_flags_source(const Command& command) {
    const auto fields = given_fields(command);
    const bool nothing = std::ranges::all_of(fields, [](const auto* field) { return field->name == "sm"; });
    if (nothing) {
        throw BadUsage(
            "nothing is asked for: give --model FILE, --request FILE, or a request by flags (--head-dim, "
            "--q-heads, ...)");
    }
    nlohmann::json object = nlohmann::json::object();
    for (const RequestField* field : fields) object[std::string(field->name)] = value_of(command, *field);
    AttentionRequest request = problem::request_from_json(object);
    std::vector<int> sms = request.sm;
    return {.attentions = {unnamed(std::move(request))}, .unsupported = {}, .sms = std::move(sms)};
}

}  // namespace

void add_request_flags(Command& command) {
    for (const RequestField& field : problem::request_fields()) add_field(command, field, kRequestGroup);
    command.add_value("request", "FILE", "read the request from a JSON file; - is standard input");
    command.add_value(
        "model", "FILE",
        "all attentions of a Hugging Face config.json, or of the folder that holds one; - is standard input");
    command.add_value("tensor-parallel", "N", "GPUs that a model's heads are divided over (default 1)");
}

bool has_request(const Command& command) {
    return command.has("model") || command.has("request") || !given_fields(command).empty();
}

Asked read_asked(const Command& command) {
    if (command.has("model") && command.has("request"))
        throw BadUsage("--request cannot be given beside --model");
    if (command.has("model")) return read_model_source(command);
    if (command.has("tensor-parallel")) throw BadUsage("--tensor-parallel is for --model");
    return command.has("request") ? read_request_source(command) : read_flags_source(command);
}

std::string name_of(const ModelAttention& attention) {
    return attention.name.empty() ? std::string(to_string(attention.request.spec.op)) : attention.name;
}

void add_model_flags(Command& command, bool several) {
    constexpr const char* kHelp =
        "a Hugging Face config.json, or the folder that holds one; - is standard input";
    if (several) {
        command.add_list("model", "FILE", kHelp);
    } else {
        command.add_value("model", "FILE", kHelp);
    }
    for (const std::string_view name : problem::model_request_fields()) {
        add_field(command, *problem::find_field(name), "Model");
    }
    command.add_value("tensor-parallel", "N", "GPUs that the model's heads are divided over (default 1)",
                      "Model");
}

Model read_model(const Command& command, const std::string& path) {
    const ModelOptions options = model_options(command);
    const std::string text = read_model_text(path);
    try {
        return parse_model(text, options);
    } catch (const InvalidRequest& error) {
        throw BadUsage(fmt::format("{}: {}", path == "-" ? "standard input" : path, error.what()));
    }
}

void refuse_model_flags(const Command& command) {
    std::vector<std::string> flags = {"tensor-parallel"};
    for (const std::string_view name : problem::model_request_fields()) flags.push_back(flag_of(name));
    for (const std::string& flag : flags) {
        if (command.has(flag)) throw BadUsage(fmt::format("--{} is for --model", flag));
    }
}

void add_sm_flag(Command& command) { add_field(command, *problem::find_field("sm"), "Options"); }

std::vector<int> read_sms(const Command& command) {
    AttentionRequest request;
    set_field(command, request, "sm");
    return request.sm;
}

void add_cache_flag(Command& command) {
    command.add_repeatable(
        "cache", "DIR",
        "cache directory; given again, a read-only layer below it, which may be a bundle (default: "
        "ATTNSMITH_CACHE_DIR, a list divided by ':', else XDG_CACHE_HOME/attnsmith, else "
        "~/.cache/attnsmith)");
    command.add_value("cache-trust", "owner|group|all",
                      "whose directories are used: those that only you or root can write to (owner, the "
                      "default), those of a group that you are in too, or any");
    command.add_value(
        "cache-max-bytes", "SIZE",
        "what the cache directory may take on its disk, e.g. 500M; what was not used for longest goes first "
        "(default 2G; 0: no limit)");
}

void add_toolchain_flag(Command& command) {
    command.add_value(
        "toolchain", "newest|exact",
        "whose entries count as hits: any NVRTC's, the newest first (default), or only those of "
        "the NVRTC at hand");
}

void add_tuning_flag(Command& command) {
    command.add_list("tuning", "FILE",
                     "tuning tables whose tiles win over the built-in ones (default: ATTNSMITH_TUNING)");
}

RuntimeOptions runtime_options(const Command& command) {
    RuntimeOptions options;
    if (command.knows("tuning")) options.tuning_files = command.texts("tuning");
    options.cache_dirs = command.texts("cache");
    if (std::ranges::find(options.cache_dirs, "") != options.cache_dirs.end())
        throw InvalidRequest("cache", "\"\"", "a directory");
    if (const auto bytes = command.text("cache-max-bytes"))
        options.cache_max_bytes = parse_byte_size("cache-max-bytes", *bytes);
    options.cache_source = !(command.knows("no-source") && command.has("no-source"));
    if (const auto toolchain = command.knows("toolchain") ? command.text("toolchain") : std::nullopt)
        options.toolchain = read_toolchain(*toolchain);
    if (const auto trust = command.text("cache-trust")) options.cache_trust = read_trust(*trust);
    return options;
}

engine::Settings cache_settings(const Command& command) {
    engine::Settings settings = engine::settle(runtime_options(command));
    if (command.has("cache")) settings.cache_dirs_named_by = "cache";
    engine::require_directories(settings, "give --cache DIR");
    return settings;
}

void tell_of_missing_layers(std::span<const std::string> layers) {
    for (const std::string& layer : layers) {
        if (engine::is_missing(layer))
            print_note(fmt::format("attnsmith: there is nothing at {}\n", printable(layer)));
    }
}

void tell_of_unreadable(std::span<const cache::Status> unreadable) {
    if (unreadable.empty()) return;
    print_note(fmt::format("attnsmith: {}\n", printable(engine::unreadable_text(unreadable))));
}

Runtime open_cache_runtime(const Command& command) {
    const engine::Settings settings = cache_settings(command);
    tell_of_missing_layers(std::span(settings.cache_dirs).subspan(1));
    RuntimeOptions options = runtime_options(command);
    const auto is_open = std::make_shared<std::atomic<bool>>(false);
    options.log = [is_open, log = settings.log](LogLevel level, std::string_view line) {
        if (*is_open || level != LogLevel::warn) log(level, line);
    };
    Runtime runtime(options);
    *is_open = true;
    return runtime;
}

}  // namespace attnsmith::cli
