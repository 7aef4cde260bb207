#include "cli/doctor/report.hpp"

#include <fmt/format.h>

#include <sys/statvfs.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/asked/gpu.hpp"
#include "cli/doctor/nearby_nvrtc.hpp"
#include "cli/doctor/remotes.hpp"
#include "cli/doctor/variables.hpp"
#include "cli/program/output.hpp"
#include "compiler/nvrtc.hpp"
#include "cubins/store_options.hpp"
#include "engine/tuning_files.hpp"
#include "families/traits.hpp"
#include "problem/compute_capability.hpp"
#include "problem/failure.hpp"
#include "problem/spelling.hpp"
#include "reports/cache_directories.hpp"
#include "reports/kernel_list.hpp"
#include "reports/report_json.hpp"
#include "reports/unreadable.hpp"
#include "settings/environment.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;

// In single quotes where a shell would read it as something else.
std::string shell_word(const std::string& text) {
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+:@%,";
    if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
    std::string quoted = "'";
    for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
}

// Where NVRTC is found by who does not name one; nothing where none is.
std::optional<std::string> usual_nvrtc(engine::Settings settings) {
    try {
        settings.nvrtc.path.clear();
        const auto nvrtc = compiler::Nvrtc::open(settings.nvrtc);
        (void)nvrtc->toolchain();  // compiles an empty program
        return nvrtc->path();
    } catch (const Error&) {
        return std::nullopt;
    }
}

// A command that makes it good; where nothing is at hand yet, one after which doctor knows the next.
std::string nvrtc_remedy(const engine::Settings& settings) {
    if (const auto folder = nearby_nvrtc())
        return fmt::format("run: export ATTNSMITH_NVRTC_PATH={}", shell_word(*folder));
    if (!settings.nvrtc.path.empty()) {
        if (const auto path = usual_nvrtc(settings))
            return fmt::format("run: unset ATTNSMITH_NVRTC_PATH; {} is used then. Or correct it", *path);
        return "correct ATTNSMITH_NVRTC_PATH. Or run: unset ATTNSMITH_NVRTC_PATH; then attnsmith doctor says "
               "how to install NVRTC, which is in none of the usual places either";
    }
    const auto environment = active_environment();
    const std::string pip = environment ? shell_word(*environment + "/bin/pip") : "pip";
    return fmt::format(
        "run: {} install nvidia-cuda-nvrtc{}; then attnsmith doctor says how to name it. Or install the CUDA "
        "toolkit. Kernels that are in the cache need no NVRTC",
        pip, environment ? "" : " (in an active Python virtual environment)");
}

constexpr const char* kReadRemedy = "give this user the right to read it, or name another directory";

// Everything that findings are made of.
struct Facts {
    Gpus gpus;
    std::shared_ptr<const compiler::Nvrtc> nvrtc;  // null: not to be had
    std::string nvrtc_missing;
    engine::Settings settings;
    std::vector<engine::KernelEntry> kernels;
    std::optional<cache::Statistics> cache;  // absent: there is no directory
    std::vector<Finding> variables;          // that cannot be understood
};

Facts gather(const RuntimeOptions& options) {
    Facts facts;
    facts.settings = settle_for_report(options, facts.variables);
    facts.gpus = find_gpus();
    try {
        facts.nvrtc = compiler::Nvrtc::open(facts.settings.nvrtc);
        (void)facts.nvrtc->toolchain();  // compiles an empty program
    } catch (const LibraryMissing& error) {
        facts.nvrtc_missing = "not found; tried " + problem::tried_text(error.tried());
    } catch (const Error& error) {
        facts.nvrtc = nullptr;
        facts.nvrtc_missing = error.what();
    }
    if (!facts.settings.cache_dirs.empty()) {
        const cache::Store store(engine::store_options(facts.settings));
        facts.kernels = engine::list_kernels(store).kernels;
        facts.cache = store.stat();
    }
    return facts;
}

