#include "cache/digest/digest.hpp"

#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>

#include "support/catch.hpp"

using attnsmith::cache::Digest;
using attnsmith::cache::digest_of;
using attnsmith::cache::FieldHasher;
using attnsmith::cache::HashedField;
using attnsmith::cache::parse_fields;

TEST_CASE("Digest: hex and parse are each other's inverse", "[cache][digest]") {
    const Digest digest(0x0123456789abcdef, 0x00000000000000ff);
    CHECK(digest.hex() == "0123456789abcdef00000000000000ff");
    CHECK(Digest::parse(digest.hex()) == digest);
    CHECK(Digest().hex() == std::string(32, '0'));
}

TEST_CASE("Digest: parse takes nothing but 32 lower-case digits", "[cache][digest]") {
    const std::string good = "0123456789abcdef0123456789abcdef";
    REQUIRE(Digest::parse(good));
    CHECK_FALSE(Digest::parse(""));
    CHECK_FALSE(Digest::parse(good.substr(1)));
    CHECK_FALSE(Digest::parse(good + "0"));
    for (const char bad : {'A', 'g', ' ', '-', '+', 'x', '/', '.', '\0', '\n'}) {
        for (std::size_t at = 0; at < good.size(); ++at) {
            std::string text = good;
            text[at] = bad;
            CHECK_FALSE(Digest::parse(text));
        }
    }
}

TEST_CASE("Digest: is ordered as its hex text is", "[cache][digest]") {
    const std::vector<Digest> digests = {{0, 1}, {1, 0}, {0, 0}, {~0ULL, 0}, {0, ~0ULL}, {1, 1}};
    const std::set<Digest> ordered(digests.begin(), digests.end());
    std::string previous;
    for (const Digest& digest : ordered) {
        CHECK(previous < digest.hex());
        previous = digest.hex();
    }
    CHECK(std::unordered_set<Digest>(digests.begin(), digests.end()).size() == digests.size());
}

TEST_CASE("Digest: is XXH3-128 as published", "[cache][digest]") {
    // From Python's xxhash 3, xxh3_128_hexdigest.
    CHECK(digest_of(std::string_view("")).hex() == "99aa06d3014798d86001c324468d497f");
    CHECK(digest_of(std::string_view("attnsmith")).hex() == "6d2206c98d7baa8293dfd2a192c30bd3");
}

TEST_CASE("FieldHasher: the same fields give the same digest, on every host", "[cache][digest]") {
    const auto digest = FieldHasher().add("format", 1).add("source", "int main;").digest();
    CHECK(digest == FieldHasher().add("format", 1).add("source", "int main;").digest());
    CHECK(digest.hex() == "2982914740105cd1e33a152e3b7bfcb1");
}

TEST_CASE("FieldHasher: every difference in labels, values, order and number shows", "[cache][digest]") {
    std::set<Digest> digests;
    std::size_t variants = 0;
    const auto include = [&](const FieldHasher& hasher) {
        digests.insert(hasher.digest());
        ++variants;
    };
    include(FieldHasher());
    include(FieldHasher().add("", ""));
    include(FieldHasher().add("", "").add("", ""));
    include(FieldHasher().add("a", "bc"));
    include(FieldHasher().add("ab", "c"));
    include(FieldHasher().add("abc", ""));
    include(FieldHasher().add("", "abc"));
    include(FieldHasher().add("a", "b").add("c", "d"));
    include(FieldHasher().add("c", "d").add("a", "b"));
    include(FieldHasher().add("a", "b").add("c", ""));
    include(FieldHasher().add("a", std::string_view("b\0", 2)));
    include(FieldHasher().add("a", std::string(1000, 'x')));
    include(FieldHasher().add("a", std::string(1000, 'x').replace(999, 1, "y")));
    CHECK(digests.size() == variants);
}

TEST_CASE("FieldHasher: more fields may follow a digest", "[cache][digest]") {
    FieldHasher hasher;
    hasher.add("a", "1");
    const Digest first = hasher.digest();
    CHECK(hasher.digest() == first);
    hasher.add("b", "2");
    CHECK(hasher.digest() != first);
    CHECK(hasher.digest() == FieldHasher().add("a", "1").add("b", "2").digest());
}

