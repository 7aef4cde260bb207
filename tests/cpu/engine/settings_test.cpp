// What a runtime's options and the environment come to.
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/fixture.hpp"
#include "cache/signing/ed25519.hpp"
#include "engine/environment.hpp"
#include "problem/expect.hpp"
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
    // Those of attnsmith's that are set, whatever they are called, and those of the system that say where a
    // user's files are.
    static std::vector<std::string> variables() {
        std::vector<std::string> names = {"XDG_CACHE_HOME", "HOME"};
        for (char** variable = environ; *variable != nullptr; ++variable) {
            const std::string_view text = *variable;
            if (text.starts_with("ATTNSMITH_")) names.emplace_back(text.substr(0, text.find('=')));
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
