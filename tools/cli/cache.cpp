// attnsmith cache: what lies in the cache directories.
#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <optional>

#include "cli/asked.hpp"
#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "engine/cache_report.hpp"

namespace attnsmith::cli {
namespace {

using engine::KernelEntry;
using std::chrono::system_clock;

constexpr const char* kDirectories =
    "The directories are that of --cache, else those of ATTNSMITH_CACHE_DIR (divided by ':', the writable\n"
    "one first), else XDG_CACHE_HOME/attnsmith or ~/.cache/attnsmith.\n\n";

// Throws CacheError where there is no directory, InvalidRequest where one of them is a file.
cache::Options open_options(const Command& command) {
    const engine::Settings settings = engine::settle(runtime_options(command));
    if (settings.cache_dirs.empty()) {
        throw CacheError("there is no cache directory (give --cache DIR): " + settings.no_cache_because);
    }
    engine::require_directories(settings, command.has("cache") ? "cache" : "ATTNSMITH_CACHE_DIR");
    cache::Options options = engine::store_options(settings);
    options.warn = [](std::string_view line) {
        print_note(fmt::format("attnsmith: cache: {}\n", printable(line)));
    };
    return options;
}

std::int64_t age_seconds(system_clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::seconds>(system_clock::now() - time).count();
}

std::string age_text(std::int64_t seconds) {
    constexpr std::int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
    if (seconds < 2 * kMinute) return fmt::format("{} s", std::max<std::int64_t>(seconds, 0));
    if (seconds < 2 * kHour) return fmt::format("{} min", seconds / kMinute);
    if (seconds < 2 * kDay) return fmt::format("{} h", seconds / kHour);
    return fmt::format("{} days", seconds / kDay);
}

int run_ls(const Command& command) {
    const cache::Store store(open_options(command));
    const std::vector<KernelEntry> kernels = engine::list_kernels(store);
    if (command.has("json")) {
        print_json(engine::ls_json(store, kernels));
        return kSuccess;
    }
    Table table("<><<>>");
    table.add({"key", "sm", "kernel", "toolchain", "bytes", "age"});
    for (const KernelEntry& kernel : kernels) {
        const cache::ListedEntry& entry = kernel.entry;
        table.add({entry.key.hex(), kernel.sm == 0 ? "?" : std::to_string(kernel.sm),
                   kernel.name.empty() ? "?" : printable(kernel.name), entry.version.to_string(),
                   std::to_string(entry.bytes), age_text(age_seconds(entry.modified))});
    }
    print(table.empty() ? fmt::format("no entries in {}\n", printable(store.options().directory))
                        : table.text());
    return kSuccess;
}

int run_stat(const Command& command) {
    const cache::Store store(open_options(command));
    const cache::Statistics statistics = store.stat();
    if (command.has("json")) {
        print_json(engine::stat_json(statistics));
        return kSuccess;
    }
    print(fmt::format("directory    {}\n", printable(statistics.directory)));
    print(fmt::format("writable     {}\n",
                      statistics.writable ? "yes" : "no: " + statistics.not_writable_because));
    print(fmt::format("entries      {}, {}; {} on the disk, at most {}\n", statistics.entries,
                      human_bytes(statistics.bytes), human_bytes(statistics.allocated_bytes),
                      statistics.max_bytes == 0 ? "any" : human_bytes(statistics.max_bytes)));
    print(fmt::format("quarantined  {}\n", statistics.quarantined));
    print(fmt::format("staging      {}\n", statistics.staging));
    using cache::Event;
    const cache::CounterTotals& counters = statistics.counters;
    print(fmt::format("hits         {}, {} read\n", counters[Event::hit],
                      human_bytes(counters[Event::bytes_read])));
    print(fmt::format("misses       {}: {} compiled, {} waited for\n", counters[Event::miss],
                      counters[Event::compile], counters[Event::wait]));
    print(fmt::format("evictions    {}, {}\n", counters[Event::eviction],
                      human_bytes(counters[Event::bytes_evicted])));
    for (const cache::LayerStatistics& layer : statistics.layers) {
        print(
            fmt::format("layer        {}: {} entries, {}{}\n", printable(layer.directory), layer.entries,
                        human_bytes(layer.bytes),
                        layer.not_trusted_because.empty() ? "" : "; not used: " + layer.not_trusted_because));
    }
    return kSuccess;
}

int run_verify(const Command& command) {
    cache::Options options = open_options(command);
    options.warn = {};  // what is bad is in the report
    const cache::Store store(options);
    const cache::VerifyReport report = store.verify();
    if (command.has("json")) {
        print_json(engine::verify_json(report, options.directory));
    } else {
        for (const cache::BadEntry& bad : report.bad) {
            print(fmt::format("bad  {}: {}; {}\n", printable(bad.path), bad.reason, bad.action));
        }
        print(fmt::format(
            "{} entries checked, {} bad, {} of other formats skipped, {} stale staging files removed\n",
            report.checked, report.bad.size(), report.skipped, report.stale_staging_removed));
    }
    if (report.bad.empty()) return kSuccess;
    const cache::BadEntry& first = report.bad.front();
    print_error(fmt::format("{} of {} entries are bad, the first: {} ({}; {})", report.bad.size(),
                            report.checked, first.path, first.reason, first.action));
    return kFailure;
}

int run_gc(const Command& command) {
    const cache::Store store(open_options(command));
    const std::string& directory = store.options().directory;
    std::optional<std::uint64_t> max_bytes;
    if (command.has("max-bytes")) {
        constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
        max_bytes = static_cast<std::uint64_t>(command.integer("max-bytes", 0, kMost, 0));
    }
    const cache::EvictionReport report = store.gc(max_bytes);
    if (command.has("json")) {
        print_json(engine::gc_json(report, directory));
    } else {
        print(fmt::format(
            "{}: {} entries, {} quarantined, {} staging and {} lock files deleted, {} freed; {} entries, {} "
            "kept\n",
            printable(directory), report.entries, report.quarantined, report.staging, report.locks,
            human_bytes(report.bytes), report.kept_entries, human_bytes(report.kept_bytes)));
    }
    engine::require_collected(report);
    return kSuccess;
}

int run_clear(const Command& command) {
    const cache::Store store(open_options(command));
    const std::string& directory = store.options().directory;
    if (!command.has("yes")) {
        throw BadUsage(fmt::format("--yes is missing: this would delete all entries in {}", directory));
    }
    const cache::ClearReport report = store.clear();
    if (command.has("json")) {
        print_json(engine::clear_json(report, directory));
    } else {
        print(fmt::format("{}: {} entries and {} quarantined files deleted, {} freed\n", printable(directory),
                          report.entries, report.quarantined, human_bytes(report.bytes)));
    }
    engine::require_cleared(report);
    return kSuccess;
}

Command& add_one(Command& parent, const char* name, const char* summary, const std::string& details,
                 Command::Run run) {
    Command& command = parent.add_command(name, summary, details);
    command.add_switch("json", "print JSON");
    add_cache_flag(command);
    command.on_run(std::move(run));
    return command;
}

}  // namespace

void add_cache(Command& parent) {
    const std::string directories = kDirectories;
    Command& cache = parent.add_command("cache", "List, measure, verify, limit or clear the kernel cache",
                                        directories + "Example:\n  attnsmith cache ls --cache kernels");
    add_one(cache, "ls", "List the kernels in the cache",
            directories + "Example:\n  attnsmith cache ls --cache kernels --json", run_ls);
    add_one(cache, "stat", "Say where the cache is, how large, and whether it can be written",
            directories + "Example:\n  attnsmith cache stat --cache kernels", run_stat);
    add_one(cache, "verify", "Read every byte of every entry; quarantine what is broken",
            directories +
                "Exits 1 when something was broken.\n\nExample:\n  attnsmith cache verify --cache kernels",
            run_verify);
    add_one(
        cache, "gc", "Keep the limit: delete what was not used for longest, and what dead processes left",
        directories +
            "Without --max-bytes the limit is that of --cache-max-bytes, and nothing goes that was used in\n"
            "the last hour.\n\n"
            "Example:\n  attnsmith cache gc --cache kernels --max-bytes 1000000000",
        run_gc)
        .add_value("max-bytes", "N", "what the entries may take on their disk, in bytes; 0 keeps none");
    add_one(cache, "clear", "Delete everything in the writable directory",
            directories + "Example:\n  attnsmith cache clear --cache kernels --yes", run_clear)
        .add_switch("yes", "really delete");
}

}  // namespace attnsmith::cli
