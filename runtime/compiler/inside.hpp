// Who is inside NVRTC. A child made by fork has its parent's memory, but not the threads that held locks in
// it: NVRTC's own, and the loader's while NVRTC is opened. Such a child would wait for ever.
#pragma once

namespace attnsmith::compiler {

// Lives around every use of NVRTC, opening it included. Thread-safe, takes no lock.
class InsideNvrtc {
  public:
    // Throws Error, with the remedy, in a child that was forked while a thread of its parent had one of
    // these, and in the children of such a child.
    InsideNvrtc();
    ~InsideNvrtc();
    InsideNvrtc(const InsideNvrtc&) = delete;
    InsideNvrtc& operator=(const InsideNvrtc&) = delete;
};

}  // namespace attnsmith::compiler
