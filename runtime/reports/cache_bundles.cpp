#include "reports/cache_bundles.hpp"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attnsmith/coverage.hpp"
#include "cache/image/oci.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/json_text.hpp"
#include "problem/request/request_fields.hpp"
#include "problem/vocabulary.hpp"
#include "reports/kernel_list.hpp"
#include "reports/public_reports.hpp"
#include "reports/selection.hpp"
#include "reports/unreadable.hpp"
#include "settings/signing_keys.hpp"

namespace attnsmith::engine {
namespace {

std::optional<cache::SecretKey> sign_key_of(const RuntimeImpl& runtime, const CacheExportOptions& options) {
    if (!options.sign_key_file.empty()) return read_sign_key("sign_key_file", options.sign_key_file);
    const std::string& file = runtime.settings.sign_key_file;
    if (!file.empty()) return read_sign_key(runtime.settings.sign_key_named_by, file);
    return std::nullopt;
}

// What the store wrote, in a report that also says what the selection lacks. Throws CacheError where there is
// nothing to write.
template <class Stored, class Report>
Report conclude(const RuntimeImpl& runtime, const Stored& stored, const Selection& selection, Report report) {
    if (stored.entries == 0) {
        throw CacheError(fmt::format(
            "there are no {} to export in {}{}", selection.describe(),
            fmt::join(runtime.settings.cache_dirs, ", "),
            stored.unreadable.empty() ? std::string() : "; " + unreadable_text(stored.unreadable)));
    }
    report.missing = selection.missing({stored.keys.begin(), stored.keys.end()}).size();
    selection.tell_unsupported(report);
    return report;
}

// What Go, and so the image format, calls this build's processors.
constexpr const char* kArchitecture =
#if defined(__x86_64__)
    "amd64";
#elif defined(__aarch64__)
    "arm64";
#else
#error "add this processor's name in Go's words (GOARCH) to kArchitecture"
#endif

// Behind a directory of the container's own, which takes what is compiled later.
std::string cache_dirs_in_image() {
    return fmt::format("ATTNSMITH_CACHE_DIR=/var/cache/attnsmith:/{}", cache::oci::kCacheInImage);
}

std::map<std::string, std::string> labels_of(std::span<const cache::ListedEntry> entries) {
    std::set<int> sms;
    for (const cache::ListedEntry& entry : entries) {
        if (const int sm = sm_of(entry); sm != 0) sms.insert(sm);
    }
    return {{"org.opencontainers.image.title", "attnsmith kernels"},
            {"org.opencontainers.image.description",
             fmt::format("A read-only attnsmith cache with {} compiled attention kernels for sm {}, in /{}",
                         entries.size(), fmt::join(sms, ", "), cache::oci::kCacheInImage)},
            {"io.attnsmith.sms", fmt::format("{}", fmt::join(sms, ","))}};
}

std::string parse_path(const nlohmann::json& object, const char* field, const char* accepted) {
    const auto found = object.find(field);
    if (found == object.end()) throw InvalidRequest(field, "nothing", accepted);
    const bool is_name = found->is_string() && !found->get_ref<const std::string&>().empty() &&
                         found->get_ref<const std::string&>().find('\0') == std::string::npos;
    if (!is_name) throw InvalidRequest(field, problem::describe(*found), accepted);
    return found->get<std::string>();
}

std::string parse_file(const nlohmann::json& object) {
    return parse_path(object, "file", "the name of a file");
}

constexpr const char* kImageDirectory = "the name of a directory";

CacheImageOptions parse_image_options(const nlohmann::json& object) {
    CacheImageOptions image;
    if (const auto tag = object.find("tag"); tag != object.end()) {
        if (!tag->is_string()) throw InvalidRequest("tag", problem::describe(*tag), "a text");
        image.tag = tag->get<std::string>();
    }
    return image;
}

Coverage parse_model_coverage(const nlohmann::json& config, const std::string& options) {
    if (!config.is_object())
        throw InvalidRequest("model", problem::describe(config), "a config.json's object");
    return model_coverage(problem::one_line(config), options);
}

}  // namespace

CacheExportReport export_bundle(RuntimeImpl& runtime, const std::string& file,
                                const CacheExportOptions& options) {
    if (file.empty()) throw InvalidRequest("file", "nothing", "the name of a file");
    const Selection selection(runtime, options.sms, options.specs, options.coverage);
    const std::optional<cache::SecretKey> key = sign_key_of(runtime, options);
    const cache::Result<cache::ExportReport> report = runtime.cubins.store().export_bundle(
        file, [&](const cache::ListedEntry& entry) { return selection.wants(entry); }, options.stop,
        key ? &*key : nullptr);
    if (!report) throw CacheError("the export failed: " + report.status().to_string(), file);
    return conclude(runtime, *report, selection, report_of(*report));
}

CacheImageReport export_image(RuntimeImpl& runtime, const std::string& directory,
                              const CacheImageOptions& options) {
    if (directory.empty()) throw InvalidRequest("directory", "nothing", kImageDirectory);
    if (!cache::oci::is_tag(options.tag)) {
        throw InvalidRequest("tag", problem::quote(options.tag),
                             "up to 128 letters, digits, '_', '.' and '-', the first of which is neither '.' "
                             "nor '-'");
    }
    const Selection selection(runtime, options.sms, options.specs, options.coverage);
    const cache::ImageOptions image{.directory = directory,
                                    .tag = options.tag,
                                    .architecture = kArchitecture,
                                    .environment = {cache_dirs_in_image()},
                                    .describe = labels_of};
    const cache::Result<cache::ImageReport> report = runtime.cubins.store().export_image(
        image, [&](const cache::ListedEntry& entry) { return selection.wants(entry); }, options.stop);
    if (!report) throw CacheError("the export failed: " + report.status().to_string(), directory);
    return conclude(runtime, *report, selection, report_of(*report, options.tag));
}

CacheImportReport import_bundle(const cache::Store& store, const std::string& file) {
    cache::Result<cache::ImportReport> report = store.import_bundle(file);
    if (!report) throw CacheError("the import failed: " + report.status().to_string(), file);
    return report_of(*report, store.options().directory);
}

ParsedSelection parse_selection(const nlohmann::json& object) {
    ParsedSelection parsed;
    if (const auto sm = object.find("sm"); sm != object.end()) {
        AttentionRequest request;
        problem::find_field("sm")->set(request, "sm", *sm);
        parsed.sms = request.sm;
    }
    const auto model = object.find("model");
    const auto model_options = object.find("model_options");
    if (model != object.end()) {
        parsed.coverage = parse_model_coverage(
            *model, model_options == object.end() ? "{}" : problem::one_line(*model_options));
    } else if (model_options != object.end()) {
        throw InvalidRequest("model_options", "given without a model", "\"model\" beside it");
    }
    return parsed;
}

ParsedExport parse_export_options(const nlohmann::json& object) {
    ParsedExport parsed;
    const bool to_image = object.contains("oci");
    if (to_image == object.contains("file")) {
        throw InvalidRequest("file", to_image ? "a file and an \"oci\"" : "nothing",
                             "the name of a file, or \"oci\" instead, the name of an image's directory");
    }
    ParsedSelection selection = parse_selection(object);
    if (to_image) {
        parsed.place = parse_path(object, "oci", kImageDirectory);
        parsed.image = parse_image_options(object);
        parsed.image->sms = std::move(selection.sms);
        parsed.image->coverage = std::move(selection.coverage);
        return parsed;
    }
    if (object.contains("tag")) throw InvalidRequest("tag", "given with a file", "\"oci\" beside it");
    parsed.place = parse_file(object);
    parsed.options.sms = std::move(selection.sms);
    parsed.options.coverage = std::move(selection.coverage);
    return parsed;
}

std::string parse_import_file(const nlohmann::json& object) { return parse_file(object); }

}  // namespace attnsmith::engine
