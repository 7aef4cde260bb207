#include "engine/cubins/remotes.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <map>
#include <utility>

#include "cache/remote/s3.hpp"
#include "cache/signing/ed25519.hpp"
#include "engine/cubins/cubin_entry.hpp"
#include "engine/signing_keys.hpp"

namespace attnsmith::engine {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWhereItCompiles{2000};
constexpr milliseconds kWhereNothingElseDoes{30000};
constexpr milliseconds kForAPush{60000};

const RemoteAccess& access_of(const Settings& settings, const std::string& address) {
    return cache::is_s3_address(address) ? settings.s3 : settings.http;
}

cache::Result<std::string> url_of(const Settings& settings, const std::string& address) {
    if (!cache::is_s3_address(address)) return address;
    return cache::s3_url(address, settings.s3_service);
}

struct Client {
    std::shared_ptr<cache::HttpClient> http;
    std::string trouble;  // why there is none
};

Client open_client(const Settings& settings, const RemoteAccess& access) {
    if (settings.http_client) return {settings.http_client, {}};
    auto opened = cache::open_curl(access.access);
    if (!opened) return {nullptr, opened.status().to_string()};
    return {std::move(opened).value(), {}};
}

cache::Signers signers_of(const Settings& settings) {
    cache::Signers signers;
    if (settings.trusted_keys.empty() && settings.sign_key_file.empty()) return signers;
    const auto library = cache::ed25519();
    if (!library) throw CacheError(library.status().to_string());
    signers.ed25519 = *library;
    signers.trusted = settings.trusted_keys;
    if (!settings.sign_key_file.empty())
        signers.own = read_sign_key("ATTNSMITH_CACHE_SIGN_KEY", settings.sign_key_file);
    return signers;
}

}  // namespace

std::string why_not_asked(const Settings& settings, const std::string& address) {
    if (settings.trusted_keys.empty() && settings.cache_trust != cache::Trust::all)
        return "nobody's signature is trusted there; name a public key (--trust-key, "
               "ATTNSMITH_CACHE_TRUST_KEYS), or take anybody's kernels by --cache-trust all";
    const std::string& trouble = access_of(settings, address).trouble;
    return trouble.empty() ? url_of(settings, address).status().message : trouble;
}

Remotes::Remotes(const Settings& settings, const cache::Store& store, std::shared_ptr<const Log> log)
    : store_(store), log_(std::move(log)) {
    if (settings.remotes.empty()) return;
    const cache::Signers signers = signers_of(settings);
    std::map<const RemoteAccess*, Client> clients;  // one for all remotes of a kind
    for (const std::string& address : settings.remotes) {
        std::string reason = why_not_asked(settings, address);
        if (reason.empty()) {
            const RemoteAccess& access = access_of(settings, address);
            const auto [kind, is_new] = clients.try_emplace(&access);
            if (is_new) kind->second = open_client(settings, access);
            reason = kind->second.trouble;
            if (reason.empty())
                remotes_.push_back(std::make_unique<cache::Remote>(
                    *url_of(settings, address), kind->second.http, signers, cache::shown_address(address)));
        }
        if (!reason.empty()) pass_over(cache::shown_address(address), reason);
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
        } else if (status.error_number != EAGAIN && status.error_number != ECANCELED) {
            store_.count(cache::Event::remote_failure);
            const LogLevel level = told_of_failure_.exchange(true) ? LogLevel::debug : LogLevel::warn;
            (*log_)(level, "cache: {}", fetched.said.back());
        }
    }
    return fetched;
}

bool Remotes::push(const KernelSource& source, const Cubin& cubin, bool with_source,
                   const std::stop_token& stop) const {
    const cache::Entry entry = to_entry(source, cubin, with_source);
    bool is_new = false;
    for (const auto& remote : remotes_) {
        const auto pushed = remote->push(source.key, cubin.toolchain, entry, kForAPush, stop);
        if (!pushed) {
            throw CacheError(
                fmt::format("it could not be pushed to {}: {}", remote->name(), pushed.status().message));
        }
        is_new = is_new || *pushed;
    }
    return is_new;
}

}  // namespace attnsmith::engine
