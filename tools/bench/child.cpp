#include "bench/child.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "attnsmith/error.hpp"

namespace attnsmith::bench {
namespace {

[[noreturn]] void run_child(int to_parent, const std::function<std::string()>& work) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    int code = 0;
    std::string text;
    try {
        text = work();
    } catch (const std::exception& error) {
        text = error.what();
        code = 1;
    }
    for (std::size_t sent = 0; sent < text.size();) {
        const ssize_t count = ::write(to_parent, text.data() + sent, text.size() - sent);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) ::_exit(2);
        sent += static_cast<std::size_t>(count);
    }
    ::_exit(code);  // no destructors: they are the parent's
}

std::string read_all(int descriptor) {
    std::string text;
    char buffer[4096];
    for (;;) {
        const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return text;
        text.append(buffer, static_cast<std::size_t>(count));
    }
}

int wait_for(pid_t child) {
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

}  // namespace

std::string in_child(const std::function<std::string()>& work) {
    int ends[2];
    if (::pipe(ends) != 0) throw Error(std::string("cannot make a pipe: ") + std::strerror(errno));
    const pid_t child = ::fork();
    if (child == 0) {
        ::close(ends[0]);
        run_child(ends[1], work);
    }
    ::close(ends[1]);
    if (child < 0) {
        ::close(ends[0]);
        throw Error(std::string("cannot fork: ") + std::strerror(errno));
    }
    std::string text = read_all(ends[0]);
    ::close(ends[0]);
    const int status = wait_for(child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return text;
    if (WIFSIGNALED(status))
        text = std::string("a measuring process was ended by ") + ::strsignal(WTERMSIG(status));
    throw Error(text.empty() ? "a measuring process failed" : text);
}

}  // namespace attnsmith::bench