bool compiles_for(const Facts& facts, int sm) {
    if (!facts.nvrtc) return false;
    const std::vector<int>& archs = facts.nvrtc->supported_archs();
    return std::ranges::find(archs, sm) != archs.end();
}

bool has_cached(const Facts& facts, int sm) {
    return std::ranges::find(facts.kernels, sm, &engine::KernelEntry::sm) != facts.kernels.end();
}

// What a device is planned as; nothing where no kernel runs on it.
std::optional<int> planned_sm(const driver::Device& device) {
    try {
        return families::traits_of_device(device.sm, device.name, device.sm_count).sm;
    } catch (const Unsupported&) {
        return std::nullopt;
    }
}

bool can_launch(const Facts& facts, const driver::Device& device) {
    const std::optional<int> sm = planned_sm(device);
    return sm && (compiles_for(facts, *sm) || has_cached(facts, *sm));
}

bool can_launch_somewhere(const Facts& facts) {
    return std::ranges::any_of(facts.gpus.devices,
                               [&](const auto& device) { return can_launch(facts, device); });
}

const char* driver_remedy(const Gpus& gpus) {
    if (gpus.driver_broken) return "see whether nvidia-smi works; restart or reinstall the driver";
    if (gpus.driver_found) {
        return "to launch, see that nvidia-smi and CUDA_VISIBLE_DEVICES show a GPU; planning and pre-warming "
               "need none";
    }
    return "to launch, install an NVIDIA driver of version 525 or newer (in a container: run it with the "
           "NVIDIA "
           "container toolkit); planning and pre-warming need none";
}

Finding driver_finding(const Facts& facts) {
    Finding finding{.name = "driver", .text = {}, .remedy = {}};
    if (facts.gpus.api) {
        finding.text = fmt::format("CUDA {}, {}", facts.gpus.api->version_text(), facts.gpus.api->path());
        finding.facts = {{"version", facts.gpus.api->version_text()}, {"path", facts.gpus.api->path()}};
        return finding;
    }
    finding.health = facts.gpus.driver_broken ? Health::fail : Health::warn;
    finding.text = facts.gpus.missing;
    finding.remedy = driver_remedy(facts.gpus);
    return finding;
}

// Cubins of a newer major version than the driver's do not load.
bool nvrtc_is_too_new(const Facts& facts) {
    return facts.nvrtc && facts.gpus.api && facts.nvrtc->version().major > facts.gpus.api->version() / 1000;
}

Finding device_finding(const Facts& facts, const driver::Device& device) {
    Finding finding{.name = fmt::format("device {}", device.ordinal), .text = {}, .remedy = {}};
    const std::optional<int> sm = planned_sm(device);
    finding.text = fmt::format("{}, sm {}, {} SMs, {}", device.name, device.sm, device.sm_count,
                               human_bytes(device.memory_bytes));
    finding.facts = {{"device", device.name},       {"sm", device.sm},
                     {"sm_count", device.sm_count}, {"memory_bytes", device.memory_bytes},
                     {"supported", sm.has_value()}, {"planned_as", sm ? Json(*sm) : Json()}};
    const Health trouble = can_launch_somewhere(facts) ? Health::warn : Health::fail;
    if (!sm) {
        finding.health = trouble;
        finding.text += "; no kernel supports it";
        finding.remedy = "use a GPU of one of these compute capabilities: " + problem::known_sms_text();
    } else if (!can_launch(facts, device)) {
        finding.health = trouble;
        finding.text += fmt::format("; nothing compiles for sm {}, and the cache has no kernel for it", *sm);
        finding.remedy =
            facts.nvrtc ? "use a newer NVRTC (ATTNSMITH_NVRTC_PATH)" : nvrtc_remedy(facts.settings);
    } else if (*sm != device.sm) {
        finding.text += fmt::format("; planned as sm {}", *sm);
    }
    return finding;
}

