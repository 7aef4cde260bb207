// attnsmith cache: what lies in the cache directories.
#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "cli/asked.hpp"
#include "cli/byte_size.hpp"
#include "cli/commands.hpp"
#include "cli/gpu.hpp"
#include "cli/interrupt.hpp"
#include "cli/output.hpp"
#include "engine/cache_bundles.hpp"
#include "engine/cache_report.hpp"
#include "engine/runtime_impl.hpp"

namespace attnsmith::cli {
namespace {

using engine::KernelEntry;

constexpr const char* kDirectories =
    "The directories are that of --cache, else those of ATTNSMITH_CACHE_DIR (divided by ':', the writable\n"
    "one first), else XDG_CACHE_HOME/attnsmith or ~/.cache/attnsmith.\n\n";

// Of a store that tells of no trouble: what the commands do reports it. Throws as cache_settings() does.
cache::Options quiet_options(const Command& command) {
    return engine::store_options(cache_settings(command));
}

std::string entries_text(std::uint64_t count) { return counted(count, "entry", "entries"); }

// For commands whose silence would otherwise be taken for a finding.
void tell_if_missing(const std::string& directory) {
    if (engine::is_missing(directory))
        print_note(fmt::format("attnsmith: there is no directory {} yet\n", printable(directory)));
}

std::string age_text(std::int64_t seconds) {
    constexpr std::int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
    if (seconds < 2 * kMinute) return fmt::format("{} s", std::max<std::int64_t>(seconds, 0));
    if (seconds < 2 * kHour) return fmt::format("{} min", seconds / kMinute);
    if (seconds < 2 * kDay) return fmt::format("{} h", seconds / kHour);
    return fmt::format("{} days", seconds / kDay);
}

std::string ls_text(const std::vector<KernelEntry>& kernels, const cache::Options& options) {
    const bool layered = !options.read_only_layers.empty();
    Table table(layered ? "<><<>><" : "<><<>>");
    std::vector<std::string> header = {"key", "sm", "kernel", "toolchain", "bytes", "age"};
    if (layered) header.emplace_back("layer");
    table.add(std::move(header));
    for (const KernelEntry& kernel : kernels) {
        const cache::ListedEntry& entry = kernel.entry;
        std::vector<std::string> row = {entry.key.hex(),
                                        kernel.sm == 0 ? "?" : std::to_string(kernel.sm),
                                        kernel.name.empty() ? "?" : printable(kernel.name),
                                        entry.version.to_string(),
                                        std::to_string(entry.bytes),
                                        age_text(engine::age_seconds(entry.modified))};
        if (layered)
            row.push_back(printable(entry.layer == cache::kWritableLayer
                                        ? options.directory
                                        : options.read_only_layers[entry.layer - 1]));
        table.add(std::move(row));
    }
    if (!table.empty()) return table.text();
    std::vector<std::string> places = options.read_only_layers;
    places.insert(places.begin(), options.directory);
    return fmt::format("no entries in {}\n", printable(fmt::format("{}", fmt::join(places, ", "))));
}

int run_ls(const Command& command) {
    cache::Options options = quiet_options(command);
    tell_of_missing_layers(options.read_only_layers);
    bool is_open = false;  // a layer that could not be opened stands in the list of what was not read
    options.warn = [&is_open](std::string_view line) {
        if (is_open) print_note(fmt::format("attnsmith: cache: {}\n", printable(line)));
    };
    const cache::Store store(options);
    is_open = true;
    const engine::KernelList list = engine::list_kernels(store);
    if (command.has("json")) {
        print_json(engine::ls_json(store, list));
    } else {
        print(ls_text(list.kernels, options));
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
    const cache::Store store(quiet_options(command));
    const cache::Statistics statistics = store.stat();
    if (command.has("json")) {
        print_json(engine::stat_json(statistics));
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

// Of what the report lists with its reasons.
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
    const cache::Options options = quiet_options(command);
    tell_of_missing_layers(options.read_only_layers);
    if (options.read_only_layers.empty()) tell_if_missing(options.directory);
    const cache::Store store(options);
    const cache::VerifyReport report = store.verify();
    if (command.has("json")) {
        print_json(engine::verify_json(report, options.directory));
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
    const cache::Store store(quiet_options(command));
    const std::string& directory = store.options().directory;
    std::optional<std::uint64_t> max_bytes;
    if (const auto bytes = command.text("max-bytes")) max_bytes = parse_byte_size("max-bytes", *bytes);
    tell_if_missing(directory);
    const cache::EvictionReport report = store.gc(max_bytes);
    if (report.busy) engine::require_collected(report);  // there is nothing to report
    if (command.has("json")) {
        print_json(engine::gc_json(report, directory));
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
    tell_if_missing(directory);
    const cache::ClearReport report = store.clear();
    if (command.has("json")) {
        print_json(engine::clear_json(report, directory));
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
    const cache::Store store(quiet_options(command));
    const std::string& directory = store.options().directory;
    const cache::Digest key = engine::find_key(command.argument(), engine::list_kernels(store));
    const cache::RemoveReport report = store.remove(key);
    engine::require_removed(report);
    if (command.has("json")) {
        print_json(engine::rm_json(report, key, directory));
        return kSuccess;
    }
    print(fmt::format("{}: {} of {} deleted, {} freed\n", printable(directory), entries_text(report.entries),
                      key.hex(), human_bytes(report.bytes)));
    if (report.left > 0)
        print(fmt::format("left: {} of it in read-only layers, which are not written to\n",
                          entries_text(report.left)));
    return kSuccess;
}

int run_dir(const Command& command) {
    const engine::Settings settings = cache_settings(command);
    if (command.has("json")) {
        print_json(engine::dir_json(settings));
        return kSuccess;
    }
    for (const std::string& directory : settings.cache_dirs) print(printable(directory) + "\n");
    return kSuccess;
}

// A bundle goes to a file and comes from one: it is staged beside its name, and its manifest is held against
// the file's length before any of it is believed.
std::string require_file(std::string path, const char* what) {
    if (path.empty()) throw BadUsage(fmt::format("\"\": {} needs the name of a file", what));
    if (path == "-") throw BadUsage(fmt::format("-: {} needs a file, not a pipe", what));
    return path;
}

engine::ExportOptions export_options(const Command& command) {
    engine::ExportOptions options;
    if (command.has("sm")) options.sms = sms_or_present(read_sms(command));  // of native, the GPU's
    const auto output = command.text("output");
    if (!output) throw BadUsage("--output (-o) is missing: the file that the bundle goes to");
    options.file = require_file(*output, "export");
    if (const auto model = command.text("model")) {
        options.specs.emplace();
        for (const ModelAttention& attention : read_model_coverage(command, *model).attentions) {
            options.specs->push_back(attention.request.spec);
        }
    } else {
        refuse_model_flags(command);
    }
    return options;
}

// Says what the bundle lacks.
int conclude_export(const engine::Exported& exported) {
    std::vector<std::string> troubles;
    if (!exported.report.bad.empty()) {
        const cache::BadEntry& first = exported.report.bad.front();
        troubles.push_back(fmt::format("{} bad entries were left out, the first: {} ({})",
                                       exported.report.bad.size(), first.path, first.reason));
    }
    const auto& unreadable = exported.report.unreadable;
    if (!unreadable.empty()) troubles.push_back(engine::unreadable_text(unreadable));
    if (exported.missing > 0) {
        troubles.push_back(fmt::format("{} of the model's kernels {}", exported.missing,
                                       unreadable.empty()
                                           ? "are not in the cache (attnsmith prewarm makes them)"
                                           : "are not in what could be read"));
    }
    if (troubles.empty()) return kSuccess;
    print_error(fmt::format("{}", fmt::join(troubles, "; ")));
    return kFailure;
}

int run_export(const Command& command) {
    engine::ExportOptions options = export_options(command);
    const InterruptWatch watch("attnsmith: stopping; once more ends it at once\n");
    options.stop = watch.token();
    const Runtime runtime = open_cache_runtime(command);
    engine::Exported exported;
    try {
        exported = engine::export_bundle(runtime.impl(), options);
    } catch (const CacheError&) {
        if (!watch.interrupted()) throw;
        print_error("interrupted: no bundle is written");
        return watch.exit_code();
    }
    if (command.has("json")) {
        print_json(engine::export_json(exported));
    } else {
        print(fmt::format("{}: {}, {}\n", printable(options.file), entries_text(exported.report.entries),
                          human_bytes(exported.report.bytes)));
    }
    return conclude_export(exported);
}

int run_import(const Command& command) {
    const std::string file = require_file(command.argument(), "import");
    const Runtime runtime = open_cache_runtime(command);
    const cache::Store& store = runtime.impl().cubins.store();
    const cache::ImportReport report = engine::import_bundle(store, file);
    if (command.has("json")) {
        print_json(engine::import_json(report, store.options().directory));
    } else {
        print(fmt::format("{}: {} imported, {}; {} were there already\n",
                          printable(store.options().directory), entries_text(report.published),
                          human_bytes(report.bytes), report.present));
    }
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
    add_model_flags(to_bundle, false);
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
