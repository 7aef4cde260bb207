#include "cli/asked.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cli/byte_size.hpp"
#include "cli/field_help.hpp"
#include "cli/files.hpp"
#include "cli/output.hpp"
#include "engine/reports/cache_report.hpp"
#include "problem/json_text.hpp"
#include "problem/model/options.hpp"
#include "problem/request/coverage.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/request/sm_list.hpp"
#include "problem/vocabulary.hpp"

namespace attnsmith::cli {
namespace {

using problem::FieldType;
using problem::RequestField;

constexpr const char* kRequestGroup = "Request";

std::string kind_of(const RequestField& field) {
    switch (field.type) {
        case FieldType::integer:
            return "N";
        case FieldType::number:
            return "X";
        case FieldType::sm_list:
            return "SM[,SM...]";
        case FieldType::word:
            return fmt::format("{}", fmt::join(field.words(), "|"));
        case FieldType::boolean:
            break;
    }
    return "";
}

// `lists`: whether the words that a program chooses take several values.
void add_field(Command& command, const RequestField& field, const std::string& group, FieldSource source,
               bool lists = false, const AttentionRequest& defaults = {}) {
    const std::string help(field.help);
    if (field.type == FieldType::boolean) {
        command.add_boolean(flag_of(field.name), help, group);
    } else {
        const bool is_list = lists && field.role == problem::FieldRole::choice;
        command.add_value(flag_of(field.name), kind_of(field) + (is_list ? "[,...]" : ""), help, group);
    }
    command.add_details([&field, source, defaults] { return field_details(field, source, defaults); });
}

// Suffixes of --sm, or of a request's sm, that say nothing.
void warn_of_sms(const nlohmann::json& value) {
    for (const std::string& sentence : problem::unused_sm_suffixes(value)) print_warning(sentence);
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
    return problem::flag_values(field, command.text(flag_of(field.name)).value());
}

void set_field(const Command& command, AttentionRequest& request, std::string_view name) {
    const RequestField& field = *problem::find_field(name);
    if (command.has(flag_of(name))) field.set(request, field.name, value_of(command, field));
}

// What parse_model_options() takes; words may have several values.
nlohmann::json model_words(const Command& command) {
    nlohmann::json object = nlohmann::json::object();
    for (const std::string_view name : problem::model_request_fields()) {
        if (!command.has(flag_of(name))) continue;
        object[std::string(name)] = value_of(command, *problem::find_field(name));
    }
    if (command.has("tensor-parallel"))
        object["tensor_parallel"] = command.integer("tensor-parallel", 1, 1 << 20, 1);
    return object;
}

bool is_of_device(const RequestField& field) { return field.role == problem::FieldRole::device; }

void refuse_flags_beside(const Command& command, const char* source, bool (*accepted)(const RequestField&)) {
    for (const RequestField* field : given_fields(command)) {
        if (accepted(*field)) continue;
        throw BadUsage(fmt::format("--{} cannot be given beside --{}", flag_of(field->name), source));
    }
}

// A flag that is no field of a request, and its words.
template <typename Value>
struct FlagWords {
    std::string_view flag;
    const problem::WordList<Value>& words;

