// What a terminal would obey or hide is written out, and everything else stays.
#include "problem/visible_text.hpp"

#include <nlohmann/json.hpp>

#include "support/catch.hpp"

using attnsmith::problem::visible;
using attnsmith::problem::visible_json;
using attnsmith::problem::visible_lines;

TEST_CASE("text that a terminal would obey or hide is written out", "[problem][visible]") {
    const std::pair<std::string, const char*> cases[] = {
        {"\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"},
        {"name\nattnsmith: error: forged\r", "name\\x0aattnsmith: error: forged\\x0d"},
        {std::string("a\0b", 3), "a\\x00b"},
        {"\x7f", "\\x7f"},
        {"\xc2\x80\xc2\x9b"
         "31m\xc2\x9f",
         "\\u0080\\u009b31m\\u009f"},  // C1
        {"a\xe2\x80\xae"
         "b\xe2\x80\xaa",
         "a\\u202eb\\u202a"},                                           // override, embedding
        {"\xe2\x81\xa6\xe2\x81\xa9", "\\u2066\\u2069"},                 // isolates
        {"\xe2\x80\x8e\xe2\x80\x8f\xd8\x9c", "\\u200e\\u200f\\u061c"},  // marks
        {"\xe2\x80\xa8\xe2\x80\xa9", "\\u2028\\u2029"},                 // separators
        {"pay\xe2\x80\x8bload\xef\xbb\xbf", "pay\\u200bload\\ufeff"},   // zero width
        {"\xf3\xa0\x81\x81", "\\U000e0041"},                            // a tag
        {"\xff\xfe", "\\xff\\xfe"},                                     // no UTF-8
        {"\xc0\x8a\xe0\x80\x8a", "\\xc0\\x8a\\xe0\\x80\\x8a"},          // overlong line feeds
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},                            // a surrogate
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},                   // beyond Unicode
        {"cut \xe2\x80", "cut \\xe2\\x80"},
        {"\x9b"
         "31m",
         "\\x9b31m"},
    };
    for (const auto& [text, expected] : cases) {
        CHECK(visible(text) == expected);
        CHECK(visible(visible(text)) == expected);
    }
}

TEST_CASE("text for people stays as it is", "[problem][visible]") {
    for (const char* text :
         {"", "plain ~ text", "\\x1b", "/caf\xc3\xa9/\xd0\xba\xd1\x8d\xd1\x88", "\xe6\xa8\xa1\xe5\x9e\x8b",
          "\xf0\x9f\x98\x80", "\xc2\xa0\xc2\xa1", "\xe2\x82\xac", "\xe2\x80\x90\xe2\x80\xa7\xe2\x80\xb0",
          "\xee\x80\x80\xf4\x8f\xbf\xbd"}) {
        CHECK(visible(text) == text);
        CHECK(visible_lines(text) == text);
    }
    CHECK(visible_lines("two\n\tlines\x1b\r\n") == "two\n\tlines\\x1b\\x0d\n");
}

TEST_CASE("JSON keeps its meaning", "[problem][visible]") {
    const nlohmann::json json = {{"a\xc2\x9b", "b\xe2\x80\xae\n\x1b\xf3\xa0\x81\x81 \xc3\xa9"},
                                 {"n", {1, 2}}};
    const std::string text = visible_json(json.dump(2));
    CHECK(text.find("\xc2\x9b") == std::string::npos);
    CHECK(text.find("\xe2\x80\xae") == std::string::npos);
    CHECK(text.find("\xf3\xa0") == std::string::npos);
    CHECK(text.find("\xc3\xa9") != std::string::npos);
    CHECK(text.find('\n') != std::string::npos);
    CHECK(nlohmann::json::parse(text) == json);
}
