// Keeps NVRTC's hands off the signals of the process that it is in.
//
// NVRTC's front end is a compiler that was once a program of its own. In a process's first compile it
// replaces the handlers of SIGINT and SIGTERM by one that calls exit(4) and ignores SIGXFSZ; at that
// compile's end it puts the handlers back by signal(), which loses the flags that sigaction() gave them. So a
// Ctrl-C in those milliseconds ends a server or a Python program with code 4 and no word, past its own
// handlers. NVRTC 12.0 to 13.0 do this, no option turns it off, and 13.5 no longer does.
#pragma once

namespace attnsmith::compiler {

// Makes the library's calls of signal() go to a function that leaves these three signals as they are and
// passes all others on. Calls of sigaction() are left alone: NVRTC has some and makes none of them in a
// compile. A library that does not import signal(), or whose import cannot be written, stays as it is, and
// its first compile does what is said above.
//
// Whoever else in the process uses the same library (PyTorch, say) compiles through the same import. That is
// right for them, too: the handler that is no longer installed only ends the process, and nobody but the
// program itself can know what a signal to it means. A compile that is under way meanwhile still gives back
// what it took before.
//
// Thread-safe; a second call for a library changes nothing. REQUIRES: `library` comes from dlopen() and is
// never unloaded.
void leave_signals_to_host(void* library) noexcept;

}  // namespace attnsmith::compiler
