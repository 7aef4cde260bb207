#include "cache/entries/layout.hpp"

#include <atomic>
#include <set>
#include <thread>
#include <vector>

#include "cache/files/unique_token.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace attnsmith::cache::layout {

using testing::kKey;
using testing::kVersion;

TEST_CASE("Layout: names are those of FORMAT.md", "[cache][layout]") {
    CHECK(entry_path({kKey, kVersion}) == "01/0123456789abcdeffedcba9876543210-13.0.88.entry");
    CHECK(lock_path(kKey) == "locks/0123456789abcdeffedcba9876543210.lock");
    CHECK(staging_name(kKey, 0xff) == "0123456789abcdeffedcba9876543210-00000000000000ff.staging");
    CHECK(quarantine_name({kKey, kVersion}, 0xff) ==
          "0123456789abcdeffedcba9876543210-13.0.88-00000000000000ff.broken");
}

TEST_CASE("Layout: our own names are known again", "[cache][layout]") {
    const auto name = parse_entry_name("01", entry_name({kKey, kVersion}));
    REQUIRE(name);
    CHECK(name->key == kKey);
    CHECK(name->version == kVersion);
    CHECK(is_shard_name(shard_name(kKey)));
    CHECK(is_staging_name(staging_name(kKey, unique_token())));
    CHECK(is_quarantine_name(quarantine_name({kKey, kVersion}, unique_token())));
    CHECK(is_lock_name(lock_name(kKey)));
}

TEST_CASE("Layout: names that are not ours are not taken for it", "[cache][layout]") {
    const std::string key = kKey.hex();
    for (const std::string& name : {std::string(),
                                    std::string("."),
                                    std::string(".."),
                                    key,
                                    key + ".entry",
                                    key + "-.entry",
                                    key + "-13.0.entry",
                                    key + "-13.0.88",
                                    key + "-13.0.88.entry.bak",
                                    key + "-13.0.88.entr",
                                    key + "_13.0.88.entry",
                                    "x" + key + "-13.0.88.entry",
                                    key + "-13.0.88-0.entry",
                                    key + "-013.0.88.entry",
                                    "../" + key + "-1.0.0.entry",
                                    std::string("notes.entry"),
                                    std::string("notes.staging"),
                                    std::string("notes.lock"),
                                    std::string("notes.broken"),
                                    key + ".staging",
                                    key + "-0.staging",
                                    key + "-1.0.0.broken",
                                    key + "-00000000000000fg.staging"}) {
        INFO(name);
        CHECK_FALSE(parse_entry_name("01", name));
        CHECK_FALSE(is_shard_name(name));
        CHECK_FALSE(is_staging_name(name));
        CHECK_FALSE(is_quarantine_name(name));
        CHECK_FALSE(is_lock_name(name));
    }
    CHECK_FALSE(parse_entry_name("02", entry_name({kKey, kVersion})));
    CHECK_FALSE(is_shard_name("0A"));
    CHECK_FALSE(is_shard_name("012"));
}

TEST_CASE("Layout: tokens differ between threads", "[cache][layout]") {
    std::vector<std::vector<std::uint64_t>> tokens(4);
    std::vector<std::thread> threads;
    for (auto& own : tokens) {
        threads.emplace_back([&own] {
            for (int i = 0; i < 1000; ++i) own.push_back(unique_token());
        });
    }
    for (std::thread& thread : threads) thread.join();
    std::set<std::uint64_t> all;
    for (const auto& own : tokens) all.insert(own.begin(), own.end());
    CHECK(all.size() == 4000);
}

}  // namespace attnsmith::cache::layout
