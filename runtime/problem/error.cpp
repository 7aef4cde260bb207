#include "attnsmith/error.hpp"

#include <fmt/format.h>

#include <utility>

#include "problem/error_details.hpp"
#include "problem/failure.hpp"
#include "problem/visible_text.hpp"

namespace attnsmith {
namespace {

using problem::json_string;

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

struct InvalidRequestDetails final : problem::ErrorDetails {
    InvalidRequestDetails(std::string field_name, std::string given, std::string expected)
        : ErrorDetails(ErrorKind::invalid_request),
          name(std::move(field_name)),
          value(std::move(given)),
          accepted(std::move(expected)) {}
    std::string json() const override {
        return field("field", name) + field("value", value) + field("accepted", accepted);
    }

    std::string name, value, accepted;
};

struct UnsupportedDetails final : problem::ErrorDetails {
    explicit UnsupportedDetails(std::vector<Refusal> candidates)
        : ErrorDetails(ErrorKind::unsupported), refusals(std::move(candidates)) {}
    std::string json() const override { return list_field("refusals", refusals, refusal_json); }

    std::vector<Refusal> refusals;
};

struct CompileErrorDetails final : problem::ErrorDetails {
    CompileErrorDetails(std::string printed, std::vector<std::string> given, std::string source)
        : ErrorDetails(ErrorKind::compile_error),
          log(std::move(printed)),
          options(std::move(given)),
          numbered_source(std::move(source)) {}
    std::string json() const override {
        return field("log", log) + list_field("options", options, json_string) +
               field("numbered_source", numbered_source);
    }

    std::string log;
    std::vector<std::string> options;
    std::string numbered_source;
};

struct DriverErrorDetails final : problem::ErrorDetails {
    DriverErrorDetails(std::string function, int result, std::string words)
        : ErrorDetails(ErrorKind::driver_error),
          call(std::move(function)),
          driver_code(result),
          meaning(std::move(words)) {}
    std::string json() const override {
        return field("call", call) + fmt::format(R"(,"driver_code":{})", driver_code) +
               field("meaning", meaning);
    }

    std::string call;
    int driver_code;
    std::string meaning;
};

struct LibraryMissingDetails final : problem::ErrorDetails {
    LibraryMissingDetails(std::string which, std::vector<std::string> places)
        : ErrorDetails(ErrorKind::library_missing), library(std::move(which)), tried(std::move(places)) {}
    std::string json() const override {
        return field("library", library) + list_field("tried", tried, json_string);
    }

    std::string library;
    std::vector<std::string> tried;
};

struct KernelMissingDetails final : problem::ErrorDetails {
    KernelMissingDetails(std::string json_text, int capability, std::string name, std::string remedy)
        : ErrorDetails(ErrorKind::kernel_missing),
          request(std::move(json_text)),
          sm(capability),
          key(std::move(name)),
          command(std::move(remedy)) {}
    std::string json() const override {
        return fmt::format(R"(,"request":{},"sm":{})", request, sm) + field("key", key) +
               field("command", command);
    }

    std::string request;
    int sm;
    std::string key;
    std::string command;
};

struct CacheErrorDetails final : problem::ErrorDetails {
    explicit CacheErrorDetails(std::string place)
        : ErrorDetails(ErrorKind::cache_error), path(std::move(place)) {}
    std::string json() const override { return field("path", path); }

