// A log line is one line of plain text, whatever it speaks of.
#include "settings/log.hpp"

#include <vector>

#include "support/catch.hpp"

using namespace attnsmith;

TEST_CASE("a log line shows control characters and does not pass them on", "[engine][log]") {
    std::vector<std::string> lines;
    const engine::Log log(LogLevel::info, [&](LogLevel, std::string_view line) { lines.emplace_back(line); });
    log(LogLevel::warn, "cache: {}: passed over", "/x/\x1b[31m\nattnsmith: forged\xc2\x9b\xe2\x80\xae");
    log(LogLevel::info, "caf\xc3\xa9 {}", 7);
    log(LogLevel::debug, "{}", "not wanted");
    CHECK(lines ==
          std::vector<std::string>{"cache: /x/\\x1b[31m\\x0aattnsmith: forged\\u009b\\u202e: passed over",
                                   "caf\xc3\xa9 7"});
}
