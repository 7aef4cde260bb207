// Runtime -> Kernel -> Call: the three objects of the API.
//
//   attnsmith::Runtime runtime;                                  // opens nothing until it is needed
//   attnsmith::Kernel kernel = runtime.prepare(spec, sizes);     // plan, cache or compile, load
//   attnsmith::Call call = kernel.bind(tensors, batch);          // checks and fixes the arguments
//   call.launch(stream);                                         // any number of times, or in a CUDA graph
//
// Thread safety: Runtime and Kernel may be used from any number of threads. A Call may be launched from any
// thread, but holds one workspace: make one Call for each launch that is in flight at the same time. Devices:
// a kernel is for one; the caller's current CUDA context is used where it is of that device, else the
// device's primary one. Lifetime: Kernel and Call keep alive what they need of the Runtime. Errors:
// attnsmith/error.hpp; what is used after it was moved from, or without ever being made, throws Error.
// Loaded when first needed: the cache directories and tuning tables when a Runtime is made, the driver by the
// first call that asks for a device, NVRTC by the first kernel that no cache has. The code of a kernel is in
// the GPU when prepare() returns; where bind() finds another context of the device it is loaded there too, so
// no launch() loads anything. A child made by fork may use NVRTC and the cache, but not its parent's driver,
// and not NVRTC if a thread of the parent was inside it at the fork; what prepare_async() had not finished by
// then throws Error there, and may be dropped. When the process ends, main() or exit() of its first thread
// waits for threads that compile or open NVRTC, and lets none begin to. Files that may not grow
// (RLIMIT_FSIZE) make a write fail: no SIGXFSZ of this library's reaches the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "attnsmith/batch.hpp"
#include "attnsmith/cache.hpp"
#include "attnsmith/error.hpp"
#include "attnsmith/export.h"
#include "attnsmith/prewarm.hpp"
#include "attnsmith/spec.hpp"

struct CUstream_st;

