#include "cubins/remotes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "cache/remote/address.hpp"
#include "cache/remote/s3.hpp"
#include "cache/signing/system_ed25519.hpp"
#include "cubins/cubin_entry.hpp"
#include "settings/signing_keys.hpp"

namespace attnsmith::engine {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWhereItCompiles{2000};
constexpr milliseconds kWhereNothingElseDoes{30000};
constexpr milliseconds kForAPush{60000};

const RemoteAccess& access_of(const Settings& settings, const std::string& address) {
    return cache::is_s3_address(address) ? settings.s3 : settings.http;
}

cache::Signers signers_of(const Settings& settings) {
    cache::Signers signers;
    if (settings.trusted_keys.empty() && settings.sign_key_file.empty()) return signers;
    const auto library = cache::ed25519();
    if (!library) throw CacheError(library.status().to_string());
    signers.ed25519 = *library;
    signers.trusted = settings.trusted_keys;
    if (!settings.sign_key_file.empty())
        signers.own = read_sign_key(settings.sign_key_named_by, settings.sign_key_file);
    return signers;
}

}  // namespace

std::string why_no_remote_is_trusted(const Settings& settings) {
    if (!settings.trusted_keys.empty() || settings.cache_trust == cache::Trust::all) return {};
    return "nobody's signature is trusted there; name a public key (--trust-key, "
           "ATTNSMITH_CACHE_TRUST_KEYS), or take anybody's kernels by --cache-trust all";
}

cache::Result<std::unique_ptr<const cache::Remote>> RemoteOpener::open(const std::string& address,
                                                                       const cache::Signers& signers) {
    const RemoteAccess& access = access_of(settings_, address);
    if (!access.trouble.empty()) return cache::Status::recoverable_error(EINVAL, {}, access.trouble);
    cache::Result<std::string> url =
        cache::is_s3_address(address) ? cache::s3_url(address, settings_.s3_service) : address;
    if (!url) return url.status();
    std::shared_ptr<cache::HttpClient>& client = clients_[&access];
    if (!client) client = settings_.http_client;
    if (!client) {
        auto opened = cache::open_curl(access.access);
        if (!opened) return opened.status();
        client = std::move(opened).value();
    }
    return std::make_unique<const cache::Remote>(std::move(url).value(), client, signers,
                                                 cache::shown_address(address));
}

Remotes::Remotes(const Settings& settings, const cache::Store& store, std::shared_ptr<const Log> log)
    : store_(store), log_(std::move(log)) {
    if (settings.remotes.empty()) {
        if (settings.push_compiled)
            (*log_)(LogLevel::warn,
                    "cache: nothing is pushed: there is no remote; name its address behind the cache "
                    "directory");
        return;
    }
    const cache::Signers signers = signers_of(settings);
    bool trusts_itself = false;
    if (signers.own) {
        if (const auto key = signers.ed25519->public_key_of(*signers.own)) {
            signs_as_ = key->id();
            trusts_itself = trusts(settings, *key);
        }
    }
    pushed_as_ = signs_as_.empty() ? "no key" : "key " + signs_as_;
    if (!signers.trusted.empty() && !trusts_itself)
        cannot_push_because_ =
            "a secret key whose public key is trusted here, too (--trust-key, ATTNSMITH_CACHE_TRUST_KEYS): "
            "what is pushed without would be taken by nobody who trusts the same keys, and might take "
            "another's place";
    if (settings.push_compiled && !cannot_push_because_.empty())
        (*log_)(LogLevel::warn, "cache: nothing is pushed by {}; expected is {}", pushed_as_,
                cannot_push_because_);
    const std::string distrust = why_no_remote_is_trusted(settings);
    RemoteOpener opener(settings);
    for (const std::string& address : settings.remotes) {
        if (!distrust.empty()) {
            pass_over(cache::shown_address(address), distrust);
            continue;
        }
        auto opened = opener.open(address, signers);
        if (opened)
            remotes_.push_back(std::move(opened).value());
        else
            pass_over(cache::shown_address(address), opened.status().to_string());
    }
    for (const std::string& warning : settings.http.warnings) (*log_)(LogLevel::warn, "cache: {}", warning);
}

void Remotes::pass_over(const std::string& address, const std::string& reason) {
    passed_over_.push_back(fmt::format("{}: {}", address, reason));
    (*log_)(LogLevel::warn, "cache: {}: not used: {}", address, reason);
}

