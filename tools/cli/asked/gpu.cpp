#include "cli/asked/gpu.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "attnsmith/error.hpp"
#include "families/traits.hpp"
#include "problem/failure.hpp"

namespace attnsmith::cli {

Gpus find_gpus() {
    Gpus gpus;
    try {
        gpus.api = driver::Api::open();
        gpus.driver_found = true;
        gpus.devices = driver::query_devices(*gpus.api);
        if (gpus.devices.empty()) gpus.missing = "the CUDA driver reports no device";
    } catch (const DriverError& error) {
        gpus.driver_found = true;
        gpus.driver_broken = error.driver_code() != driver::kNoDevice;
        gpus.missing = error.what();
    } catch (const LibraryMissing& error) {
        gpus.missing = "no CUDA driver was found; tried " + problem::tried_text(error.tried());
    }
    if (gpus.devices.empty()) gpus.api = nullptr;
    return gpus;
}

Gpus require_gpus(const Command& command) {
    Gpus gpus = find_gpus();
    if (!gpus.devices.empty()) return gpus;
    throw Error(fmt::format("{} needs a GPU, but there is none: {}; `attnsmith doctor` says what helps",
                            command.name(), gpus.missing));
}

std::vector<int> sms_or_present(const Command& command, const std::vector<int>& sms) {
    if (!sms.empty()) return sms;
    const Gpus gpus = find_gpus();
    if (gpus.devices.empty()) {
        throw InvalidRequest(
            "sm", command.has("sm") ? "native" : "nothing",
            "a compute capability such as 90, because no GPU is present (" + gpus.missing + ")");
    }
    std::vector<int> present;
    std::exception_ptr refusal;
    for (const driver::Device& device : gpus.devices) {
        try {
            const int sm = families::traits_of_device(device.sm, device.name, device.sm_count).sm;
            if (std::ranges::find(present, sm) == present.end()) present.push_back(sm);
        } catch (const Unsupported&) {
            refusal = std::current_exception();
        }
    }
    if (present.empty()) std::rethrow_exception(refusal);
    return present;
}

}  // namespace attnsmith::cli