namespace attnsmith {

namespace detail {
struct Access;  // of the project's own tools and tests
}

using Stream = CUstream_st*;  // the same type as CUstream and cudaStream_t; null is the default stream

// How much is logged; spelled as they are named.
enum class LogLevel : std::uint8_t { off, error, warn, info, debug };
// Called from any thread, by several at a time; must not throw, nor call the Runtime that it belongs to.
using LogSink = std::function<void(LogLevel, std::string_view line)>;

// Whose cache directories, and read-only layers, may be used: machine code comes out of them.
enum class CacheTrust : std::uint8_t {
    owner,  // this process's user or root owns it, and neither group nor world may write to it
    group,  // its group may write to it besides, where this user owns it or is of the group: a shared fleet's
    all,    // any
};

// Which NVRTC's entries of the cache may be used; an entry says its own, and a key has one for each.
enum class Toolchain : std::uint8_t {
    newest,  // any, the newest that the driver takes first: a hit needs no NVRTC
    exact,   // the one at hand's only, for the same machine code everywhere: NVRTC is opened at hits, too
};

// What a kernel is that no cache has.
enum class OnMiss : std::uint8_t {
    compile,  // NVRTC compiles it
    error,  // an Error names the spec, the key and the command that would have built it; NVRTC is not opened
};

// Device memory from the caller's allocator, for workspaces that a Call owns and for Runtime::allocate().
// Called in the context of the device, from any thread; gives null where there is no memory. The address is a
// multiple of 256.
using Allocate = std::function<void*(std::size_t bytes, int device)>;
// Takes back what Allocate gave, with the same size and device.
using Free = std::function<void(void* memory, std::size_t bytes, int device)>;

// What a Runtime is made with. Each field left as it is takes its environment variable, if it has one.
struct RuntimeOptions {
    // Cache directories, the writable one first; behind it directories and bundles that are read, and the
    // addresses (https://, http://, s3://) of remote layers, which are asked for what none of them has.
    // Relative ones are of the directory that is current when the Runtime is made. Empty:
    // ATTNSMITH_CACHE_DIR, else $XDG_CACHE_HOME/attnsmith, else ~/.cache/attnsmith, else memory only. In an
    // address, / : ? # and @ of a user and a password are percent-encoded (%2F %3A %3F %23 %40).
    std::vector<std::string> cache_dirs{};
    bool use_cache = true;  // false: neither reads nor writes a directory
    // A directory that is not trusted is passed over, with one warning that says why.
    CacheTrust cache_trust = CacheTrust::owner;
    // Files of public keys (make_signing_key()). Where there are any, bundles and remote layers are used only
    // as far as one of these keys signed what they have; the rest is passed over, with a warning. Entries of
    // directories are not signed: only those are used then, whatever cache_trust says, that this user or root
    // owns and nobody else may write to. Empty: ATTNSMITH_CACHE_TRUST_KEYS, else no signature is asked for,
    // and remote layers are used with CacheTrust::all alone.
    std::vector<std::string> trust_key_files{};
    // A secret key's PEM file, with which what is pushed to remotes is signed. Empty:
    // ATTNSMITH_CACHE_SIGN_KEY, else nothing is.
    std::string sign_key_file{};
    // Kernels that this Runtime compiles are put to the remote layers as well, when whoever asked for them is
    // served, within the time that a remote may cost. False: as ATTNSMITH_CACHE_PUSH=1 says, else not.
    bool push_compiled = false;
    // The most that the writable directory may take on its disk; the kernels that were not used for longest
    // go first. 0: no limit.
    std::uint64_t cache_max_bytes = std::uint64_t{2} << 30;
    bool cache_source = true;                 // entries hold their kernels' sources, for people
    Toolchain toolchain = Toolchain::newest;  // whose entries may be used
    std::optional<OnMiss> on_miss{};  // absent: ATTNSMITH_ON_MISS ("compile" or "error"), else compile
    // A file that gets a line (schema attnsmith.recorded/1) for each spec that is prepared, for
    // `attnsmith prewarm --recorded`; any number of processes may share it. Empty: ATTNSMITH_RECORD, else
    // none.
    std::string record_file{};
    // Tuning tables (schema attnsmith.tuning/1), whose tiles win over the library's own; those in front win.
    // Empty: ATTNSMITH_TUNING.
    std::vector<std::string> tuning_files{};
    std::string nvrtc_path{};   // file or folder; empty: ATTNSMITH_NVRTC_PATH, else the usual places
    std::string driver_path{};  // the CUDA driver's file; empty: the usual places
    int compile_threads = 0;    // of one Runtime; 0: the number of cores
    std::optional<LogLevel> log_level{};  // absent: ATTNSMITH_LOG, else warn
    LogSink log{};                        // absent: standard error
    std::string keep_source_dir{};  // not empty: generated sources are kept there and compiled with -lineinfo
    Allocate allocate{};            // absent: cuMemAlloc; given together with `free` or not at all
    Free free{};                    // absent: cuMemFree
};

// A buffer of device memory, freed with the object.
class ATTNSMITH_API Buffer {
  public:
    Buffer();
    ~Buffer();
    Buffer(Buffer&&) noexcept;
    Buffer& operator=(Buffer&&) noexcept;

    void* data() const noexcept;         // a device address; null without memory
    std::size_t bytes() const noexcept;  // as asked for
    // Copies to the device, in the order of the default stream, and waits for it alone until the copy is
    // done. `bytes` and `offset` are of the buffer. Throws InvalidRequest when offset + bytes is past the
    // end, and DriverError, without harm to the capture, while a stream that waits for the default stream is
    // captured.
    void upload(const void* host, std::size_t bytes, std::size_t offset = 0);
    // Copies to the host, likewise.
    void download(void* host, std::size_t bytes, std::size_t offset = 0) const;

