// What the kernel cache costs when it is full: hits, publishing, measuring, evicting. Needs no GPU.
#pragma once

#include <cstddef>
#include <vector>

namespace attnsmith::bench {

struct CacheCostOptions {
    std::size_t entries = 10'000;
    int repeat = 11;  // of what is slow
};

// Milliseconds, with the page cache warm.
struct CacheCosts {
    std::size_t entries = 0;
    std::size_t entry_bytes = 0;
    std::vector<double> hit;           // look, read, check
    std::vector<double> miss;          // look
    std::vector<double> publish;       // with its syncs
    std::vector<double> count;         // one event
    std::vector<double> stat;          // the call
    std::vector<double> stat_command;  // `attnsmith cache stat`, as a process
    double evict_half = 0;
};

// Makes that many synthetic entries in a temporary directory, and removes it. Throws Error where it cannot.
CacheCosts measure_cache(const CacheCostOptions& options);

}  // namespace attnsmith::bench