    std::string kind() const { return fmt::format("{}", fmt::join(words.names(), "|")); }
    Value read(const std::string& text) const { return words.parse(flag, text); }
};

FlagWords<CacheTrust> cache_trusts() { return {"cache-trust", problem::kCacheTrustWords}; }
FlagWords<Toolchain> toolchains() { return {"toolchain", problem::kToolchainWords}; }

// What an error calls the whole of a document; the file's own name says more.
constexpr std::string_view kConfigDocument = "config.json", kRequestDocument = "request";

std::string shown_name(const std::string& path) { return path == "-" ? "standard input" : path; }

// Gives what `read` makes of a file; its errors name the file.
template <typename Read>
auto read_file(const std::string& path, std::string_view document, Read read) {
    try {
        return read();
    } catch (const InvalidFlag&) {
        throw;
    } catch (const InvalidRequest& error) {
        const std::string text = error.what();
        if (error.field() == document) throw BadUsage(shown_name(path) + text.substr(document.size()));
        throw BadUsage(fmt::format("{}: {}", shown_name(path), text));
    }
}

// The same of a model, which flags fill in: where one of them is what is wrong, that is named, too.
template <typename Read>
auto read_config(const Command& command, const std::string& path, Read read) {
    return read_file(path, kConfigDocument, [&] {
        try {
            return read();
        } catch (const InvalidRequest& error) {
            const std::string flag = flag_of(error.field());
            if (!command.knows(flag) || !command.has(flag)) throw;
            throw InvalidFlag(error, shown_name(path));
        }
    });
}

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
    if (object.contains("op") && object["op"] != to_string(Op::attention)) return;
    for (const auto& [name, size, usual] : {std::tuple("batch", sizes.batch, PlanSizes{}.batch),
                                            std::tuple("q_len", sizes.q_len, PlanSizes{}.q_len),
                                            std::tuple("kv_len", sizes.kv_len, PlanSizes{}.kv_len)}) {
        if (size != usual && !object.contains(name)) object[name] = size;
    }
}

void read_request(const Command& command, const PlanSizes& sizes, Asked& asked) {
    refuse_flags_beside(command, "request", is_of_device);
    const std::string path = command.text("request").value();
    const std::string text = read_text(path);
    asked.add(read_file(path, kRequestDocument, [&] {
        nlohmann::json object = problem::parse_json_object(text, {.what = kRequestDocument});
        fill_sizes(object, sizes);
        Coverage coverage = problem::coverage_of_request(object);
        if (command.has("sm") && !object.value("sm", nlohmann::json()).is_null())
            throw BadUsage(
                fmt::format("--sm cannot be given beside {}, which says \"sm\"", shown_name(path)));
        if (asked.sms.empty()) warn_of_sms(object.value("sm", nlohmann::json()));
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
        asked.add(recorded_coverage(read_long_text(path), path == "-" ? "standard input" : path));
    }
    asked.listed = true;
}

}  // namespace

void add_request_flags(Command& command, const PlanSizes& sizes) {
    const AttentionRequest defaults{.spec = {}, .sizes = sizes, .sm = {}};
    for (const RequestField& field : problem::request_fields())
        add_field(command, field, kRequestGroup, FieldSource::either, true, defaults);
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

std::string name_of(const ModelAttention& attention) {
    return attention.name.empty() ? std::string(to_string(attention.request.spec.op)) : attention.name;
}

void add_model_flags(Command& command, const ModelFlags& flags) {
    constexpr const char* kHelp =
        "a Hugging Face config.json, or the folder that holds one; - is standard input";
    if (flags.several_models) {
        command.add_list("model", "FILE", kHelp);
    } else {
        command.add_value("model", "FILE", kHelp);
    }
    for (const std::string_view name : problem::model_request_fields()) {
        add_field(command, *problem::find_field(name), "Model", FieldSource::model, flags.several_values);
    }
    command.add_value("tensor-parallel", "N",
                      fmt::format("GPUs that the model's heads are divided over (default {})",
                                  ModelOptions().tensor_parallel),
                      "Model");
}

Model read_model(const Command& command, const std::string& path) {
    const ModelOptions options = problem::model_options_from_json(model_words(command));
    const std::string text = read_model_text(path);
    return read_config(command, path, [&] { return parse_model(text, options); });
}

Coverage read_model_coverage(const Command& command, const std::string& path) {
    const nlohmann::json words = model_words(command);
    const std::string text = read_model_text(path);
    return read_config(command, path, [&] { return problem::coverage_of_model(text, words); });
}

std::string model_name(const std::string& path) {
    if (path == "-") return "stdin";
    std::filesystem::path file = std::filesystem::path(path).lexically_normal();
    if (!file.has_filename() || file.filename() == "config.json") file = file.parent_path();
    const std::string name = file.extension() == ".json" ? file.stem().string() : file.filename().string();
    return name.empty() ? path : name;
}

void refuse_model_flags(const Command& command) {
    std::vector<std::string> flags = {"tensor-parallel"};
    for (const std::string_view name : problem::model_request_fields()) flags.push_back(flag_of(name));
    for (const std::string& flag : flags) {
        if (command.has(flag)) throw BadUsage(fmt::format("--{} is for --model", flag));
    }
}

void add_sm_flag(Command& command) {
    add_field(command, *problem::find_field("sm"), "Options", FieldSource::request);
}

std::vector<int> read_sms(const Command& command) {
    AttentionRequest request;
    set_field(command, request, "sm");
    if (command.has("sm")) warn_of_sms(value_of(command, *problem::find_field("sm")));
    return request.sm;
}

void add_cache_flag(Command& command) {
    command.add_repeatable(
        "cache", "DIR",
        "cache directory; given again, a read-only layer below it, which may be a bundle (default: "
        "ATTNSMITH_CACHE_DIR, a list divided by ':', else XDG_CACHE_HOME/attnsmith, else "
        "~/.cache/attnsmith)");
    command.add_value("cache-trust", cache_trusts().kind(),
                      "whose directories are used: those that only you or root can write to (owner, the "
                      "default), those of a group that you are in too, or any");
    command.add_value(
        "cache-max-bytes", "SIZE",
        "what the cache directory may take on its disk, e.g. 500M; what was not used for longest goes first "
        "(default 2G; 0: no limit)");
}

void add_toolchain_flag(Command& command) {
    command.add_value(
        "toolchain", toolchains().kind(),
        "whose entries count as hits: any NVRTC's, the newest first (default), or only those of "
        "the NVRTC at hand");
}

void add_tuning_flag(Command& command) {
    command.add_list("tuning", "FILE",
                     "tuning tables whose tiles win over the built-in ones (default: ATTNSMITH_TUNING)");
}

RuntimeOptions runtime_options(const Command& command) {
    RuntimeOptions options;
    if (command.knows("tuning")) {
        options.tuning_files = command.texts("tuning");
        for (const std::string& file : options.tuning_files) {
            // Or it says why not. A pipe is read once, by the runtime.
            if (!std::filesystem::is_fifo(file)) (void)read_text(file);
        }
    }
    options.cache_dirs = command.texts("cache");
    if (std::ranges::find(options.cache_dirs, "") != options.cache_dirs.end())
        throw InvalidRequest("cache", "\"\"", "a directory");
    if (const auto bytes = command.text("cache-max-bytes"))
        options.cache_max_bytes = parse_byte_size("cache-max-bytes", *bytes);
    options.cache_source = !(command.knows("no-source") && command.has("no-source"));
    if (const auto toolchain = command.knows("toolchain") ? command.text("toolchain") : std::nullopt)
        options.toolchain = toolchains().read(*toolchain);
    if (const auto trust = command.text("cache-trust")) options.cache_trust = cache_trusts().read(*trust);
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
