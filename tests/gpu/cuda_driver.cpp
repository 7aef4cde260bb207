#include "cuda_driver.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cctype>
#include <fstream>
#include <stdexcept>

namespace attnsmith::gpu_tests {
namespace {

void* library() {
    static void* const handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return handle;
}

// The names are spelled out with their version suffix: cuda.h renames functions by macros, which dlsym does
// not see.
template <typename Function>
Function symbol(const char* name) {
    if (!library()) throw std::runtime_error("libcuda.so.1 cannot be opened");
    void* const address = dlsym(library(), name);
    if (!address) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
    return reinterpret_cast<Function>(address);
}

// Signatures, in place of the declarations that cuda.h's macros hide.
using Initialise = CUresult(CUDAAPI*)(unsigned);
using Retain = CUresult(CUDAAPI*)(CUcontext*, CUdevice);
using Release = CUresult(CUDAAPI*)(CUdevice);
using SetCurrent = CUresult(CUDAAPI*)(CUcontext);
using CreateStream = CUresult(CUDAAPI*)(CUstream*, unsigned);
using OnStream = CUresult(CUDAAPI*)(CUstream);
using BeginCapture = CUresult(CUDAAPI*)(CUstream, CUstreamCaptureMode);
using EndCapture = CUresult(CUDAAPI*)(CUstream, CUgraph*);
using Instantiate = CUresult(CUDAAPI*)(CUgraphExec*, CUgraph, unsigned long long);
using LaunchGraph = CUresult(CUDAAPI*)(CUgraphExec, CUstream);
using DestroyGraph = CUresult(CUDAAPI*)(CUgraph);
using DestroyExecutable = CUresult(CUDAAPI*)(CUgraphExec);
using GetNodes = CUresult(CUDAAPI*)(CUgraph, CUgraphNode*, std::size_t*);
using GetVersion = CUresult(CUDAAPI*)(int*);

template <typename Function, typename... Arguments>
void checked(const char* name, Arguments... arguments) {
    const CUresult result = symbol<Function>(name)(arguments...);
    if (result != CUDA_SUCCESS)
        throw std::runtime_error(fmt::format("{} gave {}", name, static_cast<int>(result)));
}

// For destructors: a failure there has nobody to tell.
template <typename Function, typename... Arguments>
void quietly(const char* name, Arguments... arguments) noexcept {
    try {
        checked<Function>(name, arguments...);
    } catch (const std::exception&) {
    }
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul ...": the first word with a digit
// before a point.
std::string kernel_module_version() {
    std::ifstream file("/proc/driver/nvidia/version");
    std::string word;
    while (file >> word) {
        const bool starts_with_digit = std::isdigit(static_cast<unsigned char>(word.front())) != 0;
        if (starts_with_digit && word.find('.') != std::string::npos) return word;
    }
    return {};
}

}  // namespace

CurrentContext::CurrentContext() {
    checked<Initialise>("cuInit", 0u);
    CUcontext context = nullptr;
    checked<Retain>("cuDevicePrimaryCtxRetain", &context, CUdevice{0});
    checked<SetCurrent>("cuCtxSetCurrent", context);
}

CurrentContext::~CurrentContext() {
    quietly<SetCurrent>("cuCtxSetCurrent", CUcontext{});
    quietly<Release>("cuDevicePrimaryCtxRelease_v2", CUdevice{0});
}

TestStream::TestStream() {
    checked<CreateStream>("cuStreamCreate", &stream_, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
}

TestStream::~TestStream() { quietly<OnStream>("cuStreamDestroy_v2", stream_); }

void TestStream::synchronize() const { checked<OnStream>("cuStreamSynchronize", stream_); }

CapturedGraph::CapturedGraph(const TestStream& stream, const std::function<void()>& enqueue) {
    checked<BeginCapture>("cuStreamBeginCapture_v2", stream.get(), CU_STREAM_CAPTURE_MODE_GLOBAL);
    try {
        enqueue();
    } catch (...) {
        quietly<EndCapture>("cuStreamEndCapture", stream.get(), &graph_);
        throw;
    }
    checked<EndCapture>("cuStreamEndCapture", stream.get(), &graph_);
    checked<GetNodes>("cuGraphGetNodes", graph_, static_cast<CUgraphNode*>(nullptr), &nodes_);
    checked<Instantiate>("cuGraphInstantiateWithFlags", &executable_, graph_, 0ull);
}

CapturedGraph::~CapturedGraph() {
    if (executable_) quietly<DestroyExecutable>("cuGraphExecDestroy", executable_);
    if (graph_) quietly<DestroyGraph>("cuGraphDestroy", graph_);
}

void CapturedGraph::launch(const TestStream& stream) const {
    checked<LaunchGraph>("cuGraphLaunch", executable_, stream.get());
}

std::string driver_version() {
    int version = 0;
    try {
        checked<GetVersion>("cuDriverGetVersion", &version);
    } catch (const std::exception&) {
        return {};
    }
    return fmt::format("{} (CUDA {}.{})", kernel_module_version(), version / 1000, version % 1000 / 10);
}

}  // namespace attnsmith::gpu_tests
