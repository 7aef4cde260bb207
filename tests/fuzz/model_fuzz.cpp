// Any text as a config.json and as a model's options: refused by name, or attentions whose requests are
// requests.
#include <string_view>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "fuzz/fuzz.hpp"

using namespace attnsmith;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    try {
        static_cast<void>(parse_model_options(text));
    } catch (const Error& error) {
        require(*error.what() != '\0');
    }
    Model model;
    try {
        model = parse_model(text);
    } catch (const Error& error) {
        require(*error.what() != '\0');
        return 0;
    }
    for (const ModelAttention& attention : model.attentions) {
        const std::string json = to_json(attention.request);
        require(to_json(parse_request(json)) == json);
    }
    return 0;
}
