// Any bytes as what a remote answers: a manifest that is taken has one text, and a hint one order.
#include "cache/remote/manifest.hpp"
#include "fuzz/fuzz.hpp"

using namespace attnsmith::cache;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    if (const auto parsed = parse_manifest(bytes)) {
        const std::string again = encode_manifest(manifest_text(parsed->manifest), parsed->signed_by);
        const auto same = std::as_bytes(std::span(again));
        require(std::equal(same.begin(), same.end(), bytes.begin(), bytes.end()));
        require(parsed->signed_text == manifest_text(parsed->manifest));
    }
    const Digest key(0x0123456789abcdef, 0xfedcba9876543210);
    if (const auto toolchains = parse_hint(key, bytes); toolchains && !toolchains->empty()) {
        const std::string text = encode_hint(key, *toolchains, toolchains->front());
        const auto again = parse_hint(key, std::as_bytes(std::span(text)));
        require(again && *again == *toolchains);
    }
    return 0;
}
