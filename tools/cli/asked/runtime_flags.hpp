// The flags that say with what a Runtime is made: its cache, the toolchain, tuning tables.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "attnsmith/runtime.hpp"
#include "cli/program/command.hpp"
#include "settings/environment.hpp"

namespace attnsmith::cli {

// --cache, --cache-trust, --trust-key and --cache-max-bytes.
void add_cache_flag(Command& command);
// --toolchain alone.
void add_toolchain_flag(Command& command);
// --tuning alone.
void add_tuning_flag(Command& command);
// Every --cache but the first must exist, unless the command reports what does not.
enum class MissingLayers : std::uint8_t { refused, reported };
// Options of a Runtime with what those and --tuning say, where a command has them.
RuntimeOptions runtime_options(const Command& command, MissingLayers missing = MissingLayers::refused);
// The settings of a command that needs a cache. Throws CacheError where there is no directory, InvalidRequest
// where one of them is something else.
engine::Settings cache_settings(const Command& command);
// The same of a command that needs a remote. Throws BadUsage where there is none, or nobody's signature is
// trusted.
engine::Settings settings_with_remote(const Command& command);
// Says on standard error which of the read-only layers are not there.
void tell_of_missing_layers(std::span<const std::string> layers);
// The same of what could not be read, if there is anything.
void tell_of_unreadable(std::span<const cache::Status> unreadable);
// A Runtime of those, after telling of missing layers. Layers that are unusable in another way are for the
// command to tell.
Runtime open_cache_runtime(const Command& command);

}  // namespace attnsmith::cli
