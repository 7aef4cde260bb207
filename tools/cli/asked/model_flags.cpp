#include "cli/asked/model_flags.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/asked/engine_coverage.hpp"
#include "cli/asked/field_flags.hpp"
#include "cli/asked/read_document.hpp"
#include "cli/program/files.hpp"
#include "models/coverage/coverage.hpp"
#include "models/options.hpp"
#include "problem/spelling.hpp"

namespace attnsmith::cli {
namespace {

std::int64_t tensor_parallel(const Command& command) {
    return command.integer("tensor-parallel", 1, 1 << 20, 1);
}

// What parse_model_options() takes; words may have several values.
nlohmann::json model_words(const Command& command) {
    nlohmann::json object = nlohmann::json::object();
    for (const std::string_view name : problem::model_request_fields()) {
        if (!command.has(flag_of(name))) continue;
        object[std::string(name)] = value_of(command, *problem::find_field(name));
    }
    if (command.has("tensor-parallel")) object["tensor_parallel"] = tensor_parallel(command);
    return object;
}

std::optional<Engine> given_engine(const Command& command) {
    if (!command.knows("engine") || !command.has("engine")) return std::nullopt;
    const std::string name = command.text("engine").value();
    const std::optional<Engine> engine = find_engine(name);
    if (!engine)
        throw BadUsage(fmt::format("--engine: {} is not accepted; expected {}", problem::quote(name),
                                   problem::join_or(engine_names())));
    for (const std::string_view field : problem::model_request_fields()) {
        if (decides(*engine, *problem::find_field(field)) && command.has(flag_of(field)))
            throw BadUsage(
                fmt::format("--{} cannot be given with --engine {}, which decides it: leave it out",
                            flag_of(field), name));
    }
    return engine;
}

void refuse_context_parallel_without_engine(const Command& command) {
    if (command.knows("engine") && command.has("context-parallel") && !command.has("engine"))
        throw BadUsage("--context-parallel is for --engine: add --engine vllm");
}

// vLLM divides the keys among GPUs that have the same heads.
std::int64_t context_parallel(const Command& command) {
    refuse_context_parallel_without_engine(command);
    if (!command.knows("context-parallel")) return 1;
    const std::int64_t ranks = command.integer("context-parallel", 1, 1 << 20, 1);
    const std::int64_t gpus = tensor_parallel(command);
    if (gpus % ranks != 0)
        throw BadUsage(fmt::format("--context-parallel: {} does not divide --tensor-parallel, which is {}",
                                   ranks, gpus));
    return ranks;
}

// Reads a model, which flags fill in: where one of them is what is wrong, that is named, too.
template <typename Read>
auto read_config(const Command& command, const std::string& path, Read read) {
    return read_document(path, "config.json", [&] {
        try {
            return read();
        } catch (const InvalidRequest& error) {
            const std::string flag = flag_of(error.field());
            if (!command.knows(flag) || !command.has(flag)) throw;
            throw InvalidFlag(error, shown_name(path));
        }
    });
}

}  // namespace

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
    if (flags.engine) add_engine_flag(command, "Model");
}

void add_engine_flag(Command& command, const std::string& group) {
    command.add_value(
        "engine", fmt::format("{}", fmt::join(engine_names(), "|")),
        "what this engine asks for while it serves the model with attnsmith's backend; needs --model. "
        "--kv-dtype then takes vLLM's words, too: auto, fp8, fp8_e5m2, fp8_per_token_head",
        group);
    command.add_value("context-parallel", "N",
                      "of --engine: GPUs that decodes divide the keys of a request over, "
                      "--decode-context-parallel-size of vLLM (default 1)",
                      group);
}

Model read_model(const Command& command, const std::string& path) {
    const ModelOptions options = problem::model_options_from_json(model_words(command));
    const std::string text = read_model_text(path);
    return read_config(command, path, [&] { return parse_model(text, options); });
}

Coverage read_model_coverage(const Command& command, const std::string& path) {
    const std::optional<Engine> engine = given_engine(command);
    const std::int64_t ranks = context_parallel(command);
    const nlohmann::json words = model_words(command);
    const std::string text = read_model_text(path);
    return read_config(command, path, [&] {
        return engine ? engine_coverage(*engine, text, words, ranks)
                      : problem::coverage_of_model(text, words);
    });
}

std::string model_name(const std::string& path) {
    if (path == "-") return "stdin";
    std::filesystem::path file = std::filesystem::path(path).lexically_normal();
    if (!file.has_filename() || file.filename() == "config.json") file = file.parent_path();
    const std::string name = file.extension() == ".json" ? file.stem().string() : file.filename().string();
    return name.empty() ? path : name;
}

void refuse_engine_without_model(const Command& command) {
    refuse_context_parallel_without_engine(command);
    if (command.knows("engine") && command.has("engine"))
        throw BadUsage("--engine is for --model: add --model FILE, the config.json that the engine serves");
}

void refuse_model_flags(const Command& command) {
    refuse_engine_without_model(command);
    std::vector<std::string> flags = {"tensor-parallel"};
    for (const std::string_view name : problem::model_request_fields()) flags.push_back(flag_of(name));
    for (const std::string& flag : flags) {
        if (command.has(flag)) throw BadUsage(fmt::format("--{} is for --model", flag));
    }
}

}  // namespace attnsmith::cli
