#include "cache/files/status.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace attnsmith::cache {
namespace {

// Misuse of descriptors and pointers is ours; everything else is the world's.
StatusClass class_of(int error_number) {
    return error_number == EBADF || error_number == EFAULT ? StatusClass::fatal : StatusClass::recoverable;
}

}  // namespace

std::string Status::to_string() const {
    if (ok()) return "ok";
    return path.empty() ? message : fmt::format("{}: {}", message, path);
}

Status Status::recoverable_error(int error_number, std::string path, std::string message) {
    return {StatusClass::recoverable, error_number, std::move(path), std::move(message)};
}

Status Status::fatal_error(int error_number, std::string path, std::string message) {
    return {StatusClass::fatal, error_number, std::move(path), std::move(message)};
}

Status Status::from_errno(int error_number, std::string_view operation, std::string path) {
    const std::string meaning = std::generic_category().message(error_number);
    return {class_of(error_number), error_number, std::move(path),
            fmt::format("cannot {}: {}", operation, meaning)};
}

bool is_absence(const Status& status) {
    return status.error_number == ENOENT || status.error_number == ESTALE;
}

}  // namespace attnsmith::cache
