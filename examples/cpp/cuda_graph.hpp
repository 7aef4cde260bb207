// Streams and graphs of the CUDA driver, which is opened at run time so that the examples build without a
// CUDA toolkit. A program that has one calls cudaStreamBeginCapture() and its like instead.
#pragma once

#include <dlfcn.h>

#include <attnsmith/attnsmith.hpp>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace cuda {

// Calls a function of the driver, by its name with the version's suffix. The types are the driver's own or
// pass as they do. Throws where it fails.
template <typename... Arguments>
void call(const char* name, Arguments... arguments) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    void* const function = driver == nullptr ? nullptr : dlsym(driver, name);
    if (function == nullptr) throw std::runtime_error(std::string("the CUDA driver has no ") + name);
    const int result = reinterpret_cast<int (*)(Arguments...)>(function)(arguments...);
    if (result != 0) throw std::runtime_error(name + (" gave " + std::to_string(result)));
}

// For destructors: a failure there has nobody to tell.
template <typename... Arguments>
void call_quietly(const char* name, Arguments... arguments) noexcept {
    try {
        call(name, arguments...);
    } catch (const std::exception&) {
    }
}

// A stream in the device's primary context, which is this thread's current one while the object lives. The
// default stream, where uploads go, stays usable while this one is captured: it does not wait for that one.
class Stream {
  public:
    explicit Stream(int device) : device_(device) {
        void* context = nullptr;
        call("cuInit", 0u);
        call("cuDevicePrimaryCtxRetain", &context, device_);
        call("cuCtxPushCurrent_v2", context);
        constexpr unsigned kNonBlocking = 1;
        call("cuStreamCreate", &handle_, kNonBlocking);
    }
    ~Stream() {
        void* context = nullptr;
        call_quietly("cuStreamDestroy_v2", handle_);
        call_quietly("cuCtxPopCurrent_v2", &context);
        call_quietly("cuDevicePrimaryCtxRelease_v2", device_);
    }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    attnsmith::Stream get() const { return handle_; }

  private:
    int device_;
    attnsmith::Stream handle_ = nullptr;
};

// What `enqueue` gives the stream, captured once and launched at will. The graph owns what its launches use.
class Graph {
  public:
    template <typename Enqueue>
    Graph(const Stream& stream, std::shared_ptr<const void> kept, const Enqueue& enqueue)
        : kept_(std::move(kept)) {
        constexpr int kThreadLocal = 1;  // other threads may allocate meanwhile
        void* graph = nullptr;
        call("cuStreamBeginCapture_v2", stream.get(), kThreadLocal);
        try {
            enqueue();
        } catch (...) {  // the stream is of use to others again
            call_quietly("cuStreamEndCapture", stream.get(), &graph);
            if (graph != nullptr) call_quietly("cuGraphDestroy", graph);
            throw;
        }
        call("cuStreamEndCapture", stream.get(), &graph);
        try {
            call("cuGraphInstantiateWithFlags", &executable_, graph, 0ull);
        } catch (...) {
            call_quietly("cuGraphDestroy", graph);
            throw;
        }
        call_quietly("cuGraphDestroy", graph);
    }
    ~Graph() { call_quietly("cuGraphExecDestroy", executable_); }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    void launch(const Stream& stream) const { call("cuGraphLaunch", executable_, stream.get()); }

  private:
    std::shared_ptr<const void> kept_;
    void* executable_ = nullptr;
};

}  // namespace cuda
