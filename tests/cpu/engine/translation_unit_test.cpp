// What a kernel's translation unit says of it, beside its constants.
#include "cubins/translation_unit.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "problem/expect.hpp"
#include "support/catch.hpp"

using namespace attnsmith;

namespace {

std::vector<families::KernelConfig> kernels(int sm) {
    const auto set = [&](const AttentionSpec& spec) {
        return planner::kernel_set(problem::validate(spec, {}).spec, sm, planner::repository_tuning())
            .kernels();
    };
    std::vector<families::KernelConfig> all = set({.head_dim_qk = 64, .q_heads = 8});
    all.push_back(set({.op = Op::merge, .head_dim_vo = 64, .q_heads = 8}).front());
    return all;
}

bool has_line_info(const engine::TranslationUnit& unit) {
    const auto& options = unit.program.options;
    return std::ranges::find(options, "-lineinfo") != options.end();
}

}  // namespace

TEST_CASE("a kernel is bound to its threads and to the CTAs that an SM is to hold", "[engine]") {
    for (const int sm : {80, 90, 120}) {
        for (const families::KernelConfig& kernel : kernels(sm)) {
            const engine::TranslationUnit unit = engine::translation_unit(kernel, {});
            CAPTURE(kernel.name());
            CHECK(test::contains(unit.program.source,
                                 fmt::format("__launch_bounds__({}, {})\n{}(", kernel.threads,
                                             kernel.ctas_per_sm, unit.entry)));
            CHECK(unit.program.target == kernel.target);
            CHECK(unit.entry == fmt::format("attnsmith_{}", kernel.family->name()));
        }
    }
}

TEST_CASE("line information is for those who ask for it", "[engine]") {
    const families::KernelConfig kernel = kernels(90).front();
    CHECK_FALSE(has_line_info(engine::translation_unit(kernel, {})));
    CHECK(has_line_info(engine::translation_unit(kernel, {.line_info = true})));
}
