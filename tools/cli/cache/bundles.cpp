// attnsmith cache export and import: kernels as one file, or as an image for containers.
#include <fmt/format.h>

#include "cli/asked/asked.hpp"
#include "cli/asked/field_flags.hpp"
#include "cli/asked/gpu.hpp"
#include "cli/asked/model_flags.hpp"
#include "cli/asked/runtime_flags.hpp"
#include "cli/cache/commands.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/program/interrupt.hpp"
#include "cli/program/output.hpp"
#include "reports/unreadable.hpp"
#include "settings/signing_keys.hpp"

namespace attnsmith::cli {
namespace {

std::string signed_text(const std::string& key_id) {
    return key_id.empty() ? std::string() : fmt::format(", signed by key {}", key_id);
}

// What is to be exported, with what is known of the model beside its attentions.
struct ExportWork {
    std::string place;                       // the bundle's file, or the image's directory
    CacheExportOptions options;              // of a bundle, unless there is an `image`
    std::optional<CacheImageOptions> image;  // with the same selection
    Doubts doubts;
};

// Where it goes: one of the two.
void read_target(const Command& command, ExportWork& work) {
    const auto output = command.text("output");
    const auto directory = command.text("oci");
    if (output.has_value() == directory.has_value()) {
        throw BadUsage(fmt::format(
            "{}: --output (-o) FILE writes a bundle, --oci DIR an image; give one of them",
            output ? "both --output (-o) and --oci are given" : "neither --output (-o) nor --oci is given"));
    }
    if (output) {
        if (command.has("tag")) throw BadUsage("--tag is for --oci: a bundle has no tag");
        work.place = require_file(*output, "export");
        return;
    }
    if (command.has("sign-key"))
        throw BadUsage("--sign-key is for -o: an image is signed where it is pushed, by its digest (cosign)");
    if (directory->empty()) throw BadUsage("--oci: \"\": an image needs the name of a directory");
    work.place = *directory;
    work.image.emplace();
    if (const auto tag = command.text("tag")) work.image->tag = *tag;
}

ExportWork read_work(const Command& command) {
    ExportWork work;
    CacheExportOptions& options = work.options;
    if (command.has("sm")) options.sms = sms_or_present(command, read_sms(command));  // of native, the GPU's
    read_target(command, work);
    if (const auto key = command.text("sign-key")) {
        (void)engine::read_sign_key("sign-key", *key);  // or it says why not, before anything is opened
        options.sign_key_file = *key;
    }
    if (const auto model = command.text("model")) {
        options.coverage = read_model_coverage(command, *model);
        work.doubts = Doubts(*options.coverage);
    } else {
        refuse_model_flags(command);
    }
    if (work.image) {
        work.image->sms = options.sms;
        work.image->coverage = options.coverage;
    }
    return work;
}

std::string exported_text(const CacheExportReport& exported) {
    return fmt::format("{}: {}, {}{}\n", printable(exported.file), entries_text(exported.entries),
                       human_bytes(exported.bytes), signed_text(exported.signed_by));
}

std::string exported_text(const CacheImageReport& exported) {
    return fmt::format("{}:{}: {}, {}\n{}\n", printable(exported.directory), exported.tag,
                       entries_text(exported.entries), human_bytes(exported.bytes), exported.digest);
}

// Says what the export lacks.
template <class Report>
int conclude_export(const Command& command, const Report& exported, const Doubts& doubts) {
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

// `run` exports and gives a report. What the model has beside is told with it, and also where it throws
// CacheError since there is nothing to export.
template <class Run>
int report_export(const Command& command, ExportWork& work, const InterruptWatch& watch, const Run& run) try {
    const auto exported = run();
    work.doubts = Doubts(exported);
    if (command.has("json")) {
        print_json(to_json(exported));
    } else {
        print(exported_text(exported) + text_of(work.doubts));
    }
    return conclude_export(command, exported, work.doubts);
} catch (const CacheError& error) {
    if (watch.interrupted()) {
        print_error("interrupted: nothing is written");
        return watch.exit_code();
    }
    std::vector<std::string> troubles = failing_doubts(command, work.doubts);
    troubles.insert(troubles.begin(), error.what());
    throw CacheError(fmt::format("{}", fmt::join(troubles, "; ")));
}

int run_export(const Command& command) {
    ExportWork work = read_work(command);
    require_what_cache_names(command);
    const InterruptWatch watch("attnsmith: stopping; once more ends it at once\n");
    const Runtime runtime = open_cache_runtime(command);
    if (work.image) {
        work.image->stop = watch.token();
        return report_export(command, work, watch,
                             [&] { return runtime.cache().export_image(work.place, *work.image); });
    }
    work.options.stop = watch.token();
    return report_export(command, work, watch,
                         [&] { return runtime.cache().export_bundle(work.place, work.options); });
}

int run_import(const Command& command) {
    const std::string file = require_file(command.argument(), "import");
    const Runtime runtime = open_cache_runtime(command);
    const CacheImportReport report = runtime.cache().import_bundle(file);
    if (command.has("json")) {
        print_json(to_json(report));
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
        cache, "export", "Write kernels of the cache into one file, a bundle, or into an image",
        "The bundle can be imported elsewhere, or used as it is: as a read-only layer, in the list of\n"
        "ATTNSMITH_CACHE_DIR behind the writable directory. The same kernels give the same bytes. Exits 1\n"
        "when the cache lacks some of the model's kernels, has broken ones or could not be read whole; the\n"
        "others are in the bundle.\n\n"
        "--oci writes an image for containers instead: an OCI image layout, which skopeo and others push\n"
        "to a registry. Its one layer has the kernels in /opt/attnsmith/cache, where containers use them as\n"
        "a read-only layer, behind a directory of their own in ATTNSMITH_CACHE_DIR.\n\n"
        "With --sign-key, FILE.sig is its signature, which goes wherever the bundle goes: `attnsmith cache\n"
        "keygen` makes a key, and --trust-key takes bundles that it signed alone.\n\n"
        "Examples:\n  attnsmith cache export --cache kernels -o kernels.bundle\n"
        "  attnsmith cache export --cache kernels --model config.json --sm 80,90 -o model.bundle --json\n"
        "  attnsmith cache export --cache kernels -o signed.bundle --sign-key release.key\n"
        "  attnsmith cache export --cache kernels --sm 90 --oci image --tag v1",
        run_export);
    command.add_output("FILE", "the bundle; replaced if it is there");
    command.add_value(
        "oci", "DIR",
        "instead of -o: the directory of an image layout; new, empty, or one that this command wrote, "
        "which is replaced");
    command.add_value("tag", "NAME", "the image's tag in the layout (default: latest)");
    command.add_value("sign-key", "FILE",
                      "the secret key that signs the bundle (default: ATTNSMITH_CACHE_SIGN_KEY, else none)");
    command.add_value("sm", "SM[,SM...]",
                      "only kernels for these compute capabilities, e.g. 80,90 (default: all)");
    add_doubt_flags(command);
    add_model_flags(command, {.several_values = true, .engine = true});
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