    std::string path;
};

std::string list_refusals(const std::string& what, const std::vector<Refusal>& refusals) {
    std::string line = what;
    const char* separator = ": ";
    for (const Refusal& refusal : refusals) {
        line += fmt::format("{}{} ({})", separator, refusal.candidate, refusal.reason);
        separator = ", ";
    }
    return line;
}

std::string library_message(const std::string& library, const std::vector<std::string>& tried,
                            const std::string& remedy) {
    std::string line = fmt::format("{} could not be opened; tried {}", library, problem::tried_text(tried));
    if (!remedy.empty()) line += "; " + remedy;
    return line;
}

// "nothing" stands for what was not given at all.
std::string field_message(const std::string& name, const std::string& value, const std::string& accepted) {
    return value == "nothing" ? fmt::format("{} is missing; expected {}", name, accepted)
                              : fmt::format("{}: {} is not accepted; expected {}", name, value, accepted);
}

// REQUIRES: the details are of the class that asks, which is what each class is made with.
template <class Details>
const Details& as(const problem::ErrorDetails& details) noexcept {
    return static_cast<const Details&>(details);
}

}  // namespace

// Here alone, whatever paths and values are in the text. The fields of an error stay exact.
Error::Error(const std::string& what) : std::runtime_error(problem::visible(what)) {}
Error::Error(const std::string& what, std::shared_ptr<const problem::ErrorDetails> details)
    : std::runtime_error(problem::visible(what)), details_(std::move(details)) {}
Error::Error(const Error& other) noexcept = default;
Error& Error::operator=(const Error& other) noexcept = default;
Error::~Error() = default;

ErrorKind Error::kind() const noexcept { return details_ ? details_->kind : ErrorKind::failed; }

std::string Error::details_json() const { return "{" + fields_text(problem::failure_of(*this)) + "}"; }

InvalidRequest::InvalidRequest(std::string field, std::string value, std::string accepted)
    : Error(field_message(field, value, accepted),
            std::make_shared<InvalidRequestDetails>(field, value, accepted)) {}
InvalidRequest::~InvalidRequest() = default;
const std::string& InvalidRequest::field() const noexcept {
    return as<InvalidRequestDetails>(details()).name;
}
const std::string& InvalidRequest::value() const noexcept {
    return as<InvalidRequestDetails>(details()).value;
}
const std::string& InvalidRequest::accepted() const noexcept {
    return as<InvalidRequestDetails>(details()).accepted;
}

Unsupported::Unsupported(const std::string& what, std::vector<Refusal> refusals)
    : Error(list_refusals(what, refusals), std::make_shared<UnsupportedDetails>(refusals)) {}
Unsupported::~Unsupported() = default;
const std::vector<Refusal>& Unsupported::refusals() const noexcept {
    return as<UnsupportedDetails>(details()).refusals;
}

CompileError::CompileError(const std::string& what, std::string log, std::vector<std::string> options,
                           std::string numbered_source)
    : Error(what, std::make_shared<CompileErrorDetails>(std::move(log), std::move(options),
                                                        std::move(numbered_source))) {}
CompileError::~CompileError() = default;
const std::string& CompileError::log() const noexcept { return as<CompileErrorDetails>(details()).log; }
const std::vector<std::string>& CompileError::options() const noexcept {
    return as<CompileErrorDetails>(details()).options;
}
const std::string& CompileError::numbered_source() const noexcept {
    return as<CompileErrorDetails>(details()).numbered_source;
}

DriverError::DriverError(std::string call, int driver_code, std::string meaning)
    : Error(fmt::format("{} failed: {} (CUDA error {})", call, meaning, driver_code),
            std::make_shared<DriverErrorDetails>(call, driver_code, meaning)) {}
DriverError::~DriverError() = default;
const std::string& DriverError::call() const noexcept { return as<DriverErrorDetails>(details()).call; }
int DriverError::driver_code() const noexcept { return as<DriverErrorDetails>(details()).driver_code; }
const std::string& DriverError::meaning() const noexcept { return as<DriverErrorDetails>(details()).meaning; }

LibraryMissing::LibraryMissing(std::string library, std::vector<std::string> tried, const std::string& remedy)
    : Error(library_message(library, tried, remedy),
            std::make_shared<LibraryMissingDetails>(library, tried)) {}
LibraryMissing::LibraryMissing(const std::string& what, std::shared_ptr<const problem::ErrorDetails> details)
    : Error(what, std::move(details)) {}
LibraryMissing::~LibraryMissing() = default;
const std::string& LibraryMissing::library() const noexcept {
    return as<LibraryMissingDetails>(details()).library;
}
const std::vector<std::string>& LibraryMissing::tried() const noexcept {
    return as<LibraryMissingDetails>(details()).tried;
}

LibraryMissing problem::ErrorDetails::and_instead(const LibraryMissing& missing, const std::string& instead) {
    return {fmt::format("{}; {}", missing.what(), instead), missing.details_};
}

KernelMissing::KernelMissing(const std::string& what, std::string request, int sm, std::string key,
                             std::string command)
    : Error(what, std::make_shared<KernelMissingDetails>(std::move(request), sm, std::move(key),
                                                         std::move(command))) {}
KernelMissing::~KernelMissing() = default;
const std::string& KernelMissing::request() const noexcept {
    return as<KernelMissingDetails>(details()).request;
}
int KernelMissing::sm() const noexcept { return as<KernelMissingDetails>(details()).sm; }
const std::string& KernelMissing::key() const noexcept { return as<KernelMissingDetails>(details()).key; }
const std::string& KernelMissing::command() const noexcept {
    return as<KernelMissingDetails>(details()).command;
}

CacheError::CacheError(const std::string& what, std::string path)
    : Error(what, std::make_shared<CacheErrorDetails>(std::move(path))) {}
CacheError::~CacheError() = default;
const std::string& CacheError::path() const noexcept { return as<CacheErrorDetails>(details()).path; }

}  // namespace attnsmith
