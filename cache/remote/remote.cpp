#include "cache/remote/remote.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "cache/remote/address.hpp"
#include "cache/remote/s3.hpp"
#include "cache/remote/url.hpp"

namespace attnsmith::cache {
namespace {

using Clock = Breaker::Clock;
using std::chrono::milliseconds;

constexpr int kOk = 200;
constexpr int kCreated = 201;
constexpr int kNoContent = 204;
constexpr int kNotFound = 404;
constexpr int kForbidden = 403;
constexpr int kMethodNotAllowed = 405;
constexpr int kNotImplemented = 501;
constexpr int kGone = 410;
constexpr int kTooManyRequests = 429;
constexpr int kUnavailable = 503;  // S3's SlowDown, too
// How long who has no better way waits before asking a busy server again: twice as long each time.
constexpr milliseconds kFirstBusyPause{250};
constexpr milliseconds kLastBusyPause{2000};
constexpr std::uint64_t kMaxAnswerBytes = 1 << 16;  // to a put, of which nobody reads any

// A URL with a query is a signed one, whose path is in the middle.
std::string url_below(const std::string& url, const std::string& path) {
    const std::size_t query = std::min(url.find_first_of("?#"), url.size());
    return without_last_slashes(url.substr(0, query)) + "/" + path + url.substr(query);
}

// Those whom a busy server told so together are not to come again together.
milliseconds spread(milliseconds pause) {
    return pause / 2 + milliseconds(Clock::now().time_since_epoch().count() % (pause.count() / 2 + 1));
}

bool is_busy(int status) { return status == kTooManyRequests || status == kUnavailable; }

// 202 says that it may be written later, and of the others nobody knows.
bool is_written(int status) { return status == kOk || status == kCreated || status == kNoContent; }

Status not_there() { return Status::recoverable_error(ENOENT, {}, "it has no entry"); }

Status left_alone() {
    return Status::recoverable_error(
        EAGAIN, {}, fmt::format("left alone for up to {} s after failures", Breaker::kRest.count()));
}

// Nothing that looks like a kernel, and the same for everybody: its place is that of its digest.
constexpr std::string_view kProbe = "attnsmith doctor was here\n";

std::string probe_path() { return entry_path(sha256_of(std::as_bytes(std::span(kProbe)))); }

// Others may understand it, so nobody who does not replaces it.
bool is_of_another_release(const Status& status) { return status.error_number == EPROTONOSUPPORT; }

std::string answer_text(const HttpResponse& answer, const std::string& s3_code) {
    std::string text = fmt::format("the server answered {}", answer.status);
    if (!s3_code.empty()) text += fmt::format(" ({})", s3_code);
    if (const std::string_view meaning = s3_error_meaning(s3_code); !meaning.empty())
        text += fmt::format(": {}", meaning);
    return text;
}

Status failed(const HttpResponse& answer) {
    return Status::recoverable_error(EREMOTEIO, {}, answer_text(answer, s3_error_code(answer.body)));
}

// The same of a PUT that wrote nothing.
Status why_not_put(const HttpResponse& answer) {
    if (answer.status != kMethodNotAllowed && answer.status != kNotImplemented) return failed(answer);
    return Status::recoverable_error(
        EREMOTEIO, {},
        fmt::format(
            "the server takes no files (it answered {} to a PUT); push to one that does, such as S3 or "
            "nginx with dav_methods PUT",
            answer.status));
}

// What an answer to a GET other than 200 says of what was asked for.
Status why_not_got(const HttpResponse& answer) {
    const std::string code = s3_error_code(answer.body);
    // S3 says this of what is not there to who may not list the bucket, lest names be guessed.
    if (answer.status == kForbidden && code == "AccessDenied")
        return Status::recoverable_error(
            EACCES, {},
            answer_text(answer, code) +
                ": it has no entry, or it may not be read; with s3:ListBucket the server says which");
    const bool absent = answer.status == kNotFound || answer.status == kGone;
    return absent && code != "NoSuchBucket" ? not_there() : failed(answer);
}

// Not there for who asks, which is nothing that went wrong.
bool is_miss(const Status& status) { return status.error_number == ENOENT || status.error_number == EACCES; }

// Empty where the probe came, or the server says in a server's words that it is not there.
std::string fault_of_probe(const HttpResponse& answer) {
    if (answer.status == kOk) {
        const auto probe = std::as_bytes(std::span(kProbe));
        return std::ranges::equal(answer.body, probe)
                   ? ""
                   : "it answers with something else than what was asked for";
    }
    const Status reason = why_not_got(answer);
    return reason.error_number == ENOENT ? "" : reason.message;
}

}  // namespace

// One fetch or push: what is left of its time.
class Remote::Visit {
  public:
    // A server that is busy is asked again where `is_patient`; else a compile is the better way.
    Visit(HttpClient& client, const std::string& url, Clock::time_point end, bool is_patient,
          const std::stop_token& stop)
        : client_(client), url_(url), end_(end), is_patient_(is_patient), stop_(stop) {}

