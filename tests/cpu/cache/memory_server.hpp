// An HTTP server in memory, for what the remote layer makes of its answers; what a network does to them is
// http_test's.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cache/remote/http.hpp"

namespace attnsmith::cache::testing {

class MemoryServer final : public HttpClient {
  public:
    explicit MemoryServer(std::string address) : address_(std::move(address)) {}

    // What is put, by path below the address: "cas/…".
    std::map<std::string, std::vector<std::byte>> files;
    // Asked first; a response with status 0 leaves it to `files`.
    std::function<Result<HttpResponse>(const HttpRequest&)> answer;
    std::vector<std::string> asked;  // "GET ac/…"

    Result<HttpResponse> perform(const HttpRequest& request) override {
        const std::lock_guard lock(mutex_);
        const std::string path = request.url.substr(address_.size() + 1);
        const char* const words[] = {"GET ", "PUT "};
        asked.push_back(words[static_cast<int>(request.method)] + path);
        if (answer) {
            auto given = answer(request);
            if (!given || given->status != 0) return given;
        }
        if (request.method == HttpMethod::put) {
            files[path].assign(request.body.begin(), request.body.end());
            return HttpResponse{201, {}};
        }
        const auto found = files.find(path);
        if (found == files.end()) return HttpResponse{404, {}};
        if (found->second.size() > request.max_bytes)
            return Status::recoverable_error(EFBIG, request.url, "too long");
        return HttpResponse{200, found->second};
    }

    int count(std::string_view start) const {
        return static_cast<int>(
            std::ranges::count_if(asked, [&](const std::string& one) { return one.starts_with(start); }));
    }

  private:
    const std::string address_;
    std::mutex mutex_;
};

}  // namespace attnsmith::cache::testing
