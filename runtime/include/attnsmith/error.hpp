// The errors that attnsmith throws. All derive from attnsmith::Error; what() is one line that a person can
// act on and that no terminal obeys: control characters and the like in it are written out, as in \x1b.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attnsmith/export.h"
#include "attnsmith/standard_library.hpp"

namespace attnsmith {

// What every error of attnsmith is; catch this to catch them all.
class ATTNSMITH_API Error : public std::runtime_error {
  public:
    // `what` is the line that a person reads.
    explicit Error(const std::string& what);
};

// The request itself is wrong: `field` has a `value` that is not among what is `accepted`.
class ATTNSMITH_API InvalidRequest : public Error {
  public:
    // what() is made of the three.
    InvalidRequest(std::string field, std::string value, std::string accepted);

    const std::string& field() const noexcept { return field_; }        // its name in a request
    const std::string& value() const noexcept { return value_; }        // as text
    const std::string& accepted() const noexcept { return accepted_; }  // in words

  private:
    std::string field_, value_, accepted_;
};

// Why one candidate was not chosen.
struct Refusal {
    std::string candidate{};  // a kernel's name, or a family's
    std::string reason{};     // one sentence

    bool operator==(const Refusal&) const = default;
};

// The request is meaningful, but no kernel serves it on this device.
class ATTNSMITH_API Unsupported : public Error {
  public:
    // `what` names what is not served.
    Unsupported(const std::string& what, std::vector<Refusal> refusals);

    // Candidates, or parts of a model, each with its reason; may be empty.
    const std::vector<Refusal>& refusals() const noexcept { return refusals_; }

  private:
    std::vector<Refusal> refusals_;
};

// NVRTC refused the generated source. what() has the first error; log() all of it.
class ATTNSMITH_API CompileError : public Error {
  public:
    // `what` has NVRTC's first error.
    CompileError(const std::string& what, std::string log, std::vector<std::string> options,
                 std::string numbered_source);

    const std::string& log() const noexcept { return log_; }                       // all that NVRTC said
    const std::vector<std::string>& options() const noexcept { return options_; }  // NVRTC's
    // The source with a number before each line, as the log names them.
    const std::string& numbered_source() const noexcept { return numbered_source_; }

  private:
    std::string log_;
    std::vector<std::string> options_;
    std::string numbered_source_;
};

// A call into the CUDA driver failed. `code` is the CUresult.
class ATTNSMITH_API DriverError : public Error {
  public:
    // what() is made of the three.
    DriverError(std::string call, int code, std::string meaning);

    const std::string& call() const noexcept { return call_; }        // "cuLaunchKernelEx"
    int code() const noexcept { return code_; }                       // the CUresult
    const std::string& meaning() const noexcept { return meaning_; }  // the driver's words for it

  private:
    std::string call_;
    int code_;
    std::string meaning_;
};

// NVRTC or the CUDA driver could not be opened. `tried` lists the names and paths, in order.
class ATTNSMITH_API LibraryMissing : public Error {
  public:
    // `remedy` says what to install or to set.
    LibraryMissing(std::string library, std::vector<std::string> tried, const std::string& remedy);
    // The same, and what was tried in its stead.
    LibraryMissing(const LibraryMissing& missing, const std::string& instead);

    const std::string& library() const noexcept { return library_; }  // in words
    // Names and paths, in order.
    const std::vector<std::string>& tried() const noexcept { return tried_; }

  private:
    std::string library_;
    std::vector<std::string> tried_;
};

// No cache has a kernel that a launch needs, and OnMiss::error keeps it from being compiled.
class ATTNSMITH_API KernelMissing : public Error {
  public:
    // `what` has the command, where there is one.
    KernelMissing(const std::string& what, std::string request, int sm, std::string key, std::string command);

    const std::string& request() const noexcept { return request_; }  // JSON, without sizes and sm
    int sm() const noexcept { return sm_; }                           // compute capability, 90 for 9.0
    const std::string& key() const noexcept { return key_; }          // in the cache
    // That would have built it; empty where no cache directory is used, for then no command can.
    const std::string& command() const noexcept { return command_; }

  private:
    std::string request_;
    int sm_;
    std::string key_;
    std::string command_;
};

// Thrown by explicit cache operations only, and by a Runtime that is made with keys where nothing could
// verify a signature; preparing and launching never fail because of the cache.
class ATTNSMITH_API CacheError : public Error {
  public:
    using Error::Error;
};

}  // namespace attnsmith