  private:
    friend class Runtime;
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Bytes at the start of a Workspace that are zero before the first launch. No library with the same SONAME,
// and no library of the same ATTNSMITH_ABI_VERSION, needs more.
inline constexpr std::size_t kWorkspaceZeroedBytes = 8192;

// The bytes at the start of a Workspace that the library which is loaded wants zero before the first launch:
// at most kWorkspaceZeroedBytes. Runtime::clear_workspace() zeroes them.
[[nodiscard]] ATTNSMITH_API std::size_t workspace_zeroed_bytes() noexcept;

// Scratch memory of one Call: device memory, 256-byte aligned, at least Kernel::workspace_bytes(...) long.
// Its first kWorkspaceZeroedBytes hold the status that Call::status() reads, and what kernels count in: the
// caller zeroes them once (Runtime::clear_workspace()), before the first launch, and leaves them alone from
// then on. No two launches may use one workspace at the same time: they would skip parts of each other's
// work. In turn, in the order of a stream, it may serve any number of Calls and kernels, if it is large
// enough for each; the status then speaks of them all.
struct Workspace {
    void* data = nullptr;   // a device address, a multiple of 256
    std::size_t bytes = 0;  // from data on
};

// What the tensors have at most that a workspace is to serve.
struct WorkspaceBounds {
    std::int64_t batch = 1;  // sequences
    // Queries of all sequences: batch * max_q_len of a dense q, q.shape[0] of a ragged one.
    std::int64_t q_tokens = 1;
    std::int64_t max_kv_len = 1;  // keys of the longest sequence
};

// The status word is a std::uint32_t at the start of a workspace; kernels set its bits and never clear them.
// This one is CallStatus::q_len_clamped.
inline constexpr std::uint32_t kStatusQueryLengthClamped = 1;
// The status word's bit of CallStatus::kv_len_clamped.
inline constexpr std::uint32_t kStatusKeyLengthClamped = 2;
// The status word's bit of CallStatus::page_out_of_range.
inline constexpr std::uint32_t kStatusPageOutOfRange = 4;
// The status word's bit of CallStatus::workspace_not_zeroed.
inline constexpr std::uint32_t kStatusWorkspaceNotZeroed = 8;
// The status word's bit of CallStatus::scale_not_positive.
inline constexpr std::uint32_t kStatusScaleNotPositive = 16;
// The status word's bit of CallStatus::slot_out_of_range.
inline constexpr std::uint32_t kStatusSlotOutOfRange = 32;
// The status word's bit of CallStatus::position_out_of_range.
inline constexpr std::uint32_t kStatusPositionOutOfRange = 64;
// The status word's bit of CallStatus::slot_written_twice.
inline constexpr std::uint32_t kStatusSlotWrittenTwice = 128;

// What the launches so far of one Call found wrong on the device. Sticky until cleared.
struct CallStatus {
    bool q_len_clamped = false;   // a sequence had more queries than the bound or the tensor
    bool kv_len_clamped = false;  // a sequence had more keys than the bound or the tensor
    // A page id in use was not a page, and its keys were read as zeros; or Batch::table_rows said a row that
    // page_table has not, and the sequence had no keys.
    bool page_out_of_range = false;
    // A count in the workspace was beyond all that there was to count: its first kWorkspaceZeroedBytes were
    // not zero before the first launch, or two launches used it at the same time, and o is wrong. Not every
    // wrong count can be told from a right one.
    bool workspace_not_zeroed = false;
    // A scale of keys or values was no ordinary number above 0; rows of its KV heads are NaN, or of a token's
    // scale those that see the token.
    bool scale_not_positive = false;
    // Op append wrote nothing of a token: its slot is behind the cache's last, or its sequence
    // has more new tokens than keys. (Where a length or a page is out of range, which says so above, it wrote
    // nothing of the sequence's tokens, or of those of the page.)
    bool slot_out_of_range = false;
    // Likewise: its position is below 0, or rope_table has none.
    bool position_out_of_range = false;
    // With AttentionSpec::check_slots: two tokens of one launch of op append were written to one slot, whose
    // rows are now of either, or in part of each.
    bool slot_written_twice = false;
    bool operator==(const CallStatus&) const = default;
    // Whether anything was wrong.
    explicit operator bool() const noexcept {
        return q_len_clamped || kv_len_clamped || page_out_of_range || workspace_not_zeroed ||
               scale_not_positive || slot_out_of_range || position_out_of_range || slot_written_twice;
    }

