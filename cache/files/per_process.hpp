// State that threads share, and that a child made by fork must not touch: a thread that the child does not
// have may hold its mutexes, or have promised what others wait for.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace attnsmith::cache {

// Another number in each child that fork makes. (A child of vfork, posix_spawn or a bare clone() has its
// parent's, and calls exec at once.)
std::uint64_t process_number() noexcept;

// One T for each process, made when the process first asks. A child leaves its parent's T alone for ever,
// its destructor included. Thread-safe.
template <class T>
class PerProcess {
  public:
    // `make` is given the T of the parent, null in the process that made this; it may take from it what
    // cannot be half written.
    using Make = std::function<std::unique_ptr<T>(T* of_parent)>;

    explicit PerProcess(Make make)
        : make_(std::move(make)), held_(new Held{process_number(), make_(nullptr)}) {}
    PerProcess() : PerProcess([](T*) { return std::make_unique<T>(); }) {}
    PerProcess(const PerProcess&) = delete;
    PerProcess& operator=(const PerProcess&) = delete;
    ~PerProcess() {
        const Held* const held = held_.load(std::memory_order_acquire);
        if (held->process == process_number()) delete held;
    }

    T& get() const {
        Held* held = held_.load(std::memory_order_acquire);
        if (held->process == process_number()) return *held->value;
        auto fresh = std::make_unique<Held>(Held{process_number(), make_(held->value.get())});
        // Not under a mutex, which could be the next one to be held at fork.
        if (held_.compare_exchange_strong(held, fresh.get(), std::memory_order_acq_rel))
            held = fresh.release();
        return *held->value;
    }

  private:
    struct Held {
        std::uint64_t process;
        std::unique_ptr<T> value;
    };

    Make make_;
    mutable std::atomic<Held*> held_;
};

}  // namespace attnsmith::cache
