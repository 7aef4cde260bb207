// Whose the signals are while NVRTC compiles: the program's. The tests of the redirection itself need no
// NVRTC.
#include "compiler/signals.hpp"

#include <dlfcn.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "compiler/nvrtc.hpp"
#include "support/catch.hpp"
#include "support/nvrtc.hpp"
#include "support/variable.hpp"

using namespace attnsmith;

namespace {

constexpr int kTaken[] = {SIGINT, SIGTERM, SIGXFSZ};

std::atomic<int> handled = 0;
void count(int, siginfo_t*, void*) { ++handled; }
void other_handler(int) {}

// The three signals' actions and SIGUSR1's, as they were before.
class Actions {
  public:
    Actions() {
        for (const int number : numbers) ::sigaction(number, nullptr, &before_[number]);
    }
    ~Actions() {
        for (const auto& [number, action] : before_) ::sigaction(number, &action, nullptr);
    }
    Actions(const Actions&) = delete;
    Actions& operator=(const Actions&) = delete;

  private:
    static constexpr int numbers[] = {SIGINT, SIGTERM, SIGXFSZ, SIGUSR1};
    std::map<int, struct sigaction> before_;
};

void count_signal(int number) {
    struct sigaction action {};
    action.sa_sigaction = count;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigaddset(&action.sa_mask, SIGUSR2);
    ::sigaction(number, &action, nullptr);
}

// Also by its flags and mask, which signal() would not keep.
bool is_counted(int number) {
    struct sigaction now {};
    ::sigaction(number, nullptr, &now);
    constexpr int kFlags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    return now.sa_sigaction == count && (now.sa_flags & kFlags) == kFlags &&
           sigismember(&now.sa_mask, SIGUSR2) == 1;
}

auto handler_of(int number) {
    struct sigaction now {};
    ::sigaction(number, nullptr, &now);
    return now.sa_handler;
}

// tests/support/takes_signals.c, loaded anew.
class Taker {
  public:
    explicit Taker(const std::string& kind)
        : path(ATTNSMITH_TAKES_SIGNALS + kind + ".so"), handle(::dlopen(path.c_str(), RTLD_LAZY)) {
        if (handle == nullptr) throw std::runtime_error(::dlerror());
    }
    ~Taker() { ::dlclose(handle); }
    Taker(const Taker&) = delete;
    Taker& operator=(const Taker&) = delete;

    void call(const char* function) const { reinterpret_cast<void (*)()>(::dlsym(handle, function))(); }

    // Bytes mapped from the file, by what may be done with them.
    std::map<std::string, std::size_t> permissions() const {
        std::map<std::string, std::size_t> bytes;
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) {
            if (!line.ends_with(path)) continue;
            char* rest = nullptr;
            const std::size_t begin = std::strtoull(line.c_str(), &rest, 16);
            const std::size_t end = std::strtoull(rest + 1, &rest, 16);
            bytes[std::string(rest + 1, 4)] += end - begin;
        }
        return bytes;
    }

    const std::string path;
    void* const handle;
};

constexpr const char* kChild = "signals during this process's first compile";

// Sends signals to this process until it is destroyed, each when the one before was handled.
class Sender {
  public:
    Sender() : thread_([this] { send(); }) {}
    ~Sender() {
        stop_ = true;
        thread_.join();
    }
    Sender(const Sender&) = delete;
    Sender& operator=(const Sender&) = delete;

    std::atomic<int> sent = 0;
    std::atomic<int> taken = 0;  // how often an action was another than this program's

  private:
    void send() {
        while (!stop_) {
            for (const int number : {SIGINT, SIGTERM}) {
                if (!is_counted(number) || handler_of(SIGXFSZ) != SIG_DFL) ++taken;
                ::kill(::getpid(), number);
                ++sent;
                const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
                while (handled < sent && std::chrono::steady_clock::now() < deadline)
                    std::this_thread::yield();
            }
            std::this_thread::sleep_for(std::chrono::microseconds(50));
        }
    }

    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

}  // namespace

TEST_CASE("a library that takes the host's signals gets none, however it imports signal()", "[signals]") {
    for (const char* const kind : {"lazy", "read_only", "no_plt"}) {
        CAPTURE(kind);
        const Actions kept;
        const Taker taker(kind);
        const auto permissions = taker.permissions();
        for (const int number : kTaken) count_signal(number);
        for (const bool was_called : {false, true}) {
            CAPTURE(was_called);
            compiler::leave_signals_to_host(taker.handle);
            taker.call("take_signals");
            for (const int number : kTaken) CHECK(is_counted(number));
            taker.call("give_signals_back");
            for (const int number : kTaken) CHECK(is_counted(number));
        }
        taker.call("take_another");
        CHECK(handler_of(SIGUSR1) != SIG_DFL);
        CHECK(permissions.size() > 1);
        CHECK(taker.permissions() == permissions);
    }
}

TEST_CASE("a handler that the host changes meanwhile stays changed", "[signals]") {
    const Actions kept;
    const Taker taker("lazy");
    compiler::leave_signals_to_host(taker.handle);
    taker.call("take_signals");
    ::signal(SIGTERM, other_handler);
    taker.call("give_signals_back");
    CHECK(handler_of(SIGTERM) == other_handler);
}

TEST_CASE("what a library took before is given back", "[signals]") {
    for (const auto before : {SIG_DFL, SIG_IGN, other_handler}) {
        CAPTURE(before);
        const Actions kept;
        const Taker taker("lazy");
        for (const int number : kTaken) ::signal(number, before);
        taker.call("take_signals");
        CHECK(handler_of(SIGTERM) != before);
        compiler::leave_signals_to_host(taker.handle);
        taker.call("give_signals_back");
        for (const int number : kTaken) {
            CAPTURE(number);
            CHECK(handler_of(number) == before);
        }
    }
}

// NVRTC takes signals in a process's first compile alone.
TEST_CASE(kChild, "[.child]") {
    ::alarm(60);  // exit() in a handler may wait for ever
    const Actions kept;
    ::signal(SIGXFSZ, SIG_DFL);
    for (const int number : {SIGINT, SIGTERM}) count_signal(number);
    const auto nvrtc = compiler::Nvrtc::open(test::nvrtc_options());
    compiler::Program program;
    program.name = "unit.cu";
    program.source = "__global__ void kernel(float* x) { *x = 1; }\n";
    program.target = "sm_90";
    const Sender sender;
    while (sender.sent == 0) std::this_thread::yield();
    const int before = sender.sent;
    CHECK_FALSE(nvrtc->compile(program).cubin.empty());
    CHECK(sender.sent > before);
    CHECK(sender.taken == 0);
    ::alarm(0);
    for (const int number : {SIGINT, SIGTERM}) CHECK(is_counted(number));
}

TEST_CASE("a program handles its signals while NVRTC compiles", "[signals][nvrtc]") {
    for (const std::string& folder : test::nvrtc_folders()) {
        CAPTURE(folder);
        const test::Variable variable("ATTNSMITH_NVRTC_PATH", folder);
        const std::string name = kChild;
        char program[] = "attnsmith-cpu-tests";
        char* const arguments[] = {program, const_cast<char*>(name.c_str()), nullptr};
        pid_t child = 0;
        REQUIRE(::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, ::environ) == 0);
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        REQUIRE(WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 0);
    }
}
