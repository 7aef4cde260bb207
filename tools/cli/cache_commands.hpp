// The commands of `attnsmith cache`, and what several of them need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/store/store.hpp"
#include "cli/command.hpp"

namespace attnsmith::cli {

int run_ls(const Command& command);
int run_stat(const Command& command);
int run_verify(const Command& command);
int run_dir(const Command& command);

int run_gc(const Command& command);
int run_clear(const Command& command);
int run_rm(const Command& command);

int run_export(const Command& command);
int run_import(const Command& command);

// Its store tells of no trouble: what the commands do reports it. Throws as cache_settings() does.
cache::Options quiet_options(const Command& command);

// What a command is about. What deletes does so in the writable directory alone, which then has to be there.
enum class Purpose { reading, deleting };

// For commands that would find nothing in a directory whose name is mistyped, and call that good. Throws
// BadUsage where --cache names what is not there.
void require_what_cache_names(const Command& command, Purpose purpose = Purpose::reading);

// "1 entry", "2 entries"
std::string entries_text(std::uint64_t count);

// Says on standard error that there is no directory yet: silence would be taken for a finding.
void tell_if_missing(const std::string& directory);

// The directories, by the place that entries give as their layer.
std::vector<std::string> places_of(const cache::Options& options);

}  // namespace attnsmith::cli