    // The status that a copied word says.
    static CallStatus from_word(std::uint32_t word) noexcept {
        return {.q_len_clamped = (word & kStatusQueryLengthClamped) != 0,
                .kv_len_clamped = (word & kStatusKeyLengthClamped) != 0,
                .page_out_of_range = (word & kStatusPageOutOfRange) != 0,
                .workspace_not_zeroed = (word & kStatusWorkspaceNotZeroed) != 0,
                .scale_not_positive = (word & kStatusScaleNotPositive) != 0,
                .slot_out_of_range = (word & kStatusSlotOutOfRange) != 0,
                .position_out_of_range = (word & kStatusPositionOutOfRange) != 0,
                .slot_written_twice = (word & kStatusSlotWrittenTwice) != 0};
    }
};

// One launch, ready to go: arguments are fixed, nothing is allocated or looked up any more. A graph that
// captured a launch has its arguments, and uses the code and the workspace that the Call holds: the Call may
// be moved, but it, or what keep_alive() gives, must live as long as the graph is launched.
class ATTNSMITH_API Call {
  public:
    Call();
    ~Call();
    Call(Call&&) noexcept;
    Call& operator=(Call&&) noexcept;

    // Enqueues the kernels. Throws DriverError. Takes no lock, allocates nothing, may be captured.
    void launch(Stream stream = nullptr) const;
    // Launches with other addresses for some of the tensors, for this launch alone: a Call that was bound
    // once serves every layer, and every step of an engine. Shapes, strides, lengths and page tables are
    // those that were bound. Takes no lock, allocates nothing, may be captured: the graph has the addresses
    // of that launch. Throws DriverError, and InvalidRequest naming the field ("addresses.k") of a tensor
    // that was not bound, or of an address that bind() would refuse for its alignment; naming the output
    // where a tensor would share memory with o, lse or the workspace, as bind() does; and `addresses` for a
    // Call of other tensors than AttentionTensors, which takes none.
    void launch_at(const TensorAddresses& addresses, Stream stream = nullptr) const;
    // Launches with other addresses, by the old name of launch_at().
    [[deprecated("use launch_at()")]] void launch(const TensorAddresses& addresses,
                                                  Stream stream = nullptr) const {
        launch_at(addresses, stream);
    }

    // Enqueues a copy of the status word to `word`, page-locked host memory (or device memory) that the
    // caller keeps until the stream has passed it. Waits for nothing, allocates nothing, may be captured. A
    // merge reads no lengths from the device: its status is always clear.
    void copy_status(std::uint32_t* word, Stream stream = nullptr) const;
    // The status after all that `stream` was given so far. Waits for that stream alone; captures of other
    // streams are left alone. Throws InvalidRequest where the stream itself is being captured, or is the
    // default stream while a stream that waits for it is; no capture is harmed by that either.
    CallStatus status(Stream stream = nullptr) const;
    // Clears it, in the stream's order; waits for nothing, may be captured.
    void clear_status(Stream stream = nullptr) const;

    // What a captured launch uses of this Call, for a graph that outlives it: the loaded code, and the
    // workspace where the Call allocated it. A workspace of the caller's stays the caller's to keep. Neither
    // allocates nor waits. The last owner to go frees both as ~Call() does, by the driver, which CUDA forbids
    // within the destructor of a user object: a graph that owns one hands it to a thread of the program's.
    //
    //   auto* kept = new std::shared_ptr<const void>(call.keep_alive());
    //   cudaUserObjectCreate(&object, kept, [](void* kept) { retired.push(kept); }, 1,
    //                        cudaUserObjectNoDestructorSync);
    //   cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
    //
    // where the program deletes what `retired`, a queue of its own, was given.
    std::shared_ptr<const void> keep_alive() const;

    // Waits for all that `stream` was given; null is the default stream of the kernel's device, which
    // launch() takes, too. Throws DriverError.
    void synchronize(Stream stream = nullptr) const;

    // The kernels' grids, in the order that launch() enqueues them; for tests and logs.
    std::string describe() const;

    // Whether there is one: false where it was never made, or moved from.
    explicit operator bool() const noexcept { return impl_ != nullptr; }

  private:
    friend class Kernel;
    struct Impl;
    std::shared_ptr<Impl> impl_;  // of keep_alive(), too
};

// A loaded kernel, with the plan that chose it. Immutable; copies share.
class ATTNSMITH_API Kernel {
  public:
    Kernel();

    // Bytes of workspace that a Call needs whose tensors have these bounds: at least kWorkspaceZeroedBytes,
    // or 0 of a merge. Throws InvalidRequest naming the bound that is negative or more than any launch takes.
    std::size_t workspace_bytes(const WorkspaceBounds& bounds) const;

