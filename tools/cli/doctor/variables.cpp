#include "cli/doctor/variables.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/program/general_help.hpp"
#include "cli/program/output.hpp"
#include "problem/spelling.hpp"

namespace attnsmith::cli {
namespace {

// Why the file of ATTNSMITH_RECORD could not be appended to; empty where it could. It is not made here.
std::string why_not_recorded(const std::string& file) {
    const std::filesystem::path path = file;
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) return "it is no file";
    const std::filesystem::path written = std::filesystem::exists(status) ? path : path.parent_path();
    return ::access(written.c_str(), W_OK) == 0 ? std::string() : std::strerror(errno);
}

}  // namespace

engine::Settings settle_for_report(const RuntimeOptions& options, std::vector<Finding>& findings) {
    while (true) {
        try {
            return engine::settle(options);
        } catch (const InvalidRequest& error) {
            const std::string name = error.field();
            const char* const value = ::getenv(name.c_str());
            if (value == nullptr) throw;  // an option's
            findings.push_back({.health = Health::fail,
                                .name = "environment",
                                .text = error.what(),
                                .remedy = fmt::format("correct it, or run: unset {}", name),
                                .facts = {{"variable", name}, {"value", engine::shown_places(value)}}});
            ::unsetenv(name.c_str());
        }
    }
}

std::vector<Finding> compiler_environment_findings() {
    std::vector<Finding> findings;
    for (const auto& [name, value] : engine::compiler_environment()) {
        findings.push_back(
            {.health = Health::warn,
             .name = "environment",
             .text = fmt::format("{}={} may change the machine code that NVRTC makes", name, value),
             .remedy =
                 fmt::format("unset {}, unless it is meant: kernels that are compiled with it have keys of "
                             "their own, and those that were pre-warmed without it are not used",
                             name),
             .facts = {{"variable", name}, {"value", value}}});
    }
    return findings;
}

std::vector<Finding> unknown_variable_findings() {
    // Those that the Python package reads, with the files of a build.
    std::vector<std::string_view> known{"ATTNSMITH_LIBRARY", "ATTNSMITH_NATIVE_MODULE",
                                        "ATTNSMITH_TORCH_LIBRARY", "ATTNSMITH_JAX_LIBRARY",
                                        "ATTNSMITH_TVM_FFI_LIBRARY"};
    for (const Explained& variable : kVariables) known.push_back(variable.name);
    std::vector<Finding> findings;
    for (char* const* entry = environ; *entry != nullptr; ++entry) {
        const std::string_view variable(*entry);
        const std::string_view name = variable.substr(0, variable.find('='));
        if (!name.starts_with("ATTNSMITH_") || std::ranges::find(known, name) != known.end()) continue;
        const std::string_view near = problem::nearest_name(name, known);
        findings.push_back({.health = Health::warn,
                            .name = "environment",
                            .text = fmt::format("{} is set, and nothing reads it", printable(name)),
                            .remedy = near.empty() ? "unset it, or see attnsmith --help for what is read"
                                                   : fmt::format("perhaps {} is meant", near),
                            .facts = {{"variable", name}}});
    }
    return findings;
}

std::vector<Finding> record_findings(const engine::Settings& settings) {
    const std::string& file = settings.record_file;
    if (file.empty()) return {};
    Finding finding{.name = "record", .text = file, .remedy = {}, .facts = {{"path", file}}};
    if (const std::string why = why_not_recorded(file); !why.empty()) {
        finding.health = Health::warn;
        finding.text += ": cannot be written: " + why;
        finding.remedy =
            "name a file that can be written with ATTNSMITH_RECORD, or run: unset ATTNSMITH_RECORD";
    }
    return {finding};
}

}  // namespace attnsmith::cli
