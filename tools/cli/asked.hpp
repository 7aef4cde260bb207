// What a command is asked for: one request by flags or by --request FILE, or all attentions of a --model.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "cli/command.hpp"
#include "engine/environment.hpp"

namespace attnsmith::cli {

struct Asked {
    bool model = false;
    // Of a model; else one without a name.
    std::vector<ModelAttention> attentions;
    std::vector<UnsupportedPart> unsupported;
    std::vector<ModelWarning> warnings;
    std::vector<int> sms;  // as given; empty: the GPU that is present
};

// A flag for each field of a request, and --request, --model, --tensor-parallel.
void add_request_flags(Command& command);
// Whether any of those flags is given.
bool has_request(const Command& command);
// Throws BadUsage, InvalidRequest, Unsupported.
Asked read_asked(const Command& command);

// The attention's name in its model; its op, of a request that has none.
std::string name_of(const ModelAttention& attention);

// --model alone, with the flags that fill in what a config.json does not say.
void add_model_flags(Command& command, bool several);
Model read_model(const Command& command, const std::string& path);
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