    // Checks the tensors against the spec and fixes the arguments. Throws InvalidRequest naming the tensor's
    // field. May be done while a stream is being captured, by this thread or another: nothing of it is
    // captured. Waits for no stream of the caller's. A bind without a workspace allocates one, which the Call
    // owns; where RuntimeOptions has no `free`, freeing it waits for the device, as cuMemFree does.
    Call bind(const AttentionTensors& tensors, const Batch& batch = {}) const;
    // Binds with the caller's workspace. Throws InvalidRequest where it is null, too small or misaligned.
    Call bind(const AttentionTensors& tensors, const Batch& batch, Workspace workspace) const;
    // Binds the tensors of another op, such as MergeTensors. What of `batch` counts is said at their struct.
    template <TensorsOfOp Tensors>
    Call bind(const Tensors& tensors, const Batch& batch = {}) const {
        return bind_tensors(Tensors::kOp, &tensors, batch, nullptr);
    }
    // Binds the tensors of another op with the caller's workspace. One that needs none leaves it alone.
    template <TensorsOfOp Tensors>
    Call bind(const Tensors& tensors, const Batch& batch, Workspace workspace) const {
        return bind_tensors(Tensors::kOp, &tensors, batch, &workspace);
    }

    const AttentionSpec& spec() const;  // normalised
    int device() const;                 // ordinal
    // Schema attnsmith.plan/1. Of a kernel of a KernelSet it is the plan for sizes of 1, and says so.
    std::string plan_json() const;

    // Whether there is one: false where it was never made, or moved from.
    explicit operator bool() const noexcept { return impl_ != nullptr; }

  private:
    friend class Call;
    friend class KernelSet;
    friend class Runtime;
    struct Impl;

    // `tensors`: the struct of that op's.
    Call bind_tensors(Op op, const void* tensors, const Batch& batch, const Workspace* workspace) const;

    std::shared_ptr<const Impl> impl_;
};

// Every kernel that planning could choose for a spec on a device, loaded: an engine prepares the set once and
// picks for each step. Immutable; copies share. A kernel of a set was prepared for no sizes: each of its
// Calls divides the keys as planning would for this kernel, were the bounds that the Call is bound with the
// sizes (Batch::max_q_len and max_kv_len, the batch, and the queries of all sequences).
class ATTNSMITH_API KernelSet {
  public:
    KernelSet();

    // The kernel that prepare() would choose for these sizes. Takes no lock, allocates nothing. Sizes that
    // were asked before take some nanoseconds, others under a microsecond: an engine whose lengths grow with
    // each step may round them. The reference is the set's. Throws InvalidRequest for sizes that prepare()
    // refuses.
    const Kernel& pick(const PlanSizes& sizes) const;

    // Bytes of a workspace that serves every kernel of the set, for any tensors within these bounds. Throws
    // InvalidRequest naming the bound that is negative or more than any launch takes.
    std::size_t workspace_bytes(const WorkspaceBounds& bounds) const;

    std::span<const Kernel> kernels() const;  // that pick() can give, each once
    std::size_t size() const;                 // of kernels()
    const AttentionSpec& spec() const;        // normalised
    int device() const;                       // ordinal

    // Whether there is one: false where it was never made, or moved from.
    explicit operator bool() const noexcept { return impl_ != nullptr; }

  private:
    friend class Runtime;
    struct Impl;
    std::shared_ptr<const Impl> impl_;
};

// What the runtime found on this machine.
struct DeviceInfo {
    int index = 0;                 // the driver's ordinal
    std::string name{};            // as the driver has it
    int sm = 0;                    // 90 for compute capability 9.0
    int sm_count = 0;              // streaming multiprocessors
    std::size_t memory_bytes = 0;  // of the whole device
};

// [{"index", "name", "sm", "sm_count", "memory_bytes"}]
ATTNSMITH_API std::string to_json(const std::vector<DeviceInfo>& devices);

inline constexpr int kCurrentDevice = -1;  // that of the caller's context; device 0 where there is none

// What kernels are prepared with: caches, a compiler, devices. A program needs one; several share nothing but
// the cache directories.
class ATTNSMITH_API Runtime {
  public:
    // Throws InvalidRequest naming an option that cannot be. A cache directory that cannot be used is passed
    // over with a warning.
    explicit Runtime(RuntimeOptions options = {});
    ~Runtime();
    Runtime(Runtime&&) noexcept;
    Runtime& operator=(Runtime&&) noexcept;

