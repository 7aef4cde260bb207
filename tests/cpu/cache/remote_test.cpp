#include "cache/remote/remote.hpp"

#include <cerrno>
#include <tuple>
#include "support/catch.hpp"

#include "cache/bundle_fixture.hpp"
#include "cache/memory_server.hpp"
#include "cache/remote/address.hpp"
#include "cache/remote_fixture.hpp"
#include "cache/signing/system_ed25519.hpp"

using namespace attnsmith::cache;
using namespace attnsmith::cache::testing;
using namespace std::chrono_literals;

namespace {

constexpr const char* kAddress = "http://cache.example/kernels";

struct Site {
    std::shared_ptr<MemoryServer> server = std::make_shared<MemoryServer>(kAddress);

    Remote remote(Signers signers = {}) const { return Remote(kAddress, server, std::move(signers)); }
};

struct Key {
    explicit Key(int number)
        : secret(seed(number)), is_public(ed25519().value()->public_key_of(secret).value()) {}
    static SecretKey seed(int number) {
        std::array<std::byte, SecretKey::kBytes> bytes{};
        bytes.fill(static_cast<std::byte>(number));
        return SecretKey(bytes);
    }
    Signers signs() const { return {{}, secret, ed25519().value()}; }

    SecretKey secret;
    PublicKey is_public;
};

Signers trusting(std::vector<PublicKey> keys) { return {std::move(keys), {}, ed25519().value()}; }

// What fetch() says, and what it took.
struct Outcome {
    int error = 0;
    std::string message;
    std::optional<Entry> entry;
};

Outcome fetch(const Remote& remote, const Remembered& wanted, std::optional<Version> only = {},
              std::string target = "sm_90a") {
    Outcome outcome;
    const Status status = remote.fetch({wanted.key, target, only},
                                       [&](const Version&, Entry entry) {
                                           outcome.entry = std::move(entry);
                                           return std::nullopt;
                                       },
                                       {2s, true});
    outcome.error = status.error_number;
    outcome.message = status.message;
    if (!status.ok()) CHECK(status.path == kAddress);
    return outcome;
}

bool push(const Remote& remote, const Remembered& one, Version version = kVersion) {
    const auto pushed = remote.push(one.key, version, one.entry, {10s, false});
    REQUIRE(pushed);
    return *pushed;
}

}  // namespace

TEST_CASE("what is pushed is fetched, byte for byte") {
    const Site site;
    const Remembered one, other("another");
    CHECK(fetch(site.remote(), one).error == ENOENT);
    CHECK(push(site.remote(), one));
    CHECK(fetch(site.remote(), one).entry == one.entry);
    CHECK(fetch(site.remote(), one, kVersion).entry == one.entry);
    CHECK(fetch(site.remote(), one, Version{12, 9, 1}).error == ENOENT);
    CHECK(fetch(site.remote(), other).error == ENOENT);

    const int puts = site.server->count("PUT");
    CHECK(puts == 3);
    CHECK_FALSE(push(site.remote(), one));
    CHECK(site.server->count("PUT") == puts);
}

TEST_CASE("the entry is put before what promises it") {
    const Site site;
    push(site.remote(), Remembered());
    std::vector<std::string> puts;
    for (const std::string& one : site.server->asked) {
        if (one.starts_with("PUT")) puts.push_back(one.substr(0, 7));
    }
    CHECK(puts == std::vector<std::string>{"PUT cas", "PUT ac/", "PUT ac/"});
}

TEST_CASE("the newest toolchain's entry is offered first, and what is refused leaves the next") {
    const Site site;
    const Remembered one;
    push(site.remote(), one, {12, 9, 1});
    push(site.remote(), one, {13, 0, 88});
    std::vector<Version> offered;
    const Status status =
        site.remote().fetch({one.key, "sm_90a"},
                            [&](const Version& version, const Entry&) -> std::optional<std::string> {
                                offered.push_back(version);
                                if (version.major == 13) return "the driver is older";
                                return std::nullopt;
                            },
                            {2s, true});
    CHECK(status.ok());
    CHECK(offered == std::vector<Version>{{13, 0, 88}, {12, 9, 1}});
}

TEST_CASE("a hint that is lost, or anything at all, costs no more than a compile") {
    const Site site;
    const Remembered one;
    push(site.remote(), one);
    for (const char* text : {"", "{}", "[1,2]", "\xff\xfe", "{\"schema\":7}"}) {
        site.server->files[hint_path(one.key)] = bytes_of(text);
        INFO(text);
        CHECK(fetch(site.remote(), one).error != 0);
        CHECK(fetch(site.remote(), one, kVersion).error == 0);
        // A push mends it.
        CHECK_FALSE(push(site.remote(), one));
        CHECK(fetch(site.remote(), one).error == 0);
    }
}

