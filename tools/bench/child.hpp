// Work that must leave no trace in this process.
#pragma once

#include <functional>
#include <string>

namespace attnsmith::bench {

// Runs `work` in a forked child and gives back the text that it returned. Throws Error with the child's
// message where it threw, or with what became of it. The child takes signals as a new process does. REQUIRES:
// no other thread of the process may hold a lock.
std::string in_child(const std::function<std::string()>& work);

}  // namespace attnsmith::bench
