#include "engine/reports/cache_bundles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "attnsmith/coverage.hpp"
#include "engine/cubins/needed_kernels.hpp"
#include "engine/reports/kernel_list.hpp"
#include "engine/reports/public_reports.hpp"
#include "engine/reports/unreadable.hpp"
#include "engine/runtime_impl.hpp"
#include "engine/signing_keys.hpp"
#include "families/traits.hpp"
#include "problem/json_text.hpp"
#include "problem/request/request_fields.hpp"

namespace attnsmith::engine {
namespace {

using Needed = std::map<cache::Digest, int>;  // keys, and their SM

std::vector<int> sms_of(const std::vector<KernelEntry>& kernels) {
    std::set<int> sms;
    for (const KernelEntry& kernel : kernels) {
        if (kernel.sm != 0) sms.insert(kernel.sm);
    }
    return {sms.begin(), sms.end()};
}

Needed needed_by(const Runtime::Impl& runtime, const std::vector<AttentionSpec>& specs,
                 const std::vector<int>& sms, std::vector<PrewarmRefusal>& unserved) {
    Needed needed;
    for (const families::KernelConfig& kernel : needed_kernels(specs, sms, runtime.tuning, unserved)) {
        needed.emplace(runtime.cubins.source_of(kernel).key, kernel.sm);
    }
    return needed;
}

std::optional<cache::SecretKey> sign_key_of(const Runtime::Impl& runtime, const CacheExportOptions& options) {
    if (!options.sign_key_file.empty()) return read_sign_key("sign_key_file", options.sign_key_file);
    const std::string& file = runtime.settings.sign_key_file;
    if (!file.empty()) return read_sign_key("ATTNSMITH_CACHE_SIGN_KEY", file);
    return std::nullopt;
}

std::string what_was_asked(const CacheExportOptions& options) {
    std::string text = options.specs ? "kernels of the model" : "kernels";
    if (!options.sms.empty()) text += fmt::format(" for sm {}", fmt::join(options.sms, ", "));
    return text;
}

std::string parse_file(const nlohmann::json& object) {
    constexpr const char* kField = "file";
    constexpr const char* kAccepted = "the name of a file";
    const auto found = object.find(kField);
    if (found == object.end()) throw InvalidRequest(kField, "nothing", kAccepted);
    const bool is_name = found->is_string() && !found->get_ref<const std::string&>().empty() &&
                         found->get_ref<const std::string&>().find('\0') == std::string::npos;
    if (!is_name) throw InvalidRequest(kField, problem::describe(*found), kAccepted);
    return found->get<std::string>();
}

Coverage parse_model_coverage(const nlohmann::json& config, const std::string& options) {
    if (!config.is_object())
        throw InvalidRequest("model", problem::describe(config), "a config.json's object");
    return model_coverage(problem::one_line(config), options);
}

}  // namespace

CacheExportReport export_bundle(Runtime::Impl& runtime, const CacheExportOptions& options) {
    if (options.file.empty()) throw InvalidRequest("file", "nothing", "the name of a file");
    for (const int sm : options.sms) (void)families::traits_of(sm);
    const cache::Store& store = runtime.cubins.store();
    Needed needed;
    std::vector<PrewarmRefusal> unserved;
    if (options.specs) {
        const std::vector<int> sms = options.sms.empty() ? sms_of(list_kernels(store).kernels) : options.sms;
        needed = needed_by(runtime, *options.specs, sms, unserved);
    }
    const auto wanted = [&](const cache::ListedEntry& entry) {
        if (options.specs && !needed.contains(entry.key)) return false;
        return options.sms.empty() || std::ranges::find(options.sms, sm_of(entry)) != options.sms.end();
    };
    const std::optional<cache::SecretKey> key = sign_key_of(runtime, options);
    cache::Result<cache::ExportReport> report =
        store.export_bundle(options.file, wanted, options.stop, key ? &*key : nullptr);
    if (!report) throw CacheError("the export failed: " + report.status().to_string());
    if (report->entries == 0) {
        throw CacheError(fmt::format(
            "there are no {} to export in {}{}", what_was_asked(options),
            fmt::join(runtime.settings.cache_dirs, ", "),
            report->unreadable.empty() ? std::string() : "; " + unreadable_text(report->unreadable)));
    }
    const std::set<cache::Digest> found(report->keys.begin(), report->keys.end());
    // SMs of which there is nothing and that nobody named are other machines' business.
    if (options.sms.empty()) unserved.clear();
    std::set<int> expected(options.sms.begin(), options.sms.end());
    for (const auto& [key, sm] : needed) {
        if (found.contains(key)) expected.insert(sm);
    }
    const auto missing = std::ranges::count_if(
        needed, [&](const auto& one) { return !found.contains(one.first) && expected.contains(one.second); });
    CacheExportReport exported = report_of(*report);
    exported.missing = static_cast<std::uint64_t>(missing);
    exported.unserved = std::move(unserved);
    return exported;
}

CacheImportReport import_bundle(const cache::Store& store, const std::string& file) {
    cache::Result<cache::ImportReport> report = store.import_bundle(file);
    if (!report) throw CacheError("the import failed: " + report.status().to_string());
    return report_of(*report, store.options().directory);
}

ParsedExport parse_export_options(const nlohmann::json& object) {
    ParsedExport parsed{
        .options = {.file = parse_file(object), .sms = {}, .specs = {}, .stop = {}, .sign_key_file = {}}};
    if (const auto sm = object.find("sm"); sm != object.end()) {
        AttentionRequest request;
        problem::find_field("sm")->set(request, "sm", *sm);
        parsed.options.sms = request.sm;
    }
    const auto model = object.find("model");
    const auto model_options = object.find("model_options");
    if (model != object.end()) {
        parsed.model = parse_model_coverage(
            *model, model_options == object.end() ? "{}" : problem::one_line(*model_options));
        parsed.options.specs = parsed.model->specs();
    } else if (model_options != object.end()) {
        throw InvalidRequest("model_options", "given without a model", "\"model\" beside it");
    }
    return parsed;
}

std::string parse_import_file(const nlohmann::json& object) { return parse_file(object); }

}  // namespace attnsmith::engine
