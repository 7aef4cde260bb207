#include "cache/remote/manifest.hpp"

#include <fmt/format.h>

#include <cerrno>
#include "support/catch.hpp"

#include "cache/fixture.hpp"
#include "cache/remote_fixture.hpp"

using namespace attnsmith::cache;
using namespace attnsmith::cache::testing;

namespace {

std::string replaced(std::string text, const std::string& what, const std::string& with) {
    const std::size_t at = text.find(what);
    REQUIRE(at != std::string::npos);
    return text.replace(at, what.size(), with);
}

int error_of(const std::string& document) { return parse_manifest(bytes_of(document)).status().error_number; }

}  // namespace

TEST_CASE("a manifest says what it was made of") {
    const Remembered one;
    const std::string text = manifest_text(one.manifest());
    CHECK(text.ends_with("}\n"));
    const auto parsed = parse_manifest(bytes_of(text));
    REQUIRE(parsed);
    CHECK(parsed->manifest == one.manifest());
    CHECK(parsed->signed_text == text);
    CHECK_FALSE(parsed->signed_by);

    Signature signature;
    for (std::size_t i = 0; i < signature.size(); ++i) signature[i] = static_cast<std::byte>(3 * i);
    const SignedBy by{"0123456789abcdef", signature};
    const auto with = parse_manifest(bytes_of(encode_manifest(text, by)));
    REQUIRE(with);
    CHECK(with->signed_by == by);
    CHECK(with->signed_text == text);
}

// FORMAT.md gives these: two releases have to find what the other one put.
TEST_CASE("places below a remote's address are fixed") {
    CHECK(manifest_path(kKey, {13, 0, 88}) ==
          "ac/" +
              sha256_of(bytes_of("attnsmith.remote/1\n0123456789abcdeffedcba9876543210\n13.0.88\n")).hex());
    CHECK(hint_path(kKey) ==
          "ac/" + sha256_of(bytes_of("attnsmith.remote/1\n0123456789abcdeffedcba9876543210\n")).hex());
}

TEST_CASE("what is no manifest is said to be none") {
    const Remembered one;
    const std::string text = manifest_text(one.manifest());
    REQUIRE(error_of(text) == 0);
    for (std::size_t i = 0; i < text.size(); ++i) {
        INFO("cut at " << i);
        CHECK(error_of(text.substr(0, i)) == EBADMSG);
    }
    CHECK(error_of(text + "\n") == EBADMSG);
    CHECK(error_of(text + text) == EBADMSG);
    CHECK(error_of(" " + text) == EBADMSG);
    CHECK(error_of(replaced(text, "\"bytes\":", "\"bytes\": ")) == EBADMSG);
    CHECK(error_of(replaced(text, "manifest/1", "manifest/2")) == EPROTONOSUPPORT);
    CHECK(error_of(replaced(text, one.key.hex(), kKey.hex())) == EBADMSG);
    CHECK(error_of(replaced(text, "\"target\":\"sm_90a\"", "\"target\":\"sm_80\"")) == EBADMSG);
    CHECK(error_of(replaced(text, "{\"schema\"", "{\"more\":1,\"schema\"")) == EBADMSG);
    CHECK(error_of(replaced(text, fmt::format("\"bytes\":{}", one.manifest().bytes), "\"bytes\":1e300")) ==
          EBADMSG);
    CHECK(error_of(replaced(text, fmt::format("\"bytes\":{}", one.manifest().bytes),
                            "\"bytes\":268435457")) == EBADMSG);
    CHECK(error_of(std::string(100'000, '[') + "\n") == EBADMSG);
    CHECK(error_of("\n") == EBADMSG);
    CHECK(error_of("") == EBADMSG);
    const std::string digits(128, 'a');
    CHECK(error_of(text + "ed25519 0123456789abcdef " + digits + "\n") == 0);
    CHECK(error_of(text + "ed25519 0123456789abcdef " + digits) == EBADMSG);
    CHECK(error_of(text + "ed25519 0123456789abcdef " + digits + "a\n") == EBADMSG);
    CHECK(error_of(text + "ed25519 0123456789abcdef " + std::string(128, 'A') + "\n") == EBADMSG);
    CHECK(error_of(text + "rsa 0123456789abcdef " + digits + "\n") == EBADMSG);
}

TEST_CASE("an entry without its key's fields has no manifest") {
    const Remembered one;
    const Entry other = entry_of("cubin");
    CHECK_FALSE(manifest_of(one.key, kVersion, other, encode_entry(one.key, kVersion, other)));
    CHECK_FALSE(manifest_of(kKey, kVersion, one.entry, one.bytes()));
}

TEST_CASE("a hint lists toolchains, newest first") {
    const std::string text = encode_hint(kKey, {{12, 9, 1}, {12, 9, 1}}, {13, 0, 88});
    const auto parsed = parse_hint(kKey, bytes_of(text));
    REQUIRE(parsed);
    CHECK(*parsed == std::vector<Version>{{13, 0, 88}, {12, 9, 1}});
    CHECK(parse_hint(kOtherKey, bytes_of(text)).status().error_number == EBADMSG);
    CHECK(parse_hint(kKey, bytes_of(replaced(text, "hint/1", "hint/9"))).status().error_number ==
          EPROTONOSUPPORT);
    CHECK(parse_hint(kKey, bytes_of(replaced(text, "\"13.0.88\"", "13"))).status().error_number == EBADMSG);
    CHECK(parse_hint(kKey, bytes_of(replaced(text, "13.0.88", "-1.0.88"))).status().error_number == EBADMSG);
    CHECK(parse_hint(kKey, bytes_of("")).status().error_number == EBADMSG);
    CHECK(parse_hint(kKey, bytes_of("[[[[[[[[[[]]]]]]]]]]")).status().error_number == EBADMSG);

    // Nobody reads thousands of manifests for one kernel.
    std::vector<Version> many;
    for (int i = 0; i < 16; ++i) many.push_back({14, 0, i});
    const auto first = parse_hint(kKey, bytes_of(encode_hint(kKey, many, kVersion)));
    REQUIRE(first);
    CHECK(*first == std::vector<Version>{kVersion});
    many.pop_back();
    const auto longest = parse_hint(kKey, bytes_of(encode_hint(kKey, many, kVersion)));
    REQUIRE(longest);
    CHECK(longest->size() == 16);
    CHECK(longest->back() == kVersion);
    const std::string full = encode_hint(kKey, many, kVersion);
    CHECK(parse_hint(kKey, bytes_of(replaced(full, "[", "[\"14.1.0\","))).status().error_number == EBADMSG);
}
