// attnsmith doctor: what is here, what is missing, and what to do about it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/asked/runtime_flags.hpp"
#include "cli/commands.hpp"
#include "cli/doctor/report.hpp"
#include "cli/program/output.hpp"
#include "cli/program/terminal.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDoctorDetails =
    "Looks at the CUDA driver, the GPUs, NVRTC, the cache directories and their disk, the files of\n"
    "ATTNSMITH_TUNING and ATTNSMITH_RECORD, and the other variables. Asks each remote, for 5 seconds at\n"
    "most: whether it answers, by whose key a kernel there is signed that the cache has, too, and what time\n"
    "it is there; with --write also whether it can be written. Each line is ok, warn or FAIL, the last two\n"
    "with a remedy. Exits 1 when something FAILs: with a GPU, what stops launching on it; without one, what\n"
    "stops pre-warming (NVRTC, or a cache directory that can be written); with --write, what stops "
    "pushing.\n\n"
    "Examples:\n"
    "  attnsmith doctor --json\n"
    "  attnsmith doctor --cache kernels --cache https://cache.example/kernels";

const char* word_of(Health health) {
    switch (health) {
        case Health::ok:
            return "ok";
        case Health::warn:
            return "warn";
        case Health::fail:
            break;
    }
    return "FAIL";
}

Style style_of(Health health) {
    return health == Health::ok ? Style::green : health == Health::warn ? Style::yellow : Style::red;
}

Json to_json(const DoctorReport& report) {
    Json json = {{"schema", "attnsmith.doctor/1"}, {"ok", report.ok()}, {"checks", Json::array()}};
    for (const Finding& finding : report.findings) {
        Json check = {{"name", finding.name},
                      {"state", finding.health == Health::fail ? "fail" : word_of(finding.health)},
                      {"text", finding.text}};
        if (!finding.remedy.empty()) check["remedy"] = finding.remedy;
        check.update(finding.facts);
        json["checks"].push_back(std::move(check));
    }
    return json;
}

int run_doctor(const Command& command) {
    const DoctorReport report =
        examine(runtime_options(command, MissingLayers::reported), command.has("write"));
    if (command.has("json")) {
        print_json(to_json(report));
        return report.ok() ? kSuccess : kFailure;
    }
    Table table("<<<");
    table.add({"state", "what", "found"});
    for (const Finding& finding : report.findings) {
        table.add({word_of(finding.health), finding.name, finding.text}, style_of(finding.health));
        if (!finding.remedy.empty()) table.add({"", "", "remedy: " + finding.remedy});
    }
    print(table.text());
    return report.ok() ? kSuccess : kFailure;
}

}  // namespace

void add_doctor(Command& parent) {
    Command& command = parent.add_command(
        "doctor", "Say what attnsmith finds on this machine, and what to repair", kDoctorDetails);
    command.add_switch("json", "print JSON");
    command.add_switch(
        "write", "put a line of text to each remote, which stays there: the same for everybody, below cas/");
    add_cache_flag(command);
    command.on_run(run_doctor);
}

}  // namespace attnsmith::cli
