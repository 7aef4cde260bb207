// Memory, log and threads of the program's own: a pool gives all device memory, one zeroed workspace serves
// every kernel, the next kernel is prepared in the background, and the status is copied without waiting. No
// environment variable is read.
//
//   own_memory CACHE [NVRTC]
//
// NVRTC is its file or folder; without it the usual places are looked at.
#include <attnsmith/attnsmith.hpp>
#include <cstddef>
#include <cstdint>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace as = attnsmith;

namespace {

constexpr std::int64_t kBatch = 2, kLongest = 64, kHeads = 4, kHeadDim = 64;
constexpr std::int64_t kRow = kHeads * kHeadDim * 2;  // bytes of the heads of one token

// Gives memory and takes it back, from any thread. A real one takes large pieces from the driver; this one
// takes each from another Runtime, which asks the driver.
class Pool {
  public:
    void* allocate(std::size_t bytes, int device) {
        const std::scoped_lock lock(mutex_);
        as::Buffer buffer = driver_.allocate(bytes, device);
        void* const address = buffer.data();
        live_.emplace(address, std::move(buffer));
        return address;
    }

    void free(void* address) {
        const std::scoped_lock lock(mutex_);
        live_.erase(address);
    }

    std::size_t live() const { return live_.size(); }

  private:
    const as::Runtime driver_{{.use_environment = false, .use_cache = false}};
    std::mutex mutex_{};
    std::map<void*, as::Buffer> live_{};
};

as::RuntimeOptions options_of(Pool& pool, const std::string& cache, const std::string& nvrtc) {
    return {
        .use_environment = false,
        .cache_dirs = {cache},
        .nvrtc_path = nvrtc,
        .log_level = as::LogLevel::info,
        .log = [](as::LogLevel level,
                  std::string_view line) { std::cerr << as::to_string(level) << ": " << line << "\n"; },
        .device_allocate = [&pool](std::size_t bytes, int device) { return pool.allocate(bytes, device); },
        .device_free = [&pool](void* address, std::size_t, int) { pool.free(address); }};
}

as::Call bind(const as::Kernel& kernel, const as::Buffer& memory, std::int64_t q_len,
              const as::Buffer& workspace) {
    // q, k, v and o of the longest sequences lie one after another.
    const auto tensor = [&](int place, std::int64_t len) {
        return as::Tensor::contiguous(
            static_cast<std::byte*>(memory.data()) + place * kBatch * kLongest * kRow, as::DType::bf16,
            {kBatch, len, kHeads, kHeadDim});
    };
    return kernel.bind(
        {.q = tensor(0, q_len), .k = tensor(1, kLongest), .v = tensor(2, kLongest), .o = tensor(3, q_len)},
        {.max_q_len = q_len}, workspace.workspace());
}

void run(const as::Runtime& runtime) {
    const as::AttentionSpec spec{.head_dim_qk = kHeadDim, .q_heads = kHeads, .mask = as::Mask::causal};
    // The set serves all lengths. A thread of the runtime prepares a kernel for fp32 results at the same
    // time.
    as::AttentionSpec exact = spec;
    exact.precision = as::Precision::high;
    const std::shared_future<as::Kernel> later =
        runtime.prepare_async(exact, {.batch = kBatch, .q_len = kLongest, .kv_len = kLongest});
    const as::KernelSet set = runtime.prepare_set(spec);
    std::cout << "a set of " << set.size() << " kernels with head_dim_qk " << set.spec().head_dim_qk
              << " on device " << set.device() << "\n";
    for (const as::Kernel& kernel : set.kernels())
        if (!kernel) throw as::Error("a set has an empty kernel");

    // One workspace for all kernels, which run one after the other on one stream.
    const as::WorkspaceBounds bounds{.batch = kBatch, .q_tokens = kBatch * kLongest, .max_kv_len = kLongest};
    const as::Buffer workspace = runtime.allocate_workspace(set.workspace_bytes(bounds), set.device());
    // Memory that was used before is zeroed where kernels want zeros, in the order of a stream.
    runtime.clear_workspace(workspace.workspace(), nullptr, set.device());
    std::cout << as::workspace_zeroed_bytes() << " bytes of it are zero\n";
    as::Buffer memory = runtime.allocate(4 * kBatch * kLongest * kRow, workspace.device());
    memory.upload(std::string(memory.bytes(), '\0').data(), memory.bytes());
    const as::Kernel& decode = set.pick({.batch = kBatch, .q_len = 1, .kv_len = kLongest});
    const as::Call first = bind(decode, memory, 1, workspace);
    const as::Kernel prefill = later.get();  // waits, or throws what prepare() would have thrown
    const as::Buffer own = runtime.allocate_workspace(prefill.workspace_bytes(bounds), prefill.device());
    const as::Call second = bind(prefill, memory, kLongest, own);
    std::cout << "planned: " << prefill.plan_json().size() << " bytes of JSON; launches " << second.describe()
              << "\n";

    first.launch();
    second.launch();
    // The words arrive in the order of the stream. Page-locked memory would let the host go on meanwhile.
    as::Buffer words = runtime.allocate(2 * sizeof(std::uint32_t));
    auto* const word = static_cast<std::uint32_t*>(words.data());
    first.copy_status(word);
    second.copy_status(word + 1);
    runtime.synchronize(nullptr, set.device());
    std::uint32_t copied[2] = {};
    words.download(copied, sizeof copied);
    for (const std::uint32_t bits : copied) {
        const as::CallStatus status = as::CallStatus::from_word(bits);
        std::cout << "status: " << (status ? as::to_string(status) : "clean") << "\n";
        if (status.has(as::kStatusKvLenClamped | as::kStatusQLenClamped)) std::cout << "a length was cut\n";
    }
    const std::shared_ptr<const void> kept = second.keep_alive();  // for a graph that outlives the Call
    second.synchronize();  // device_free does not wait for launches: nothing may be in flight from here on
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2 && count != 3) {
        std::cerr << "usage: own_memory CACHE [NVRTC]\n";
        return 2;
    }
    try {
        Pool pool;
        {
            const as::Runtime runtime(options_of(pool, arguments[1], count == 3 ? arguments[2] : ""));
            run(runtime);
        }
        std::cout << pool.live() << " pieces of memory are left\n";
    } catch (const as::Error& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
