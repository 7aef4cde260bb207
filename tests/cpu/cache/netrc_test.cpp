// What a netrc file says, and what is wrong with one.
#include "cache/remote/netrc.hpp"

#include <cerrno>

#include "cache/fixture.hpp"
#include "support/catch.hpp"

using namespace attnsmith::cache;
using namespace attnsmith::cache::testing;

namespace {

std::string login_for(std::string_view text, std::string_view host) {
    const auto netrc = parse_netrc(text);
    REQUIRE(netrc);
    const NetrcEntry* const entry = entry_for(*netrc, host);
    return entry == nullptr ? "none" : entry->login + ":" + entry->password;
}

}  // namespace

TEST_CASE("the first entry of a host is its user and password") {
    constexpr std::string_view kText =
        "# passwords\n"
        "machine a.example login one password two\n"
        "machine B.example\n\tpassword four # not three\n\tlogin three account unused\r\n"
        "macdef init\nmachine c.example login wrong\n\n"
        "machine a.example login later password later\n"
        "machine ::1 login six password \"a \\\"b\\\\ #c\"\n"
        "machine d.example login \"\" password seven\n";
    CHECK(login_for(kText, "a.example") == "one:two");
    CHECK(login_for(kText, "A.EXAMPLE") == "one:two");
    CHECK(login_for(kText, "b.example") == "three:four");
    CHECK(login_for(kText, "c.example") == "none");
    CHECK(login_for(kText, "[::1]") == "six:a \"b\\ #c");
    CHECK(login_for(kText, "d.example") == ":seven");
    CHECK(login_for(kText, "example") == "none");
    CHECK(login_for(std::string(kText) + "default login any password one", "c.example") == "any:one");
    CHECK(login_for("", "a.example") == "none");
    // Lines may end as Windows ends them, the empty one after a macro, too.
    CHECK(login_for("macdef init\r\nmachine a.example login wrong\r\n\r\nmachine a.example login one "
                    "password two\r\n",
                    "a.example") == "one:two");
}

TEST_CASE("a netrc file with anything else in it is refused with the line") {
    for (const char* text : {"machine a\nlogin", "machine a\nlogin b pasword hidden", "\nlogin hidden",
                             "machine a login b\npassword \"hidden", "\n\"hidden", "machine a\nmachine \"\"",
                             "\nmachine a login \"hid\\nden\""}) {
        INFO(text);
        const auto netrc = parse_netrc(text);
        REQUIRE_FALSE(netrc);
        CHECK(netrc.status().error_number == EBADMSG);
        CHECK(netrc.status().message.find("line 2: ") == 0);
        CHECK(netrc.status().message.find("hidden") == std::string::npos);
    }
}

TEST_CASE("a netrc file that cannot be read says so by its name") {
    const TemporaryDirectory directory;
    write_text(directory / "netrc", "machine a login b password c");
    CHECK(read_netrc(directory / "netrc")->size() == 1);
    const auto none = read_netrc(directory / "none");
    CHECK(none.status().error_number == ENOENT);
    CHECK(none.status().path == directory / "none");
    write_text(directory / "netrc", "machine");
    CHECK(read_netrc(directory / "netrc").status().path == directory / "netrc");
    CHECK_FALSE(read_netrc(directory / "."));
}
