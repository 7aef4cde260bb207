// Outcomes of cache operations, as values: nothing in attnsmith::cache throws across its interface.
//
// A *recoverable* status is the world's doing (full disk, read-only mount, another user's file): the caller
// goes on without the cache. A *fatal* one is a defect of the caller: what it asked for cannot be stored.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace attnsmith::cache {

enum class StatusClass { ok, recoverable, fatal };

struct [[nodiscard]] Status {
    StatusClass status_class = StatusClass::ok;
    int error_number = 0;  // an errno value; EBADMSG for bytes that are not a whole entry
    std::string path;      // the file or directory concerned; empty if none
    std::string message;   // one line for a human, without the path

    bool ok() const { return status_class == StatusClass::ok; }
    bool recoverable() const { return status_class == StatusClass::recoverable; }
    bool fatal() const { return status_class == StatusClass::fatal; }

    // "<message>: <path>", or "ok".
    std::string to_string() const;

    static Status success() { return {}; }
    static Status recoverable_error(int error_number, std::string path, std::string message);
    static Status fatal_error(int error_number, std::string path, std::string message);
    // The message is "cannot <operation>: <strerror>".
    static Status from_errno(int error_number, std::string_view operation, std::string path);
};

// Whether what was asked for is not there: never was, or (ESTALE, on NFS) was removed under an open handle.
bool is_absence(const Status& status);

// A T, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : outcome_(std::in_place_index<0>, std::move(value)) {}
    // REQUIRES: !status.ok()
    Result(Status status) : outcome_(std::in_place_index<1>, std::move(status)) {}

    bool ok() const { return outcome_.index() == 0; }
    explicit operator bool() const { return ok(); }

    // REQUIRES: ok(). (The one thing here that throws: std::bad_variant_access, for a caller that did not
    // look.)
    T& value() & { return std::get<0>(outcome_); }
    const T& value() const& { return std::get<0>(outcome_); }
    T&& value() && { return std::get<0>(std::move(outcome_)); }
    T& operator*() { return value(); }
    const T& operator*() const { return value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    // Status::success() where there is a value.
    Status status() const { return ok() ? Status::success() : *std::get_if<1>(&outcome_); }

  private:
    std::variant<T, Status> outcome_;
};

}  // namespace attnsmith::cache
