// Barriers in shared memory, with phases of arrivals and of bytes that a copy brings, and rings of them. PTX:
// mbarrier.
#pragma once

#include "common/shared.cuh"

namespace attnsmith {

// Which of a barrier's phases: they alternate, and a wait tells two neighbouring ones apart by their parity.
// Phase n of a barrier is complete when what its n-th use, counted from 0, waits for has happened.
struct Phase {
    uint32 parity;

    static __device__ Phase of_use(uint32 n) { return {n & 1}; }
    // The one before. A new barrier takes the phase before its first for complete: so a producer's first wait
    // for an empty stage does not wait.
    __device__ Phase previous() const { return {parity ^ 1}; }
};

// Until so many threads of the block, which are whole warps, are at the barrier of that number, from 1 on: 0
// is that of all threads.
__device__ inline void barrier_of(int32 threads, int32 number) {
    asm volatile("barrier.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

struct Barrier {
    SharedAddress address;

    // By one thread, before any other knows it: `arrivals` complete a phase.
    __device__ void init(uint32 arrivals) const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address.value), "r"(arrivals)
                     : "memory");
    }

    __device__ void arrive() const {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address.value) : "memory");
    }

    // Arrives, and the phase is complete only once `bytes` more have landed.
    __device__ void expect(uint32 bytes) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address.value), "r"(bytes)
                     : "memory");
    }

    // Until the phase is complete.
    __device__ void wait(Phase phase) const {
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "again:\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
            "@!done bra again;\n"
            "}" ::"r"(address.value),
            "r"(phase.parity)
            : "memory");
    }
};

// A ring of stages that a producer fills and consumers empty, each with a barrier for either: `full` says
// that a stage may be read, `empty` that it may be written again.
template <uint32 Stages>
struct Ring {
    static constexpr uint32 kBarrierBytes = 8;

    SharedAddress full_barriers, empty_barriers;  // the first stage's

    // Where the n-th filling of the ring, counted from 0, goes, and the phase of the stage's barriers.
    struct Position {
        uint32 stage;
        Phase phase;
        __device__ explicit Position(uint32 n) : stage(n % Stages), phase{n / Stages % 2} {}
    };

    __device__ Barrier full(uint32 stage) const { return {full_barriers + stage * kBarrierBytes}; }
    __device__ Barrier empty(uint32 stage) const { return {empty_barriers + stage * kBarrierBytes}; }

    // By a consumer: until the stage is filled.
    __device__ void wait_full(const Position& at) const { full(at.stage).wait(at.phase); }
    // By the producer: until all consumers have given back what the stage held before.
    __device__ void wait_empty(const Position& at) const { empty(at.stage).wait(at.phase.previous()); }
};

// Makes initialised barriers known to the copy engine.
__device__ inline void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Orders this thread's own writes to shared memory before what the copy engine and wgmma read next.
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace attnsmith
