// Compiling ahead of time.
#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stop_token>
#include <thread>

#include "c_api/arguments.hpp"
#include "c_api/error.hpp"
#include "c_api/objects.hpp"
#include "c_api/request.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::c_api {
namespace {

// The caller's functions. Any of them may cancel what is left to do.
class Callbacks {
  public:
    explicit Callbacks(const attnsmith_prewarm_options& given) : given_(given) {
        if (given.should_stop != nullptr) poll_ = std::jthread([this](std::stop_token end) { poll(end); });
    }

    // A kernel that is done. Runs on a thread of the prewarm, which no exception may leave.
    void tell_progress(const PrewarmedKernel& kernel, int done, int total) noexcept {
        if (given_.progress == nullptr) return;
        tell([&] { return given_.progress(given_.progress_user, to_json(kernel).c_str(), done, total); });
    }

    // A kernel that another process is compiling. Runs on a thread of the prewarm, which no exception may
    // leave.
    void tell_waiting(const PrewarmedKernel& kernel) noexcept {
        if (given_.waiting == nullptr) return;
        tell([&] {
            const nlohmann::ordered_json json{{"name", kernel.name}, {"sm", kernel.sm}, {"key", kernel.key}};
            return given_.waiting(given_.waiting_user, problem::one_line(json).c_str());
        });
    }

    std::stop_token token() const { return stop_.get_token(); }

    // Ends the polling, and throws what could not be told.
    void finish() {
        poll_ = {};
        if (failure_) std::rethrow_exception(failure_);
    }

  private:
    template <typename Call>
    void tell(Call call) noexcept {
        if (failure_) return;
        try {
            if (call() != 0) stop_.request_stop();
        } catch (...) {
            failure_ = std::current_exception();
            stop_.request_stop();
        }
    }

    void poll(const std::stop_token& end) {
        constexpr std::chrono::milliseconds kInterval{100};
        std::mutex mutex;
        std::condition_variable_any ended;
        std::unique_lock lock(mutex);
        while (!ended.wait_for(lock, end, kInterval, [&] { return end.stop_requested(); })) {
            if (given_.should_stop(given_.stop_user) == 0) continue;
            stop_.request_stop();
            return;
        }
    }

    const attnsmith_prewarm_options& given_;
    std::stop_source stop_;
    std::exception_ptr failure_;
    std::jthread poll_;  // the last: it uses all above
};

std::vector<AttentionSpec> read_specs(const attnsmith_spec* const* given, std::size_t count) {
    std::vector<AttentionSpec> specs;
    for (const attnsmith_spec* const spec :
         list(given, count, "specs", kMostInMemory<const attnsmith_spec*>)) {
        specs.push_back(read_spec(spec, fmt::format("specs[{}]", specs.size())));
    }
    return specs;
}

std::string prewarm(Runtime& runtime, std::span<const AttentionSpec> specs, std::span<const int> sms,
                    const attnsmith_prewarm_options& given) {
    check_reserved("options", given.reserved);
    Callbacks callbacks(given);
    PrewarmOptions options;
    options.jobs = count("options", "jobs", given.jobs);
    options.push = flag("options", "push", given.push);
    options.compile = !flag("options", "no_compile", given.no_compile);
    options.stop = callbacks.token();
    options.progress = [&](const PrewarmedKernel& kernel, int done, int total) {
        callbacks.tell_progress(kernel, done, total);
    };
    options.waiting = [&](const PrewarmedKernel& kernel) { callbacks.tell_waiting(kernel); };
    const PrewarmReport report = runtime.prewarm(specs, sms, options);
    callbacks.finish();
    return to_json(report);
}

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith;
using namespace attnsmith::c_api;

attnsmith_code attnsmith_prewarm(attnsmith_runtime* runtime, const attnsmith_spec* const* specs,
                                 std::size_t spec_count, const std::int32_t* sms, std::size_t sm_count,
                                 const attnsmith_prewarm_options* options, char** report,
                                 attnsmith_error** error) noexcept {
    return guarded(error, [&] {
        Runtime& of = required(runtime, "runtime").runtime;
        char*& result = required(report, "report");
        const std::vector<AttentionSpec> given_specs = read_specs(specs, spec_count);
        const std::span<const std::int32_t> given_sms = list(sms, sm_count, "sms");
        const attnsmith_prewarm_options given_options =
            options == nullptr ? attnsmith_prewarm_options{} : read_struct(options, "options");
        result = copy_text(prewarm(of, given_specs, given_sms, given_options));
    });
}
