// Compute capabilities: which are known, and how they are spelled.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace attnsmith::problem {

// The compute capabilities that attnsmith knows, ascending: 80 is 8.0, 120 is 12.0.
std::span<const int> known_sms();
// "80, 86, ...", for messages.
std::string known_sms_text();
// Throws InvalidRequest for an `sm` that is not known.
int check_sm(std::string_view field, std::int64_t sm);

// A compute capability as somebody wrote it.
struct SmText {
    int sm = 0;
    std::string_view unused{};  // a suffix that says nothing here, such as "f" of "100f"
};
// Takes "90", "sm_90", "sm90" and "9.0", and a letter behind any of them: the compile target is the kernel's
// affair, so 90a is 90, and another letter is handed back as `unused`, for a warning. Throws InvalidRequest.
SmText parse_sm(std::string_view field, std::string_view text);

}  // namespace attnsmith::problem
