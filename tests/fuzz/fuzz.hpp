// What the fuzz targets share. Each is one function, which libFuzzer drives, and replay_main.cpp with any
// compiler.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// Ends the process, for the fuzzer to report.
inline void require(bool holds) {
    if (!holds) std::abort();
}
