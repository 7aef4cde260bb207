// attnsmith cache: its commands, and what they share.
#include <fmt/format.h>

#include <utility>

#include "cli/asked/runtime_flags.hpp"
#include "cli/cache/commands.hpp"
#include "cli/commands.hpp"
#include "cli/program/output.hpp"
#include "cubins/store_options.hpp"
#include "reports/cache_directories.hpp"

namespace attnsmith::cli {
namespace {

constexpr const char* kDirectories =
    "The directories are that of --cache, else those of ATTNSMITH_CACHE_DIR (divided by ':', the writable\n"
    "one first), else XDG_CACHE_HOME/attnsmith or ~/.cache/attnsmith.\n\n";

}  // namespace

Command& add_cache_command(Command& cache, const char* name, const char* summary, const char* details,
                           Command::Run run) {
    Command& command = cache.add_command(name, summary, std::string(kDirectories) + details);
    command.add_switch("json", "print JSON");
    add_cache_flag(command);
    command.on_run(std::move(run));
    return command;
}

cache::Options quiet_options(const Command& command) {
    return engine::store_options(cache_settings(command));
}

void require_what_cache_names(const Command& command, Purpose purpose) {
    if (!command.has("cache")) return;
    const std::vector<std::string> places = cache_settings(command).cache_dirs;
    // The writable one of several is made when something is first stored.
    const bool may_come_later = places.size() > 1 && purpose == Purpose::reading;
    if (!may_come_later && engine::is_missing(places.front()))
        throw BadUsage(fmt::format("--cache: there is no directory {}", places.front()));
}

std::string require_file(std::string path, const char* what) {
    if (path.empty()) throw BadUsage(fmt::format("\"\": {} needs the name of a file", what));
    if (path == "-") throw BadUsage(fmt::format("-: {} needs a file, not a pipe", what));
    return path;
}

std::string entries_text(std::uint64_t count) { return counted(count, "entry", "entries"); }

std::vector<std::string> places_of(const cache::Options& options) {
    std::vector<std::string> places = {options.directory};
    places.insert(places.end(), options.read_only_layers.begin(), options.read_only_layers.end());
    return places;
}

void tell_if_missing(const std::string& directory) {
    if (engine::is_missing(directory))
        print_note(fmt::format("attnsmith: there is no directory {} yet\n", printable(directory)));
}

void add_cache(Command& parent) {
    Command& cache = parent.add_command(
        "cache", "List, explain, measure, verify, limit, move, push, pull or clear the kernel cache",
        std::string(kDirectories) + "Example:\n  attnsmith cache ls --cache kernels");
    add_ls(cache);
    add_stat(cache);
    add_verify(cache);
    add_gc(cache);
    add_keygen(cache);
    add_export(cache);
    add_import(cache);
    add_push(cache);
    add_pull(cache);
    add_clear(cache);
    add_rm(cache);
    add_dir(cache);
    add_explain(cache);
}

}  // namespace attnsmith::cli
