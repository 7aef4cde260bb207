// The words of requests that op append alone has, each with a value: other ops refuse what an append has
// without the word, too.
#pragma once

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "attnsmith/spec.hpp"

namespace attnsmith::test {

using SpecChange = std::pair<std::string_view, std::function<void(AttentionSpec&)>>;

inline std::vector<SpecChange> append_words() {
    return {
        {"slots", [](AttentionSpec& s) { s.slots = Slots::table; }},
        {"rope", [](AttentionSpec& s) { s.rope = Rope::half; }},
        {"rotary_dim", [](AttentionSpec& s) { s.rotary_dim = 64; }},
        {"rope_table", [](AttentionSpec& s) { s.rope_table = RopeTable::frequencies; }},
        {"rope_factor", [](AttentionSpec& s) { s.rope_factor = 1.0; }},
        {"q_norm", [](AttentionSpec& s) { s.q_norm = true; }},
        {"k_norm", [](AttentionSpec& s) { s.k_norm = true; }},
        {"v_norm", [](AttentionSpec& s) { s.v_norm = true; }},
        {"norm_eps", [](AttentionSpec& s) { s.norm_eps = 1e-6; }},
        {"q_dtype", [](AttentionSpec& s) { s.q_dtype = DType::e4m3; }},
        {"check_slots", [](AttentionSpec& s) { s.check_slots = true; }},
    };
}

}  // namespace attnsmith::test
