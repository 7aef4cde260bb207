// Any text as a request: it is refused by name, or its normalised JSON is the same request.
#include <string_view>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "fuzz/fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    attnsmith::AttentionRequest request;
    try {
        request = attnsmith::parse_request(text);
    } catch (const attnsmith::Error& error) {
        require(*error.what() != '\0');
        return 0;
    }
    const std::string json = attnsmith::to_json(request);
    require(attnsmith::to_json(attnsmith::parse_request(json)) == json);
    return 0;
}
