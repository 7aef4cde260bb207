// What a runtime's options and the environment come to.
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "cache/fixture.hpp"
#include "cache/signing/system_ed25519.hpp"
#include "cubins/store_options.hpp"
#include "problem/expect.hpp"
#include "settings/environment.hpp"
#include "support/catch.hpp"

using namespace attnsmith;

namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

// What attnsmith could read of the environment is as these say it, and as before afterwards.
class Environment {
  public:
    explicit Environment(Variables set) {
        for (const std::string& name : variables()) {
            const char* const value = std::getenv(name.c_str());
            before_.emplace(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
            ::unsetenv(name.c_str());
        }
        for (const auto& [name, value] : set) {
            before_.emplace(name, std::nullopt);  // where it was not set
            ::setenv(name.c_str(), value.c_str(), 1);
        }
    }
    Environment(const Environment&) = delete;
    Environment& operator=(const Environment&) = delete;
    ~Environment() {
        for (const auto& [name, value] : before_) {
            if (value)
                ::setenv(name.c_str(), value->c_str(), 1);
            else
                ::unsetenv(name.c_str());
        }
    }

  private:
    // Those of attnsmith's and of AWS that are set, whatever they are called, and those of the system that
    // say where a user's files are.
    static std::vector<std::string> variables() {
        std::vector<std::string> names = {"XDG_CACHE_HOME", "HOME"};
        for (char** variable = environ; *variable != nullptr; ++variable) {
            const std::string_view text = *variable;
            if (text.starts_with("ATTNSMITH_") || text.starts_with("AWS_"))
                names.emplace_back(text.substr(0, text.find('=')));
        }
        return names;
    }

    std::map<std::string, std::optional<std::string>> before_;
};

using Paths = std::vector<std::string>;

Paths cache_dirs(Variables environment, const RuntimeOptions& options = {}) {
    const Environment set(std::move(environment));
    return engine::settle(options).cache_dirs;
}

}  // namespace