    Result<HttpResponse> get(const std::string& path, std::uint64_t max_bytes) const {
        return perform({.method = HttpMethod::get, .url = url_below(url_, path), .max_bytes = max_bytes});
    }

    Status put(const std::string& path, std::span<const std::byte> body) const {
        const Result<HttpResponse> answer = perform({.method = HttpMethod::put,
                                                     .url = url_below(url_, path),
                                                     .body = body,
                                                     .max_bytes = kMaxAnswerBytes});
        if (!answer) return answer.status();
        return is_written(answer->status) ? Status::success() : why_not_put(*answer);
    }

  private:
    Result<HttpResponse> perform(HttpRequest request) const {
        request.stop = stop_;
        for (milliseconds pause = kFirstBusyPause;; pause *= 2) {
            request.timeout = std::chrono::ceil<milliseconds>(end_ - Clock::now());
            if (request.timeout <= milliseconds(0))
                return Status::recoverable_error(ETIMEDOUT, {}, "it took too long");
            Result<HttpResponse> answer = client_.perform(request);
            const bool again = is_patient_ && answer && is_busy(answer->status) && pause <= kLastBusyPause &&
                               Clock::now() + pause < end_;
            if (!again) return answer;
            wait(spread(pause));
        }
    }

    // Less where it is stopped, which the next request then says.
    void wait(milliseconds time) const {
        std::mutex mutex;
        std::condition_variable_any never;
        std::unique_lock lock(mutex);
        never.wait_for(lock, stop_, time, [] { return false; });
    }

