// attnsmith cache gc, clear and rm: what deletes from the writable directory.
#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "cli/cache/commands.hpp"
#include "cli/program/byte_size.hpp"
#include "cli/program/output.hpp"
#include "reports/deletions.hpp"
#include "reports/kernel_list.hpp"
#include "reports/public_reports.hpp"

namespace attnsmith::cli {
namespace {

// Why gc kept more than it was to; empty if it did not, or if an error says so.
std::string why_over_limit(const cache::EvictionReport& report, bool knows_grace) {
    if (!report.kept || !report.limit || report.kept->bytes <= *report.limit || !report.status.ok())
        return {};
    return fmt::format("over the limit of {} with what was used {}\n", human_bytes(*report.limit),
                       knows_grace ? fmt::format("within the last {} hours (--max-bytes takes that, too)",
                                                 cache::kEvictionGrace / std::chrono::hours(1))
                                   : "meanwhile");
}

int run_gc(const Command& command) {
    if (command.has("max-bytes") && command.has("cache-max-bytes"))
        throw BadUsage("--cache-max-bytes cannot be given beside --max-bytes: both are the limit");
    require_what_cache_names(command, Purpose::deleting);
    const cache::Store store(quiet_options(command));
    const std::string& directory = store.options().directory;
    std::optional<std::uint64_t> max_bytes;
    if (const auto bytes = command.text("max-bytes")) max_bytes = parse_byte_size("max-bytes", *bytes);
    tell_if_missing(directory);
    const cache::EvictionReport report = store.gc(max_bytes);
    if (report.busy) engine::require_collected(report);  // there is nothing to report
    if (command.has("json")) {
        print_json(to_json(engine::report_of(report, directory)));
    } else {
        print(fmt::format("{}: {}, {} quarantined, {} staging and {} lock files deleted, {} freed{}\n",
                          printable(directory), entries_text(report.entries), report.quarantined,
                          report.staging, report.locks, human_bytes(report.bytes),
                          report.kept ? fmt::format("; {}, {} kept", entries_text(report.kept->entries),
                                                    human_bytes(report.kept->bytes))
                                      : ""));
        print(why_over_limit(report, !max_bytes));
    }
    engine::require_collected(report);
    return kSuccess;
}

int run_clear(const Command& command) {
    const cache::Store store(quiet_options(command));
    const std::string& directory = store.options().directory;
    if (!command.has("yes")) {
        throw BadUsage(fmt::format("--yes is missing: this would delete all entries in {}", directory));
    }
    require_what_cache_names(command, Purpose::deleting);
    tell_if_missing(directory);
    const cache::ClearReport report = store.clear();
    if (command.has("json")) {
        print_json(to_json(engine::report_of(report, directory)));
    } else {
        print(fmt::format("{}: {} and {} quarantined files deleted, {} freed\n", printable(directory),
                          entries_text(report.entries), report.quarantined, human_bytes(report.bytes)));
        if (report.staging_left > 0) {
            print(fmt::format("left: {} staging files of under an hour, which somebody may be writing\n",
                              report.staging_left));
        }
        if (report.locks_left > 0) {
            print(fmt::format("left: {} lock files, which somebody holds\n", report.locks_left));
        }
    }
    engine::require_cleared(report);
    return kSuccess;
}

int run_rm(const Command& command) {
    require_what_cache_names(command, Purpose::deleting);
    const cache::Store store(quiet_options(command));
    const std::string& directory = store.options().directory;
    const cache::Digest key = engine::find_key(command.argument(), engine::list_kernels(store));
    const cache::RemoveReport report = store.remove(key);
    engine::require_removed(report);
    if (command.has("json")) {
        print_json(to_json(engine::report_of(report, key, directory)));
        return kSuccess;
    }
    print(fmt::format("{}: {} of {} deleted, {} freed\n", printable(directory), entries_text(report.entries),
                      key.hex(), human_bytes(report.bytes)));
    if (report.left > 0)
        print(fmt::format("left: {} of it in read-only layers, which are not written to\n",
                          entries_text(report.left)));
    return kSuccess;
}

}  // namespace

void add_gc(Command& cache) {
    add_cache_command(
        cache, "gc", "Keep the limit: delete what was not used for longest, and what dead processes left",
        "Without --max-bytes the limit is that of --cache-max-bytes, and what was used within the last\n"
        "hour stays, and may stay when used within the last 2: the last use is known to the hour.\n"
        "Only one of the two limits is given.\n\n"
        "Example:\n  attnsmith cache gc --cache kernels --max-bytes 1G",
        run_gc)
        .add_value("max-bytes", "SIZE",
                   "what the entries may take on their disk: bytes, or with K, M, G or T; 0 keeps none");
}

void add_clear(Command& cache) {
    add_cache_command(
        cache, "clear", "Empty the writable directory: entries, quarantine, counters, leftovers",
        "What others use stays: staging files of under an hour, which somebody may be writing (gc,\n"
        "verify and clear delete them later), and lock files that somebody holds.\n\n"
        "Example:\n  attnsmith cache clear --cache kernels --yes",
        run_clear)
        .add_switch("yes", "really delete");
}

void add_rm(Command& cache) {
    add_cache_command(cache, "rm",
                      "Delete the entries of one key, of all toolchains, from the writable directory",
                      "Of a KEY the first 4 digits or more will do. Read-only layers are not written to.\n\n"
                      "Example:\n  attnsmith cache rm 4f0d2c81 --cache kernels",
                      run_rm)
        .add_argument("KEY", "the key of an entry (`attnsmith cache ls` lists them), or how it begins");
}

}  // namespace attnsmith::cli
