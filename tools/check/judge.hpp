// What exceptions make of a case.
#pragma once

#include <functional>
#include <string>

#include "check/case.hpp"

namespace attnsmith::check {

// What `body`, which fills in the rest, and its exceptions make of a case: NotHere skips it, any other fails
// it.
CaseResult judge(const std::string& group, const std::string& name,
                 const std::function<void(CaseResult&)>& body);

}  // namespace attnsmith::check