TEST_CASE("the cache is where the options say, else the environment, else at home", "[engine][environment]") {
    CHECK(cache_dirs({{"ATTNSMITH_CACHE_DIR", "/a:/b"}, {"HOME", "/h"}}, {.cache_dirs = {"/c"}}) ==
          Paths{"/c"});
    CHECK(cache_dirs({{"ATTNSMITH_CACHE_DIR", "/a:/b"}, {"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}}) ==
          Paths{"/a", "/b"});
    CHECK(cache_dirs({{"XDG_CACHE_HOME", "/x"}, {"HOME", "/h"}}) == Paths{"/x/attnsmith"});
    CHECK(cache_dirs({{"HOME", "/h"}}) == Paths{"/h/.cache/attnsmith"});
    CHECK(cache_dirs({}).empty());
    CHECK(cache_dirs({{"HOME", "/h"}}, {.use_cache = false}).empty());
}

TEST_CASE("the colons of an address divide no list", "[engine][environment]") {
    const auto remotes = [](const std::string& list) {
        const Environment set({{"ATTNSMITH_CACHE_DIR", list}});
        const engine::Settings settings = engine::settle({});
        CHECK(settings.cache_dirs == Paths{"/a", "/b"});
        return settings.remotes;
    };
    for (const std::string address :
         {"http://host", "https://host:8080/x", "http://user:word@host/x", "http://user:word@host:8080",
          "http://[::1]/x", "http://[::1]:8080/x", "http://user:word@[fe80::1]:8080",
          "https://host/x?sig=a:b", "s3://bucket/x"}) {
        INFO(address);
        CHECK(remotes("/a:" + address + ":/b") == Paths{address});
        CHECK(remotes("/a:/b:" + address) == Paths{address});
        CHECK(remotes("/a:" + address + ":https://other:1/y:/b") == Paths{address, "https://other:1/y"});
    }
}

TEST_CASE("what names no directory is passed over", "[engine][environment]") {
    CHECK(cache_dirs({{"ATTNSMITH_CACHE_DIR", ":/a::/b:"}}) == Paths{"/a", "/b"});
    CHECK(cache_dirs({{"ATTNSMITH_CACHE_DIR", ":"}, {"HOME", "/h"}}) == Paths{"/h/.cache/attnsmith"});
    CHECK(cache_dirs({{"XDG_CACHE_HOME", "x"}, {"HOME", "/h"}}) == Paths{"/h/.cache/attnsmith"});
    CHECK(cache_dirs({{"XDG_CACHE_HOME", ""}, {"HOME", "h"}}).empty());
    const Environment none({});
    CHECK(test::contains(engine::settle({}).no_cache_because, "neither ATTNSMITH_CACHE_DIR"));
    CHECK(engine::settle({.use_cache = false}).no_cache_because == "it is switched off");
}

TEST_CASE("options win over the environment", "[engine][environment]") {
    const Environment set(
        {{"ATTNSMITH_LOG", "debug"}, {"ATTNSMITH_NVRTC_PATH", "/n"}, {"ATTNSMITH_TUNING", "/t:/u"}});
    CHECK(engine::settle({}).log_level == LogLevel::debug);
    CHECK(engine::settle({.log_level = LogLevel::error}).log_level == LogLevel::error);
    CHECK(engine::settle({}).nvrtc.path == "/n");
    CHECK(engine::settle({.nvrtc_path = "/m"}).nvrtc.path == "/m");
    CHECK(engine::settle({}).tuning_files == Paths{"/t", "/u"});
    CHECK(engine::settle({.tuning_files = {"/v"}}).tuning_files == Paths{"/v"});
    CHECK(engine::settle({.compile_threads = 3}).compile_threads == 3);
    CHECK(engine::settle({}).compile_threads >= 1);
}

TEST_CASE("without use_environment no variable is read", "[engine][environment]") {
    const Environment set({{"ATTNSMITH_CACHE_DIR", "/c"},
                           {"ATTNSMITH_CACHE_TRUST_KEYS", "/none"},
                           {"ATTNSMITH_CACHE_SIGN_KEY", "/s"},
                           {"ATTNSMITH_CACHE_PUSH", "1"},
                           {"ATTNSMITH_CACHE_TOKEN", "token"},
                           {"ATTNSMITH_LOG", "loud"},
                           {"ATTNSMITH_NVRTC_PATH", "/n"},
                           {"ATTNSMITH_ON_MISS", "error"},
                           {"ATTNSMITH_RECORD", "/r"},
                           {"ATTNSMITH_TUNING", "/t"},
                           {"AWS_ACCESS_KEY_ID", "id"},
                           {"AWS_REGION", "eu-west-1"},
                           {"HOME", "/h"},
                           {"XDG_CACHE_HOME", "/x"}});
    const engine::Settings none = engine::settle({.use_environment = false});
    CHECK(none.cache_dirs.empty());
    CHECK(none.no_cache_because == "cache_dirs names no directory, and use_environment is false");
    CHECK((none.trusted_keys.empty() && none.sign_key_file.empty() && !none.push_compiled));
    CHECK((none.nvrtc.path.empty() && none.record_file.empty() && none.tuning_files.empty()));
    CHECK((none.log_level == LogLevel::warn && none.on_miss == OnMiss::compile));
    const engine::Settings remotes =
        engine::settle({.use_environment = false, .cache_dirs = {"/a", "https://h/p", "s3://bucket/team"}});
    CHECK((remotes.http.access.bearer_token.empty() && !remotes.s3.access.aws));
    CHECK(remotes.s3_service.region.empty());
}

TEST_CASE("a negative number of threads or jobs is refused", "[engine]") {
    CHECK(test::refused([] { Runtime runtime({.use_cache = false, .compile_threads = -3}); }).field() ==
          "compile_threads");
    const cache::testing::TemporaryDirectory temporary;
    Runtime runtime({.cache_dirs = {temporary / "cache"}});
    const std::vector<AttentionSpec> specs;
    const std::vector<int> sms = {90};
    CHECK(test::refused([&] { (void)runtime.prewarm(specs, sms, {.jobs = -7}); }).field() == "jobs");
    CHECK(runtime.prewarm(specs, sms, {.jobs = 0}).total == 0);
}

TEST_CASE("keys are read at once, and a list of nothing is none", "[engine][environment]") {
    constexpr std::string_view kPublic =
        "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n"
        "-----END PUBLIC KEY-----\n";
    const cache::testing::TemporaryDirectory temporary;
    const std::string key = temporary / "key.pub", none = temporary / "none.pub";
    cache::testing::write_text(key, kPublic);
    if (const auto library = cache::ed25519(); !library) {
        WARN("SKIPPED: " << library.status().message);
        return;
    }
    const auto ids = [](const engine::Settings& settings) {
        std::vector<std::string> ids;
        for (const cache::PublicKey& one : settings.trusted_keys) ids.push_back(one.id());
        return ids;
    };
    const Environment nothing(Variables{{"ATTNSMITH_CACHE_TRUST_KEYS", ""}});
    CHECK(ids(engine::settle({})).empty());
    CHECK(engine::settle({}).sign_key_file.empty());
    CHECK(ids(engine::settle({.trust_key_files = {key}})) == Paths{"21fe31dfa154a261"});
    CHECK(engine::store_options(engine::settle({.trust_key_files = {key, key}})).trusted_keys.size() == 2);
    CHECK(test::refused([&] {
              engine::settle({.trust_key_files = {key, none}});
          }).field() == "trust_key_files");
    CHECK(test::refused([&] { engine::settle({.trust_key_files = {""}}); }).field() == "trust_key_files");
    {
        const Environment set({{"ATTNSMITH_CACHE_TRUST_KEYS", key}, {"ATTNSMITH_CACHE_SIGN_KEY", "/s"}});
        CHECK(ids(engine::settle({})) == Paths{"21fe31dfa154a261"});
        CHECK(engine::settle({}).sign_key_file == "/s");
    }
    for (const std::string& wrong : {std::string(":"), key + ":" + none}) {
        const Environment set(Variables{{"ATTNSMITH_CACHE_TRUST_KEYS", wrong}});
        CHECK(test::refused([] { engine::settle({}); }).field() == "ATTNSMITH_CACHE_TRUST_KEYS");
    }
}

TEST_CASE("log levels are five words", "[engine][environment]") {
    const std::pair<const char*, LogLevel> words[] = {{"off", LogLevel::off},
                                                      {"error", LogLevel::error},
                                                      {"warn", LogLevel::warn},
                                                      {"info", LogLevel::info},
                                                      {"debug", LogLevel::debug}};
    for (const auto& [word, level] : words) {
        const Environment set(Variables{{"ATTNSMITH_LOG", word}});
        CHECK(engine::settle({}).log_level == level);
    }
    const Environment bad(Variables{{"ATTNSMITH_LOG", "Debug"}});
    CHECK(test::refused([] { engine::settle({}); }).field() == "ATTNSMITH_LOG");
    CHECK(engine::settle({.log_level = LogLevel::off}).log_level == LogLevel::off);
}

TEST_CASE("without a word warnings are logged", "[engine][environment]") {
    const Environment none({});
    CHECK(engine::settle({}).log_level == LogLevel::warn);
}

namespace {

const std::pair<std::string, std::string> kS3Cache = {"ATTNSMITH_CACHE_DIR", "/a:s3://bucket/team:/b"};

std::string s3_trouble(Variables variables) {
    variables.push_back(kS3Cache);
    const Environment set(std::move(variables));
    return engine::settle({}).s3.trouble;
}

}  // namespace

TEST_CASE("S3's variables are those of the AWS CLI", "[engine][environment]") {
    const Environment set({kS3Cache,
                           {"AWS_ACCESS_KEY_ID", "id"},
                           {"AWS_SECRET_ACCESS_KEY", "secret"},
                           {"AWS_SESSION_TOKEN", "token"},
                           {"AWS_REGION", "eu-west-1"},
                           {"AWS_DEFAULT_REGION", "us-west-1"},
                           {"AWS_ENDPOINT_URL_S3", "http://minio:9000"},
                           {"AWS_ENDPOINT_URL", "http://other"},
                           {"ATTNSMITH_CACHE_TOKEN", "bearer"},
                           {"ATTNSMITH_CACHE_USER", "a:b"},
                           {"ATTNSMITH_CACHE_NETRC", "/nowhere"},
                           {"ATTNSMITH_CACHE_CA", "ca.pem"},
                           {"ATTNSMITH_CACHE_HEADERS", "X-One: 1"}});
    const engine::Settings settings = engine::settle({});
    CHECK(settings.cache_dirs == Paths{"/a", "/b"});
    CHECK(settings.remotes == Paths{"s3://bucket/team"});
    CHECK(settings.s3.trouble.empty());
    CHECK(settings.s3_service.region == "eu-west-1");
    CHECK(settings.s3_service.endpoint == "http://minio:9000");
    const cache::HttpAccess& access = settings.s3.access;
    REQUIRE(access.aws);
    CHECK(access.aws->access_key_id == "id");
    CHECK(access.aws->secret_access_key == "secret");
    CHECK(access.aws->session_token == "token");
    CHECK(access.aws->region == "eu-west-1");
    CHECK(access.ca_file == "ca.pem");
    CHECK(access.headers == Paths{"X-One: 1"});
    // These are other servers', as the credentials are not.
    CHECK(access.bearer_token.empty());
    CHECK(access.user_and_password.empty());
    CHECK(engine::shown_places("/a:s3://id:secret@bucket/team:/b") == "/a:s3://bucket/team:/b");
}

TEST_CASE("a region is needed for Amazon's buckets, and credentials for none", "[engine][environment]") {
    {
        const Environment set({kS3Cache, {"AWS_DEFAULT_REGION", "us-west-1"}});
        const engine::Settings settings = engine::settle({});
        CHECK(settings.s3.trouble.empty());
        CHECK(settings.s3_service.region == "us-west-1");
        CHECK_FALSE(settings.s3.access.aws);
    }
    const Environment set({kS3Cache,
                           {"AWS_ENDPOINT_URL", "http://minio:9000"},
                           {"AWS_ACCESS_KEY_ID", "id"},
                           {"AWS_SECRET_ACCESS_KEY", "secret"}});
    const engine::Settings settings = engine::settle({});
    CHECK(settings.s3.trouble.empty());
    CHECK(settings.s3_service.endpoint == "http://minio:9000");
    REQUIRE(settings.s3.access.aws);
    CHECK(settings.s3.access.aws->region == "us-east-1");
}

TEST_CASE("what is half of S3's variables is told by name, and without a value", "[engine][environment]") {
    const std::pair<std::string, std::string> region = {"AWS_REGION", "eu-west-1"};
    const std::pair<std::string, std::string> id = {"AWS_ACCESS_KEY_ID", "hidden"};
    const std::pair<std::string, std::string> secret = {"AWS_SECRET_ACCESS_KEY", "hidden"};
    const std::tuple<Variables, const char*> cases[] = {
        {{region, id}, "AWS_SECRET_ACCESS_KEY is not set"},
        {{region, secret}, "AWS_ACCESS_KEY_ID is not set"},
        {{region, {"AWS_SESSION_TOKEN", "hidden"}}, "AWS_SESSION_TOKEN is set without"},
        {{id, secret}, "AWS_REGION is not set"},
        {{id, secret, {"AWS_REGION", "hid/den"}}, "AWS_REGION or AWS_DEFAULT_REGION is not"},
        {{id, secret, {"AWS_ENDPOINT_URL", "hidden:9000"}}, "AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL is not"},
        {{{"AWS_ENDPOINT_URL_S3", "https://id:hidden@minio"}}, "credentials have variables of their own"},
    };
    for (const auto& [variables, part] : cases) {
        const std::string trouble = s3_trouble(variables);
        INFO(trouble);
        CHECK(test::contains(trouble, part));
        CHECK_FALSE(test::contains(trouble, "hid"));
        // Who uses no S3 may have half of them for another program.
        const Environment without(variables);
        CHECK(engine::settle({.cache_dirs = {"/a", "https://host"}}).s3.trouble.empty());
    }
}

TEST_CASE("a netrc file that says nothing of a host is told by name", "[engine][environment]") {
    const cache::testing::TemporaryDirectory temporary;
    const std::string netrc = temporary / "netrc";
    cache::testing::write_text(netrc, "machine known.example login a password hidden");
    const RuntimeOptions options{.cache_dirs = {"/a", "https://known.example/x",
                                                "http://unknown.example:80/x", "https://user@host/x",
                                                "s3://bucket"}};
    {
        const Environment set({{"ATTNSMITH_CACHE_NETRC", netrc}, {"AWS_REGION", "eu-west-1"}});
        const engine::RemoteAccess http = engine::settle(options).http;
        CHECK(http.trouble.empty());
        CHECK(http.access.netrc.size() == 1);
        CHECK(http.warnings == Paths{"ATTNSMITH_CACHE_NETRC: " + netrc +
                                     " has no entry for unknown.example, which is asked without a password"});
        CHECK(engine::settle(options).s3.access.netrc.empty());
    }
    {
        const Environment set({{"ATTNSMITH_CACHE_NETRC", netrc}, {"ATTNSMITH_CACHE_TOKEN", "t"}});
        CHECK(engine::settle(options).http.warnings.empty());
    }
    cache::testing::write_text(netrc, "machine known.example pasword hidden");
    for (const std::string& file : {netrc, temporary / "none"}) {
        const Environment set(Variables{{"ATTNSMITH_CACHE_NETRC", file}});
        const engine::RemoteAccess http = engine::settle(options).http;
        CHECK(http.trouble.starts_with("ATTNSMITH_CACHE_NETRC: "));
        CHECK(test::contains(http.trouble, file));
        CHECK_FALSE(test::contains(http.trouble, "hidden"));
        CHECK(engine::settle({.cache_dirs = {"/a"}}).http.trouble.empty());
    }
}
