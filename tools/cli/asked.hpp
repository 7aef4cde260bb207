// What a command is asked for: a request by flags or by --request FILE, all attentions of each --model, what
// programs recorded.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/coverage.hpp"
#include "attnsmith/runtime.hpp"
#include "cli/command.hpp"
#include "engine/environment.hpp"

namespace attnsmith::cli {

struct Asked : Coverage {
    bool listed = false;   // whether it could be more than one attention
    std::vector<int> sms;  // as given; empty: the GPU that is present
};

// A flag for each field of a request, those that a program chooses with lists of values, and --request,
// --model and --tensor-parallel. `sizes` are the defaults of those that a request has, for read_asked() to be
// given, too.
void add_request_flags(Command& command, const PlanSizes& sizes = {});
// --recorded alone.
void add_recorded_flag(Command& command);
// Whether any of those flags is given.
bool has_request(const Command& command);
// Throws BadUsage, InvalidRequest, Unsupported.
Asked read_asked(const Command& command, const PlanSizes& sizes = {});

// The attention's name in its model; its op, of a request that has none.
std::string name_of(const ModelAttention& attention);

// What a command takes several of: models, and values of the words that a program chooses.
struct ModelFlags {
    bool several_models = false;
    bool several_values = false;  // read_model_coverage() reads them
};
// --model alone, with the flags that fill in what a config.json does not say.
void add_model_flags(Command& command, const ModelFlags& flags);
Model read_model(const Command& command, const std::string& path);
// The same where words have several values.
Coverage read_model_coverage(const Command& command, const std::string& path);
// "llama-3.1-8b" of "models/llama-3.1-8b.json"; of a folder, or of the config.json in it, the folder's name.
std::string model_name(const std::string& path);
// Throws BadUsage where one of those flags is given, for a command that --model is not given to.
void refuse_model_flags(const Command& command);

// --sm alone.
void add_sm_flag(Command& command);
std::vector<int> read_sms(const Command& command);

// --cache, --cache-trust and --cache-max-bytes.
void add_cache_flag(Command& command);
// --toolchain alone.
void add_toolchain_flag(Command& command);
// --tuning alone.
void add_tuning_flag(Command& command);
// Options of a Runtime with what those and --tuning say, where a command has them.
RuntimeOptions runtime_options(const Command& command);
// The settings of a command that needs a cache. Throws CacheError where there is no directory, InvalidRequest
// where one of them is something else.
engine::Settings cache_settings(const Command& command);
// Says on standard error which of the read-only layers are not there.
void tell_of_missing_layers(std::span<const std::string> layers);
// The same of what could not be read, if there is anything.
void tell_of_unreadable(std::span<const cache::Status> unreadable);
// A Runtime of those, after telling of missing layers. Layers that are unusable in another way are for the
// command to tell.
Runtime open_cache_runtime(const Command& command);

}  // namespace attnsmith::cli
