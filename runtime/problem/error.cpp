#include "attnsmith/error.hpp"

#include <fmt/format.h>

#include "problem/failure.hpp"
#include "problem/visible_text.hpp"

namespace attnsmith {
namespace {

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
std::string field_message(const std::string& field, const std::string& value, const std::string& accepted) {
    return value == "nothing" ? fmt::format("{} is missing; expected {}", field, accepted)
                              : fmt::format("{}: {} is not accepted; expected {}", field, value, accepted);
}

}  // namespace

// Here alone, whatever paths and values are in the text. The parts that an error has beside it stay exact.
Error::Error(const std::string& what) : std::runtime_error(problem::visible(what)) {}

InvalidRequest::InvalidRequest(std::string field, std::string value, std::string accepted)
    : Error(field_message(field, value, accepted)),
      field_(std::move(field)),
      value_(std::move(value)),
      accepted_(std::move(accepted)) {}

Unsupported::Unsupported(const std::string& what, std::vector<Refusal> refusals)
    : Error(list_refusals(what, refusals)), refusals_(std::move(refusals)) {}

CompileError::CompileError(const std::string& what, std::string log, std::vector<std::string> options,
                           std::string numbered_source)
    : Error(what),
      log_(std::move(log)),
      options_(std::move(options)),
      numbered_source_(std::move(numbered_source)) {}

DriverError::DriverError(std::string call, int code, std::string meaning)
    : Error(fmt::format("{} failed: {} (CUDA error {})", call, meaning, code)),
      call_(std::move(call)),
      code_(code),
      meaning_(std::move(meaning)) {}

LibraryMissing::LibraryMissing(std::string library, std::vector<std::string> tried, const std::string& remedy)
    : Error(library_message(library, tried, remedy)),
      library_(std::move(library)),
      tried_(std::move(tried)) {}

LibraryMissing::LibraryMissing(const LibraryMissing& missing, const std::string& instead)
    : Error(fmt::format("{}; {}", missing.what(), instead)),
      library_(missing.library_),
      tried_(missing.tried_) {}

KernelMissing::KernelMissing(const std::string& what, std::string request, int sm, std::string key,
                             std::string command)
    : Error(what),
      request_(std::move(request)),
      sm_(sm),
      key_(std::move(key)),
      command_(std::move(command)) {}

}  // namespace attnsmith
