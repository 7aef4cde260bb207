// --model, and the flags that fill in what a model's config.json does not say.
#pragma once

#include <string>

#include "attnsmith/coverage.hpp"
#include "cli/program/command.hpp"

namespace attnsmith::cli {

// What a command takes several of: models, and values of the words that a program chooses.
struct ModelFlags {
    bool several_models = false;
    bool several_values = false;  // read_model_coverage() reads them
    bool engine = false;          // --engine, which read_model_coverage() reads, too
};
// --model alone, with the flags that fill in what a config.json does not say.
void add_model_flags(Command& command, const ModelFlags& flags);
// --engine alone, for a command that reads --model by read_model_coverage() or read_asked().
void add_engine_flag(Command& command, const std::string& group = "Options");
Model read_model(const Command& command, const std::string& path);
// The same where words have several values, or with what --engine asks for.
Coverage read_model_coverage(const Command& command, const std::string& path);
// "llama-3.1-8b" of "models/llama-3.1-8b.json"; of a folder, or of the config.json in it, the folder's name.
std::string model_name(const std::string& path);
// Throws BadUsage where --engine is given, for a command line without --model.
void refuse_engine_without_model(const Command& command);
// Throws BadUsage where one of those flags is given, for a command that --model is not given to.
void refuse_model_flags(const Command& command);

}  // namespace attnsmith::cli