TEST_CASE("FieldHasher: dumps short values verbatim and long or binary ones as digests", "[cache][digest]") {
    const std::string longest(FieldHasher::kLongestDumpedValue, 'x');
    const std::string binary = "\xff\xfe";
    FieldHasher hasher;
    hasher.add("target", "sm_90a").add("tile", -128).add("longest", longest).add("source", longest + "x");
    hasher.add("cubin", std::as_bytes(std::span(binary)));

    const auto json = nlohmann::json::parse(hasher.fields_json());
    REQUIRE(json.size() == 5);
    CHECK(json[0] == nlohmann::json{{"label", "target"}, {"value", "sm_90a"}});
    CHECK(json[1] == nlohmann::json{{"label", "tile"}, {"value", "-128"}});
    CHECK(json[2] == nlohmann::json{{"label", "longest"}, {"value", longest}});
    CHECK(json[3] == nlohmann::json{{"label", "source"},
                                    {"bytes", longest.size() + 1},
                                    {"digest", digest_of(longest + "x").hex()}});
    CHECK(json[4] == nlohmann::json{{"label", "cubin"}, {"bytes", 2}, {"digest", digest_of(binary).hex()}});
    CHECK(hasher.fields()[3].value.empty());
    CHECK(hasher.fields()[3].value_digest == digest_of(longest + "x"));
}

TEST_CASE("FieldHasher: the dumped fields tell their key", "[cache][digest]") {
    FieldHasher hasher;
    hasher.add("target", "sm_90a").add("tile", -128).add("empty", "").add("source", std::string(1000, 'x'));
    hasher.add("binary", std::string_view("\xff\0", 2)).add("option", "-a").add("option", "-b");
    const auto fields = parse_fields(hasher.fields_json());
    REQUIRE(fields);
    CHECK(*fields == hasher.fields());
    CHECK(digest_of(std::span<const HashedField>(*fields)) == hasher.digest());

    // Whatever is changed in the dump changes the key.
    const auto key_of = [](const nlohmann::json& json) {
        const auto changed = parse_fields(json.dump());
        REQUIRE(changed);
        return digest_of(std::span<const HashedField>(*changed));
    };
    const auto json = nlohmann::json::parse(hasher.fields_json());
    std::set<Digest> keys = {hasher.digest()};
    std::size_t changes = 1;
    const auto include = [&](const nlohmann::json& changed) {
        keys.insert(key_of(changed));
        ++changes;
    };
    for (std::size_t i = 0; i < json.size(); ++i) {
        auto changed = json;
        changed[i]["label"] = "other";
        include(changed);
        changed = json;
        if (json[i].contains("value")) {
            changed[i]["value"] = json[i]["value"].get<std::string>() + "0";
        } else {
            changed[i]["bytes"] = json[i]["bytes"].get<int>() + 1;
            include(changed);
            changed = json;
            changed[i]["digest"] = digest_of(std::string_view("other")).hex();
        }
        include(changed);
        changed = json;
        changed.erase(i);
        include(changed);
    }
    auto swapped = json;
    std::swap(swapped[5], swapped[6]);
    include(swapped);
    CHECK(keys.size() == changes);
}

TEST_CASE("parse_fields: takes what fields_json() writes and nothing else", "[cache][digest]") {
    for (const char* text :
         {"", "{}", "7", "[7]", "[[]]", R"([{"label": 1, "value": "2"}])", R"([{"label": "a"}])",
          R"([{"value": "a"}])", R"([{"label": "a", "value": 2}])",
          R"([{"label": "a", "value": "b", "more": 1}])", R"([{"label": "a", "bytes": 1, "digest": "0"}])",
          R"([{"label": "a", "bytes": -1, "digest": "99aa06d3014798d86001c324468d497f"}])",
          R"([{"label": "a", "digest": "99aa06d3014798d86001c324468d497f"}])"}) {
        INFO(text);
        CHECK_FALSE(parse_fields(text));
    }
    CHECK(parse_fields("[]")->empty());
}

TEST_CASE("FieldHasher: a label that is not UTF-8 still dumps as JSON", "[cache][digest]") {
    CHECK(nlohmann::json::accept(FieldHasher().add("\xff", "value").fields_json()));
}
