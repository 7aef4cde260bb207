#include "cli/doctor/remotes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "attnsmith/error.hpp"
#include "cache/signing/keys.hpp"
#include "cache/signing/system_ed25519.hpp"
#include "cli/program/command.hpp"
#include "cli/program/output.hpp"
#include "reports/remote_health.hpp"
#include "settings/signing_keys.hpp"

namespace attnsmith::cli {
namespace {

using Json = nlohmann::ordered_json;
using engine::RemoteHealth;

// Signed requests and TLS bear some minutes; a clock that is off by more than this runs freely.
constexpr std::chrono::seconds kMostClockError{60};

constexpr int kUnauthorized = 401;
constexpr int kForbidden = 403;

std::string who_asks(const RemoteHealth& remote) {
    if (remote.address.starts_with("s3://"))
        return "say who asks with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, and see "
               "that the bucket's policy lets them in (s3:GetObject, s3:PutObject; with s3:ListBucket the "
               "server says what is not there)";
    return "say who asks with ATTNSMITH_CACHE_TOKEN, ATTNSMITH_CACHE_USER, ATTNSMITH_CACHE_NETRC, "
           "ATTNSMITH_CACHE_HEADERS or ATTNSMITH_CACHE_CERT, and see that the server lets that user in. S3 "
           "answers 403 also for what is not there, to who may not list the bucket";
}

bool is_refusal(int status) { return status == kUnauthorized || status == kForbidden; }

Finding finding_of(const RemoteHealth& remote, const char* name) {
    return {.name = name, .text = remote.address, .remedy = {}, .facts = {{"address", remote.address}}};
}

std::string unreachable_remedy(const cache::Status& status) {
    switch (status.error_number) {
        case ETIMEDOUT:
            return "see whether the server hangs, and whether a firewall or a proxy (http_proxy, "
                   "https_proxy) "
                   "is in the way; meanwhile kernels are compiled";
        case ECONNREFUSED:
            return "see whether the server runs and its port is right; meanwhile kernels are compiled";
        case EHOSTUNREACH:
            return "correct the name in the address, or see why it is not resolved here";
        case EPROTO:
            return "see that the address is of an HTTP server. Of a certificate of an authority of your own, "
                   "name that with ATTNSMITH_CACHE_CA=FILE; certificates also need a clock that is right";
        default:
            return "correct the address, or take it out of the list";
    }
}

// Not asked at all: the variables for it do not fit, or there is no libcurl.
Finding unopened_finding(const RemoteHealth& remote) {
    Finding finding = finding_of(remote, "remote");
    finding.health = Health::warn;
    finding.text += "; not used: " + remote.opened.to_string();
    finding.remedy = "do what it says, or take the address out of the list of directories";
    finding.facts["used"] = false;
    finding.facts["not_used_because"] = remote.opened.to_string();
    return finding;
}

// Whether it answers, and whether it is used.
Finding reach_finding(const RemoteHealth& remote) {
    Finding finding = finding_of(remote, "remote");
    finding.facts["reachable"] = remote.reached.ok();
    finding.facts["tls"] = remote.encrypted;
    finding.facts["used"] = remote.not_used_because.empty();
    if (!remote.reached.ok()) {
        finding.health = Health::warn;
        const bool is_late = remote.reached.error_number == ETIMEDOUT;
        finding.text += fmt::format(
            ": no answer{}: {}",
            is_late ? fmt::format(" within {} s", engine::kLongestExamination.count()) : std::string(),
            remote.reached.message);
        finding.remedy = unreachable_remedy(remote.reached);
        finding.facts["not_reachable_because"] = remote.reached.message;
        return finding;
    }
    const std::chrono::duration<double, std::milli> took = remote.answer.took;
    finding.text += fmt::format(": answered in {:.0f} ms, {}", took.count(),
                                remote.encrypted ? "by TLS with a good certificate" : "without TLS");
    finding.facts["http_status"] = remote.answer.status;
    finding.facts["milliseconds"] = took.count();
    if (!remote.answer.fault.empty() && !remote.seen_key) {
        finding.health = Health::warn;
        finding.text += "; but " + remote.answer.fault;
        finding.remedy = is_refusal(remote.answer.status)
                             ? who_asks(remote)
                             : "see that the address is the one that is pushed to, and the server's log";
    } else if (!remote.not_used_because.empty()) {
        finding.health = Health::warn;
        finding.text += "; not used: nobody's signature is trusted there";
        finding.remedy =
            "name a public key with ATTNSMITH_CACHE_TRUST_KEYS or --trust-key FILE, or take anybody's "
            "kernels "
            "with --cache-trust all";
    }
    return finding;
}

// By whose key the kernels there are signed.
Finding signature_finding(const RemoteHealth& remote, const engine::Settings& settings) {
    Finding finding = finding_of(remote, "remote keys");
    std::vector<std::string> trusted;
    for (const cache::PublicKey& key : settings.trusted_keys) trusted.push_back(key.id());
    finding.facts["trusted_keys"] = trusted;
    finding.facts["looked_for"] = remote.looked_for;
    const std::string whom = trusted.empty()
                                 ? "no key is trusted"
                                 : fmt::format("trusted {} {}", trusted.size() == 1 ? "is key" : "are keys",
                                               fmt::join(trusted, ", "));
    if (!remote.look.ok()) {
        finding.health = Health::warn;
        finding.text += fmt::format(": no manifest could be looked at: {}; {}", remote.look.message, whom);
        finding.remedy =
            "see the server's log, and who may read there; a file that is no manifest is replaced by "
            "`attnsmith cache push`";
        return finding;
    }
    if (!remote.seen_key) {
        finding.text +=
            remote.looked_for == 0
                ? fmt::format(": no manifest to look at, since the cache has no kernel; {}", whom)
                : fmt::format(": no manifest to look at: it has none of {} that the cache has; {}",
                              counted(remote.looked_for, "kernel"), whom);
        return finding;
    }
    const std::string& signed_by = remote.seen.signed_by;
    finding.facts["key"] = remote.seen_key->hex();
    finding.facts["toolchain"] = remote.seen.toolchain.to_string();
    finding.facts["signed_by"] = signed_by.empty() ? Json() : Json(signed_by);
    finding.facts["trusted"] = remote.seen.judged.ok() && remote.not_used_because.empty();
    finding.text += fmt::format(": its kernel {} is {}; {}", remote.seen_key->hex().substr(0, 8),
                                signed_by.empty() ? "not signed" : "signed by key " + signed_by, whom);
    if (remote.seen.judged.ok()) return finding;
    finding.health = Health::warn;
    finding.text += ": " + remote.seen.judged.message;
    finding.remedy =
        "trust that key, if it is meant (--trust-key, ATTNSMITH_CACHE_TRUST_KEYS), or push again "
        "with one that is trusted (`attnsmith cache push --sign-key FILE`)";
    return finding;
}

Finding clock_finding(const RemoteHealth& remote) {
    Finding finding = finding_of(remote, "remote clock");
    if (!remote.answer.ahead) {
        finding.text += ": it does not say what time it is (Date)";
        finding.facts["clock_ahead_s"] = nullptr;
        return finding;
    }
    const auto ahead = std::chrono::round<std::chrono::seconds>(*remote.answer.ahead).count();
    finding.facts["clock_ahead_s"] = ahead;
    if (std::llabs(ahead) <= kMostClockError.count()) {
        finding.text += ": as this machine's, to the minute";
        return finding;
    }
    finding.health = Health::warn;
    finding.text +=
        fmt::format(": {} s {} this machine's", std::llabs(ahead), ahead > 0 ? "ahead of" : "behind");
    finding.remedy =
        "set the clock that is wrong (timedatectl, chrony): certificates and signed requests (S3) need both "
        "to agree";
    return finding;
}

Finding write_finding(const RemoteHealth& remote) {
    Finding finding = finding_of(remote, "remote write");
    const cache::Status& written = remote.written       ? *remote.written
                                   : remote.opened.ok() ? remote.reached
                                                        : remote.opened;
    finding.facts["writable"] = written.ok();
    if (written.ok()) {
        finding.text += ": can be written; a line of text was put there and stays (below cas/)";
        return finding;
    }
    finding.health = Health::fail;
    finding.text += ": cannot be written: " + written.message;
    finding.remedy =
        "let this user PUT below ac/ and cas/, or push from another machine; the server's log says why it "
        "did not, be it the user, the path or its disk. Else " +
        who_asks(remote);
    return finding;
}

// Whether what is pushed from here would be taken; `pushes` where that is what was asked.
Finding sign_key_finding(const engine::Settings& settings, bool pushes) {
    Finding finding{.name = "sign key", .text = settings.sign_key_file, .remedy = {}, .facts = {}};
    finding.facts["file"] = settings.sign_key_file;
    try {
        const cache::SecretKey secret =
            engine::read_sign_key(settings.sign_key_named_by, settings.sign_key_file);
        const auto library = cache::ed25519();
        if (!library) throw CacheError(library.status().to_string());
        const auto key = (*library)->public_key_of(secret);
        if (!key) throw CacheError(key.status().to_string());
        finding.facts["signs_as"] = key->id();
        finding.text += ": key " + key->id();
        if (settings.trusted_keys.empty() || engine::trusts(settings, *key)) return finding;
        finding.text += ", which is not trusted here: nothing is pushed";
        finding.remedy = "trust its public key, too (--trust-key, ATTNSMITH_CACHE_TRUST_KEYS)";
    } catch (const Error& error) {
        finding.text = error.what();
        finding.remedy = "name the file of a secret key that this user may read, and nobody else";
    }
    finding.health = pushes ? Health::fail : Health::warn;
    return finding;
}

Finding missing_sign_key_finding() {
    return {.health = Health::fail,
            .name = "sign key",
            .text = "none, where only what trusted keys signed is taken: nothing is pushed",
            .remedy =
                "name the file of a secret key whose public key is trusted here (--sign-key, "
                "ATTNSMITH_CACHE_SIGN_KEY)",
            .facts = nlohmann::ordered_json::object()};
}

}  // namespace

std::vector<Finding> remote_findings(const engine::Settings& settings,
                                     const std::vector<engine::KernelEntry>& kernels, bool write) {
    if (settings.remotes.empty()) {
        if (!write) return {};
        throw BadUsage(
            "--write is for remotes, and there is none: name its address behind the cache directory");
    }
    std::vector<Finding> findings;
    for (const RemoteHealth& remote : engine::examine_remotes(settings, kernels, write)) {
        findings.push_back(remote.opened.ok() ? reach_finding(remote) : unopened_finding(remote));
        if (remote.opened.ok() && remote.reached.ok()) {
            findings.push_back(signature_finding(remote, settings));
            findings.push_back(clock_finding(remote));
        }
        if (write) findings.push_back(write_finding(remote));
    }
    if (!settings.sign_key_file.empty())
        findings.push_back(sign_key_finding(settings, write));
    else if (write && !settings.trusted_keys.empty())
        findings.push_back(missing_sign_key_finding());
    for (const std::string& warning : settings.http.warnings)
        findings.push_back({.health = Health::warn,
                            .name = "remote",
                            .text = warning,
                            .remedy = "add the host to the file, unless its server asks nobody",
                            .facts = {{"variable", "ATTNSMITH_CACHE_NETRC"}}});
    return findings;
}

}  // namespace attnsmith::cli
