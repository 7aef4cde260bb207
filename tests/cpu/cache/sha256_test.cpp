// SHA-256 against the examples of FIPS 180-4 and NIST's test vectors (SHA256ShortMsg.rsp, SHA256LongMsg.rsp).
#include "cache/digest/sha256.hpp"

#include <random>

#include "cache/fixture.hpp"
#include "support/catch.hpp"

using namespace attnsmith::cache;
using namespace attnsmith::cache::testing;

namespace {

std::string hash(std::string_view text) { return sha256_of(bytes_of(text)).hex(); }

}  // namespace

TEST_CASE("SHA-256 gives NIST's digests") {
    for (const auto add_blocks : {sha256::add_blocks_portably, sha256::fastest()}) {
        CHECK(Sha256(add_blocks).add(bytes_of("abc")).digest().hex() ==
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
    CHECK(hash("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hash("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hash("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnop"
               "qrsm"
               "nopqrstnopqrstu") == "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    CHECK(hash("\xbd") == "68325720aabd7c82f30f554b313d0570c95accbb7dc4b5aae11204c08ffe732b");
    CHECK(hash(std::string(1'000'000, 'a')) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 by the processor's instructions is that of portable code") {
    const sha256::AddBlocks by_instructions = sha256::by_instructions();
    if (by_instructions == nullptr) {
        WARN("this processor has no instructions for SHA-256");
        CHECK(sha256::fastest() == sha256::add_blocks_portably);
        return;
    }
    CHECK(sha256::fastest() == by_instructions);
    std::mt19937 random(256);
    for (std::size_t size = 0; size < 1100; size += size < 300 ? 1 : 37) {
        std::vector<std::byte> message(size + 3);
        for (std::byte& byte : message) byte = static_cast<std::byte>(random());
        // At any place in memory, and in two parts.
        const auto bytes = std::span(message).subspan(size % 4 == 3 ? 3 : size % 4, size);
        const std::size_t cut = random() % (size + 1);
        Sha256 fast(by_instructions), portable(sha256::add_blocks_portably);
        fast.add(bytes.first(cut)).add(bytes.subspan(cut));
        REQUIRE(fast.digest() == portable.add(bytes).digest());
    }
}

TEST_CASE("SHA-256 pads messages around the end of a block rightly") {
    // Zeros of the lengths that NIST's additional vectors for SHA-256 take.
    CHECK(hash(std::string(55, '\0')) == "02779466cdec163811d078815c633f21901413081449002f24aa3e80f0b88ef7");
    CHECK(hash(std::string(56, '\0')) == "d4817aa5497628e7c77e6b606107042bbba3130888c5f47a375e6179be789fbb");
    CHECK(hash(std::string(57, '\0')) == "65a16cb7861335d5ace3c60718b5052e44660726da4cd13bb745381b235a1785");
    CHECK(hash(std::string(64, '\0')) == "f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b");
    CHECK(hash(std::string(1000, '\0')) ==
          "541b3e9daa09b20bf85fa273e5cbd3e80185aa4ec298e765db87742b70138a53");
}

TEST_CASE("SHA-256 of parts is that of the whole, wherever it is cut") {
    std::string text;
    for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
    const std::string whole = hash(text);
    for (std::size_t first = 0; first <= text.size(); ++first) {
        Sha256 hasher;
        hasher.add(bytes_of(text.substr(0, first)));
        const Sha256Digest early = hasher.digest();  // does not end it
        CHECK(early.hex() == hash(text.substr(0, first)));
        CHECK(hasher.add(bytes_of(text.substr(first))).digest().hex() == whole);
    }
}

TEST_CASE("a SHA-256 digest is read as it is written, and nothing else is") {
    const std::string hex = hash("abc");
    const auto digest = Sha256Digest::parse(hex);
    REQUIRE(digest);
    CHECK(digest->hex() == hex);
    CHECK_FALSE(Sha256Digest::parse(hex.substr(1)));
    CHECK_FALSE(Sha256Digest::parse(hex + "0"));
    CHECK_FALSE(Sha256Digest::parse("B" + hex.substr(1)));
    CHECK_FALSE(Sha256Digest::parse("g" + hex.substr(1)));
    CHECK_FALSE(Sha256Digest::parse(std::string_view("\0", 1)));
}
