// What a refused call threw, for tests that look at the field and the words of the message.
#pragma once

#include <optional>
#include <string>

#include "attnsmith/error.hpp"
#include "support/catch.hpp"

namespace attnsmith::test {

template <typename Call>
InvalidRequest refused(Call call) {
    std::optional<InvalidRequest> error;
    try {
        call();
    } catch (const InvalidRequest& thrown) {
        error = thrown;
    }
    REQUIRE(error.has_value());
    const std::string message = error->what();
    CHECK(message.find('\n') == std::string::npos);  // one line, and not a screenful
    CHECK(message.size() < 700);
    CHECK(message.find(error->field()) == 0);
    CHECK_FALSE(error->field().empty());
    CHECK_FALSE(error->value().empty());
    CHECK_FALSE(error->accepted().empty());
    return *error;
}

inline bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

}  // namespace attnsmith::test
