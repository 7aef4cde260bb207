// When a server says it is: the Date and Age of a response (RFC 9110, 5.6.7; RFC 9111, 5.1). Pure functions.
// Internal to cache/.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace attnsmith::cache {

// "Sun, 06 Nov 1994 08:49:37 GMT", the one form that servers may write today. Nothing for anything else: the
// weekday is looked at for its form alone, since who reads the date wants to know the time. Nor for a year
// before 1970 or after 2199: the clock counts nanoseconds in 64 bits, which end in 2262, and a date is added
// to and subtracted from.
std::optional<std::chrono::system_clock::time_point> parse_http_date(std::string_view text);

// How long ago an answer left its server, "3600"; zero for what is no number of seconds, and at most a year.
std::chrono::seconds parse_http_age(std::string_view text);

}  // namespace attnsmith::cache