TEST_CASE("what another release has put there is passed over, and no push replaces it") {
    const Site site;
    const Remembered one;
    push(site.remote(), one);
    for (const auto& [path, word] : {std::pair(hint_path(one.key), "attnsmith.hint/1"),
                                     std::pair(manifest_path(one.key, kVersion), "attnsmith.manifest/1")}) {
        INFO(path);
        const std::vector<std::byte> ours = site.server->files.at(path);
        std::string text = text_of(ours);
        text.replace(text.find(word) + std::string(word).size() - 1, 1, "2");
        site.server->files[path] = bytes_of(text);
        const auto before = site.server->files;
        CHECK(fetch(site.remote(), one).error == EPROTONOSUPPORT);
        const auto pushed = site.remote().push(one.key, kVersion, one.entry, {10s, false});
        REQUIRE_FALSE(pushed);
        CHECK(pushed.status().error_number == EPROTONOSUPPORT);
        CHECK(site.server->files == before);
        site.server->files[path] = ours;
    }
    CHECK(fetch(site.remote(), one).error == 0);
}

TEST_CASE("no byte of an entry or a manifest may be another") {
    const Site site;
    const Key key(1);
    const Remembered one;
    push(site.remote(key.signs()), one);
    for (const std::string& path : {entry_path(one.manifest().sha256), manifest_path(one.key, kVersion)}) {
        auto& file = site.server->files.at(path);
        for (std::size_t i = 0; i < file.size(); ++i) {
            file[i] ^= std::byte{1};
            INFO(path << ", byte " << i);
            const Outcome outcome = fetch(site.remote(trusting({key.is_public})), one, kVersion);
            CHECK((outcome.error == EBADMSG || outcome.error == EPERM || outcome.error == EPROTONOSUPPORT ||
                   outcome.error == EFBIG || outcome.error == ENOENT));
            CHECK_FALSE(outcome.entry);
            file[i] ^= std::byte{1};
        }
        file.pop_back();
        CHECK(fetch(site.remote(trusting({key.is_public})), one, kVersion).error != 0);
        file.push_back(std::byte{'\n'});
    }
}

TEST_CASE("whose manifests are taken") {
    const Site site;
    const Key mine(1), theirs(2);
    const Remembered one;
    struct Case {
        Signers signs, trusts;
        int error;
    };
    const Case cases[] = {
        {{}, {}, 0},
        {mine.signs(), {}, 0},
        {{}, trusting({mine.is_public}), EPERM},
        {theirs.signs(), trusting({mine.is_public}), EPERM},
        {mine.signs(), trusting({mine.is_public}), 0},
        {mine.signs(), trusting({theirs.is_public, mine.is_public}), 0},
    };
    for (const Case& one_case : cases) {
        site.server->files.clear();
        push(site.remote(one_case.signs), one);
        const Outcome outcome = fetch(site.remote(one_case.trusts), one);
        CHECK(outcome.error == one_case.error);
        CHECK(outcome.entry.has_value() == (one_case.error == 0));
    }

    // Somebody else's manifest is replaced by who signs otherwise, and then left.
    push(site.remote(theirs.signs()), one);
    CHECK(push(site.remote(mine.signs()), one));
    CHECK_FALSE(push(site.remote(mine.signs()), one));
    CHECK(fetch(site.remote(trusting({mine.is_public})), one).error == 0);

    // A key's id is no proof.
    const std::string text = manifest_text(one.manifest());
    const auto forged = ed25519().value()->sign(theirs.secret, std::as_bytes(std::span(text)));
    site.server->files[manifest_path(one.key, kVersion)] =
        bytes_of(encode_manifest(text, SignedBy{mine.is_public.id(), forged.value()}));
    const Outcome outcome = fetch(site.remote(trusting({mine.is_public})), one);
    CHECK(outcome.error == EPERM);
    CHECK(outcome.message.find("wrong") != std::string::npos);
}