    HttpClient& client_;
    const std::string& url_;
    const Clock::time_point end_;
    const bool is_patient_;
    const std::stop_token& stop_;
};

Remote::Remote(std::string url, std::shared_ptr<HttpClient> client, Signers signers, std::string name)
    : url_(std::move(url)),
      name_(without_last_slashes(name.empty() ? shown_address(url_) : std::move(name))),
      client_(std::move(client)),
      signers_(std::move(signers)) {}

Status Remote::at_remote(Status status) const {
    if (!status.ok()) status.path = name_;
    return status;
}

Status Remote::fetch(const Wanted& wanted, const Offer& offer, Patience patience,
                     const std::stop_token& stop) const {
    const Clock::time_point began = Clock::now();
    const auto allowed = breaker_.allow(began, patience.limit, patience.counts);
    if (!allowed) return at_remote(left_alone());
    const Visit visit(*client_, url_, began + *allowed, !patience.counts, stop);
    Status status =
        wanted.only ? fetch_version(wanted, *wanted.only, offer, visit) : fetch_newest(wanted, offer, visit);
    if (status.error_number == ECANCELED) return at_remote(std::move(status));
    // What another release left there is no fault of the server's.
    const bool absent = is_miss(status) || is_of_another_release(status);
    const auto outcome = status.ok() ? Breaker::Outcome::fetched
                         : absent    ? Breaker::Outcome::absent
                                     : Breaker::Outcome::failed;
    breaker_.note(began, Clock::now(), outcome, patience.counts);
    return at_remote(std::move(status));
}

// Newest first. ENOENT: none.
Result<std::vector<Version>> Remote::versions_there(const Digest& key, const Visit& visit) const {
    const Result<HttpResponse> answer = visit.get(hint_path(key), kMaxHintBytes);
    if (!answer) return answer.status();
    if (answer->status != kOk) return why_not_got(*answer);
    return parse_hint(key, answer->body);
}

Status Remote::fetch_newest(const Wanted& wanted, const Offer& offer, const Visit& visit) const {
    const auto versions = versions_there(wanted.key, visit);
    if (!versions) return versions.status();
    Status first = not_there();  // that says more than that nothing is there
    for (const Version& version : *versions) {
        Status status = fetch_version(wanted, version, offer, visit);
        if (status.ok() || status.error_number == ECANCELED || status.error_number == ETIMEDOUT)
            return status;
        if (is_miss(first)) first = std::move(status);
    }
    return first;
}

Status Remote::fetch_version(const Wanted& wanted, const Version& version, const Offer& offer,
                             const Visit& visit) const {
    const Result<HttpResponse> answer = visit.get(manifest_path(wanted.key, version), kMaxManifestBytes);
    if (!answer) return answer.status();
    if (answer->status != kOk) return why_not_got(*answer);
    const auto parsed = parse_manifest(answer->body);
    if (!parsed) return parsed.status();
    if (!signers_.trusted.empty()) {
        if (Status judged = check_signature(*parsed, signers_.trusted); !judged.ok()) return judged;
    }
    const Manifest& manifest = parsed->manifest;
    // A signed manifest is believed for what it names and nothing else, wherever somebody put it.
    if (manifest.key != wanted.key || manifest.toolchain != version || manifest.target != wanted.target) {
        return Status::recoverable_error(
            EPERM, {},
            fmt::format("the manifest of another entry is in its place: key {}, toolchain {}, {}",
                        manifest.key.hex(), manifest.toolchain.to_string(), manifest.target));
    }

    const Result<HttpResponse> bytes = visit.get(entry_path(manifest.sha256), manifest.bytes);
    if (!bytes) return bytes.status();
    // Not there: evicted, and the manifest is older.
    if (bytes->status != kOk) return why_not_got(*bytes);
    if (bytes->body.size() != manifest.bytes || sha256_of(bytes->body) != manifest.sha256)
        return Status::recoverable_error(EBADMSG, {}, "the bytes are not those of the manifest");
    DecodeResult decoded = decode_entry(bytes->body, wanted.key);
    if (const auto* failure = std::get_if<DecodeFailure>(&decoded)) {
        const int error = failure->kind == DecodeFailureKind::other_format ? EPROTONOSUPPORT : EBADMSG;
        return Status::recoverable_error(error, {},
                                         fmt::format("what it has is no entry: {}", failure->reason));
    }
    DecodedEntry& entry = std::get<DecodedEntry>(decoded);
    if (entry.version != version)
        return Status::recoverable_error(EBADMSG, {}, "the entry is another toolchain's than its manifest");
    if (const auto refused = offer(version, std::move(entry.entry)))
        return Status::recoverable_error(EBADMSG, {}, fmt::format("its entry was not taken: {}", *refused));
    return Status::success();
}

Status Remote::check_signature(const ParsedManifest& parsed, std::span<const PublicKey> by) const {
    if (!parsed.signed_by) return Status::recoverable_error(EPERM, {}, "the manifest is not signed");
    const std::string& id = parsed.signed_by->key_id;
    for (const PublicKey& key : by) {
        if (key.id() != id) continue;
        const Result<bool> right = signers_.ed25519->verify(key, std::as_bytes(std::span(parsed.signed_text)),
                                                            parsed.signed_by->signature);
        if (!right) return right.status();
        if (*right) return Status::success();
        return Status::recoverable_error(EPERM, {},
                                         fmt::format("the manifest's signature by {} is wrong", id));
    }
    return Status::recoverable_error(
        EPERM, {}, fmt::format("the manifest is signed by {}, which is no trusted key", id));
}

Result<bool> Remote::push(const Digest& key, const Version& toolchain, const Entry& entry, Patience patience,
                          const std::stop_token& stop) const {
    const Clock::time_point began = Clock::now();
    const auto allowed = push_breaker_.allow(began, patience.limit, patience.counts);
    if (!allowed) return at_remote(left_alone());
    Result<bool> pushed =
        push_within(key, toolchain, entry, Visit(*client_, url_, began + *allowed, !patience.counts, stop));
    const int error = pushed.status().error_number;
    if (error != ECANCELED && error != EINVAL) {  // which say nothing of the remote
        const auto outcome = pushed ? Breaker::Outcome::fetched : Breaker::Outcome::failed;
        push_breaker_.note(began, Clock::now(), outcome, patience.counts);
    }
    return pushed ? std::move(pushed) : at_remote(pushed.status());
}

Result<bool> Remote::push_within(const Digest& key, const Version& toolchain, const Entry& entry,
                                 const Visit& visit) const {
    const std::vector<std::byte> bytes = encode_entry(key, toolchain, entry);
    const auto manifest = manifest_of(key, toolchain, entry, bytes);
    if (!manifest) return Status::recoverable_error(EINVAL, {}, "the entry does not say what its key is of");
    const Result<bool> there = has_good_entry(*manifest, visit);
    if (!there) return there.status();
    if (!*there) {
        const auto document = signed_document(*manifest);
        if (!document) return document.status();
        // The entry first: a manifest that is there promises it.
        Status put = visit.put(entry_path(manifest->sha256), bytes);
        if (put.ok()) {
            put = visit.put(manifest_path(key, toolchain), std::as_bytes(std::span(*document)));
        }
        if (!put.ok()) return put;
    }
    if (Status put = push_hint(key, toolchain, visit); !put.ok()) return put;
    return !*there;
}

Result<Remote::Answer> Remote::ask(milliseconds limit) const {
    const Clock::time_point began = Clock::now();
    const auto sent = std::chrono::system_clock::now();
    const std::stop_token never;
    const Visit visit(*client_, url_, began + limit, false, never);
    const Result<HttpResponse> response = visit.get(probe_path(), kMaxAnswerBytes);
    if (!response) return at_remote(response.status());
    Answer answer{
        .status = response->status, .fault = fault_of_probe(*response), .took = Clock::now() - began};
    // The server wrote its date some time between the two, and left out the parts of the second.
    if (response->date) answer.ahead = *response->date + milliseconds(500) - (sent + answer.took / 2);
    return answer;
}

Status Remote::put_probe(milliseconds limit) const {
    const std::stop_token never;
    const Visit visit(*client_, url_, Clock::now() + limit, false, never);
    if (Status put = visit.put(probe_path(), std::as_bytes(std::span(kProbe))); !put.ok())
        return at_remote(put);
    const Result<HttpResponse> there = visit.get(probe_path(), kMaxAnswerBytes);
    if (!there) return at_remote(there.status());
    const std::string fault = there->status == kNotFound ? "it is not there" : fault_of_probe(*there);
    if (fault.empty()) return Status::success();
    return at_remote(Status::recoverable_error(
        EBADMSG, {}, fmt::format("it took what was put and then did not have it: {}", fault)));
}

Result<Remote::SeenManifest> Remote::look(const Digest& key, milliseconds limit) const {
    const std::stop_token never;
    Result<SeenManifest> seen = look_at(key, Visit(*client_, url_, Clock::now() + limit, false, never));
    return seen ? std::move(seen) : at_remote(seen.status());
}

Result<Remote::SeenManifest> Remote::look_at(const Digest& key, const Visit& visit) const {
    const auto versions = versions_there(key, visit);
    if (!versions) return versions.status();
    for (const Version& version : *versions) {
        const Result<HttpResponse> answer = visit.get(manifest_path(key, version), kMaxManifestBytes);
        if (!answer) return answer.status();
        if (answer->status != kOk) {
            Status reason = why_not_got(*answer);
            if (is_miss(reason)) continue;
            return reason;
        }
        const auto parsed = parse_manifest(answer->body);
        if (!parsed) return parsed.status();
        SeenManifest seen{.toolchain = version, .signed_by = {}, .judged = {}};
        if (parsed->signed_by) seen.signed_by = parsed->signed_by->key_id;
        if (!signers_.trusted.empty()) seen.judged = check_signature(*parsed, signers_.trusted);
        return seen;
    }
    return not_there();
}

Result<std::string> Remote::signed_document(const Manifest& manifest) const {
    const std::string text = manifest_text(manifest);
    if (!signers_.own) return encode_manifest(text, {});
    const auto own = signers_.ed25519->public_key_of(*signers_.own);
    if (!own) return own.status();
    const auto signature = signers_.ed25519->sign(*signers_.own, std::as_bytes(std::span(text)));
    if (!signature) return signature.status();
    return encode_manifest(text, SignedBy{own->id(), *signature});
}

// Whether there is an entry of this key, toolchain and target already, which those who trust our key would
// take: no two compiles give the same bytes, for an entry says when it was made.
Result<bool> Remote::has_good_entry(const Manifest& ours, const Visit& visit) const {
    const Result<HttpResponse> answer = visit.get(manifest_path(ours.key, ours.toolchain), kMaxManifestBytes);
    if (!answer) return answer.status();
    if (answer->status != kOk) {
        Status reason = why_not_got(*answer);
        return is_miss(reason) ? Result<bool>(false) : Result<bool>(std::move(reason));
    }
    const auto parsed = parse_manifest(answer->body);
    if (is_of_another_release(parsed.status())) return parsed.status();
    if (!parsed || parsed->manifest.key != ours.key || parsed->manifest.toolchain != ours.toolchain ||
        parsed->manifest.target != ours.target)
        return false;
    if (signers_.own) {
        const auto own = signers_.ed25519->public_key_of(*signers_.own);
        if (!own) return own.status();
        if (!check_signature(*parsed, {&*own, 1}).ok()) return false;
    }
    // Read whole: a server that lost or cut bytes once would keep everybody from the kernel for ever.
    const Manifest& theirs = parsed->manifest;
    const Result<HttpResponse> entry = visit.get(entry_path(theirs.sha256), theirs.bytes);
    if (!entry) return entry.status().error_number == EFBIG ? Result<bool>(false) : entry.status();
    return entry->status == kOk && entry->body.size() == theirs.bytes &&
           sha256_of(entry->body) == theirs.sha256;
}

// Two who do so at a time may lose one's toolchain, which costs its users one compile.
Status Remote::push_hint(const Digest& key, const Version& toolchain, const Visit& visit) const {
    const std::string place = hint_path(key);
    const Result<HttpResponse> there = visit.get(place, kMaxHintBytes);
    if (!there && there.status().error_number != EFBIG) return there.status();
    std::vector<Version> versions;
    if (there && there->status != kOk) {
        // A server that fails to say what is there may have other toolchains, which are not overwritten.
        if (Status reason = why_not_got(*there); !is_miss(reason)) return reason;
    } else if (there) {
        auto listed = parse_hint(key, there->body);
        if (is_of_another_release(listed.status())) return listed.status();
        if (listed) versions = std::move(*listed);
    }
    if (std::ranges::find(versions, toolchain) != versions.end()) return Status::success();
    const std::string hint = encode_hint(key, std::move(versions), toolchain);
    return visit.put(place, std::as_bytes(std::span(hint)));
}

}  // namespace attnsmith::cache
