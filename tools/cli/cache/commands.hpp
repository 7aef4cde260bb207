// The commands of `attnsmith cache`, and what several of them need.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/store/store.hpp"
#include "cli/program/command.hpp"

namespace attnsmith::cli {

// In reports.cpp.
void add_ls(Command& cache);
void add_stat(Command& cache);
void add_verify(Command& cache);
void add_dir(Command& cache);
// In changes.cpp.
void add_gc(Command& cache);
void add_clear(Command& cache);
void add_rm(Command& cache);
// In bundles.cpp.
void add_export(Command& cache);
void add_import(Command& cache);
// In remotes.cpp.
void add_push(Command& cache);
void add_pull(Command& cache);
// In keys.cpp.
void add_keygen(Command& cache);

// One of them, whose help begins with what all of them say of the directories; with --json and the flags of a
// cache.
Command& add_cache_command(Command& cache, const char* name, const char* summary, const char* details,
                           Command::Run run);

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

// A bundle or key goes to a file and comes from one: it is staged beside its name, or is read whole before
// any of it is believed. Throws BadUsage for "" and "-"; `what` names the command.
std::string require_file(std::string path, const char* what);

// The directories, by the place that entries give as their layer.
std::vector<std::string> places_of(const cache::Options& options);

}  // namespace attnsmith::cli