Finding nvrtc_finding(const Facts& facts) {
    Finding finding{.name = "nvrtc", .text = {}, .remedy = {}};
    if (!facts.nvrtc) {
        finding.health = can_launch_somewhere(facts) ? Health::warn : Health::fail;
        finding.text = facts.nvrtc_missing;
        finding.remedy = nvrtc_remedy(facts.settings);
        return finding;
    }
    std::vector<int> archs;  // NVRTC knows others, too, for which there are no kernels
    for (const int sm : problem::known_sms()) {
        if (compiles_for(facts, sm)) archs.push_back(sm);
    }
    finding.text = fmt::format("{}, {}; compiles for sm {}", facts.nvrtc->toolchain(), facts.nvrtc->path(),
                               fmt::join(archs, ", "));
    finding.facts = {
        {"version", facts.nvrtc->toolchain()}, {"path", facts.nvrtc->path()}, {"supported_sms", archs}};
    std::vector<int> lacking;
    for (const int sm : problem::known_sms()) {
        if (!compiles_for(facts, sm)) lacking.push_back(sm);
    }
    finding.facts["unsupported_sms"] = lacking;
    if (!lacking.empty()) {
        finding.health = Health::warn;
        finding.remedy = fmt::format("use a newer NVRTC to pre-warm for sm {}", fmt::join(lacking, ", "));
    } else if (nvrtc_is_too_new(facts)) {
        finding.health = Health::warn;
        finding.remedy = fmt::format("the driver knows CUDA {}: update it, or use an NVRTC of that version",
                                     facts.gpus.api->version_text());
    }
    return finding;
}

Finding no_cache_finding(const Facts& facts, Health trouble) {
    return {.health = trouble,
            .name = "cache",
            .text = "no directory: " + facts.settings.no_cache_because,
            .remedy = "set ATTNSMITH_CACHE_DIR, or give --cache DIR",
            .facts = {{"path", nullptr}, {"writable", false}}};
}

void add_unreadable(const std::vector<cache::Status>& unreadable, Finding& finding) {
    if (unreadable.empty()) return;
    finding.text += "; " + engine::unreadable_text(unreadable);
    finding.facts["unreadable"] = engine::unreadable_json(unreadable);
}

constexpr std::uint64_t kLittleRoom = std::uint64_t{64} << 20;  // about a thousand kernels

// On the disk that the directory is on, or will be; nothing where the system does not say.
std::optional<std::uint64_t> free_bytes(std::filesystem::path directory) {
    while (engine::is_missing(directory.string()) && directory.has_relative_path())
        directory = directory.parent_path();
    struct ::statvfs disk {};
    if (::statvfs(directory.c_str(), &disk) != 0 || disk.f_blocks == 0) return std::nullopt;
    return std::uint64_t{disk.f_bavail} * disk.f_frsize;
}

Finding writable_finding(const cache::Statistics& cache, Health trouble) {
    Finding finding{.name = "cache",
                    .text = fmt::format("{}: {}, {}", cache.directory,
                                        counted(cache.entries, "entry", "entries"), human_bytes(cache.bytes)),
                    .remedy = {},
                    .facts = {{"path", cache.directory},
                              {"writable", cache.writable},
                              {"entries", cache.entries},
                              {"bytes", cache.bytes},
                              {"quarantined", cache.quarantined}}};
    add_unreadable(cache.unreadable, finding);
    if (!cache.not_trusted_because.empty()) {
        finding.health = trouble;
        finding.text += "; not used: " + cache.not_trusted_because;
        finding.remedy = cache.trust_remedy;
        finding.facts["not_trusted_because"] = cache.not_trusted_because;
    } else if (!cache.writable) {
        finding.health = trouble;
        finding.text += "; not writable: " + cache.not_writable_because;
        finding.remedy =
            "make it writable, or name another directory with ATTNSMITH_CACHE_DIR or --cache DIR";
    } else if (!cache.unreadable.empty()) {
        finding.health = Health::warn;
        finding.remedy = kReadRemedy;
    } else if (const auto free = free_bytes(cache.directory); free && *free < kLittleRoom) {
        finding.health = Health::warn;
        finding.text += fmt::format("; its disk is nearly full: {} are free", human_bytes(*free));
        finding.remedy = "make room on the disk, or name a directory on another one";
        finding.facts["free_bytes"] = *free;
    } else if (cache.quarantined > 0) {
        finding.text += fmt::format("; {} broken entries in quarantine", cache.quarantined);
    }
    return finding;
}

