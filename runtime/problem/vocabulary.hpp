// The words of a request: one table for each enumeration, used by JSON, the command line, Python and every
// message.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/types.hpp"

namespace attnsmith::problem {

// Each throws InvalidRequest(field, text, what is accepted). `text` may also be one of the documented
// aliases, e.g. "bfloat16"; what comes out of the library is always the canonical word.
Op parse_op(std::string_view field, std::string_view text);
DType parse_float_dtype(std::string_view field, std::string_view text);  // fp16 or bf16
DType parse_index_dtype(std::string_view field, std::string_view text);  // int32 or int64
Mask parse_mask(std::string_view field, std::string_view text);
KvStorage parse_kv_storage(std::string_view field, std::string_view text);
PageOrder parse_page_order(std::string_view field, std::string_view text);
Precision parse_precision(std::string_view field, std::string_view text);
Consistency parse_consistency(std::string_view field, std::string_view text);

// The canonical words, for help texts.
enum class Words : std::uint8_t {
    op,
    float_dtype,
    index_dtype,
    mask,
    kv,
    page_order,
    precision,
    consistency
};
std::vector<std::string_view> words_of(Words which);

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

// The candidate at the least edit distance from `word`, or "" when none is near enough to be a misspelling of
// it.
std::string_view nearest_name(std::string_view word, std::span<const std::string_view> candidates);

// What an error says that is accepted instead of `given`: the words, and the one that it is a misspelling of.
std::string accepted_words(std::string_view given, std::span<const std::string_view> words);

// "a", "a or b", "a, b or c".
std::string join_or(std::span<const std::string_view> words);

// `text` as a JSON string: one line, plain ASCII, cut when long. For values in messages.
std::string quote(std::string_view text);

}  // namespace attnsmith::problem
