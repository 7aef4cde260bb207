#include "problem/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "problem/error_details.hpp"

namespace attnsmith::problem {

Failure failure_of(const Error& error) {
    Failure failure{.code = static_cast<attnsmith_code>(error.kind()),
                    .message = error.what(),
                    .fields = ErrorDetails::json_of(error)};
    if (const auto* const invalid = dynamic_cast<const InvalidRequest*>(&error))
        failure.field = invalid->field();
    if (const auto* const failed = dynamic_cast<const DriverError*>(&error))
        failure.driver_code = failed->driver_code();
    return failure;
}

Failure current_failure() {
    try {
        throw;
    } catch (const Error& error) {
        return failure_of(error);
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        return {.code = ATTNSMITH_CODE_FAILED, .message = error.what()};
    } catch (...) {
        return {.code = ATTNSMITH_CODE_FAILED, .message = "an exception that is none of std::exception's"};
    }
}

std::string fields_text(const Failure& failure) {
    return fmt::format(R"("code":"{}","message":{}{})", to_string(static_cast<ErrorKind>(failure.code)),
                       json_string(failure.message), failure.fields);
}

std::string tried_text(const std::vector<std::string>& tried) {
    std::vector<std::pair<std::string, std::string>> reasons;  // and the names of which each was said
    for (const std::string& one : tried) {
        const std::size_t end = one.find(": ");
        const std::string name = one.substr(0, end), reason = end == one.npos ? "" : one.substr(end);
        const auto known = std::ranges::find(reasons, reason, &std::pair<std::string, std::string>::first);
        if (known == reasons.end()) {
            reasons.emplace_back(reason, name);
        } else {
            known->second += ", " + name;
        }
    }
    std::string text;
    for (const auto& [reason, names] : reasons) text += (text.empty() ? "" : ", ") + names + reason;
    return text.empty() ? "nothing" : text;
}

std::string json_string(std::string_view text) {
    return nlohmann::json(std::string(text)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace attnsmith::problem