Remotes::Fetched Remotes::fetch(const KernelSource& source, const Accept& accept,
                                const std::optional<cache::Version>& only, bool compiles,
                                const std::stop_token& stop) const {
    Fetched fetched;
    const cache::Remote::Wanted wanted{source.key, source.kernel.target, only};
    const cache::Remote::Patience patience{compiles ? kWhereItCompiles : kWhereNothingElseDoes, compiles};
    for (const auto& remote : remotes_) {
        const auto offer = [&](const cache::Version& version,
                               cache::Entry entry) -> std::optional<std::string> {
            const cache::Candidate candidate{source.key, version, cache::kWritableLayer, remote->name()};
            ReadEntry read = read_for(source, candidate, entry);
            if (!read.cubin) return std::move(read.fault);
            if (auto refusal = accept(*read.cubin)) return refusal;
            store_.count(cache::Event::remote_hit);
            store_.count(cache::Event::remote_bytes, entry.metadata.size() + entry.payload.size());
            const cache::Status stored = store_.publish(source.key, version, entry);
            fetched.not_stored_because = stored.ok() ? "" : stored.to_string();
            fetched.cubin = std::move(read.cubin);
            return std::nullopt;
        };
        const cache::Status status = remote->fetch(wanted, offer, patience, stop);
        if (status.ok()) return fetched;
        fetched.said.push_back(fmt::format("{}: {}", remote->name(), status.message));
        if (status.error_number == ENOENT || status.error_number == EACCES) {
            store_.count(cache::Event::remote_miss);
            // S3's word for a miss, or for a policy that nobody would find in an hour of misses.
            if (status.error_number == EACCES && !told_of_denial_.exchange(true))
                (*log_)(LogLevel::info, "cache: {}", fetched.said.back());
            continue;
        }
        fetched.is_nowhere = false;
        if (status.error_number != EAGAIN && status.error_number != ECANCELED) {
            store_.count(cache::Event::remote_failure);
            const LogLevel level = told_of_failure_.exchange(true) ? LogLevel::debug : LogLevel::warn;
            (*log_)(level, "cache: {}", fetched.said.back());
        }
    }
    return fetched;
}

bool Remotes::push(const cache::Digest& key, const cache::Version& toolchain, const cache::Entry& entry,
                   const std::stop_token& stop) const {
    bool is_new = false;
    std::vector<std::string> troubles;
    for (const auto& remote : remotes_) {
        const auto pushed = remote->push(key, toolchain, entry, {kForAPush, false}, stop);
        if (!pushed)
            troubles.push_back(fmt::format("{}: {}", remote->name(), pushed.status().message));
        else
            is_new = is_new || *pushed;
    }
    if (!troubles.empty())
        throw CacheError(fmt::format("it could not be pushed to {}", fmt::join(troubles, "; ")));
    return is_new;
}

bool Remotes::offer(const cache::Digest& key, const cache::Version& toolchain, const cache::Entry& entry,
                    const std::stop_token& stop) const {
    bool is_new = false;
    if (!cannot_push_because_.empty()) return is_new;
    for (const auto& remote : remotes_) {
        const auto pushed = remote->push(key, toolchain, entry, {kWhereItCompiles, true}, stop);
        is_new = is_new || (pushed && *pushed);
        const int error = pushed.status().error_number;
        if (pushed || error == EAGAIN || error == ECANCELED) continue;
        store_.count(cache::Event::remote_failure);
        const LogLevel level = told_of_failed_push_.exchange(true) ? LogLevel::debug : LogLevel::warn;
        (*log_)(level, "cache: {}: what was compiled could not be pushed: {}", remote->name(),
                pushed.status().message);
    }
    return is_new;
}

void Remotes::require_used() const {
    if (!empty()) return;
    throw CacheError(
        passed_over_.empty()
            ? "there is no remote: name its address (http://, https:// or s3://) behind the cache directory"
            : fmt::format("no remote is used: {}", fmt::join(passed_over_, "; ")));
}

void Remotes::require_pushable() const {
    require_used();
    if (!cannot_push_because_.empty())
        throw InvalidRequest("sign_key_file", pushed_as_, cannot_push_because_);
}

std::vector<std::string> Remotes::names() const {
    std::vector<std::string> names;
    for (const auto& remote : remotes_) names.push_back(remote->name());
    return names;
}

}  // namespace attnsmith::engine
