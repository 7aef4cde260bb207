// attnsmith cache: its commands, and what they share.
#include <fmt/format.h>

#include "cli/asked.hpp"
#include "cli/cache_commands.hpp"
#include "cli/commands.hpp"
#include "cli/conclude.hpp"
#include "cli/output.hpp"
#include "engine/reports/cache_report.hpp"

namespace attnsmith::cli {
namespace {

constexpr const char* kDirectories =
    "The directories are that of --cache, else those of ATTNSMITH_CACHE_DIR (divided by ':', the writable\n"
    "one first), else XDG_CACHE_HOME/attnsmith or ~/.cache/attnsmith.\n\n";

Command& add_one(Command& parent, const char* name, const char* summary, const std::string& details,
                 Command::Run run) {
    Command& command = parent.add_command(name, summary, details);
    command.add_switch("json", "print JSON");
    add_cache_flag(command);
    command.on_run(std::move(run));
    return command;
}

}  // namespace

cache::Options quiet_options(const Command& command) {
    return engine::store_options(cache_settings(command));
}

void require_what_cache_names(const Command& command, Purpose purpose) {
    if (!command.has("cache")) return;
    const std::vector<std::string> places = cache_settings(command).cache_dirs;
    for (const std::string& place : places) {
        const bool is_layer = &place != &places.front();
        // The writable one of several is made when something is first stored.
        const bool may_come_later = places.size() > 1 && !is_layer && purpose == Purpose::reading;
        if (may_come_later || !engine::is_missing(place)) continue;
        throw BadUsage(
            fmt::format("--cache: there is no {} {}", is_layer ? "directory or bundle" : "directory", place));
    }
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
    const std::string directories = kDirectories;
    Command& cache =
        parent.add_command("cache", "List, explain, measure, verify, limit, move or clear the kernel cache",
                           directories + "Example:\n  attnsmith cache ls --cache kernels");
    add_one(cache, "ls", "List the kernels in the cache",
            directories +
                "Exits 1 when something could not be read.\n\nExample:\n  attnsmith cache ls --cache kernels "
                "--json",
            run_ls);
    add_one(cache, "stat", "Say where the cache is, how large, and whether it can be written",
            directories + "Example:\n  attnsmith cache stat --cache kernels", run_stat);
    add_one(cache, "verify", "Read every byte of every entry; quarantine what is broken",
            directories +
                "Exits 1 when something was broken, or could not be read.\n\nExample:\n  attnsmith cache "
                "verify --cache kernels",
            run_verify);
    add_one(
        cache, "gc", "Keep the limit: delete what was not used for longest, and what dead processes left",
        directories +
            "Without --max-bytes the limit is that of --cache-max-bytes, and what was used within the last\n"
            "hour stays, and may stay when used within the last 2: the last use is known to the hour.\n"
            "Only one of the two limits is given.\n\n"
            "Example:\n  attnsmith cache gc --cache kernels --max-bytes 1G",
        run_gc)
        .add_value("max-bytes", "SIZE",
                   "what the entries may take on their disk: bytes, or with K, M, G or T; 0 keeps none");
    Command& to_bundle = add_one(
        cache, "export", "Write kernels of the cache into one file, a bundle",
        directories +
            "The bundle can be imported elsewhere, or used as it is: as a read-only layer, in the list of\n"
            "ATTNSMITH_CACHE_DIR behind the writable directory. The same kernels give the same bytes. Exits "
            "1\n"
            "when the cache lacks some of the model's kernels, has broken ones or could not be read whole; "
            "the\n"
            "others are in the bundle.\n\n"
            "Examples:\n  attnsmith cache export --cache kernels -o kernels.bundle\n"
            "  attnsmith cache export --cache kernels --model config.json --sm 80,90 -o model.bundle --json",
        run_export);
    to_bundle.add_value("output", "FILE", "the bundle; replaced if it is there", "Options", "o");
    to_bundle.add_value("sm", "SM[,SM...]",
                        "only kernels for these compute capabilities, e.g. 80,90 (default: all)");
    add_doubt_flags(to_bundle);
    add_model_flags(to_bundle, {.several_values = true});
    add_tuning_flag(to_bundle);
    add_one(
        cache, "import", "Add the kernels of a bundle to the writable directory",
        directories +
            "Every byte of the bundle is checked before anything is added. What is there already stays.\n\n"
            "Example:\n  attnsmith cache import kernels.bundle --cache kernels",
        run_import)
        .add_argument("FILE", "a bundle that export wrote");
    add_one(cache, "clear", "Empty the writable directory: entries, quarantine, counters, leftovers",
            directories +
                "What others use stays: staging files of under an hour, which somebody may be writing (gc,\n"
                "verify and clear delete them later), and lock files that somebody holds.\n\n"
                "Example:\n  attnsmith cache clear --cache kernels --yes",
            run_clear)
        .add_switch("yes", "really delete");
    add_one(cache, "rm", "Delete the entries of one key, of all toolchains, from the writable directory",
            directories +
                "Of a KEY the first 4 digits or more will do. Read-only layers are not written to.\n\n"
                "Example:\n  attnsmith cache rm 4f0d2c81 --cache kernels",
            run_rm)
        .add_argument("KEY", "the key of an entry (`attnsmith cache ls` lists them), or how it begins");
    add_one(cache, "dir", "Print the cache directories, the writable one first",
            directories + "Example:\n  attnsmith cache dir", run_dir);
    add_explain(cache);
}

}  // namespace attnsmith::cli