TEST_CASE("a manifest is believed for nothing but what it names") {
    const Site site;
    const Key key(1);
    const Remembered one, other("another"), elsewhere("attention", "sm_80");
    for (const Remembered* each : {&one, &other, &elsewhere}) push(site.remote(key.signs()), *each);
    push(site.remote(key.signs()), one, {12, 9, 1});
    auto& files = site.server->files;
    const auto remote = site.remote(trusting({key.is_public}));
    const auto mine = files.at(manifest_path(one.key, kVersion));

    files[manifest_path(one.key, kVersion)] = files.at(manifest_path(other.key, kVersion));
    CHECK(fetch(site.remote(trusting({key.is_public})), one, kVersion).error == EPERM);
    files[manifest_path(one.key, kVersion)] = files.at(manifest_path(elsewhere.key, kVersion));
    CHECK(fetch(site.remote(trusting({key.is_public})), one, kVersion).error == EPERM);
    files[manifest_path(one.key, kVersion)] = files.at(manifest_path(one.key, {12, 9, 1}));
    CHECK(fetch(site.remote(trusting({key.is_public})), one, kVersion).error == EPERM);
    files[manifest_path(one.key, kVersion)] = mine;
    CHECK(fetch(remote, one, kVersion, "sm_80").error == EPERM);
    CHECK(fetch(remote, one, kVersion).error == 0);
}

// Its manifest promises a toolchain, is signed and names these very bytes, but the bytes say another
// toolchain.
TEST_CASE("an entry of another toolchain than its manifest is refused") {
    const Site site;
    const Key key(1);
    const Remembered one;
    const Version promised{kVersion.major, kVersion.minor, kVersion.build + 1};
    push(site.remote(key.signs()), one);
    Manifest manifest = one.manifest();
    manifest.toolchain = promised;
    const std::string text = manifest_text(manifest);
    const auto signature = ed25519().value()->sign(key.secret, std::as_bytes(std::span(text)));
    site.server->files[manifest_path(one.key, promised)] =
        bytes_of(encode_manifest(text, SignedBy{key.is_public.id(), signature.value()}));
    const auto remote = site.remote(trusting({key.is_public}));

    const Outcome refused = fetch(remote, one, promised);
    CHECK(refused.error == EBADMSG);
    CHECK(refused.message == "the entry is another toolchain's than its manifest");
    CHECK_FALSE(refused.entry);
    CHECK(fetch(remote, one, kVersion).entry);  // the same bytes, under their own manifest

    // It is the newest by the hint, and the next one is taken in its place.
    site.server->files[hint_path(one.key)] = bytes_of(encode_hint(one.key, {kVersion}, promised));
    std::vector<Version> offered;
    const Status status = remote.fetch({one.key, "sm_90a", {}},
                                       [&](const Version& version, Entry) {
                                           offered.push_back(version);
                                           return std::nullopt;
                                       },
                                       {2s, true});
    CHECK(status.ok());
    CHECK(offered == std::vector{kVersion});
}

TEST_CASE("what a server answers is said") {
    const Site site;
    const Remembered one;
    push(site.remote(), one);
    for (const int status : {301, 400, 401, 403, 418, 500, 503}) {
        site.server->answer = [&](const HttpRequest&) { return HttpResponse{status, bytes_of("secret")}; };
        const Outcome outcome = fetch(site.remote(), one);
        CHECK(outcome.error == EREMOTEIO);
        CHECK(outcome.message == "the server answered " + std::to_string(status));
    }
    site.server->answer = [&](const HttpRequest&) { return HttpResponse{200, bytes_of("anything")}; };
    CHECK(fetch(site.remote(), one).error == EBADMSG);
    site.server->answer = [&](const HttpRequest& request) -> Result<HttpResponse> {
        return Status::recoverable_error(ECONNREFUSED, shown_address(request.url), "refused");
    };
    const Remote remote = site.remote();
    for (int i = 0; i < 3; ++i) CHECK(fetch(remote, one).error == ECONNREFUSED);
    CHECK(fetch(remote, one).error == EAGAIN);
    CHECK(remote.push(one.key, kVersion, one.entry, {1s, false}).status().error_number == ECONNREFUSED);
}

TEST_CASE("a remote that takes nothing is left alone by pushes, and by nothing else") {
    const Site site;
    const Remembered one;
    const Remote remote = site.remote();
    push(site.remote(), one);
    site.server->answer = [](const HttpRequest& request) {
        return HttpResponse{request.method == HttpMethod::put ? 403 : 0, {}};
    };
    const Remembered other("another");
    const auto error_of_push = [&] {
        return remote.push(other.key, kVersion, other.entry, {1s, false}).status().error_number;
    };
    for (int i = 0; i < 3; ++i) CHECK(error_of_push() == EREMOTEIO);
    const std::size_t asked = site.server->asked.size();
    CHECK(error_of_push() == EAGAIN);
    CHECK(site.server->asked.size() == asked);
    CHECK(fetch(remote, one).error == 0);
}

