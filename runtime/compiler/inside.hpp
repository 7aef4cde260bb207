// Who is inside NVRTC. A child made by fork has its parent's memory, but not the threads that held locks in
// it: NVRTC's own, and the loader's while NVRTC is opened. Such a child would wait for ever. And a process
// that ends takes NVRTC's objects down beneath the thread that is about to use them, or to make them.
#pragma once

namespace attnsmith::compiler {

// Lives around every use of NVRTC, opening it included. Thread-safe, takes no lock.
class InsideNvrtc {
  public:
    // Throws Error, with the remedy, in a child that was forked while a thread of its parent had one of
    // these, and in the children of such a child. Throws Error once the process is ending, except to the
    // thread that ends it.
    InsideNvrtc();
    ~InsideNvrtc();
    InsideNvrtc(const InsideNvrtc&) = delete;
    InsideNvrtc& operator=(const InsideNvrtc&) = delete;
};

// To be called by the program's first thread, others may: its exit() then waits before anything else is done
// for the threads inside NVRTC, and lets nobody in any more. Loading this library is such a call.
//
// The exit() of another thread waits likewise, except that where NVRTC is just being opened those of its
// objects that are made already go first: their handlers were the last to be registered.
void wait_at_exit() noexcept;
// The same for exit() of any thread, to be called once a library's objects are made: before they go.
void wait_before_objects_of(const void* library) noexcept;

}  // namespace attnsmith::compiler
