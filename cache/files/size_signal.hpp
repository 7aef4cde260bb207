// A write past the size that files may have (RLIMIT_FSIZE, `ulimit -f`) raises SIGXFSZ, which ends a process
// that neither handles nor ignores it. A library has no business to end its host: its writes fail.
#pragma once

#include <signal.h>

namespace attnsmith::cache {

// Lives around a write, which then fails with EFBIG, whatever the host does with SIGXFSZ: the signal goes to
// the thread that writes, is held back there and taken away again. One that came from elsewhere and waits
// already stays. Leaves errno alone.
class SizeSignalHeld {
  public:
    SizeSignalHeld() noexcept;
    ~SizeSignalHeld();
    SizeSignalHeld(const SizeSignalHeld&) = delete;
    SizeSignalHeld& operator=(const SizeSignalHeld&) = delete;

  private:
    ::sigset_t before_;  // the thread's mask
    bool is_held_ = false;
};

}  // namespace attnsmith::cache
