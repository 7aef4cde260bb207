#include "problem/failure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "attnsmith/error.hpp"

namespace attnsmith::problem {
namespace {

std::string field(const char* name, std::string_view value) {
    return fmt::format(R"(,"{}":{})", name, json_string(value));
}

template <typename Item, typename Write>
std::string list_field(const char* name, const std::vector<Item>& items, Write write) {
    std::string text = fmt::format(R"(,"{}":[)", name);
    for (const Item& item : items) text += (&item == &items.front() ? "" : ",") + write(item);
    return text + "]";
}

std::string refusal_json(const Refusal& refusal) {
    return fmt::format(R"({{"candidate":{},"reason":{}}})", json_string(refusal.candidate),
                       json_string(refusal.reason));
}

}  // namespace

std::string_view name_of(attnsmith_code code) {
    switch (code) {
        case ATTNSMITH_CODE_INVALID_REQUEST:
            return "invalid_request";
        case ATTNSMITH_CODE_UNSUPPORTED:
            return "unsupported";
        case ATTNSMITH_CODE_COMPILE_ERROR:
            return "compile_error";
        case ATTNSMITH_CODE_DRIVER_ERROR:
            return "driver_error";
        case ATTNSMITH_CODE_LIBRARY_MISSING:
            return "library_missing";
        case ATTNSMITH_CODE_CACHE_ERROR:
            return "cache_error";
        case ATTNSMITH_CODE_KERNEL_MISSING:
            return "kernel_missing";
        default:
            return "failed";
    }
}

Failure current_failure() {
    try {
        throw;
    } catch (const InvalidRequest& error) {
        return {ATTNSMITH_CODE_INVALID_REQUEST, error.what(),
                field("field", error.field()) + field("value", error.value()) +
                    field("accepted", error.accepted())};
    } catch (const Unsupported& error) {
        return {ATTNSMITH_CODE_UNSUPPORTED, error.what(),
                list_field("refusals", error.refusals(), refusal_json)};
    } catch (const CompileError& error) {
        return {ATTNSMITH_CODE_COMPILE_ERROR, error.what(),
                field("log", error.log()) + list_field("options", error.options(), json_string) +
                    field("numbered_source", error.numbered_source())};
    } catch (const DriverError& error) {
        return {ATTNSMITH_CODE_DRIVER_ERROR, error.what(),
                field("call", error.call()) + fmt::format(R"(,"driver_code":{})", error.code()) +
                    field("meaning", error.meaning())};
    } catch (const LibraryMissing& error) {
        return {ATTNSMITH_CODE_LIBRARY_MISSING, error.what(),
                field("library", error.library()) + list_field("tried", error.tried(), json_string)};
    } catch (const KernelMissing& error) {
        return {ATTNSMITH_CODE_KERNEL_MISSING, error.what(),
                fmt::format(R"(,"request":{},"sm":{})", error.request(), error.sm()) +
                    field("key", error.key()) + field("command", error.command())};
    } catch (const CacheError& error) {
        return {ATTNSMITH_CODE_CACHE_ERROR, error.what(), {}};
    } catch (const std::bad_alloc&) {
        throw;
    } catch (const std::exception& error) {
        return {ATTNSMITH_CODE_FAILED, error.what(), {}};
    } catch (...) {
        return {ATTNSMITH_CODE_FAILED, "an exception that is none of std::exception's", {}};
    }
}

std::string fields_text(const Failure& failure) {
    return fmt::format(R"("code":"{}"{}{})", name_of(failure.code), field("message", failure.message),
                       failure.fields);
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
