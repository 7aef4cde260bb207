#include "check/judge.hpp"

#include <chrono>

#include "check/kernel_choice.hpp"

namespace attnsmith::check {
namespace {

// Whether no later call in this process can succeed: CUDA_ERROR_ILLEGAL_ADDRESS, _LAUNCH_TIMEOUT, and
// _HARDWARE_STACK_ERROR .. _LAUNCH_FAILED of cuda.h.
bool is_device_lost(const DriverError& error) {
    const int code = error.driver_code();
    return code == 700 || code == 702 || (code >= 714 && code <= 719);
}

}  // namespace

CaseResult judge(const std::string& group, const std::string& name,
                 const std::function<void(CaseResult&)>& body) {
    const auto start = std::chrono::steady_clock::now();
    CaseResult result;
    result.group = group;
    result.name = name;
    const auto failed = [&](const std::exception& error) {
        result.outcome = Outcome::failed;
        result.detail = std::string("threw: ") + error.what();
    };
    try {
        body(result);
    } catch (const NotHere& reason) {
        result.outcome = Outcome::skipped;
        result.detail = reason.what();
    } catch (const DriverError& error) {
        failed(error);
        result.device_lost = is_device_lost(error);
    } catch (const std::exception& error) {
        failed(error);
    }
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    result.milliseconds = elapsed.count();
    return result;
}

}  // namespace attnsmith::check
