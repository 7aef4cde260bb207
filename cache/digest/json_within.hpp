// JSON that somebody else may have written. Internal to cache/, and for who reads the metadata of entries.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace attnsmith::cache {

// Discarded (nlohmann's word) where it is no JSON, or deeper than that: so depth costs no stack.
nlohmann::ordered_json parse_json_within(std::string_view text, int deepest);

}  // namespace attnsmith::cache
