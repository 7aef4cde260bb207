#include "cli/asked/runtime_flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>

#include "cache/remote/address.hpp"
#include "cli/program/byte_size.hpp"
#include "cli/program/files.hpp"
#include "cli/program/output.hpp"
#include "cubins/remotes.hpp"
#include "problem/vocabulary.hpp"
#include "reports/cache_directories.hpp"
#include "reports/unreadable.hpp"
#include "settings/signing_keys.hpp"

namespace attnsmith::cli {
namespace {

// A flag that is no field of a request, and its words.
template <typename Value>
struct FlagWords {
    std::string_view flag;
    const problem::WordList<Value>& words;

    std::string kind() const { return fmt::format("{}", fmt::join(words.names(), "|")); }
    Value read(const std::string& text) const { return words.parse(flag, text); }
};

FlagWords<CacheTrust> cache_trusts() { return {"cache-trust", problem::kCacheTrustWords}; }
FlagWords<Toolchain> toolchains() { return {"toolchain", problem::kToolchainWords}; }

}  // namespace

void add_cache_flag(Command& command) {
    command.add_repeatable(
        "cache", "DIR",
        "cache directory; given again, a read-only layer below it, which may be a bundle or the address of a "
        "remote (http://, https://, s3://) (default: "
        "ATTNSMITH_CACHE_DIR, a list divided by ':', else XDG_CACHE_HOME/attnsmith, else "
        "~/.cache/attnsmith)");
    command.add_value("cache-trust", cache_trusts().kind(),
                      "whose directories are used: those that only you or root can write to (owner, the "
                      "default), those of a group that you are in too, or any");
    command.add_repeatable(
        "trust-key", "FILE",
        "a public key; with any, only bundles and remotes' kernels that one of them signed are used "
        "(default: ATTNSMITH_CACHE_TRUST_KEYS, a list divided by ':', else bundles need no signature, and "
        "remotes need --cache-trust all)");
    command.add_value(
        "cache-max-bytes", "SIZE",
        "what the cache directory may take on its disk, e.g. 500M; what was not used for longest goes first "
        "(default 2G; 0: no limit)");
}

void add_toolchain_flag(Command& command) {
    command.add_value(
        "toolchain", toolchains().kind(),
        "whose entries count as hits: any NVRTC's, the newest first (default), or only those of "
        "the NVRTC at hand");
}

void add_tuning_flag(Command& command) {
    command.add_list("tuning", "FILE",
                     "tuning tables whose tiles win over the built-in ones (default: ATTNSMITH_TUNING)");
}

namespace {

// A layer that is read only and is not there is a mistyped name. One that may be an address with a password
// is left to the runtime, whose error shows none of it.
void refuse_missing_layers(const std::vector<std::string>& places) {
    if (cache::faulty_place(places, false)) return;
    for (std::size_t i = 1; i < places.size(); ++i) {
        if (!cache::is_remote_address(places[i]) && engine::is_missing(places[i]))
            throw BadUsage(fmt::format(
                "--cache: there is no directory or bundle {}; only the first --cache is created", places[i]));
    }
}

}  // namespace

RuntimeOptions runtime_options(const Command& command, MissingLayers missing) {
    RuntimeOptions options;
    if (command.knows("tuning")) {
        options.tuning_files = command.texts("tuning");
        for (const std::string& file : options.tuning_files) {
            // Or it says why not. A pipe is read once, by the runtime.
            if (!std::filesystem::is_fifo(file)) (void)read_text(file);
        }
    }
    options.cache_dirs = command.texts("cache");
    if (std::ranges::find(options.cache_dirs, "") != options.cache_dirs.end())
        throw InvalidRequest("cache", "\"\"", "a directory");
    if (missing == MissingLayers::refused) refuse_missing_layers(options.cache_dirs);
    if (const auto bytes = command.text("cache-max-bytes"))
        options.cache_max_bytes = parse_byte_size("cache-max-bytes", *bytes);
    options.trust_key_files = command.texts("trust-key");
    for (const std::string& file : options.trust_key_files) (void)engine::read_trust_key("trust-key", file);
    options.cache_source = !(command.knows("no-source") && command.has("no-source"));
    if (const auto toolchain = command.knows("toolchain") ? command.text("toolchain") : std::nullopt)
        options.toolchain = toolchains().read(*toolchain);
    if (const auto trust = command.text("cache-trust")) options.cache_trust = cache_trusts().read(*trust);
    return options;
}

engine::Settings cache_settings(const Command& command) {
    engine::Settings settings = engine::settle(runtime_options(command));
    if (command.has("cache")) settings.cache_dirs_named_by = "cache";
    engine::require_directories(settings, "give --cache DIR");
    return settings;
}

engine::Settings settings_with_remote(const Command& command) {
    engine::Settings settings = cache_settings(command);
    if (!settings.remotes.empty()) {
        const std::string distrust = engine::why_no_remote_is_trusted(settings);
        if (distrust.empty()) return settings;
        throw BadUsage(
            fmt::format("{}: not used: {}", cache::shown_address(settings.remotes.front()), distrust));
    }
    throw BadUsage(
        "there is no remote: name its address behind the cache directory, as --cache DIR --cache "
        "https://HOST/PATH or as ATTNSMITH_CACHE_DIR=DIR:https://HOST/PATH");
}

void tell_of_missing_layers(std::span<const std::string> layers) {
    for (const std::string& layer : layers) {
        if (engine::is_missing(layer))
            print_note(fmt::format("attnsmith: there is nothing at {}\n", printable(layer)));
    }
}

void tell_of_unreadable(std::span<const cache::Status> unreadable) {
    if (unreadable.empty()) return;
    print_note(fmt::format("attnsmith: {}\n", printable(engine::unreadable_text(unreadable))));
}

Runtime open_cache_runtime(const Command& command) {
    const engine::Settings settings = cache_settings(command);
    tell_of_missing_layers(std::span(settings.cache_dirs).subspan(1));
    RuntimeOptions options = runtime_options(command);
    const auto is_open = std::make_shared<std::atomic<bool>>(false);
    options.log = [is_open, log = settings.log](LogLevel level, std::string_view line) {
        if (*is_open || level != LogLevel::warn) log(level, line);
    };
    Runtime runtime(options);
    *is_open = true;
    return runtime;
}

}  // namespace attnsmith::cli