void judge_layer(const cache::LayerStatistics& layer, Finding& finding) {
    if (!layer.not_usable_because.empty()) {
        finding.health = Health::warn;
        finding.text += "; not usable: " + layer.not_usable_because;
        finding.remedy = "name a directory or a bundle that can be read, or take it out of the list";
        finding.facts["not_usable_because"] = layer.not_usable_because;
    } else if (!layer.unreadable.empty()) {
        finding.health = Health::warn;
        finding.remedy = kReadRemedy;
        add_unreadable(layer.unreadable, finding);
    } else if (!layer.not_trusted_because.empty()) {
        finding.health = Health::warn;
        finding.text += "; not used: " + layer.not_trusted_because;
        finding.remedy = layer.trust_remedy;
        finding.facts["not_trusted_because"] = layer.not_trusted_because;
    }
}

std::vector<Finding> cache_findings(const Facts& facts) {
    // Launching works from memory; pre-warming needs the directory.
    const Health trouble = facts.gpus.devices.empty() ? Health::fail : Health::warn;
    if (!facts.cache) return {no_cache_finding(facts, trouble)};
    std::vector<Finding> findings = {writable_finding(*facts.cache, trouble)};
    for (const cache::LayerStatistics& layer : facts.cache->layers) {
        findings.push_back(
            {.name = "cache layer",
             .text = fmt::format("{}: {}, {}", layer.directory, counted(layer.entries, "entry", "entries"),
                                 human_bytes(layer.bytes)),
             .remedy = {},
             .facts = {{"path", layer.directory}, {"entries", layer.entries}, {"bytes", layer.bytes}}});
        judge_layer(layer, findings.back());
    }
    return findings;
}

// Says nothing without users' tables: there is nothing to go wrong.
std::vector<Finding> tuning_findings(const Facts& facts) {
    if (facts.settings.tuning_files.empty()) return {};
    Finding finding{
        .name = "tuning", .text = {}, .remedy = {}, .facts = {{"files", facts.settings.tuning_files}}};
    try {
        const std::size_t entries = engine::load_tuning(facts.settings.tuning_files).loaded().size();
        finding.text = fmt::format("{}: {}", fmt::join(facts.settings.tuning_files, ", "),
                                   counted(entries, "entry", "entries"));
        finding.facts["entries"] = entries;
    } catch (const InvalidRequest& error) {
        finding.health = Health::fail;
        finding.text = error.what();
        finding.remedy =
            "repair the file (attnsmith tune --output FILE makes one), or take it out of ATTNSMITH_TUNING";
    }
    return {finding};
}

}  // namespace

DoctorReport examine(const RuntimeOptions& options, bool write_to_remotes) {
    const Facts facts = gather(options);
    DoctorReport report{facts.variables};
    report.findings.push_back(driver_finding(facts));
    for (const driver::Device& device : facts.gpus.devices)
        report.findings.push_back(device_finding(facts, device));
    report.findings.push_back(nvrtc_finding(facts));
    for (Finding& finding : compiler_environment_findings()) report.findings.push_back(std::move(finding));
    for (Finding& finding : unknown_variable_findings()) report.findings.push_back(std::move(finding));
    for (Finding& finding : cache_findings(facts)) report.findings.push_back(std::move(finding));
    for (Finding& finding : remote_findings(facts.settings, facts.kernels, write_to_remotes))
        report.findings.push_back(std::move(finding));
    for (Finding& finding : tuning_findings(facts)) report.findings.push_back(std::move(finding));
    for (Finding& finding : record_findings(facts.settings)) report.findings.push_back(std::move(finding));
    return report;
}

}  // namespace attnsmith::cli
