// What a store tells of trouble: of each kind once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cache/entries/options.hpp"

namespace attnsmith::cache {

// One bit each.
enum class Trouble : std::uint32_t {
    cannot_write = 1,
    cannot_read = 2,
    no_locks = 4,
    waited_in_vain = 8,
    broken_in_layer = 16,
    cannot_quarantine = 32,
    untrusted_entry = 64,
    over_limit = 128,
    untrusted_directory = 1 << 16,  // and above: one for each of the first layers
};

Trouble operator|(Trouble a, Trouble b);
Trouble untrusted_layer(std::size_t layer);

// Thread-safe as far as the callback is, which must outlive this.
class Troubles {
  public:
    explicit Troubles(const WarnCallback& warn) : warn_(warn) {}

    void tell(std::string_view message) const;
    // Unless that trouble was told before; of several, none of them.
    void tell_once(Trouble trouble, std::string_view message) const;

  private:
    const WarnCallback& warn_;
    // Not a mutex: a child forked while another thread holds one would hang on it.
    mutable std::atomic<std::uint32_t> told_{0};
};

}  // namespace attnsmith::cache
