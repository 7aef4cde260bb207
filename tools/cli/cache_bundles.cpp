// attnsmith cache export and import: kernels as one file.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/asked.hpp"
#include "cli/cache_commands.hpp"
#include "cli/conclude.hpp"
#include "cli/field_flags.hpp"
#include "cli/gpu.hpp"
#include "cli/interrupt.hpp"
#include "cli/model_flags.hpp"
#include "cli/output.hpp"
#include "cli/runtime_flags.hpp"
#include "engine/reports/cache_json.hpp"
#include "engine/reports/unreadable.hpp"
#include "engine/signing_keys.hpp"

namespace attnsmith::cli {
namespace {

std::string signed_text(const std::string& key_id) {
    return key_id.empty() ? std::string() : fmt::format(", signed by key {}", key_id);
}

// What is to be exported, with what is known of the model beside its attentions.
struct Work {
    CacheExportOptions options;
    std::vector<std::string> names;  // of the attentions of options.specs
    Doubts doubts;
};

Work read_work(const Command& command) {
    Work work;
    CacheExportOptions& options = work.options;
    if (command.has("sm")) options.sms = sms_or_present(command, read_sms(command));  // of native, the GPU's
    const auto output = command.text("output");
    if (!output) throw BadUsage("--output (-o) is missing: the file that the bundle goes to");
    options.file = require_file(*output, "export");
    if (const auto key = command.text("sign-key")) {
        (void)engine::read_sign_key("sign-key", *key);  // or it says why not, before anything is opened
        options.sign_key_file = *key;
    }
    if (const auto model = command.text("model")) {
        const Coverage coverage = read_model_coverage(command, *model);
        options.specs.emplace();
        for (const ModelAttention& attention : coverage.attentions) {
            options.specs->push_back(attention.request.spec);
            work.names.push_back(name_of(attention));
        }
        work.doubts = Doubts(coverage);
    } else {
        refuse_model_flags(command);
    }
    return work;
}

// The library's report, with what the model has that no bundle can hold. Its "skipped" counts entries.
nlohmann::ordered_json report_json(const Command& command, const CacheExportReport& exported,
                                   const Doubts& doubts) {
    nlohmann::ordered_json json = engine::to_json(exported);
    if (!command.has("model")) return json;
    json["unsupported"] = to_json(doubts.refused);
    json["skipped_combinations"] = to_json(doubts.skipped);
    json["warnings"] = to_json(doubts.warnings);
    return json;
}

// Throws CacheError, with what else is the matter with the model, where there is nothing to export.
CacheExportReport export_bundle(const Command& command, const Runtime& runtime, const Work& work) try {
    return runtime.cache().export_bundle(work.options);
} catch (const CacheError& error) {
    std::vector<std::string> troubles = failing_doubts(command, work.doubts);
    troubles.insert(troubles.begin(), error.what());
    throw CacheError(fmt::format("{}", fmt::join(troubles, "; ")));
}

// Says what the bundle lacks.
int conclude_export(const Command& command, const CacheExportReport& exported, const Doubts& doubts) {
    std::vector<std::string> troubles = failing_doubts(command, doubts);
    if (!exported.bad.empty()) {
        const CacheBadEntry& first = exported.bad.front();
        troubles.push_back(fmt::format("{} bad entries were left out, the first: {} ({})",
                                       exported.bad.size(), first.path, first.reason));
    }
    const auto& unreadable = exported.unreadable;
    if (!unreadable.empty()) troubles.push_back(engine::unreadable_text(unreadable));
    if (exported.missing > 0) {
        troubles.push_back(fmt::format("{} of the model's kernels {}", exported.missing,
                                       unreadable.empty()
                                           ? "are not in the cache (attnsmith prewarm makes them)"
                                           : "are not in what could be read"));
    }
    return conclude(troubles);
}

int run_export(const Command& command) {
    Work work = read_work(command);
    require_what_cache_names(command);
    const InterruptWatch watch("attnsmith: stopping; once more ends it at once\n");
    work.options.stop = watch.token();
    const Runtime runtime = open_cache_runtime(command);
    CacheExportReport exported;
    try {
        exported = export_bundle(command, runtime, work);
    } catch (const CacheError&) {
        if (!watch.interrupted()) throw;
        print_error("interrupted: no bundle is written");
        return watch.exit_code();
    }
    work.doubts.add(exported.unserved, work.names);
    if (command.has("json")) {
        print_json(report_json(command, exported, work.doubts));
    } else {
        print(fmt::format("{}: {}, {}{}\n", printable(work.options.file), entries_text(exported.entries),
                          human_bytes(exported.bytes), signed_text(exported.signed_by)) +
              text_of(work.doubts));
    }
    return conclude_export(command, exported, work.doubts);
}

int run_import(const Command& command) {
    const std::string file = require_file(command.argument(), "import");
    const Runtime runtime = open_cache_runtime(command);
    const CacheImportReport report = runtime.cache().import_bundle(file);
    if (command.has("json")) {
        print_json(engine::to_json(report));
    } else {
        print(fmt::format("{}: {} imported, {}; {} were there already{}\n", printable(report.directory),
                          entries_text(report.imported), human_bytes(report.bytes), report.present,
                          signed_text(report.signed_by)));
    }
    return kSuccess;
}

}  // namespace

void add_export(Command& cache) {
    Command& command = add_cache_command(
        cache, "export", "Write kernels of the cache into one file, a bundle",
        "The bundle can be imported elsewhere, or used as it is: as a read-only layer, in the list of\n"
        "ATTNSMITH_CACHE_DIR behind the writable directory. The same kernels give the same bytes. Exits 1\n"
        "when the cache lacks some of the model's kernels, has broken ones or could not be read whole; the\n"
        "others are in the bundle.\n\n"
        "With --sign-key, FILE.sig is its signature, which goes wherever the bundle goes: `attnsmith cache\n"
        "keygen` makes a key, and --trust-key takes bundles that it signed alone.\n\n"
        "Examples:\n  attnsmith cache export --cache kernels -o kernels.bundle\n"
        "  attnsmith cache export --cache kernels --model config.json --sm 80,90 -o model.bundle --json\n"
        "  attnsmith cache export --cache kernels -o signed.bundle --sign-key release.key",
        run_export);
    command.add_value("output", "FILE", "the bundle; replaced if it is there", "Options", "o");
    command.add_value("sign-key", "FILE",
                      "the secret key that signs the bundle (default: ATTNSMITH_CACHE_SIGN_KEY, else none)");
    command.add_value("sm", "SM[,SM...]",
                      "only kernels for these compute capabilities, e.g. 80,90 (default: all)");
    add_doubt_flags(command);
    add_model_flags(command, {.several_values = true});
    add_tuning_flag(command);
}

void add_import(Command& cache) {
    add_cache_command(
        cache, "import", "Add the kernels of a bundle to the writable directory",
        "Every byte of the bundle is checked before anything is added, with --trust-key its signature,\n"
        "FILE.sig, first of all. What is there already stays.\n\n"
        "Examples:\n  attnsmith cache import kernels.bundle --cache kernels\n"
        "  attnsmith cache import signed.bundle --cache kernels --trust-key release.key.pub",
        run_import)
        .add_argument("FILE", "a bundle that export wrote");
}

}  // namespace attnsmith::cli
