#pragma once

#include <atomic>
#include <memory>

#include "cache/files/per_process.hpp"

namespace attnsmith::cache {

// A PerProcess for static objects: to be used as `constinit`, made when it is first asked for, never
// destroyed.
template <class T>
class ProcessWide {
  public:
    constexpr ProcessWide() = default;
    ProcessWide(const ProcessWide&) = delete;
    ProcessWide& operator=(const ProcessWide&) = delete;

    T& get() {
        PerProcess<T>* made = made_.load(std::memory_order_acquire);
        if (made != nullptr) return made->get();
        auto fresh = std::make_unique<PerProcess<T>>();
        if (made_.compare_exchange_strong(made, fresh.get(), std::memory_order_acq_rel))
            made = fresh.release();
        return made->get();
    }

  private:
    std::atomic<PerProcess<T>*> made_{nullptr};
};

}  // namespace attnsmith::cache
