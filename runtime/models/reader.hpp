// A config.json with its spellings evened out: the language model's own part of it, several names for one
// thing, and the defaults that Hugging Face's classes leave out of the file.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/error.hpp"
#include "attnsmith/spec.hpp"
#include "models/types.hpp"

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
        bool is_default = false;  // the class supplied it
    };

    // A number of a plan and what the config has that it was made of: 64 of a hidden_size of 4096.
    struct Sourced {
        std::int64_t number = 0;
        Found source{};

        bool operator==(const Sourced& other) const { return number == other.number; }
    };

    // The first of `names` that is there and not null, and that code of the type reads; else, where none is
    // there at all, the class default, which is noted. Typed getters throw InvalidRequest where the value is
    // of another type.
    std::optional<Found> find(Names names);
    bool has(std::string_view name);          // given by the file itself, null or not, and read by the type
    bool lists(std::string_view name) const;  // given as a list; marks nothing
    std::optional<std::int64_t> integer(Names names);
    std::optional<std::int64_t> count(Names names);  // an integer from 1 to 2^31 - 1
    std::optional<Sourced> sourced_count(Names names);
    std::int64_t required_count(Names names);
    Sourced required_sourced(Names names);
    Sourced query_heads();  // every model with attention has them
    std::optional<double> number(Names names);
    std::optional<double> positive(Names names);  // a number above 0
    std::optional<bool> boolean(Names names);
    std::optional<std::string> word(Names names);
    bool is_true(Names names) { return boolean(names).value_or(false); }

    // The same, but looked for in the enclosing parts of the config too, and without class defaults.
    std::optional<Found> inherited(Names names) const;
    std::optional<std::string> inherited_word(Names names) const;
    // What the whole file and the language model's part inside it each say, without marking it as read.
    std::vector<Found> inside_and_around(std::string_view name) const;

    const std::string& model_type() const { return model_type_; }            // of the language model's part
    std::string_view code() const { return code_of(model_type_); }           // whose rules it follows
    const std::string& file_model_type() const { return file_model_type_; }  // of the whole file
    TypeClass type_class() const { return class_of(model_type_); }
    bool encoder_decoder() const { return encoder_decoder_; }
    // "text_config." of a language model's part inside the file; empty where it is the file.
    const std::string& prefix() const { return prefixes_.back(); }

    void note(std::string text);
    const std::vector<std::string>& notes() const { return notes_; }
    void warn(WarningKind kind, std::string field, std::string text);  // once, however often it is said
    const std::vector<ModelWarning>& warnings() const { return warnings_; }

    // ---- The account of where a request's fields come from.

    // Records what the config has that a field of the requests was made of.
    void derive(std::string_view request_field, const Found& found);
    void derive(std::string_view request_field, Names names);  // what find() gives, where it gives any
    // A value for messages, with the class whose default it is.
    std::string shown(const Found& found) const;
    // An error about a request's field as one about the field of the config that it was made of: the reader
    // of the message wrote the config and has never seen the request.
    InvalidRequest traced(const InvalidRequest& error) const;

    // ---- The account of what was read. A getter marks each of its names, but for one that is there with
    // another value than the one it gave.

    // Marks fields that need no reading, because another field or the type decided. "mamba_*" is all names
    // that begin so.
    void disregard(Names names);
    // Marks those that say the value that was planned without them.
    void agree(Names names, const nlohmann::json& value);
    // Calls visit(field, name, value) for each member of the file that nothing read. A member that is an
    // object is entered where visit gives true; the language model's part is always entered.
    // Whether an object has any of the names that a number of query heads goes by.
    static bool counts_heads(const nlohmann::json& object);
    using Visit =
        std::function<bool(const std::string& field, const std::string& name, const nlohmann::json& value)>;
    void visit_unread(const Visit& visit) const;

  private:
    void check_objects() const;  // of the innermost part
    void descend();
    void settle_type();
    void take_type(std::string_view type);
    const nlohmann::json* own_member(std::string_view name) const;
    std::string own_model_type() const;
    bool enter(std::string_view name);
    void mark_read(Names names, const nlohmann::json* given);
    bool is_read(const std::string& field) const;
    void visit_members(const nlohmann::json& object, const std::string& path, const Visit& visit) const;
    const nlohmann::json& part() const { return parts_.back(); }
    std::string field(std::string_view name) const { return prefix() + std::string(name); }

    std::vector<nlohmann::json> parts_;         // from the whole file inwards
    std::vector<std::string> prefixes_ = {""};  // of the names in each of them
    std::string model_type_, file_model_type_;
    bool encoder_decoder_ = false;
    std::set<std::string> read_;                         // by their full names
    std::vector<std::string> disregarded_;               // beginnings of full names
    std::map<std::string, Found, std::less<>> origins_;  // by the request's fields
    std::vector<std::string> notes_;
    std::vector<ModelWarning> warnings_;
};

}  // namespace attnsmith::problem
