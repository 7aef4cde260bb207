#include "cache/remote/curl_library.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <mutex>
#include <utility>

#include "cache/files/process_wide.hpp"

namespace attnsmith::cache {
namespace {

constexpr unsigned kOldestCurl = 0x074b00;  // 7.75.0
constexpr long kInitialiseAll = 3;          // CURL_GLOBAL_ALL

// curl_global_init is not thread-safe before 7.84. Per process, since a thread that a child of fork does not
// have may hold it.
constinit ProcessWide<std::mutex> initialising;

// The only one ever made, for all of this process and its children.
constinit std::atomic<const CurlLibrary*> usual_library{nullptr};

// Empty, or why this library does not serve.
std::string take_functions(CurlLibrary& curl) {
    std::string missing;
    const auto find = [&](auto& function, const char* symbol) {
        if (!curl.library.find(symbol, function) && missing.empty()) missing = symbol;
    };
#define ATTNSMITH_CURL_FIND(name, type) find(curl.name, "curl_" #name);
    ATTNSMITH_CURL_FUNCTIONS(ATTNSMITH_CURL_FIND)
#undef ATTNSMITH_CURL_FIND
    // The version first: it says more than a function that an old one has not.
    if (curl.version_info == nullptr) return "it is not libcurl: it has no curl_version_info";
    const CurlVersion* const found = curl.version_info(0);
    curl.version = found->version;
    if (found->number < kOldestCurl) return "it is libcurl " + curl.version;
    return missing.empty() ? "" : "it has no " + missing;
}

Result<CurlLibrary> open_one_curl(const char* name) {
    Result<SharedLibrary> library = SharedLibrary::open({&name, 1});
    if (!library) return Status::recoverable_error(ENOENT, name, library.status().message);
    CurlLibrary curl(std::move(library).value());
    std::string reason = take_functions(curl);
    if (reason.empty()) {
        const std::lock_guard lock(initialising.get());
        if (const int error = curl.global_init(kInitialiseAll); error != 0)
            reason = fmt::format("curl_global_init failed: {}", error);
    }
    if (!reason.empty()) return Status::recoverable_error(ENOENT, name, reason);
    return curl;
}

}  // namespace

Result<CurlLibrary> open_curl_library(std::span<const char* const> names) {
    Status first = Status::recoverable_error(ENOENT, "", "no library is named");
    for (const char* const name : names) {
        Result<CurlLibrary> curl = open_one_curl(name);
        if (curl) return curl;
        if (name == names.front()) first = curl.status();
    }
    return Status::recoverable_error(
        ENOENT, first.path,
        "a remote cache needs libcurl 7.75 or newer; install it, on Debian and Ubuntu by `apt-get install "
        "libcurl4` (" +
            first.message + ")");
}

Result<const CurlLibrary*> curl_library() {
    if (const CurlLibrary* const opened = usual_library.load(std::memory_order_acquire)) return opened;
    Result<CurlLibrary> curl = open_curl_library(kCurlNames);
    if (!curl) return curl.status();
    auto fresh = std::make_unique<const CurlLibrary>(std::move(curl).value());
    const CurlLibrary* opened = nullptr;
    if (usual_library.compare_exchange_strong(opened, fresh.get(), std::memory_order_acq_rel))
        opened = fresh.release();
    return opened;
}

}  // namespace attnsmith::cache
