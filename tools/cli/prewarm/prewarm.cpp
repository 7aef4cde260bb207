// attnsmith prewarm: compiles into the cache whatever planning could choose.
#include <utility>

#include "cli/asked/asked.hpp"
#include "cli/asked/gpu.hpp"
#include "cli/asked/model_flags.hpp"
#include "cli/asked/runtime_flags.hpp"
#include "cli/commands.hpp"
#include "cli/outcome/conclude.hpp"
#include "cli/prewarm/dry_run.hpp"
#include "cli/prewarm/run.hpp"

namespace attnsmith::cli {
namespace {

constexpr const char* kPrewarmDetails =
    "Compiles every kernel that could be chosen for the problem, whatever its lengths, into the\n"
    "cache; what is there already, in a read-only layer too, is left alone. Words that a program\n"
    "chooses take several values (--kv paged,dense --alignment 16,8): all combinations. --recorded\n"
    "takes what programs left in a file (ATTNSMITH_RECORD=FILE), for any SM. --engine vllm builds\n"
    "all that vLLM asks for with a model: attention over its paged cache, and the appends that write\n"
    "the cache. vLLM's block size, cache dtype (also in vLLM's words) and number of GPUs are\n"
    "--page-size, --kv-dtype and --tensor-parallel. Ctrl-C finishes what is being compiled and\n"
    "cancels the rest (exit code 130); so does SIGTERM (143), for at most 5 seconds. Exits 1\n"
    "when a kernel failed or a part of a model is not supported, or with --strict when a model has a\n"
    "warning; the others are in the cache all the same.\n\n"
    "Examples:\n"
    "  attnsmith prewarm --model config.json --sm 80,90 --cache kernels --jobs 2\n"
    "  attnsmith prewarm --model config.json --kv paged,dense --index-dtype int32,int64 --sm 90\n"
    "  attnsmith prewarm --model config.json --engine vllm --page-size 16 --sm 90\n"
    "  attnsmith prewarm --head-dim 128 --q-heads 32 --kv-heads 8 --mask causal --sm 90 --json\n"
    "  attnsmith prewarm --model config.json --sm 80,90 --dry-run";

int prewarm(const Command& command) {
    const Asked asked = read_asked(command);
    PrewarmRun run{
        .runtime = runtime_options(command),
        .options = {},
        .doing = "compiling",
        .when_interrupted = "attnsmith: finishing what is being compiled; once more ends it at once\n"};
    if (command.has("sign-key") && !command.has("push"))
        throw BadUsage("--sign-key is for --push, which is not given");
    read_sign_key_flag(command, run.runtime);
    run.options.push = command.has("push");
    if (run.options.push) (void)settings_with_remote(command);
    run.options.jobs = static_cast<int>(command.integer("jobs", 0, 1024, 0));
    (void)cache_settings(command);  // throws where there is no directory
    const std::vector<int> sms = sms_or_present(command, asked.sms);
    if (command.has("dry-run")) return dry_run(command, asked, sms);
    return run_prewarm(command, asked, sms, std::move(run));
}

}  // namespace

void add_prewarm(Command& parent) {
    Command& command = parent.add_command("prewarm", "Compile a model's kernels into the cache; needs no GPU",
                                          kPrewarmDetails);
    command.add_switch("json", "print JSON");
    command.add_value("jobs", "N", "kernels to compile at a time; 0, the default, is the number of cores",
                      "Options", "j");
    command.add_switch("dry-run", "say what would be compiled, and what is in the cache; change nothing");
    add_doubt_flags(command);
    command.add_switch("push", "put to the remotes of --cache or ATTNSMITH_CACHE_DIR what they lack");
    add_sign_key_flag(command);
    command.add_switch("no-source", "leave the kernels' sources out of the entries");
    add_cache_flag(command);
    add_toolchain_flag(command);
    add_tuning_flag(command);
    add_request_flags(command);
    add_engine_flag(command);
    add_recorded_flag(command);
    command.on_run(prewarm);
}

}  // namespace attnsmith::cli
