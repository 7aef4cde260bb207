// attnsmith plan: which kernels would be used, and why.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "cli/asked/asked.hpp"
#include "cli/asked/gpu.hpp"
#include "cli/asked/model_flags.hpp"
#include "cli/asked/runtime_flags.hpp"
#include "cli/commands.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/plan/text.hpp"
#include "cli/program/output.hpp"
#include "problem/json_text.hpp"
#include "settings/environment.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPlanDetails =
    "Needs no GPU when --sm is given. One request for one SM prints one plan (schema\n"
    "attnsmith.plan/1); a model, several SMs or several values of a word (--kv paged,dense) print a\n"
    "list of them (schema attnsmith.plans/1). Exits 1 when a part of a model or a combination is not\n"
    "supported, or with --strict when a model has a warning; the others are planned all the same. A\n"
    "list counts the candidates that were rejected, and -v lists them with the reasons; -q leaves\n"
    "them out, notes and warnings, too.\n\n"
    "Examples:\n"
    "  attnsmith plan --op attention --dtype bf16 --head-dim 128 --q-heads 32 --kv-heads 8 --mask causal "
    "--kv paged --page-size 16 --q-len 1024 --kv-len 4096 --batch 8 --sm 90 --json\n"
    "  attnsmith plan --op merge --dtype bf16 --head-dim 128 --q-heads 32 --q-len 1024 --sm 90\n"
    "  attnsmith plan --model config.json --sm 80,90\n"
    "  attnsmith plan --model config.json --kv paged,dense --index-dtype int32,int64 --sm 90";

struct Plans {
    std::vector<Json> plans;
    Doubts doubts;
};

Json model_json(const ModelAttention& attention) {
    return {{"name", attention.name},
            {"phase", attention.phase},
            {"layers", attention.layers},
            {"notes", attention.notes}};
}

// Reading the cache is all that planning does with a directory: none is no news here.
RuntimeOptions planning_options(const Command& command) {
    RuntimeOptions options = runtime_options(command);
    options.use_cache = !engine::settle(options).cache_dirs.empty();
    return options;
}

void plan_attention(const Runtime& runtime, const ModelAttention& attention, int sm, bool listed,
                    Plans& plans) {
    try {
        const std::string text = runtime.plan_json(attention.request.spec, attention.request.sizes, sm);
        plans.plans.push_back(problem::parse_ordered_json(text).value());
        if (!attention.phase.empty()) plans.plans.back()["model"] = model_json(attention);
    } catch (const Unsupported& error) {
        if (!listed) throw;
        plans.doubts.refused.push_back(refused(name_of(attention), error.what(), sm));
    }
}

Plans make_plans(const Command& command, const Asked& asked, bool listed) {
    Plans plans{.plans = {}, .doubts = Doubts(asked)};
    std::vector<int> sms = asked.sms;
    if (sms.empty()) {
        (void)sms_or_present(command, {});  // there is one, or an error that says so
        sms = {0};                          // with its own SM count
    }
    const Runtime runtime(planning_options(command));
    for (const int sm : sms) {
        for (const ModelAttention& attention : asked.attentions)
            plan_attention(runtime, attention, sm, listed, plans);
    }
    return plans;
}

Reasons reasons_for(bool listed) {
    if (verbosity() == Verbosity::quiet) return Reasons::none;
    return listed && verbosity() == Verbosity::usual ? Reasons::count : Reasons::all;
}

// "small/" of "small/full_attention/prefill", where several models are asked for.
std::string model_of(const std::string& attention) {
    const std::size_t phase = attention.rfind('/');
    const std::size_t kind =
        phase == attention.npos || phase == 0 ? attention.npos : attention.rfind('/', phase - 1);
    return kind == attention.npos ? std::string() : attention.substr(0, kind + 1);
}

// A note is said once for each model, with the first of its plans that has it.
Json without_repeated_notes(Json plan, std::set<std::string>& said) {
    if (!plan.contains("model")) return plan;
    Json& model = plan["model"];
    const std::string name = model_of(model.at("name").get<std::string>());
    Json notes = Json::array();
    for (const Json& note : model.at("notes"))
        if (said.insert(name + note.get<std::string>()).second) notes.push_back(note);
    model["notes"] = std::move(notes);
    return plan;
}

void print_plans(const Plans& plans, const std::string& note, bool listed, bool as_json) {
    if (as_json) {
        if (!listed) return print_json(plans.plans.front());
        Json json = {{"schema", "attnsmith.plans/1"}};
        json["plans"] = plans.plans;
        add_doubts(json, plans.doubts);
        return print_json(json);
    }
    const char* separator = "";
    if (!note.empty() && verbosity() != Verbosity::quiet) print(fmt::format("  note      {}\n", note));
    std::set<std::string> said;
    for (const Json& plan : plans.plans) {
        print(separator + plan_text(without_repeated_notes(plan, said), reasons_for(listed)));
        separator = "\n";
    }
    print(text_of(plans.doubts));
}

int run_plan(const Command& command) {
    const Asked asked = read_asked(command);
    const bool listed = asked.listed || asked.sms.size() > 1;
    const Plans plans = make_plans(command, asked, listed);
    print_plans(plans, asked.note, listed, command.has("json"));
    return conclude(failing_doubts(command, plans.doubts));
}

}  // namespace

void add_plan(Command& parent) {
    Command& command = parent.add_command("plan", "Show which kernels a problem gets, and why", kPlanDetails);
    command.add_switch("json", "print JSON");
    add_doubt_flags(command);
    add_cache_flag(command);
    add_toolchain_flag(command);
    add_tuning_flag(command);
    add_request_flags(command);
    add_engine_flag(command);
    command.on_run(run_plan);
}

}  // namespace attnsmith::cli
