#include "settings/environment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <span>
#include <sstream>
#include <string_view>
#include <thread>

#include "cache/files/size_signal.hpp"
#include "cache/remote/address.hpp"
#include "cache/remote/netrc.hpp"
#include "cache/remote/s3.hpp"
#include "compiler/environment.hpp"
#include "problem/vocabulary.hpp"
#include "settings/signing_keys.hpp"

namespace attnsmith::engine {
namespace {

constexpr const char* kCacheVariable = "ATTNSMITH_CACHE_DIR";

// The environment as options let it be seen: not at all without RuntimeOptions::use_environment.
class Environment {
  public:
    explicit Environment(const RuntimeOptions& options) : used_(options.use_environment) {}

    std::string operator()(const char* name) const {
        // In a setuid program nothing: its caller must not choose what code it loads.
        const char* const value = used_ ? ::secure_getenv(name) : nullptr;
        return value == nullptr ? std::string() : std::string(value);
    }
    // The first of two that is set.
    std::string operator()(const char* first, const char* second) const {
        std::string value = (*this)(first);
        return value.empty() ? (*this)(second) : value;
    }

    bool used() const { return used_; }

  private:
    bool used_;
};

cache::Trust settle_trust(CacheTrust trust) {
    switch (trust) {
        case CacheTrust::owner:
            return cache::Trust::owner;
        case CacheTrust::group:
            return cache::Trust::group;
        case CacheTrust::all:
            return cache::Trust::all;
    }
    throw InvalidRequest("cache_trust", std::to_string(static_cast<int>(trust)), "owner, group or all");
}

bool is_exact(Toolchain toolchain) {
    switch (toolchain) {
        case Toolchain::newest:
            return false;
        case Toolchain::exact:
            return true;
    }
    throw InvalidRequest("toolchain", std::to_string(static_cast<int>(toolchain)), "newest or exact");
}

// What it means now: a program that changes its directory keeps its cache.
std::string absolute(const std::string& path) {
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::absolute(path, error);
    return error ? path : whole.string();
}

// What servers of every kind are shown. Secrets are in the environment or in files, not on a command line,
// which anybody on the machine can read.
cache::HttpAccess access_of(const Environment& environment) {
    cache::HttpAccess access;
    access.client_certificate = environment("ATTNSMITH_CACHE_CERT");
    access.client_key = environment("ATTNSMITH_CACHE_CERT_KEY");
    access.ca_file = environment("ATTNSMITH_CACHE_CA");
    std::istringstream lines(environment("ATTNSMITH_CACHE_HEADERS"));
    for (std::string line; std::getline(lines, line);) {
        if (!line.empty()) access.headers.push_back(line);
    }
    return access;
}

// A host that the file does not name is asked without a password, which may be right or a misspelling.
std::vector<std::string> missing_in(const cache::Netrc& netrc, const std::string& file,
                                    const std::vector<std::string>& addresses) {
    std::vector<std::string> warnings;
    for (const std::string& address : addresses) {
        const std::string host = cache::host_of(address);
        if (cache::is_s3_address(address) || cache::names_user(address) || cache::entry_for(netrc, host))
            continue;
        warnings.push_back(fmt::format(
            "ATTNSMITH_CACHE_NETRC: {} has no entry for {}, which is asked without a password", file, host));
    }
    return warnings;
}

RemoteAccess http_access(const std::vector<std::string>& addresses, const Environment& environment) {
    RemoteAccess http{access_of(environment), {}, {}};
    http.access.bearer_token = environment("ATTNSMITH_CACHE_TOKEN");
    http.access.user_and_password = environment("ATTNSMITH_CACHE_USER");
    const std::string file = environment("ATTNSMITH_CACHE_NETRC");
    if (file.empty()) return http;
    auto netrc = cache::read_netrc(file);
    if (!netrc) {
        http.trouble = "ATTNSMITH_CACHE_NETRC: " + netrc.status().to_string();
        return http;
    }
    if (http.access.bearer_token.empty() && http.access.user_and_password.empty())
        http.warnings = missing_in(*netrc, file, addresses);
    http.access.netrc = std::move(netrc).value();
    return http;
}

// A region for servers of one's own, which have to agree with who signs on some name. It is what theirs have
// where nobody says another.
constexpr const char* kUsualRegion = "us-east-1";

// Empty, or what is wrong with them, without their text.
std::string s3_fault_of(const cache::AwsCredentials& aws, const cache::S3Service& service) {
    if (aws.access_key_id.empty() && !aws.secret_access_key.empty())
        return "AWS_ACCESS_KEY_ID is not set, and AWS_SECRET_ACCESS_KEY is: set both, or neither to ask "
               "unsigned";
    if (!aws.access_key_id.empty() && aws.secret_access_key.empty())
        return "AWS_SECRET_ACCESS_KEY is not set, and AWS_ACCESS_KEY_ID is: set both, or neither to ask "
               "unsigned";
    if (aws.access_key_id.empty() && !aws.session_token.empty())
        return "AWS_SESSION_TOKEN is set without the AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY that it is "
               "for: set them, or unset it";
    if (service.region.empty() && service.endpoint.empty())
        return "AWS_REGION is not set: set it to the bucket's region (us-east-1), or AWS_ENDPOINT_URL to the "
               "address of a server of your own";
    if (const std::string fault = cache::s3_region_fault(aws.region); !fault.empty())
        return "AWS_REGION or AWS_DEFAULT_REGION is not a region's name: " + fault;
    if (service.endpoint.empty()) return {};
    if (const std::string fault = cache::s3_endpoint_fault(service.endpoint); !fault.empty())
        return "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is not the address of a server: " + fault;
    return {};
}

// By the variables of the AWS CLI. A token, a user and a netrc file are other servers', which a signature
// takes the place of.
void settle_s3(Settings& settings, const Environment& environment) {
    cache::S3Service& service = settings.s3_service;
    service.region = environment("AWS_REGION", "AWS_DEFAULT_REGION");
    service.endpoint = environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL");
    const cache::AwsCredentials aws{
        .access_key_id = environment("AWS_ACCESS_KEY_ID"),
        .secret_access_key = environment("AWS_SECRET_ACCESS_KEY"),
        .session_token = environment("AWS_SESSION_TOKEN"),
        .region = service.region.empty() ? kUsualRegion : service.region,
    };
    settings.s3 = {access_of(environment), s3_fault_of(aws, service), {}};
    // Without any, requests are not signed: a bucket may be open to all.
    if (!aws.access_key_id.empty()) settings.s3.access.aws = aws;
}

const char* remedy_for(cache::PlaceFault fault, bool may_hold_password) {
    if (fault == cache::PlaceFault::misspelt && may_hold_password) fault = cache::PlaceFault::user_info;
    switch (fault) {
        case cache::PlaceFault::user_info:
            return "an address whose user and password can be told from its host (http://HOST:PORT/PATH, "
                   "https://HOST/PATH or s3://BUCKET/PREFIX, in small letters, a port from 1 to 65535): in a "
                   "user and a password, "
                   "write / as %2F, : as %3A, ? as %3F, # as %23 and @ as %40, or set ATTNSMITH_CACHE_USER "
                   "to USER:PASSWORD instead; in a path, write @ as %40; a directory with @ in its name "
                   "begins with /, ./ or ../";
        case cache::PlaceFault::after_host:
            return "no @ in it, since an address before it may end within a password: in a user and a "
                   "password, write / as %2F, : as %3A, ? as %3F, # as %23 and @ as %40, or set "
                   "ATTNSMITH_CACHE_USER to USER:PASSWORD instead; where there is no password, end an "
                   "address "
                   "that has no path with /, and name directories first";
        case cache::PlaceFault::misspelt:
            return "directories, bundles and addresses (http://HOST/PATH, https://HOST/PATH or "
                   "s3://BUCKET/PREFIX, in small letters), each named on its own: by a --cache for each, or "
                   "divided by ':' in ATTNSMITH_CACHE_DIR";
    }
    return "";
}

// A list with an @, or an address that cannot be read, is not quoted at all: where its parts are wrong, any
// of them may be part of a password.
void refuse_faulty_places(const Settings& settings) {
    const std::vector<std::string>& places = settings.cache_dirs;
    const auto found = cache::faulty_place(places, settings.cache_dirs_named_by == kCacheVariable);
    if (!found) return;
    const bool hidden = cache::may_hold_password(places) || found->fault == cache::PlaceFault::user_info;
    const std::string shown = hidden ? fmt::format("part {} of {} (not shown, since it may hold a password)",
                                                   found->index + 1, places.size())
                                     : problem::quote(cache::shown_address(places[found->index]));
    throw InvalidRequest(settings.cache_dirs_named_by, shown, remedy_for(found->fault, hidden));
}

// Addresses come after directories, which are looked at first whatever the order.
void settle_remotes(Settings& settings, const Environment& environment) {
    refuse_faulty_places(settings);
    const auto is_address = [](const std::string& place) { return cache::is_remote_address(place); };
    std::ranges::copy_if(settings.cache_dirs, std::back_inserter(settings.remotes), is_address);
    if (!settings.cache_dirs.empty() && is_address(settings.cache_dirs.front())) {
        throw InvalidRequest(settings.cache_dirs_named_by, cache::shown_address(settings.cache_dirs.front()),
                             "a directory first, which keeps what is fetched; addresses can follow it");
    }
    std::erase_if(settings.cache_dirs, is_address);
    const bool any_s3 = std::ranges::any_of(settings.remotes, cache::is_s3_address);
    const bool any_http = !std::ranges::all_of(settings.remotes, cache::is_s3_address);
    if (any_http) settings.http = http_access(settings.remotes, environment);
    if (any_s3) settle_s3(settings, environment);
}

void settle_cache(const RuntimeOptions& options, const Environment& environment, Settings& settings) {
    settings.cache_trust = settle_trust(options.cache_trust);
    settings.cache_max_bytes = options.cache_max_bytes == kNoLimit ? 0 : options.cache_max_bytes;
    settings.cache_source = options.cache_source;
    settings.exact_toolchain = is_exact(options.toolchain);
    if (!options.use_cache) {
        settings.no_cache_because = "it is switched off";
        return;
    }
    settings.cache_dirs = options.cache_dirs;
    settings.cache_dirs_named_by = "cache_dirs";
    settings.cache_dirs_from_options = !options.cache_dirs.empty();
    if (settings.cache_dirs.empty()) {
        settings.cache_dirs = cache::split_places(environment(kCacheVariable));
        settings.cache_dirs_named_by = kCacheVariable;
    }
    settle_remotes(settings, environment);
    std::ranges::transform(settings.cache_dirs, settings.cache_dirs.begin(), absolute);
    if (!settings.cache_dirs.empty()) return;
    // The XDG specification: a path that is not absolute is to be ignored.
    if (const std::string xdg = environment("XDG_CACHE_HOME"); !xdg.empty() && xdg[0] == '/') {
        settings.cache_dirs = {xdg + "/attnsmith"};
        settings.cache_dirs_named_by = "XDG_CACHE_HOME";
    } else if (const std::string home = environment("HOME"); !home.empty() && home[0] == '/') {
        settings.cache_dirs = {home + "/.cache/attnsmith"};
        settings.cache_dirs_named_by = "HOME";
    } else {
        settings.no_cache_because =
            environment.used() ? "neither ATTNSMITH_CACHE_DIR, XDG_CACHE_HOME nor HOME names a directory"
                               : "cache_dirs names no directory, and use_environment is false";
    }
}

// Read now: a program must not find out at its first kernel that nothing will be trusted.
void settle_keys(const RuntimeOptions& options, const Environment& environment, Settings& settings) {
    constexpr const char* kVariable = "ATTNSMITH_CACHE_TRUST_KEYS";
    if (!options.trust_key_files.empty()) {
        settings.trusted_keys = read_trust_keys("trust_key_files", options.trust_key_files);
    } else if (const std::string list = environment(kVariable); !list.empty()) {
        // A list of nothing must not be taken for trust in everything.
        const std::vector<std::string> files = cache::split_places(list);
        if (files.empty()) throw InvalidRequest(kVariable, problem::quote(list), "files of public keys");
        settings.trusted_keys = read_trust_keys(kVariable, files);
    }
    settings.sign_key_file = options.sign_key_file;
    settings.sign_key_named_by = "sign_key_file";
    if (settings.sign_key_file.empty()) {
        settings.sign_key_named_by = "ATTNSMITH_CACHE_SIGN_KEY";
        settings.sign_key_file = environment("ATTNSMITH_CACHE_SIGN_KEY");
    }
    if (!settings.sign_key_file.empty()) settings.sign_key_file = absolute(settings.sign_key_file);
}

bool settle_push(const RuntimeOptions& options, const Environment& environment) {
    if (options.push_compiled) return true;
    constexpr const char* kVariable = "ATTNSMITH_CACHE_PUSH";
    const std::string text = environment(kVariable);
    if (!text.empty() && text != "0" && text != "1")
        throw InvalidRequest(kVariable, problem::quote(text),
                             "1, so that what is compiled is put to the remotes, or 0");
    return text == "1";
}

OnMiss settle_on_miss(const std::optional<OnMiss>& given, const Environment& environment) {
    if (given) problem::kOnMissWords.check_value("on_miss", *given);
    if (given) return *given;
    const std::string text = environment("ATTNSMITH_ON_MISS");
    return text.empty() ? OnMiss::compile : problem::kOnMissWords.parse("ATTNSMITH_ON_MISS", text);
}

// With on_miss error nothing of NVRTC's is looked at, nor is there a command that would build what these ask
// for.
void refuse_contradictions(const Settings& settings) {
    if (settings.on_miss != OnMiss::error) return;
    if (settings.exact_toolchain) {
        throw InvalidRequest("toolchain", "exact",
                             "newest with on_miss error, which does not open NVRTC to see its version");
    }
    if (!settings.keep_source_dir.empty()) {
        throw InvalidRequest("keep_source_dir", settings.keep_source_dir,
                             "nothing with on_miss error: kernels with kept sources are compiled apart");
    }
}

void log_to_stderr(LogLevel, std::string_view line) {
    // One write, so that lines of many threads and processes do not mix.
    const std::string text = fmt::format("attnsmith: {}\n", line);
    const cache::SizeSignalHeld held;
    std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace

Settings settle(const RuntimeOptions& options) {
    const Environment environment(options);
    Settings settings;
    settle_cache(options, environment, settings);
    settle_keys(options, environment, settings);
    settings.tuning_files = options.tuning_files.empty()
                                ? cache::split_places(environment("ATTNSMITH_TUNING"))
                                : options.tuning_files;
    settings.nvrtc.path =
        options.nvrtc_path.empty() ? environment("ATTNSMITH_NVRTC_PATH") : options.nvrtc_path;
    if (options.compile_threads < 0)
        throw InvalidRequest("compile_threads", std::to_string(options.compile_threads),
                             "a number of threads from 1, or 0 for the number of cores");
    settings.compile_threads = options.compile_threads > 0
                                   ? options.compile_threads
                                   : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    const std::string level = environment("ATTNSMITH_LOG");
    settings.log_level = options.log_level ? *options.log_level
                         : level.empty()   ? LogLevel::warn
                                           : problem::kLogLevelWords.parse("ATTNSMITH_LOG", level);
    settings.log = options.log ? options.log : log_to_stderr;
    settings.keep_source_dir = options.keep_source_dir;
    settings.on_miss = settle_on_miss(options.on_miss, environment);
    settings.push_compiled = settle_push(options, environment);
    settings.record_file =
        options.record_file.empty() ? environment("ATTNSMITH_RECORD") : options.record_file;
    if (!settings.record_file.empty()) settings.record_file = absolute(settings.record_file);
    refuse_contradictions(settings);
    return settings;
}

std::string shown_places(const std::string& list) {
    std::vector<std::string> places = cache::split_places(list);
    if (cache::may_hold_password(places) && cache::faulty_place(places, true))
        return "(not shown, since it may hold a password)";
    for (std::string& place : places) {
        if (cache::is_remote_address(place)) place = cache::shown_address(place);
    }
    return fmt::format("{}", fmt::join(places, ":"));
}

std::vector<std::pair<std::string, std::string>> compiler_environment() {
    std::vector<std::pair<std::string, std::string>> variables;
    for (const compiler::EnvironmentVariable& variable : compiler::kNvrtcVariables) {
        // As NVRTC reads it, which does not care for setuid.
        const char* const value = variable.in_key ? std::getenv(variable.name) : nullptr;
        if (value != nullptr) variables.emplace_back(variable.name, value);
    }
    return variables;
}

bool trusts(const Settings& settings, const cache::PublicKey& key) {
    return std::ranges::find(settings.trusted_keys, key) != settings.trusted_keys.end();
}

}  // namespace attnsmith::engine
