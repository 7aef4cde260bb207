#include "cache/remote/address.hpp"

#include <optional>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace attnsmith::cache;

namespace {

using Parts = std::vector<std::string>;

std::optional<PlaceFault> fault_of_list(const std::string& list) {
    const auto found = faulty_place(split_places(list), true);
    return found ? std::optional(found->fault) : std::nullopt;
}

std::optional<PlaceFault> fault_of_places(const Parts& places) {
    const auto found = faulty_place(places, false);
    return found ? std::optional(found->fault) : std::nullopt;
}

}  // namespace

TEST_CASE("an address is shown without what may be secret") {
    CHECK(shown_address("https://user:pass@host:8080/a?X-Amz-Signature=1#f") == "https://host:8080/a");
    CHECK(shown_address("https://a@b@host/x") == "https://host/x");
    CHECK(shown_address("https://user:pa/ss@host/x") == "https://host/x");
    CHECK(shown_address("https://user:pa#ss@host/x") == "https://host/x");
    CHECK(shown_address("https://user:pa?ss@host/x") == "https://host/x");
    CHECK(shown_address("https://me@corp:pa/ss@host/x") == "https://host/x");
    CHECK(shown_address("https://us/er:pass@host/x") == "https://host/x");
    CHECK(shown_address("https://host/x@1") == "https://host/x@1");
    CHECK(shown_address("https://[::1]:80/x@1") == "https://[::1]:80/x@1");
    CHECK(shown_address("s3://id:secret@bucket/a b") == "s3://bucket/a b");
    CHECK(shown_address("s3://bucket/a@b:c") == "s3://bucket/a@b:c");
    CHECK(shown_address("http://host") == "http://host");
}

TEST_CASE("addresses begin with one of three schemes in small letters") {
    CHECK(is_remote_address("https://host"));
    CHECK(is_remote_address("s3://bucket/a"));
    CHECK_FALSE(is_remote_address("/https://host"));
    CHECK_FALSE(is_remote_address("httpsx"));
    CHECK_FALSE(is_remote_address("HTTPS://host"));
}

TEST_CASE("host and user of an address") {
    CHECK(host_of("https://user:pass@Host.example:8080/a?b") == "Host.example");
    CHECK(host_of("http://[::1]:8080/a") == "[::1]");
    CHECK(host_of("http://host?a") == "host");
    CHECK(host_of("s3://bucket/a@b") == "bucket");
    CHECK(names_user("https://user@host"));
    CHECK_FALSE(names_user("https://host/a@b"));
}

TEST_CASE("a part that begins with /, ./ or ../ is a directory, whatever it holds") {
    for (const std::string list :
         {"/a@b", "./a@b", "../a@b:/c", "/d:/a@b:http://host/k", "/d:https://host/k:/a@b"})
        CHECK_FALSE(fault_of_list(list));
    CHECK_FALSE(fault_of_places({"/a:b@c", "http://host:80/k", "./user:x@y"}));
}

TEST_CASE("an @ is in a directory or in an address that can be read") {
    for (const std::string address :
         {"http://user:word@host/k", "http://user@host:80", "https://user:wo%2Frd@[::1]:80/k",
          "http://:word@host", "https://host/x@1", "https://[::1]:80/x@1", "s3://bucket/x@1",
          "s3://id:secret@bucket/x", "http://a%40b.c:word@host/k?sig=a:b"}) {
        INFO(address);
        CHECK_FALSE(fault_of_list("/d:" + address));
        CHECK_FALSE(fault_of_places({"/d", address}));
    }
    for (const std::string address : {"http://user:wo/rd@host/k",
                                      "http://a@b.c:word@host/k",
                                      "http://a@b.c:wo/rd@host/k",
                                      "http://a@b.c:wo?rd@host/k",
                                      "http://a@b.c:wo#rd@host/k",
                                      "http://user:word@ho st/k",
                                      "http://user:word@/k",
                                      "http://user:word@host/k ",
                                      "http://user:12/rd@host",
                                      "http://us/er:word@host",
                                      "http://user:word@host/x@1",
                                      "http:/user:word@host",
                                      "http:user:word@host",
                                      "HTTPS://user:word@host",
                                      " https://user:word@host",
                                      "s3://id:sec/ret@bucket",
                                      "s3://id:se@cret@bucket",
                                      "s3:/id:secret@bucket",
                                      "a@b",
                                      "user:word@host"}) {
        INFO(address);
        CHECK(fault_of_list("/d:" + address));
        CHECK(fault_of_places({"/d", address}) == PlaceFault::user_info);
    }
    CHECK(fault_of_places({"/d", "http://user:word@host:x/k"}) == PlaceFault::user_info);
    // Without an @, the word after a host's colon may be a password as well.
    for (const std::string address :
         {"http://user:word%40host:9/k", "http://user:word", "http://user:12word/k",
          "http://user:word\xef\xbc\xa0host/k", "http://host:0/k", "http://host:65536/k",
          "https://host:99999999999/k", "http://ho st/k"}) {
        INFO(address);
        CHECK(fault_of_places({"/d", address}) == PlaceFault::user_info);
    }
    for (const std::string address :
         {"http://host:1/k", "https://host:65535", "http://host:/k", "http://[::1]:80"})
        CHECK_FALSE(fault_of_places({"/d", address}));
    CHECK(fault_of_places({"/d:http://user:word@host"}) == PlaceFault::user_info);
    CHECK(fault_of_places({"/d:http:user:word@host"}) == PlaceFault::user_info);
}

TEST_CASE("after an address that may end within a password, an @ is an error") {
    for (const std::string list :
         {"/d:http://user:/word@host/k", "/d:http://user:./word@host", "/d:http://user:../word@host",
          "/d:http://user:a:/b:/word@host", "/d:http://a@b.c:/word@host", "/d:http://user?x:/word@host",
          "/d:https://host:http://user:word@other/k", "/d:http://user:12/a:/word@host",
          "/d:s3://id:/secret@bucket", "/d:http://user:word%40host/k", "/d:http://user:/word%40host"}) {
        INFO(list);
        CHECK(fault_of_list(list) == PlaceFault::after_host);
    }
    CHECK(fault_of_places({"/d", "http://user", "/word@host"}) == PlaceFault::after_host);
    CHECK_FALSE(fault_of_list("/d:/a@b:https://host"));
    CHECK_FALSE(fault_of_list("/d:https://host/:https://user:word@other/k"));
    CHECK_FALSE(fault_of_list("/d:https://host:80/k:https://user:word@other/k"));
}

TEST_CASE("what was meant for an address is no directory") {
    for (const std::string list :
         {"https:/host/k", "http:host", "/d:HTTP://host", "/d, http://host", "/d:http://"})
        CHECK(fault_of_list(list) == PlaceFault::misspelt);
    for (const std::string place :
         {"https:/host/k", "HTTP://host", "own:http://host", "http://", "https:///x"})
        CHECK(fault_of_places({"/d", place}) == PlaceFault::misspelt);
    CHECK_FALSE(fault_of_list("/d:s3"));
    CHECK_FALSE(fault_of_list("./http:/d"));
}
