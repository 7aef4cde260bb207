// Compiling ahead of time.
#include <fmt/format.h>

#include <exception>

#include "c_api/arguments.hpp"
#include "c_api/error.hpp"
#include "c_api/objects.hpp"
#include "c_api/request.hpp"

namespace attnsmith::c_api {
namespace {

// Hands each finished kernel to the caller's function, whose answer may cancel the rest.
class Progress {
  public:
    Progress(attnsmith_progress call, void* user) : call_(call), user_(user) {}

    // Runs on a thread of the prewarm, which no exception may leave.
    void tell(const PrewarmedKernel& kernel, int done, int total) noexcept {
        if (call_ == nullptr || failure_) return;
        try {
            if (call_(user_, to_json(kernel).c_str(), done, total) != 0) stop_.request_stop();
        } catch (...) {
            failure_ = std::current_exception();
            stop_.request_stop();
        }
    }

    std::stop_token token() const { return stop_.get_token(); }

    void rethrow_failure() const {
        if (failure_) std::rethrow_exception(failure_);
    }

  private:
    attnsmith_progress call_;
    void* user_;
    std::stop_source stop_;
    std::exception_ptr failure_;
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
    Progress progress(given.progress, given.progress_user);
    PrewarmOptions options;
    options.jobs = count("options", "jobs", given.jobs);
    options.push = flag("options", "push", given.push);
    options.compile = !flag("options", "no_compile", given.no_compile);
    options.stop = progress.token();
    options.progress = [&](const PrewarmedKernel& kernel, int done, int total) {
        progress.tell(kernel, done, total);
    };
    const PrewarmReport report = runtime.prewarm(specs, sms, options);
    progress.rethrow_failure();
    return to_json(report);
}

}  // namespace
}  // namespace attnsmith::c_api

using namespace attnsmith;
using namespace attnsmith::c_api;

attnsmith_code attnsmith_prewarm(attnsmith_runtime* runtime, const attnsmith_spec* const* specs,
                                 std::size_t spec_count, const std::int32_t* sms, std::size_t sm_count,
                                 const attnsmith_prewarm_options* options, char** report,
                                 attnsmith_error** error) {
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
