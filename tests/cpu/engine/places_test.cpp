// Lists of cache places whose addresses hold a password.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "problem/expect.hpp"
#include "support/catch.hpp"
#include "support/planted_password.hpp"

using namespace attnsmith;

TEST_CASE("a password in a list of places is in nothing that is said of it", "[engine][places]") {
    std::mt19937 random(20261126);
    const auto choose = [&](std::size_t below) { return static_cast<std::size_t>(random() % below); };
    int refused = 0, read = 0;
    for (int i = 0; i < 4000; ++i) {
        const test::PlantedList list = test::plant_password(choose);
        const bool as_option = choose(2) == 0;
        const test::Said said = test::everything_said(list, as_option);
        INFO((as_option ? "cache_dirs " : "ATTNSMITH_CACHE_DIR ") << list.text());
        INFO(said.text);
        REQUIRE_FALSE(test::leaks(said));
        if (list.encoded) REQUIRE(said.refusal.empty());
        (said.refusal.empty() ? read : refused) += 1;
        if (said.refusal.empty()) REQUIRE_FALSE(said.remotes.empty());
    }
    // Neither is the rule that refuses or reads everything.
    CHECK(refused > 1000);
    CHECK(read > 1000);
}

TEST_CASE("a list that cannot be read is refused with how to write it", "[engine][places]") {
    const std::vector<std::string> addresses = {
        "http://user:PA/hush@host/k",      "http://me@corp.invalid:PA/hush@host/k",
        "http://me@corp.invalid:hush?x@h", "http://me@corp.invalid:hush#x@h",
        "https:/user:hush@host",           "http:user:hush@host",
        "HTTP://user:hush@host",           " http://user:hush@host",
        "s3://AKIA:hush/x@bucket",         "http://[::1:hush/x@host",
        "http://user:/hush@host/k",        "http://user:12/a:/hush@host/k",
    };
    for (const std::string& address : addresses) {
        for (const bool as_option : {false, true}) {
            const test::Said said = test::everything_said({.places = {"/d/c", address}}, as_option);
            INFO(address);
            INFO(said.text);
            CHECK_FALSE(test::leaks(said));
            CHECK_FALSE(test::contains(said.text, "corp"));
            for (const char* const part : {"%2F", "%3A", "ATTNSMITH_CACHE_USER", "not shown"})
                CHECK(test::contains(said.refusal, part));
            CHECK(said.refusal.size() < 700);
        }
    }
}
