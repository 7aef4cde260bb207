// Any text as a key file: what is taken is, blanks apart, what is written for that key.
#include <string>
#include <string_view>

#include "cache/signing/key_text.hpp"
#include "fuzz/fuzz.hpp"

using namespace attnsmith::cache;

namespace {

std::string without_blanks(std::string_view text) {
    std::string rest;
    for (const char c : text) {
        if (std::string_view(" \t\r\n").find(c) == std::string_view::npos) rest += c;
    }
    return rest;
}

template <class Key>
void judge(std::string_view text, const Result<Key>& key) {
    if (key)
        require(without_blanks(encode(*key)) == without_blanks(text));
    else
        require(key.status().error_number != 0 && !key.status().message.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    judge(text, parse_secret_key(text));
    judge(text, parse_public_key(text));
    return 0;
}
