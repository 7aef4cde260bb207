// The little of the CUDA driver that the tests need and attnsmith does not offer: streams and graphs. Opened
// at run time, as in the library, so that the suite builds and starts on a machine without a driver.
#pragma once

#include <cuda.h>

#include <functional>
#include <string>

namespace attnsmith::gpu_tests {

// Makes the first device's primary context current for this thread while it lives.
class CurrentContext {
  public:
    CurrentContext();
    ~CurrentContext();
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;
};

// A non-blocking stream of the current context.
class TestStream {
  public:
    TestStream();
    ~TestStream();
    TestStream(const TestStream&) = delete;
    TestStream& operator=(const TestStream&) = delete;

    CUstream get() const { return stream_; }
    void synchronize() const;

  private:
    CUstream stream_ = nullptr;
};

// What `enqueue` puts on the stream, captured once and replayed at will.
class CapturedGraph {
  public:
    CapturedGraph(const TestStream& stream, const std::function<void()>& enqueue);
    ~CapturedGraph();
    CapturedGraph(const CapturedGraph&) = delete;
    CapturedGraph& operator=(const CapturedGraph&) = delete;

    void launch(const TestStream& stream) const;
    std::size_t nodes() const { return nodes_; }

  private:
    CUgraph graph_ = nullptr;
    CUgraphExec executable_ = nullptr;
    std::size_t nodes_ = 0;
};

// "580.65.06 (CUDA 13.0)", or empty where there is no driver.
std::string driver_version();

}  // namespace attnsmith::gpu_tests