    // The kernel for this problem on a device. The first call plans, reads the cache or compiles,
    // and loads; later ones are a look-up. Throws InvalidRequest, Unsupported, CompileError, DriverError,
    // LibraryMissing; with OnMiss::error KernelMissing instead of compiling.
    Kernel prepare(const AttentionSpec& spec, const PlanSizes& sizes, int device = kCurrentDevice);
    // The same on another thread, in the context that is current now; on this one where there is no thread to
    // be had. Its compile is queued after those that a prepare() waits for, and a prepare() of the same
    // kernel moves it to the front. The Runtime waits for it when it goes; the future, whose copies may be
    // dropped, does not.
    std::shared_future<Kernel> prepare_async(const AttentionSpec& spec, const PlanSizes& sizes,
                                             int device = kCurrentDevice);

    // Every kernel that planning could choose for this spec on a device, whatever the sizes, as prewarm()
    // builds them: all are compiled or taken from the cache, and loaded, when this returns. Throws as
    // prepare().
    KernelSet prepare_set(const AttentionSpec& spec, int device = kCurrentDevice);

    // The plan as JSON (schema attnsmith.plan/1). `sm` 0 is the current device; others need no GPU.
    std::string plan_json(const AttentionSpec& spec, const PlanSizes& sizes, int sm = 0) const;

    // Compiles into the cache every kernel that planning could choose for these specs on these SMs. Needs no
    // GPU. Kernels that fail, or cannot be stored, are reported, not thrown; so is a spec that no kernel
    // serves on an SM. Throws InvalidRequest, CacheError (no directory, or one that cannot be written and
    // lacks a kernel: there would be nothing to show for the work), LibraryMissing (there is no NVRTC, and a
    // kernel is not in the cache). Nothing is done for any kernel then.
    PrewarmReport prewarm(std::span<const AttentionSpec> specs, std::span<const int> sms,
                          const PrewarmOptions& options = {});

    // The cache directories: what is in them, what can be done with them.
    Cache cache() const;

    // The same as JSON, for programs in other languages. Does "ls", "dir", "stat", "explain", "verify", "gc",
    // "clear", "rm", "export", "import" or "push" on the cache directories, and says what came out in the
    // JSON that the command `attnsmith cache OPERATION --json` prints. `options` is a JSON object: of "gc",
    // {"max_bytes"}, which is optional; of "explain", {"key"} (or how it begins) or {"request": {with its
    // "sm"}}; of "rm", {"key"} likewise; of "export", {"file", "sm": [...], "model": {a config.json},
    // "model_options"}, of which only the file must be there (sm: only kernels for these; model: only those
    // that it needs; its options take lists as model_coverage() does), or {"oci": DIR, "tag"} instead of the
    // file, for an image; of "push", which puts entries to the remote layers, {"sm", "model",
    // "model_options"}, all optional; of "import", {"file"}; of the others, {}. Throws InvalidRequest for
    // another operation or option, CacheError where there is no directory, not everything could be deleted,
    // written or stored, or a bundle is not sound.
    std::string cache_json(std::string_view operation, std::string_view options = "{}") const;

    std::vector<DeviceInfo> devices() const;  // empty where there is no driver or no GPU
    Buffer allocate(std::size_t bytes, int device = kCurrentDevice) const;  // device memory
    // Waits for all that `stream` was given; null is the default stream of `device`. Throws DriverError.
    void synchronize(Stream stream = nullptr, int device = kCurrentDevice) const;
    // Enqueues the zeroing of what must be zero in a workspace before the first launch that uses it:
    // workspace_zeroed_bytes() at its start. `stream` is a stream of `device`; null is the device's default
    // stream. Waits for nothing. It is not for later: it would clear the status, and what launches in flight
    // count in. Throws InvalidRequest where the workspace is null, too small or misaligned.
    void clear_workspace(const Workspace& workspace, Stream stream = nullptr,
                         int device = kCurrentDevice) const;

  private:
    friend struct detail::Access;
    struct Impl;
    Impl& impl() const;
    std::shared_ptr<Impl> impl_;
};

}  // namespace attnsmith
