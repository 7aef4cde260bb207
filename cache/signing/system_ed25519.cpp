#include "cache/signing/system_ed25519.hpp"

#include <atomic>
#include <memory>

#include "cache/signing/implementations.hpp"

namespace attnsmith::cache {

Result<const Ed25519*> ed25519() {
    // Kept for ever: threads may verify while the process ends. No lock that a fork could leave held, as that
    // of a static local is: two threads that are the first each open it, and one of them is too late.
    static constinit std::atomic<const OpenedEd25519*> the_one{nullptr};
    const OpenedEd25519* opened = the_one.load(std::memory_order_acquire);
    if (opened == nullptr) {
        auto fresh = std::make_unique<const OpenedEd25519>(open_ed25519());
        if (the_one.compare_exchange_strong(opened, fresh.get(), std::memory_order_acq_rel))
            opened = fresh.release();
    }
    if (!*opened) return opened->status();
    return opened->value().get();
}

}  // namespace attnsmith::cache