TEST_CASE("an entry that does not say what its key is of says nothing of the remote") {
    const Site site;
    const Remote remote = site.remote();
    const Remembered one;
    for (int i = 0; i < 4; ++i)
        CHECK(remote.push(one.key, kVersion, {"{}", one.entry.payload}, {1s, false}).status().error_number ==
              EINVAL);
    CHECK(push(remote, one));
}

TEST_CASE("a remote says how it is, also while it is left alone") {
    const Site site;
    const Key key(1), other(2);
    const Remembered one;
    const Remote remote = site.remote(trusting({key.is_public}));
    CHECK(remote.ask(1s)->status == 404);
    CHECK_FALSE(remote.ask(1s)->ahead);
    CHECK(remote.look(one.key, 1s).status().error_number == ENOENT);
    CHECK(remote.put_probe(1s).ok());
    CHECK(remote.put_probe(1s).ok());
    CHECK(site.server->files.size() == 1);
    CHECK(remote.ask(1s)->status == 200);

    const auto look = [&] {
        const auto seen = remote.look(one.key, 1s);
        REQUIRE(seen);
        CHECK(seen->toolchain == kVersion);
        return *seen;
    };
    push(site.remote(), one);
    CHECK(look().signed_by.empty());
    CHECK(look().judged.error_number == EPERM);
    push(site.remote(other.signs()), one);
    CHECK(look().signed_by == other.is_public.id());
    CHECK(look().judged.error_number == EPERM);
    push(site.remote(key.signs()), one);
    CHECK(look().signed_by == key.is_public.id());
    CHECK(look().judged.ok());

    for (const auto ahead : {0s, 3600s, -7200s}) {
        site.server->answer = [ahead](const HttpRequest&) {
            return HttpResponse{.status = 503, .body = {}, .date = std::chrono::system_clock::now() + ahead};
        };
        const auto answer = remote.ask(1s);
        REQUIRE(answer);
        CHECK(answer->status == 503);
        REQUIRE(answer->ahead);
        CHECK(std::chrono::abs(*answer->ahead - ahead) < 5s);
        for (int i = 0; i < 3; ++i) CHECK(fetch(remote, one).error != 0);
    }
    CHECK(fetch(remote, one).error == EAGAIN);
    CHECK(remote.ask(1s));
    CHECK(remote.put_probe(1s).error_number == EREMOTEIO);
    CHECK(remote.look(one.key, 1s).status().path == kAddress);
}

TEST_CASE("a remote that forgets its entries is filled again") {
    const Site site;
    const Remembered one;
    push(site.remote(), one);
    site.server->files.erase(entry_path(one.manifest().sha256));
    CHECK(fetch(site.remote(), one).error == ENOENT);
    CHECK(push(site.remote(), one));
    CHECK(fetch(site.remote(), one).error == 0);
}

TEST_CASE("a query stays behind the path") {
    const auto server = std::make_shared<MemoryServer>("http://host/base");
    std::string url;
    server->answer = [&](const HttpRequest& request) {
        url = request.url;
        return HttpResponse{404, {}};
    };
    const Remote remote("http://host/base/?token=1", server, {});
    const Remembered one;
    static_cast<void>(remote.fetch({one.key, "sm_90a"},
                                   [](const Version&, const Entry&) { return std::nullopt; }, {1s, true}));
    CHECK(url == "http://host/base/" + hint_path(one.key) + "?token=1");
    CHECK(remote.name() == "http://host/base");
}

TEST_CASE("a remote is called what people call it") {
    const auto server = std::make_shared<MemoryServer>("http://host/bucket");
    const Remembered one;
    const Remote remote("http://host/bucket", server, {}, "s3://bucket/");
    CHECK(remote.name() == "s3://bucket");
    const Status status = remote.fetch({one.key, "sm_90a"},
                                       [](const Version&, const Entry&) { return std::nullopt; }, {1s, true});
    CHECK(status.path == "s3://bucket");
    CHECK(server->asked.size() == 1);
}

namespace {

HttpResponse s3_error(int status, const std::string& code) {
    return {status, bytes_of("<?xml version=\"1.0\"?><Error><Code>" + code +
                             "</Code><Message>hidden</Message></Error>")};
}

}  // namespace

