// attnsmith cache ls, stat, verify and dir: what lies in the cache directories.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "cache/remote/address.hpp"
#include "cli/asked/runtime_flags.hpp"
#include "cli/cache/commands.hpp"
#include "cli/cache/prometheus.hpp"
#include "cli/program/output.hpp"
#include "reports/cache_directories.hpp"
#include "reports/kernel_list.hpp"
#include "reports/public_reports.hpp"
#include "reports/report_json.hpp"
#include "reports/unreadable.hpp"
#include "settings/entry_times.hpp"

namespace attnsmith::cli {
namespace {

using engine::KernelEntry;

std::string age_text(std::int64_t seconds) {
    constexpr std::int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
    if (seconds < 2 * kMinute) return fmt::format("{} s", seconds);
    if (seconds < 2 * kHour) return fmt::format("{} min", seconds / kMinute);
    if (seconds < 2 * kDay) return fmt::format("{} h", seconds / kHour);
    return fmt::format("{} days", seconds / kDay);
}

// A bundle keeps no stamps of its own: when it was written says nothing of its entries' use.
std::vector<bool> layers_with_stamps(const cache::Options& options) {
    std::vector<bool> with_stamps = {true};
    for (const std::string& layer : options.read_only_layers) {
        std::error_code ignored;
        with_stamps.push_back(std::filesystem::is_directory(layer, ignored));
    }
    return with_stamps;
}

std::string ls_text(const std::vector<KernelEntry>& kernels, const cache::Options& options) {
    const std::vector<bool> with_stamps = layers_with_stamps(options);
    const std::vector<std::string> places = places_of(options);
    const bool layered = places.size() > 1;
    Table table(layered ? "<><<>><" : "<><<>>");
    std::vector<std::string> header = {"key", "sm", "kernel", "toolchain", "bytes", "age"};
    if (layered) header.emplace_back("layer");
    table.add(std::move(header));
    for (const KernelEntry& kernel : kernels) {
        const cache::ListedEntry& entry = kernel.entry;
        std::vector<std::string> row = {
            entry.key.hex(),
            kernel.sm == 0 ? "?" : std::to_string(kernel.sm),
            kernel.name.empty() ? "?" : printable(kernel.name),
            entry.version.to_string(),
            std::to_string(entry.bytes),
            with_stamps[entry.layer] ? age_text(engine::age_seconds(entry.modified)) : "-"};
        if (layered) row.push_back(printable(places[entry.layer]));
        table.add(std::move(row));
    }
    if (!table.empty()) return table.text();
    return fmt::format("no entries in {}\n", printable(fmt::format("{}", fmt::join(places, ", "))));
}

int run_ls(const Command& command) {
    require_what_cache_names(command);
    const cache::Options options = quiet_options(command);
    tell_of_missing_layers(options.read_only_layers);
    const cache::Store store(options);
    const engine::KernelList list = engine::list_kernels(store);
    if (command.has("json")) {
        print_json(to_json(engine::report_of(list, options)));
    } else {
        // What could not be read may hold anything.
        const bool is_known = list.unreadable.empty() || !list.kernels.empty();
        if (is_known) print(ls_text(list.kernels, options));
    }
    if (list.unreadable.empty()) return kSuccess;
    print_error(engine::unreadable_text(list.unreadable));
    return kFailure;
}

std::string layer_text(const cache::LayerStatistics& layer) {
    std::string text =
        fmt::format("{}: {}, {}", layer.directory, entries_text(layer.entries), human_bytes(layer.bytes));
    if (!layer.not_usable_because.empty()) text += "; not usable: " + layer.not_usable_because;
    if (!layer.not_trusted_because.empty()) text += "; not used: " + layer.not_trusted_because;
    return printable(text);
}

// When counting began, and what was counted.
std::string counters_text(const cache::CounterTotals& counters) {
    using cache::Event;
    return fmt::format("since        {}\n", counters.since == 0
                                                ? "nothing was counted yet"
                                                : engine::utc_text(cache::file_time_of(counters.since))) +
           fmt::format("hits         {}, {} read\n", counters[Event::hit],
                       human_bytes(counters[Event::bytes_read])) +
           fmt::format("misses       {}: {} compiled, {} waited for, {} errors\n", counters[Event::miss],
                       counters[Event::compile], counters[Event::wait], counters[Event::miss_error]) +
           fmt::format("remotes      {} fetched, {}; {} not there, {} failures\n",
                       counters[Event::remote_hit], human_bytes(counters[Event::remote_bytes]),
                       counters[Event::remote_miss], counters[Event::remote_failure]) +
           fmt::format("evictions    {}, {}\n", counters[Event::eviction],
                       human_bytes(counters[Event::bytes_evicted])) +
           fmt::format("quarantines  {}\n", counters[Event::quarantine]);
}

std::string stat_text(const cache::Statistics& statistics) {
    std::string text = fmt::format("directory    {}{}\n", printable(statistics.directory),
                                   engine::is_missing(statistics.directory) ? " (not there yet)" : "");
    text += fmt::format("writable     {}\n",
                        statistics.writable ? "yes" : "no: " + printable(statistics.not_writable_because));
    text += fmt::format("entries      {}, {}; {} on the disk, at most {}\n", statistics.entries,
                        human_bytes(statistics.bytes), human_bytes(statistics.allocated_bytes),
                        statistics.max_bytes == 0 ? "any" : human_bytes(statistics.max_bytes));
    text += fmt::format("quarantined  {}\n", statistics.quarantined);
    text += fmt::format("staging      {}\n", statistics.staging);
    text += counters_text(statistics.counters);
    for (const cache::LayerStatistics& layer : statistics.layers) {
        text += fmt::format("layer        {}\n", layer_text(layer));
    }
    return text;
}

int run_stat(const Command& command) {
    if (command.has("prometheus") && command.has("json"))
        throw BadUsage("--json cannot be given beside --prometheus: each is a format of its own");
    require_what_cache_names(command);
    const cache::Store store(quiet_options(command));
    const cache::Statistics statistics = store.stat();
    if (command.has("json")) {
        print_json(to_json(engine::report_of(statistics)));
    } else if (command.has("prometheus")) {
        print(prometheus_text(statistics));
    } else {
        print(stat_text(statistics));
    }
    std::vector<cache::Status> unreadable = statistics.unreadable;
    for (const cache::LayerStatistics& layer : statistics.layers)
        unreadable.insert(unreadable.end(), layer.unreadable.begin(), layer.unreadable.end());
    if (unreadable.empty()) return kSuccess;
    print_error(engine::unreadable_text(unreadable));
    return kFailure;
}

// In numbers: the report lists each with its reason.
std::string verify_error(const cache::VerifyReport& report) {
    std::vector<std::string> troubles;
    if (const std::uint64_t entries = report.bad.size() - report.unusable; entries > 0)
        troubles.push_back(fmt::format("{} of {} entries are bad", entries, report.checked));
    if (report.unusable > 0) {
        troubles.push_back(
            fmt::format("{} {} not sound or cannot be looked into", report.unusable,
                        report.unusable == 1 ? "directory or bundle is" : "directories or bundles are"));
    }
    return fmt::format("{}; the first: {}", fmt::join(troubles, ", "), report.bad.front().path);
}

int run_verify(const Command& command) {
    require_what_cache_names(command);
    const cache::Options options = quiet_options(command);
    tell_of_missing_layers(options.read_only_layers);
    if (options.read_only_layers.empty()) tell_if_missing(options.directory);
    const cache::Store store(options);
    const cache::VerifyReport report = store.verify();
    if (command.has("json")) {
        print_json(to_json(engine::report_of(report, options.directory)));
    } else {
        for (const cache::BadEntry& bad : report.bad) {
            print(fmt::format("bad  {}: {}; {}\n", printable(bad.path), printable(bad.reason),
                              printable(bad.action)));
        }
        print(fmt::format("{} checked, {} bad, {} of other formats skipped, {} stale staging files removed\n",
                          entries_text(report.checked), report.bad.size(), report.skipped,
                          report.stale_staging_removed));
    }
    if (report.bad.empty()) return kSuccess;
    print_error(verify_error(report));
    return kFailure;
}

int run_dir(const Command& command) {
    const engine::Settings settings = cache_settings(command);
    if (command.has("json")) {
        print_json(engine::places_json(settings));
        return kSuccess;
    }
    for (const std::string& directory : settings.cache_dirs) print(printable(directory) + "\n");
    for (const std::string& address : settings.remotes)
        print(printable(cache::shown_address(address)) + "\n");
    return kSuccess;
}

}  // namespace

void add_ls(Command& cache) {
    add_cache_command(cache, "ls", "List the kernels in the cache",
                      "Exits 1 when something could not be read.\n\n"
                      "Example:\n  attnsmith cache ls --cache kernels --json",
                      run_ls);
}

void add_stat(Command& cache) {
    add_cache_command(cache, "stat", "Say where the cache is, how large, and whether it can be written",
                      "--prometheus prints metrics for a file of node_exporter's textfile collector, whose\n"
                      "name is to appear whole: write it beside and rename it.\n\n"
                      "Examples:\n"
                      "  attnsmith cache stat --cache kernels\n"
                      "  attnsmith cache stat --cache kernels --prometheus",
                      run_stat)
        .add_switch("prometheus", "print metrics in Prometheus's text format");
}

void add_verify(Command& cache) {
    add_cache_command(cache, "verify", "Read every byte of every entry; quarantine what is broken",
                      "Exits 1 when something was broken, or could not be read.\n\n"
                      "Example:\n  attnsmith cache verify --cache kernels",
                      run_verify);
}

void add_dir(Command& cache) {
    add_cache_command(cache, "dir", "Print the cache directories, the writable one first",
                      "Example:\n  attnsmith cache dir", run_dir);
}

}  // namespace attnsmith::cli
