// A config.json with its spellings evened out: the language model's own part of it, several names for one
// thing, and the defaults that Hugging Face's classes leave out of the file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace attnsmith::problem {

class ModelReader {
  public:
    // The names that one value goes by, in order of preference. "a.b" is field b of object a.
    using Names = std::initializer_list<std::string_view>;

    // Throws InvalidRequest for text that is no JSON object.
    explicit ModelReader(std::string_view text);

    // A value and the name that messages give it, e.g. "text_config.head_dim".
    struct Found {
        nlohmann::json value;
        std::string field;
    };

    // The first of `names` that is there and not null; else, where none is there at all, the class default,
    // which is noted. Typed getters throw InvalidRequest where the value is of another type.
    std::optional<Found> find(Names names);
    bool has(std::string_view name) const;  // given by the file itself, null or not
    std::optional<std::int64_t> integer(Names names);
    std::optional<std::int64_t> count(Names names);  // an integer from 1 to 2^31 - 1
    std::int64_t required_count(Names names);
    std::int64_t query_heads();  // every model with attention has them
    std::optional<double> number(Names names);
    std::optional<double> positive(Names names);  // a number above 0
    std::optional<bool> boolean(Names names);
    std::optional<std::string> word(Names names);
    bool is_true(Names names) { return boolean(names).value_or(false); }

    // As word(), but looked for in the enclosing parts of the config too.
    std::optional<std::string> inherited_word(Names names);

    const std::string& model_type() const { return model_type_; }            // of the language model's part
    const std::string& file_model_type() const { return file_model_type_; }  // of the whole file
    bool encoder_decoder() const { return encoder_decoder_; }

    void note(std::string text);
    const std::vector<std::string>& notes() const { return notes_; }

  private:
    void descend();
    bool enter(std::string_view name);
    const nlohmann::json& part() const { return parts_.back(); }
    std::string field(std::string_view name) const { return prefix_ + std::string(name); }

    std::vector<nlohmann::json> parts_;  // from the whole file inwards
    std::string prefix_;
    std::string model_type_, file_model_type_;
    bool encoder_decoder_ = false;
    std::vector<std::string> notes_;
};

}  // namespace attnsmith::problem
