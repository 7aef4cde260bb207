// The GPUs of this machine, or why there is none.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/program/command.hpp"
#include "driver/api.hpp"
#include "driver/device.hpp"

namespace attnsmith::cli {

struct Gpus {
    std::shared_ptr<const driver::Api> api;  // null: there is none
    std::vector<driver::Device> devices;
    std::string missing;         // why there is none; empty where there is one
    bool driver_broken = false;  // a driver is there, but does not start, and not for lack of a GPU
    bool driver_found = false;
};

// Never throws for a missing or broken driver.
Gpus find_gpus();

// The same for a command that needs one. Throws Error, with the command's name, where there is none.
Gpus require_gpus(const Command& command);

// The compute capabilities that this machine's GPUs are planned as, or `sms`, which the command's flags or
// its request gave, where there are some. Throws InvalidRequest where neither is there, Unsupported for GPUs
// that are all too old or too new.
std::vector<int> sms_or_present(const Command& command, const std::vector<int>& sms);

}  // namespace attnsmith::cli
