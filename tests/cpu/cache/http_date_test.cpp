#include "cache/remote/http_date.hpp"

#include "support/catch.hpp"

using namespace attnsmith::cache;
using namespace std::chrono_literals;

namespace {

std::int64_t seconds_of(std::string_view text) {
    const auto date = parse_http_date(text);
    if (!date) return -1;
    return std::chrono::duration_cast<std::chrono::seconds>(date->time_since_epoch()).count();
}

}  // namespace

TEST_CASE("a Date is read to the second", "[cache][http]") {
    CHECK(seconds_of("Thu, 01 Jan 1970 00:00:00 GMT") == 0);
    CHECK(seconds_of("Sun, 06 Nov 1994 08:49:37 GMT") == 784111777);
    CHECK(seconds_of("Thu, 29 Feb 2024 23:59:59 GMT") == 1709251199);
    CHECK(seconds_of("Sat, 31 Dec 2016 23:59:60 GMT") == 1483228800);  // a leap second
    CHECK(seconds_of("Tue, 31 Dec 2199 23:59:59 GMT") == 7258118399);
}

TEST_CASE("a Date that the clock cannot count with says nothing", "[cache][http]") {
    for (const char* text : {"Wed, 31 Dec 1969 23:59:59 GMT", "Wed, 01 Jan 2200 00:00:00 GMT",
                             "Sat, 01 Jan 0000 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 GMT"}) {
        INFO(text);
        CHECK_FALSE(parse_http_date(text));
    }
}

TEST_CASE("what is no Date says nothing", "[cache][http]") {
    for (const char* text :
         {"", "now", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994",
          "Sun, 06 Nov 1994 08:49:37 UTC", "Sun, 06 Nov 1994 08:49:37 GM", "Sun, 06 Nov 1994 08:49:37 GMT ",
          "Sun, 31 Feb 2024 00:00:00 GMT", "Sun, 00 Jan 2024 00:00:00 GMT", "Sun, 06 nov 1994 08:49:37 GMT",
          "Xyz, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 24:00:00 GMT", "Sun, 06 Nov 1994 08:60:00 GMT",
          "Sun, 06 Nov 1994 08:49:61 GMT", "Sun, -6 Nov 1994 08:49:37 GMT", "Sun, 06 Nov +994 08:49:37 GMT",
          "Sun, 06 Nov 1994 08:49:3 7GMT"}) {
        INFO(text);
        CHECK_FALSE(parse_http_date(text));
    }
}

TEST_CASE("an Age is a number of seconds", "[cache][http]") {
    CHECK(parse_http_age("0") == 0s);
    CHECK(parse_http_age("3600") == 1h);
    for (const char* text : {"", "-1", "+1", "1.5", "1 ", "an hour", "99999999999999999999"}) {
        INFO(text);
        CHECK(parse_http_age(text) == 0s);
    }
    CHECK(parse_http_age("9999999999") == 24h * 365);
}