TEST_CASE("S3's denial of what is not there is a miss, and closes nothing") {
    const Site site;
    const Remembered one;
    site.server->answer = [&](const HttpRequest& request) {
        const bool there = site.server->files.contains(request.url.substr(std::string(kAddress).size() + 1));
        const bool denied = request.method != HttpMethod::put && !there;
        return denied ? s3_error(403, "AccessDenied") : HttpResponse{};
    };
    const Remote remote = site.remote();
    for (int i = 0; i < 10; ++i) {
        for (const auto only : {std::optional<Version>(), std::optional(kVersion)}) {
            const Outcome outcome = fetch(remote, one, only);
            CHECK(outcome.error == EACCES);
            CHECK(outcome.message.starts_with("the server answered 403 (AccessDenied)"));
            CHECK(outcome.message.find("s3:ListBucket") != std::string::npos);
            CHECK(outcome.message.find("hidden") == std::string::npos);
        }
    }
    CHECK(push(remote, one));
    CHECK(fetch(remote, one).error == 0);
    site.server->files.erase(entry_path(one.manifest().sha256));
    CHECK(fetch(remote, one).error == EACCES);

    // What may not be written is no miss.
    site.server->answer = [&](const HttpRequest&) { return s3_error(403, "AccessDenied"); };
    CHECK(remote.push(one.key, kVersion, one.entry, {1s, false}).status().error_number == EREMOTEIO);
}

TEST_CASE("S3's other errors are failures, with what they mean") {
    const Site site;
    const Remembered one;
    const std::tuple<int, const char*, const char*> errors[] = {
        {403, "SignatureDoesNotMatch", ": the secret"},
        {403, "RequestTimeTooSkewed", "clock"},
        {403, "InvalidAccessKeyId", "ID"},
        {400, "ExpiredToken", "expired"},
        {301, "PermanentRedirect", "region"},
        {404, "NoSuchBucket", "no such bucket"},
        {503, "SlowDown", "too many requests"},
        {403, "AccountProblem", "(AccountProblem)"},
    };
    for (const auto& [status, code, meaning] : errors) {
        INFO(code);
        site.server->answer = [&](const HttpRequest&) { return s3_error(status, code); };
        const Outcome outcome = fetch(site.remote(), one);
        CHECK(outcome.error == EREMOTEIO);
        CHECK(
            outcome.message.starts_with("the server answered " + std::to_string(status) + " (" + code + ")"));
        CHECK(outcome.message.find(meaning) != std::string::npos);
    }
    site.server->answer = [&](const HttpRequest&) { return s3_error(404, "NoSuchKey"); };
    CHECK(fetch(site.remote(), one).error == ENOENT);
}

TEST_CASE("a busy server is asked again by who has no better way") {
    const Site site;
    const Remembered one;
    push(site.remote(), one);
    int left = 0;
    site.server->answer = [&](const HttpRequest&) {
        return left-- > 0 ? s3_error(503, "SlowDown") : HttpResponse{};
    };
    const auto patient_fetch = [&](std::chrono::milliseconds limit, const std::stop_token& stop = {}) {
        return site.remote().fetch(
            {one.key, "sm_90a"}, [](const Version&, const Entry&) { return std::nullopt; }, {limit, false},
            stop);
    };
    left = 1;
    CHECK(fetch(site.remote(), one).error == EREMOTEIO);  // it compiles
    left = 2;
    CHECK(patient_fetch(10s).ok());
    left = 2;
    const Remembered other("another");
    CHECK(push(site.remote(), other));

    // Not for ever, nor past the time that it has.
    left = 1000;
    const std::size_t before = site.server->asked.size();
    CHECK(patient_fetch(600ms).error_number == EREMOTEIO);
    CHECK(site.server->asked.size() == before + 2);
    std::stop_source stopped;
    stopped.request_stop();
    const auto began = std::chrono::steady_clock::now();
    CHECK_FALSE(patient_fetch(10s, stopped.get_token()).ok());
    CHECK(std::chrono::steady_clock::now() - began < 1s);
}

TEST_CASE("a push does not replace a hint that it cannot read") {
    const Site site;
    const Remembered one;
    push(site.remote(), one, {12, 9, 1});
    const auto hint = site.server->files.at(hint_path(one.key));
    site.server->answer = [&](const HttpRequest& request) {
        const bool of_hint = request.method == HttpMethod::get && request.url.ends_with(hint_path(one.key));
        return HttpResponse{of_hint ? 500 : 0, {}};
    };
    CHECK(site.remote().push(one.key, kVersion, one.entry, {1s, false}).status().error_number == EREMOTEIO);
    CHECK(site.server->files.at(hint_path(one.key)) == hint);
}
