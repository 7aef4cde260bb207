// attnsmith cache explain: what the keys of kernels are made of, and why there is a hit or a miss.
#include <fmt/format.h>

#include <utility>

#include "cli/asked/asked.hpp"
#include "cli/asked/gpu.hpp"
#include "cli/asked/runtime_flags.hpp"
#include "cli/cache/commands.hpp"
#include "cli/commands.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/program/output.hpp"
#include "engine/named_specs.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/vocabulary.hpp"
#include "reports/explain.hpp"
#include "reports/kernel_list.hpp"
#include "reports/public_reports.hpp"
#include "reports/unreadable.hpp"

namespace attnsmith::cli {
namespace {

using engine::Explanation;
using engine::KernelEntry;

constexpr const char* kExplainDetails =
    "With a KEY, the entry of that key (`attnsmith cache ls` lists them): the labelled fields that\n"
    "went into it. With a request or a model, every kernel that planning could choose: its key,\n"
    "whether it is there, and for a miss what the nearest entry has otherwise. Compiles nothing;\n"
    "needs no GPU where --sm is given. Exits 1 when there is no entry of that key, a part of a model\n"
    "is not supported, or the cache could not be read. Of a KEY the first 4 digits or more will do.\n\n"
    "Examples:\n"
    "  attnsmith cache explain --head-dim 128 --q-heads 32 --kv-heads 8 --mask causal --sm 90\n"
    "  attnsmith cache explain --model config.json --sm 80,90 --json";

std::string entry_text(const KernelEntry& kernel) {
    return fmt::format("{}, {}, NVRTC {}", printable(kernel.entry.path), human_bytes(kernel.entry.bytes),
                       kernel.entry.version.to_string());
}

std::string or_none(const std::string& value) { return value.empty() ? "none" : printable(value); }

std::string explanation_text(const Explanation& one) {
    std::string text = fmt::format("{} sm {}\n  {}  {}\n", printable(one.name), one.sm, one.key.hex(),
                                   one.hit ? "hit" : "miss");
    for (std::size_t i = 0; i < one.entries.size(); ++i) {
        text += fmt::format("  {}\n", entry_text(one.entries[i]));
        if (!one.faults[i].empty()) text += fmt::format("    cannot be used: {}\n", printable(one.faults[i]));
    }
    if (one.nearest) {
        const KernelEntry& nearest = one.nearest->kernel;
        text += fmt::format("  nearest: {}, {}\n  {}\n", printable(nearest.name), nearest.entry.key.hex(),
                            entry_text(nearest));
        Table table("<<<");
        table.add({"field", "here", "there"});
        for (const auto& [label, here, there] : one.nearest->differences)
            table.add({printable(label), or_none(here), or_none(there)});
        return text + table.text("    ");
    }
    if (one.entries.empty()) return text + "  there is no entry to compare with\n";
    if (!one.hit) text += "  what is there cannot be used, and is compiled anew\n";
    return text;
}

std::string fields_text(const Explanation& one) {
    Table table("<<");
    for (const auto& [label, value] : one.fields) table.add({printable(label), printable(value)});
    return table.text("    ");
}

int explain_key(const Command& command, const cache::Store& store) {
    const engine::KernelList stored = engine::list_kernels(store);
    const Explanation one = engine::explain_key(store, command.argument(), stored);
    if (command.has("json")) {
        print_json(to_json(engine::report_of({{one}, stored.unreadable}, store.options())));
    } else {
        print(explanation_text(one) + fields_text(one));
    }
    tell_of_unreadable(stored.unreadable);
    return kSuccess;
}

int explain_request(const Command& command, const Runtime& runtime) {
    const Asked asked = read_asked(command);
    const engine::NamedSpecs named = engine::named_specs(asked);
    std::vector<PrewarmRefusal> not_served;
    const engine::Explained explained = engine::explain(engine::impl_of(runtime), named.specs,
                                                        sms_or_present(command, asked.sms), not_served);
    CacheExplanations report =
        engine::report_of(explained, engine::impl_of(runtime).cubins.store().options());
    report.unsupported = std::move(not_served);
    engine::add_coverage(asked, named, report);
    const Doubts doubts(report);
    if (command.has("json")) {
        print_json(to_json(report));
    } else {
        for (const Explanation& one : explained.kernels) print(explanation_text(one));
        print(text_of(doubts));
    }
    std::vector<std::string> troubles = failing_doubts(command, doubts);
    if (!explained.unreadable.empty()) troubles.push_back(engine::unreadable_text(explained.unreadable));
    return conclude(troubles);
}

int run_explain(const Command& command) {
    if (command.has_argument() == has_request(command))
        throw BadUsage("explain takes a KEY or a request, one of the two");
    require_what_cache_names(command);
    const Runtime runtime = open_cache_runtime(command);
    return command.has_argument() ? explain_key(command, engine::impl_of(runtime).cubins.store())
                                  : explain_request(command, runtime);
}

}  // namespace

void add_explain(Command& cache) {
    Command& command = cache.add_command(
        "explain", "Say what a kernel's key is made of, and why it is a hit or a miss", kExplainDetails);
    command.add_optional_argument("KEY", "the key of an entry, or how it begins");
    command.add_switch("json", "print JSON");
    add_cache_flag(command);
    add_tuning_flag(command);
    add_request_flags(command);
    command.on_run(run_explain);
}

}  // namespace attnsmith::cli
