// What a command is asked for: a request by flags or by --request FILE, all attentions of each --model, what
// programs recorded.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/coverage.hpp"
#include "attnsmith/runtime.hpp"
#include "cli/program/command.hpp"
#include "engine/named_specs.hpp"
#include "settings/environment.hpp"

namespace attnsmith::cli {

struct Asked : Coverage {
    bool listed = false;   // whether it could be more than one attention
    std::vector<int> sms;  // as given; empty: the GPU that is present
    std::string note;      // what was assumed of the request; empty: nothing that changes a plan
};

// A flag for each field of a request, those that a program chooses with lists of values, and --request,
// --model and --tensor-parallel. `sizes` are the defaults of those that a request has, for read_asked() to be
// given, too.
void add_request_flags(Command& command, const PlanSizes& sizes = {});
// --recorded alone.
void add_recorded_flag(Command& command);
// Whether any of those flags is given.
bool has_request(const Command& command);
// Throws BadUsage, InvalidRequest, Unsupported.
Asked read_asked(const Command& command, const PlanSizes& sizes = {});

using engine::name_of;

}  // namespace attnsmith::cli
