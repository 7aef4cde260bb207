// The errors that attnsmith throws. All derive from attnsmith::Error, except std::bad_alloc and what a
// callback of the caller throws. what() is one line that a person can act on. It is safe to print to a
// terminal: control characters and the like in it are written out, as in \x1b. Errors are cheap to copy, and
// copying one does not throw. Their constructors are for the library; their parameters may change.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/export.h"
#include "attnsmith/standard_library.hpp"
#include "attnsmith/types.hpp"

namespace attnsmith {

namespace problem {
struct ErrorDetails;
}

// Which class an error is of, for programs that log errors or hand them on. Words: invalid_request,
// unsupported, compile_error, driver_error, library_missing, cache_error, failed, kernel_missing. More may be
// added; the numbers are those of the C ABI (attnsmith_code) and never change.
enum class ErrorKind : std::int32_t {
    invalid_request = 1,  // InvalidRequest
    unsupported = 2,      // Unsupported
    compile_error = 3,    // CompileError
    driver_error = 4,     // DriverError
    library_missing = 5,  // LibraryMissing
    cache_error = 6,      // CacheError
    failed = 8,           // any other Error
    kernel_missing = 9,   // KernelMissing
};

// The word of an enumerator, such as "invalid_request", as details_json() has it.
[[nodiscard]] ATTNSMITH_API std::string_view to_string(ErrorKind kind) noexcept;
// The enumerator that a word stands for; absent for a word that is none of the enumeration's.
template <>
[[nodiscard]] ATTNSMITH_API std::optional<ErrorKind> from_string<ErrorKind>(std::string_view word) noexcept;

// The base of every error of attnsmith; catch this to catch them all.
class ATTNSMITH_API Error : public std::runtime_error {
  public:
    // For the library. `what` is the line that a person reads.
    explicit Error(const std::string& what);
    Error(const Error& other) noexcept;             // shares the fields of the other
    Error& operator=(const Error& other) noexcept;  // shares the fields of the other
    ~Error() override;                              // out of line, so that the type is the library's

    // Which class the error is of; ErrorKind::failed for one that is an Error and nothing more.
    [[nodiscard]] ErrorKind kind() const noexcept;
    // A JSON object: "code" (the word of kind()), "message" (what()), and the fields of the class.
    [[nodiscard]] std::string details_json() const;

  protected:
    // For the classes below, with the fields of one of them.
    Error(const std::string& what, std::shared_ptr<const problem::ErrorDetails> details);
    // The fields of the class. REQUIRES: the error was made with some.
    const problem::ErrorDetails& details() const noexcept { return *details_; }

  private:
    friend struct problem::ErrorDetails;
    std::shared_ptr<const problem::ErrorDetails> details_;  // null of an Error and nothing more
};

// The request itself is wrong: a field has a value that is not accepted.
class ATTNSMITH_API InvalidRequest : public Error {
  public:
    // For the library. what() is made of the three.
    InvalidRequest(std::string field, std::string value, std::string accepted);
    ~InvalidRequest() override;  // out of line, so that the type is the library's

    [[nodiscard]] const std::string& field() const noexcept;     // the field's name in a request
    [[nodiscard]] const std::string& value() const noexcept;     // the value that was given, as text
    [[nodiscard]] const std::string& accepted() const noexcept;  // what is accepted, in words
};

// Why one candidate was not chosen.
struct Refusal {
    std::string candidate{};  // the name of a kernel or of a family
    std::string reason{};     // one sentence

    bool operator==(const Refusal&) const = default;
};

// The request is meaningful, but no kernel serves it on this device.
class ATTNSMITH_API Unsupported : public Error {
  public:
    // For the library. `what` names what is not served.
    Unsupported(const std::string& what, std::vector<Refusal> refusals);
    ~Unsupported() override;  // out of line, so that the type is the library's

    // Candidates, or parts of a model, each with its reason; may be empty.
    [[nodiscard]] const std::vector<Refusal>& refusals() const noexcept;
};

// NVRTC refused the generated source. what() has the first error; log() has all of them.
class ATTNSMITH_API CompileError : public Error {
  public:
    // For the library. `what` has NVRTC's first error.
    CompileError(const std::string& what, std::string log, std::vector<std::string> options,
                 std::string numbered_source);
    ~CompileError() override;  // out of line, so that the type is the library's

    [[nodiscard]] const std::string& log() const noexcept;                   // all that NVRTC printed
    [[nodiscard]] const std::vector<std::string>& options() const noexcept;  // the options of NVRTC
    // The source with a number before each line, as the log names them.
    [[nodiscard]] const std::string& numbered_source() const noexcept;
};

// A call into the CUDA driver failed.
class ATTNSMITH_API DriverError : public Error {
  public:
    // For the library. what() is made of the three.
    DriverError(std::string call, int driver_code, std::string meaning);
    ~DriverError() override;  // out of line, so that the type is the library's

    [[nodiscard]] const std::string& call() const noexcept;     // the function, such as "cuLaunchKernelEx"
    [[nodiscard]] int driver_code() const noexcept;             // what it returned, a CUresult
    [[nodiscard]] const std::string& meaning() const noexcept;  // the driver's own words for the code
    // The old name of driver_code().
    [[deprecated("use driver_code()")]] int code() const noexcept { return driver_code(); }
};

// NVRTC or the CUDA driver could not be opened.
class ATTNSMITH_API LibraryMissing : public Error {
  public:
    // For the library. `remedy` says what to install or to set.
    LibraryMissing(std::string library, std::vector<std::string> tried, const std::string& remedy);
    ~LibraryMissing() override;  // out of line, so that the type is the library's

    [[nodiscard]] const std::string& library() const noexcept;             // which library, in words
    [[nodiscard]] const std::vector<std::string>& tried() const noexcept;  // names and paths, in order

  private:
    friend struct problem::ErrorDetails;
    LibraryMissing(const std::string& what, std::shared_ptr<const problem::ErrorDetails> details);
};

// No cache has a kernel that a launch needs, and OnMiss::error keeps it from being compiled.
class ATTNSMITH_API KernelMissing : public Error {
  public:
    // For the library. `what` has the command, if there is one.
    KernelMissing(const std::string& what, std::string request, int sm, std::string key, std::string command);
    ~KernelMissing() override;  // out of line, so that the type is the library's

    // The request as JSON that parse_request() takes, without sizes and sm.
    [[nodiscard]] const std::string& request() const noexcept;
    [[nodiscard]] int sm() const noexcept;                  // compute capability, 90 for 9.0
    [[nodiscard]] const std::string& key() const noexcept;  // the kernel's key in the cache
    // The command that would have built the kernel; empty if no cache directory is used, for then no command
    // can.
    [[nodiscard]] const std::string& command() const noexcept;
};

// Thrown by explicit cache operations only, and by a Runtime that is made with keys if nothing can verify a
// signature. Preparing and launching never fail because of the cache.
class ATTNSMITH_API CacheError : public Error {
  public:
    // For the library. `path` is the file or directory that the error is about.
    explicit CacheError(const std::string& what, std::string path = {});
    ~CacheError() override;  // out of line, so that the type is the library's

    // The file or directory that the error is about; empty if it is about none, or about several.
    [[nodiscard]] const std::string& path() const noexcept;
};

}  // namespace attnsmith
