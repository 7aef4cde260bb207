#include "check/run_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "check/compare_values.hpp"
#include "check/guarded_workspace.hpp"
#include "check/judge.hpp"
#include "check/kernel_choice.hpp"
#include "check/output_writes.hpp"
#include "check/storage.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::check {

std::string describe(const CallStatus& status) { return status ? to_string(status) : "clean"; }

namespace {

class CaseRun {
  public:
    CaseRun(Runtime& runtime, const Case& test, const RunOptions& options, CaseResult& result)
        : runtime_(runtime), test_(test), options_(options), result_(result) {}

    void run() {
        const Kernel kernel = prepare_case(runtime_, test_);
        note_plan(kernel);
        Storage storage(runtime_, test_, derive_seed(options_.seed, test_.full_name()));
        storage.load(test_.steps.at(0));
        const std::size_t bytes = storage.workspace_bytes(kernel);
        if (bytes < kWorkspaceZeroedBytes)
            return fail(fmt::format("workspace_bytes() is {}, less than {}", bytes, kWorkspaceZeroedBytes));
        const GuardedWorkspace workspace(runtime_, bytes);
        const Call call = test_.call_owns_workspace
                              ? kernel.bind(storage.tensors(), storage.batch())
                              : kernel.bind(storage.tensors(), storage.batch(), workspace.workspace());
        for (const char* const divided : {" chunks of ", " equal shares"})
            if (call.describe().find(divided) != std::string::npos) result_.kernel += " split";
        for (step_ = 0; step_ < test_.steps.size() && result_.passed(); ++step_)
            run_step(storage, call, workspace);
        finish();
    }

  private:
    void fail(const std::string& why) {
        if (result_.outcome == Outcome::failed) return;  // the first reason is the one to act on
        result_.outcome = Outcome::failed;
        result_.detail = test_.steps.size() > 1 ? fmt::format("step {}: {}", step_, why) : why;
    }

    // What one of the checks found; empty: nothing.
    void note(const std::string& fault) {
        if (!fault.empty()) fail(fault);
    }

    void note_plan(const Kernel& kernel) {
        const auto plan = problem::parse_json(kernel.plan_json()).value_or(nullptr);
        if (plan.is_discarded()) return fail("plan_json() is not JSON");
        for (const auto& entry : plan.value("kernels", nlohmann::json::array())) {
            if (entry.value("role", "") != "attention") continue;
            result_.backend = entry.value("backend", "");
            result_.kernel = fmt::format("{}x{} stages {}", entry.value("tile_q", 0),
                                         entry.value("tile_kv", 0), entry.value("stages", 0));
            const auto cache = entry.find("cache");
            if (cache != entry.end() && cache->is_object()) result_.toolchain = cache->value("toolchain", "");
        }
    }

    void run_step(Storage& storage, const Call& call, const GuardedWorkspace& workspace) {
        const Step& step = test_.steps[step_];
        if (step_ > 0) storage.load(step);
        const Storage::Outputs outputs = launch(storage, call);
        for (int n = 1; n < test_.launches && result_.passed(); ++n) {
            const Storage::Outputs again = launch(storage, call);
            // Nonsense may give two sequences the same rows, and either may come last.
            if (step.only_safety) continue;
            if (again.o != outputs.o) fail(fmt::format("launch {} gave other bits in o", n + 1));
            if (again.lse != outputs.lse) fail(fmt::format("launch {} gave other bits in lse", n + 1));
        }
        check_status(call, step);
        const std::string changed = storage.changed_input();
        if (!changed.empty()) fail("the launch wrote into the buffer of " + changed);
        if (!workspace.guards_intact()) fail("the launch wrote outside its workspace");
        if (step.same_data) check_same_bits(storage, outputs);
        if (!result_.passed()) return;
        before_ = outputs;
        if (step.only_safety) return note(written_outside_tensors(test_.spec, storage, outputs));
        note(badly_written_rows(test_.spec, storage, outputs));
        check_values(storage, step, outputs);
    }

    // As the step before gave, but for rows that it could not be right for.
    void check_same_bits(const Storage& storage, const Storage::Outputs& outputs) {
        const Storage::Outputs now = of_good_scales(test_.spec, storage, outputs);
        const Storage::Outputs before = of_good_scales(test_.spec, storage, before_);
        if (now.o != before.o || now.lse != before.lse) fail("what no row sees changed the result's bits");
    }

    Storage::Outputs launch(Storage& storage, const Call& call) {
        storage.poison_outputs();
        if (options_.launch) {
            options_.launch(runtime_, call);
        } else {
            if (test_.scales_at_launch)
                call.launch_at(storage.addresses());
            else
                call.launch();
            runtime_.synchronize();
        }
        return storage.read_outputs();
    }

    void check_status(const Call& call, const Step& step) {
        const CallStatus status = call.status();
        if (!step.any_status && status != step.status)
            fail(fmt::format("status is {}, expected {}", describe(status), describe(step.status)));
        if (!status) return;
        call.clear_status();
        if (call.status()) fail("clear_status() left " + describe(call.status()));
    }

    void check_values(const Storage& storage, const Step& step, const Storage::Outputs& outputs) {
        const ComparedValues found = compare_values(
            test_, step, storage, outputs,
            {.seed = options_.seed, .threads = options_.threads, .budget = options_.reference_budget});
        compared_ += found.compared;
        total_ += found.total;
        result_.max_abs_error = std::max(result_.max_abs_error, found.max_abs_error);
        result_.element_ratio = std::max(result_.element_ratio, found.element_ratio);
        result_.pooled_ratio = std::max(result_.pooled_ratio, found.pooled_ratio);
        result_.rounding_ratio = std::max(result_.rounding_ratio, found.rounding_ratio);
        result_.vacuous_pools += found.vacuous_pools;
        result_.lse_ratio = std::max(result_.lse_ratio, found.lse_ratio);
        note(found.fault);
    }

    void finish() {
        if (result_.passed() && compared_ < total_)
            result_.detail = fmt::format("compared {} of {} query rows, drawn at random", compared_, total_);
    }

    Runtime& runtime_;
    const Case& test_;
    const RunOptions& options_;
    CaseResult& result_;
    Storage::Outputs before_;  // of the last step
    std::size_t step_ = 0;
    std::size_t compared_ = 0, total_ = 0;
};

}  // namespace

CaseResult run_case(Runtime& runtime, const Case& test, const RunOptions& options) {
    CaseResult result = judge(test.group, test.name,
                              [&](CaseResult& filled) { CaseRun(runtime, test, options, filled).run(); });
    if (result.outcome == Outcome::failed) result.detail += "\n    " + test.describe();
    return result;
}

}  // namespace attnsmith::check
