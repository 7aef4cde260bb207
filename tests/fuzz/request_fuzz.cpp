// Any text as a request: it is refused by name, or its normalised JSON is the same request; as a request with
// lists, and as a recorded file.
#include <string_view>

#include "attnsmith/coverage.hpp"
#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "fuzz/fuzz.hpp"

namespace {

template <typename Read>
void read_coverage(Read read) {
    try {
        const attnsmith::Coverage coverage = read();
        for (const attnsmith::ModelAttention& attention : coverage.attentions) {
            const std::string json = attnsmith::to_json(attention.request);
            require(attnsmith::to_json(attnsmith::parse_request(json)) == json);
        }
    } catch (const attnsmith::Error& error) {
        require(*error.what() != '\0');
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    read_coverage([&] { return attnsmith::request_coverage(text); });
    read_coverage([&] { return attnsmith::recorded_coverage(text, "file"); });
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
