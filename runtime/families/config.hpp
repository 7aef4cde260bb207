// One kernel, described by the constants of its machine code. Equal configs are the same kernel.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "families/backend.hpp"
#include "families/constants.hpp"

namespace attnsmith::families {

class Family;

// Registers a thread that leave room for so many CTAs of an SM: allocated by warps in units of 256, 255 a
// thread at most.
int registers_ceiling(int threads, int ctas_per_sm);

struct KernelConfig {
    const Family* family = nullptr;  // one of the registry's
    int sm = 0;
    std::string target{};  // NVRTC's name: "sm_90", or "sm_90a" for a kernel that needs it
    Constants constants{};

    int threads = 0;                // of a CTA
    int ctas_per_sm = 0;            // that registers and shared memory are budgeted for
    std::int64_t shared_bytes = 0;  // dynamic

    // As the struct that the family has for them.
    template <class Struct>
    Struct as() const {
        return constants.as<Struct>();
    }
    // Sets them from it.
    template <class Struct>
    void set(const Struct& values) {
        constants = Constants::of(values);
    }

    // What most families have, and 0 of one that has not.
    int tile_q() const { return constants.integer("tile_q"); }    // rows of a CTA
    int tile_kv() const { return constants.integer("tile_kv"); }  // keys
    int stages() const { return constants.integer("stages"); }    // tiles of K and of V in shared memory

    Backend backend() const;
    int registers_ceiling() const { return families::registers_ceiling(threads, ctas_per_sm); }
    // "attention mma bf16 128x128 paged 64x64 stages 2": for people; unique within a kernel set.
    std::string name() const;

    bool operator==(const KernelConfig&) const = default;
    std::strong_ordering operator<=>(const KernelConfig& other) const;
};

}  // namespace attnsmith::families
