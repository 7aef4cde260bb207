// Runtime -> Kernel -> Call: the three objects of the API.
//
//   attnsmith::Runtime runtime;                                  // opens nothing until it is needed
//   attnsmith::Kernel kernel = runtime.prepare(spec, sizes);     // plan, cache or compile, load
//   attnsmith::Call call = kernel.bind(tensors, batch);          // checks and fixes the arguments
//   call.launch(stream);                                         // any number of times, or in a CUDA graph
//
// Each class says what it owns, which threads may use it, and how long it has to live. Errors:
// attnsmith/error.hpp. Devices: a kernel is for one; the caller's current CUDA context is used if it is of
// that device, else the device's primary one. Loaded when first needed: the cache directories and tuning
// tables when a Runtime is made, the driver by the first call that asks for a device, NVRTC by the first
// kernel that no cache has. The code of a kernel is in the GPU when prepare() returns; if bind() finds
// another context of the device, it is loaded there too, so no launch() loads anything. A child made by fork
// may use NVRTC and the cache, but not its parent's driver, and not NVRTC if a thread of the parent was
// inside it at the fork; what prepare_async() had not finished by then throws Error there, and may be
// dropped. When the process ends, main() or exit() of its first thread waits for threads that compile or open
// NVRTC, and lets none begin to. Files that may not grow (RLIMIT_FSIZE) make a write fail: no SIGXFSZ of this
// library's reaches the program.
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
struct Access;  // for the project's own tools and tests
}

using Stream = CUstream_st*;  // the type of CUstream and cudaStream_t; null is the default stream

inline constexpr int kCurrentDevice = -1;  // the device of the caller's context; device 0 if there is none
inline constexpr int kCurrentSm = 0;       // the compute capability of the caller's current device

// Log verbosity. Words: off, error, warn, info, debug.
enum class LogLevel : std::uint8_t {
    off = 1,    // nothing
    error = 2,  // what failed
    warn = 3,   // what may be wrong or slow
    info = 4,   // what is planned, compiled and loaded
    debug = 5,  // why, and what was passed over
};
// Takes a line of the log, without a newline. Called from any thread, by several at a time, until the Runtime
// and all objects made by it are gone; must not throw, nor call the Runtime that it belongs to.
using LogSink = std::function<void(LogLevel, std::string_view line)>;

// Whose cache directories and read-only layers may be used: machine code comes out of them. Words: owner,
// group, all.
enum class CacheTrust : std::uint8_t {
    owner = 0,  // owned by this process's user or root, and writable for neither group nor world
    group = 1,  // also writable for its group, if this user owns it or is in the group: a shared fleet's
    all = 2,    // any
};

// Which cache entries may be used, by the NVRTC that compiled them. Each entry states its NVRTC, and each
// NVRTC has its own key. Words: newest, exact.
enum class Toolchain : std::uint8_t {
    newest = 0,  // entries of any NVRTC, the newest that the driver takes first: a hit needs no NVRTC
    exact = 1,   // only entries of the NVRTC at hand, so that all machines run equal machine code; NVRTC is
                 // opened even for a hit
};

// What to do on a cache miss. Words: compile, error.
enum class OnMiss : std::uint8_t {
    compile = 1,  // compile the kernel with NVRTC
    error = 2,    // throw KernelMissing, with the command that would have built it; NVRTC is not opened
};

// The word of an enumerator in JSON, on the command line and in Python. A value that is no enumerator gives
// "(not an enumerator)".
[[nodiscard]] ATTNSMITH_API std::string_view to_string(LogLevel value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(CacheTrust value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(Toolchain value) noexcept;
[[nodiscard]] ATTNSMITH_API std::string_view to_string(OnMiss value) noexcept;
// The enumerator that a word stands for; absent for a word that is none of the enumeration's.
template <>
[[nodiscard]] ATTNSMITH_API std::optional<LogLevel> from_string<LogLevel>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<CacheTrust> from_string<CacheTrust>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<Toolchain> from_string<Toolchain>(std::string_view word) noexcept;
template <>
[[nodiscard]] ATTNSMITH_API std::optional<OnMiss> from_string<OnMiss>(std::string_view word) noexcept;

// Allocates device memory with the caller's allocator, for workspaces that a Call owns and for
// Runtime::allocate(). Called in the context of the device, from any thread, until the Runtime and all
// objects made by it are gone. Returns null if there is no memory; what it throws, bind() or allocate()
// throws. The address is a multiple of 256.
using DeviceAllocate = std::function<void*(std::size_t bytes, int device)>;
// Frees device memory that DeviceAllocate returned, with its size and device. Must not throw. It is called by
// ~Call() and ~Buffer(), which do not wait for launches first (cuMemFree would): an allocator that hands the
// memory out again at once must defer that until the launches that use it are done.
using DeviceFree = std::function<void(void* memory, std::size_t bytes, int device)>;
// The old name of DeviceAllocate.
using Allocate [[deprecated("use DeviceAllocate")]] = DeviceAllocate;
// The old name of DeviceFree.
using Free [[deprecated("use DeviceFree")]] = DeviceFree;

// What a Runtime is made with. Each field left as it is takes its environment variable, if it has one and
// use_environment is true.
struct RuntimeOptions {
    // False: no environment variable is read, neither those of attnsmith nor HOME, XDG_CACHE_HOME or those of
    // AWS. What is left empty is then off: no directory, key, token, recording, tuning table or push. NVRTC,
    // libcurl and the CUDA driver still read their own variables.
    bool use_environment = true;
    // Cache directories, the writable one first; after it directories and bundles that are read, and the
    // addresses (https://, http://, s3://) of remote layers, which are asked for what none of them has.
    // Relative ones start at the directory that is current when the Runtime is made. Empty:
    // ATTNSMITH_CACHE_DIR, else $XDG_CACHE_HOME/attnsmith, else ~/.cache/attnsmith, else memory only. In an
    // address, / : ? # and @ of a user and a password are percent-encoded (%2F %3A %3F %23 %40).
    std::vector<std::string> cache_dirs{};
    bool use_cache = true;  // false: neither reads nor writes a directory
    // A directory that is not trusted is passed over, with one warning that says why.
    CacheTrust cache_trust = CacheTrust::owner;
    // Files of public keys (make_signing_key()). Where there are any, bundles and remote layers are used only
    // as far as one of these keys signed what they have; the rest is passed over, with a warning. Entries of
    // directories are not signed: only those are used then, whatever cache_trust says, that this user or root
    // owns and no other user may write to. Empty: ATTNSMITH_CACHE_TRUST_KEYS, else no signature is asked for,
    // and remote layers are used with CacheTrust::all alone.
    std::vector<std::string> trust_key_files{};
    // The PEM file of a secret key that signs what is pushed to remotes. Empty: ATTNSMITH_CACHE_SIGN_KEY,
    // else nothing is signed.
    std::string sign_key_file{};
    // Kernels that this Runtime compiles are put to the remote layers as well, after the caller that asked
    // for them is served, within the time that a remote may cost. False: if ATTNSMITH_CACHE_PUSH is 1.
    bool push_compiled = false;
    // The most that the writable directory may take on its disk, in bytes; the kernels that were not used for
    // longest go first. 0 and kNoLimit: no limit.
    std::uint64_t cache_max_bytes = std::uint64_t{2} << 30;
    bool cache_source = true;                 // entries hold the sources of their kernels, for people
    Toolchain toolchain = Toolchain::newest;  // which entries may be used, by the NVRTC that compiled them
    // What to do on a cache miss. Absent: ATTNSMITH_ON_MISS ("compile" or "error"), else compile.
    std::optional<OnMiss> on_miss{};
    // A file that gets a line (schema attnsmith.recorded/1) for each spec that is prepared, for
    // `attnsmith prewarm --recorded`; any number of processes may share it. Empty: ATTNSMITH_RECORD, else
    // none.
    std::string record_file{};
    // Tuning tables (schema attnsmith.tuning/1), whose tiles win over the library's own; earlier files win.
    // Empty: ATTNSMITH_TUNING.
    std::vector<std::string> tuning_files{};
    std::string nvrtc_path{};   // file or folder; empty: ATTNSMITH_NVRTC_PATH, else the usual places
    std::string driver_path{};  // the CUDA driver's file; empty: the usual places
    int compile_threads = 0;    // kernels that this Runtime compiles at a time; 0: the number of cores
    std::optional<LogLevel> log_level{};  // log verbosity; absent: ATTNSMITH_LOG, else warn
    LogSink log{};                        // takes the lines of the log; absent: standard error
    std::string keep_source_dir{};  // not empty: generated sources are kept there and compiled with -lineinfo
    // Allocates device memory; absent: cuMemAlloc. Given together with device_free or not at all.
    DeviceAllocate device_allocate{};
    // Frees device memory that device_allocate returned; absent: cuMemFree.
    DeviceFree device_free{};
};

// Bytes at the start of a Workspace that are zero before the first launch. No library with the same SONAME,
// and no library of the same ATTNSMITH_ABI_VERSION, needs more.
inline constexpr std::size_t kWorkspaceZeroedBytes = 8192;

// The bytes at the start of a Workspace that the library which is loaded wants zero before the first launch:
// at most kWorkspaceZeroedBytes. Runtime::clear_workspace() zeroes them.
[[nodiscard]] ATTNSMITH_API std::size_t workspace_zeroed_bytes() noexcept;

// Scratch memory of one Call: device memory, 256-byte aligned, at least Kernel::workspace_bytes(...) long. It
// owns nothing: the caller keeps the memory until the launches that use it are done. Its first
// kWorkspaceZeroedBytes hold the status that Call::status() reads, and what kernels count in: the caller
// zeroes them once, before the first launch, and leaves them alone from then on
// (Runtime::allocate_workspace() gives zeroed memory). No two launches may use one workspace at the same
// time: they would skip parts of each other's work. In turn, in the order of a stream, it may serve any
// number of Calls and kernels, if it is large enough for each; the status then speaks of them all.
struct Workspace {
    void* data = nullptr;   // a device address, a multiple of 256
    std::size_t bytes = 0;  // how long it is, from data on
};

// The largest launch that a workspace is to serve.
struct WorkspaceBounds {
    std::int64_t batch = 1;  // sequences
    // Queries of all sequences: batch * max_q_len of a dense q, q.shape[0] of a ragged one.
    std::int64_t q_tokens = 1;
    std::int64_t max_kv_len = 1;  // keys of the longest sequence
};

// Device memory, made by Runtime::allocate() or Runtime::allocate_workspace(). Owns the memory; movable, not
// copyable. Threads: data(), bytes(), device() and workspace() from any; upload() and download() by one
// thread at a time for the same bytes. Lifetime: independent of the Runtime. ~Buffer() gives the memory back:
// with cuMemFree after waiting for the device, with RuntimeOptions::device_free at once, so that a Buffer
// must then outlive the launches that use it. Empty (default-constructed or moved from): data() is null,
// bytes() is 0, and copying any byte throws InvalidRequest.
class ATTNSMITH_API Buffer {
  public:
    Buffer() noexcept;  // empty
    ~Buffer();          // gives the memory back
    Buffer(Buffer&&) noexcept;
    Buffer& operator=(Buffer&&) noexcept;

    [[nodiscard]] void* data() const noexcept;         // the device address; null if there are no bytes
    [[nodiscard]] std::size_t bytes() const noexcept;  // the size that allocate() was asked for
    [[nodiscard]] int device() const noexcept;         // the CUDA ordinal of the device; -1 if empty
    // The memory as a Workspace for bind(). Zeroed as kernels need it only if allocate_workspace() made it.
    [[nodiscard]] Workspace workspace() const noexcept;

    // Copies `bytes` from the host to the buffer, from byte `offset` of the buffer on, in the order of the
    // default stream, and waits for that stream alone until the copy is done. Throws InvalidRequest if offset
    // + bytes is past the end, and DriverError, without harm to the capture, while a stream that waits for
    // the default stream is captured.
    void upload(const void* host, std::size_t bytes, std::size_t offset = 0);
    // Copies `bytes` from byte `offset` of the buffer on to the host, in the order of the default stream, and
    // waits for that stream alone until the copy is done. Throws InvalidRequest if offset + bytes is past the
    // end, and DriverError, without harm to the capture, while a stream that waits for the default stream is
    // captured.
    void download(void* host, std::size_t bytes, std::size_t offset = 0) const;

    // False if default-constructed or moved from.
    explicit operator bool() const noexcept { return impl_ != nullptr; }

  private:
    friend class Runtime;
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// The status word is a std::uint32_t at the start of a workspace; kernels set its bits and never clear them.
// The bit of CallStatus::q_len_clamped().
inline constexpr std::uint32_t kStatusQLenClamped = 1;
// The bit of CallStatus::kv_len_clamped() in the status word.
inline constexpr std::uint32_t kStatusKvLenClamped = 2;
// The bit of CallStatus::page_out_of_range() in the status word.
inline constexpr std::uint32_t kStatusPageOutOfRange = 4;
// The bit of CallStatus::workspace_not_zeroed() in the status word.
inline constexpr std::uint32_t kStatusWorkspaceNotZeroed = 8;
// The bit of CallStatus::scale_not_positive() in the status word.
inline constexpr std::uint32_t kStatusScaleNotPositive = 16;
// The bit of CallStatus::slot_out_of_range() in the status word.
inline constexpr std::uint32_t kStatusSlotOutOfRange = 32;
// The bit of CallStatus::position_out_of_range() in the status word.
inline constexpr std::uint32_t kStatusPositionOutOfRange = 64;
// The bit of CallStatus::slot_written_twice() in the status word.
inline constexpr std::uint32_t kStatusSlotWrittenTwice = 128;
// The old name of kStatusQLenClamped.
[[deprecated("use kStatusQLenClamped")]] inline constexpr std::uint32_t kStatusQueryLengthClamped = 1;
// The old name of kStatusKvLenClamped.
[[deprecated("use kStatusKvLenClamped")]] inline constexpr std::uint32_t kStatusKeyLengthClamped = 2;

// What the launches that used a workspace met: the status word, and a function for each bit. Later versions
// may set more bits: operator bool and bits tell of those too.
struct CallStatus {
    std::uint32_t bits = 0;  // the status word, kStatus... bits

    // True if a sequence had more queries than the bound or the tensor.
    [[nodiscard]] constexpr bool q_len_clamped() const noexcept { return has(kStatusQLenClamped); }
    // True if a sequence had more keys than the bound or the tensor; op top_k: if the bounds of a row were
    // outside the columns.
    [[nodiscard]] constexpr bool kv_len_clamped() const noexcept { return has(kStatusKvLenClamped); }
    // True if a page id in use was not a page, and its keys were read as zeros; or Batch::table_rows named a
    // row that page_table does not have, and the sequence had no keys.
    [[nodiscard]] constexpr bool page_out_of_range() const noexcept { return has(kStatusPageOutOfRange); }
    // True if a count in the workspace was beyond all that there was to count: its first
    // kWorkspaceZeroedBytes were not zero before the first launch, or two launches used it at the same time,
    // and o is wrong. Not every wrong count can be told from a right one.
    [[nodiscard]] constexpr bool workspace_not_zeroed() const noexcept {
        return has(kStatusWorkspaceNotZeroed);
    }
    // True if a scale of keys or values was not a finite number above 0: the rows that see what it scales are
    // NaN.
    [[nodiscard]] constexpr bool scale_not_positive() const noexcept { return has(kStatusScaleNotPositive); }
    // True if op append did not write a token, because its slot is past the end of the cache, or its sequence
    // has more new tokens than keys. (For a length or a page that is out of range, which the other functions
    // report, it wrote no token of the sequence, or none of the page.)
    [[nodiscard]] constexpr bool slot_out_of_range() const noexcept { return has(kStatusSlotOutOfRange); }
    // True if op append did not write a token, because its position is negative or past the end of
    // rope_table.
    [[nodiscard]] constexpr bool position_out_of_range() const noexcept {
        return has(kStatusPositionOutOfRange);
    }
    // True if op append wrote two tokens of one launch to one slot, whose rows are now those of either, or in
    // part of each. Only with AttentionSpec::check_slots.
    [[nodiscard]] constexpr bool slot_written_twice() const noexcept { return has(kStatusSlotWrittenTwice); }
    // True if any of the bits of `mask` is set.
    [[nodiscard]] constexpr bool has(std::uint32_t mask) const noexcept { return (bits & mask) != 0; }

    // True if any bit is set.
    explicit operator bool() const noexcept { return bits != 0; }
    bool operator==(const CallStatus&) const = default;

    // The status that a copied word states.
    [[nodiscard]] static constexpr CallStatus from_word(std::uint32_t word) noexcept { return {word}; }
};

// The names of the bits that are set, "q_len_clamped, page_out_of_range"; "" if none is. A bit that this
// version does not know is written as its number, "bit 12".
[[nodiscard]] ATTNSMITH_API std::string to_string(CallStatus status);

// One launch, ready to go: arguments are fixed, nothing is allocated or looked up any more. Owns the
// arguments, the TMA descriptors and, if it was bound without one, the workspace; keeps the code loaded. It
// owns neither the tensors nor a workspace of the caller's: these live until the last launch is done.
// Movable, not copyable. Threads: const members from any. Two launches that are in flight at the same time
// must not share a workspace, hence not a Call: bind one for each. Lifetime: independent of the Kernel and
// the Runtime. ~Call() gives an owned workspace back: with cuMemFree after waiting for the device, with
// RuntimeOptions::device_free at once, so that the Call must then outlive its launches. A graph that captured
// a launch has its arguments, and uses the code and the workspace that the Call holds: the Call may be moved,
// but it, or what keep_alive() gives, must live as long as the graph is launched. Empty (default-constructed
// or moved from): members throw Error.
class ATTNSMITH_API Call {
  public:
    Call() noexcept;  // empty
    ~Call();          // gives an owned workspace back
    Call(Call&&) noexcept;
    Call& operator=(Call&&) noexcept;

    // Enqueues the kernels. Null is the default stream of the kernel's device. Throws DriverError. Takes no
    // lock, allocates nothing, may be captured.
    void launch(Stream stream = nullptr) const;
    // Enqueues the kernels with other addresses for some of the tensors, for this launch alone: a Call that
    // was bound once serves every layer, and every step of an engine. Shapes, strides, lengths and page
    // tables are those that were bound. Throws InvalidRequest naming the field ("addresses.k") of a tensor
    // that was not bound, or of an address that bind() would refuse for its alignment; naming the output if a
    // tensor would share memory with o, lse or the workspace, as bind() does; and `addresses` for a Call of
    // other tensors than AttentionTensors, which takes none. Takes no lock, allocates nothing and may be
    // captured: the graph has the addresses of that launch.
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
    // streams are left alone. Throws InvalidRequest if the stream itself is being captured, or is the default
    // stream while a stream that waits for it is; no capture is harmed by that either.
    [[nodiscard]] CallStatus status(Stream stream = nullptr) const;
    // Clears the status word in the order of `stream`. Waits for nothing, may be captured.
    void clear_status(Stream stream = nullptr) const;

    // What a captured launch uses of this Call, for a graph that outlives it: the loaded code, and the
    // workspace if the Call allocated it. A workspace of the caller's stays the caller's to keep. It neither
    // allocates nor waits. The last owner to go frees both as ~Call() does, by the driver, which CUDA forbids
    // within the destructor of a user object: a graph that owns one hands it to a thread of the program's.
    //
    //   auto* kept = new std::shared_ptr<const void>(call.keep_alive());
    //   cudaUserObjectCreate(&object, kept, [](void* kept) { retired.push(kept); }, 1,
    //                        cudaUserObjectNoDestructorSync);
    //   cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
    //
    // where the program deletes what `retired`, a queue of its own, was given.
    [[nodiscard]] std::shared_ptr<const void> keep_alive() const;

    // Waits for all that `stream` was given; null is the default stream of the kernel's device, which
    // launch() takes, too. Throws DriverError.
    void synchronize(Stream stream = nullptr) const;

    // The kernels' grids, in the order that launch() enqueues them; text for tests and logs, whose form may
    // change.
    [[nodiscard]] std::string describe() const;

    // False if default-constructed or moved from.
    explicit operator bool() const noexcept { return impl_ != nullptr; }

  private:
    friend class Kernel;
    struct Impl;
    std::shared_ptr<Impl> impl_;  // shared with what keep_alive() gives
};

// A loaded kernel, with the plan that chose it. A shared handle of something immutable: copies are cheap and
// denote the same kernel. Threads: any number. Lifetime: keeps its code loaded; independent of the Runtime.
// Empty (default-constructed or moved from): members throw Error.
class ATTNSMITH_API Kernel {
  public:
    Kernel() noexcept;  // empty

    // Bytes of workspace that a Call needs whose tensors have these bounds: at least kWorkspaceZeroedBytes,
    // or 0 of a merge. Throws InvalidRequest naming the bound that is negative or more than any launch takes.
    [[nodiscard]] std::size_t workspace_bytes(const WorkspaceBounds& bounds) const;

    // Checks the tensors against the spec and fixes the arguments. Throws InvalidRequest naming the tensor's
    // field. May be done while a stream is being captured, by this thread or another: nothing of it is
    // captured. Waits for no stream of the caller's. A bind without a workspace allocates one, which the Call
    // owns.
    [[nodiscard]] Call bind(const AttentionTensors& tensors, const Batch& batch = {}) const;
    // Binds with the caller's workspace. Throws InvalidRequest if it is null, too small or misaligned.
    [[nodiscard]] Call bind(const AttentionTensors& tensors, const Batch& batch, Workspace workspace) const;
    // Binds the tensors of another op, such as MergeTensors. What of `batch` counts is said at their struct.
    template <TensorsOfOp Tensors>
    [[nodiscard]] Call bind(const Tensors& tensors, const Batch& batch = {}) const {
        return bind_tensors(Tensors::kOp, &tensors, batch, nullptr);
    }
    // Binds the tensors of another op with the caller's workspace. An op that needs none leaves it alone.
    template <TensorsOfOp Tensors>
    [[nodiscard]] Call bind(const Tensors& tensors, const Batch& batch, Workspace workspace) const {
        return bind_tensors(Tensors::kOp, &tensors, batch, &workspace);
    }

    // The spec with every default filled in; valid while a copy of this Kernel lives.
    [[nodiscard]] const AttentionSpec& spec() const&;
    // Not for a temporary, whose spec may not outlive it.
    const AttentionSpec& spec() const&& = delete;
    [[nodiscard]] int device() const;  // the CUDA ordinal of the device
    // The plan as JSON, schema attnsmith.plan/1. The plan of a kernel of a KernelSet is that for sizes of 1,
    // and says so.
    [[nodiscard]] std::string plan_json() const;

    // False if default-constructed or moved from.
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
// picks for each step. A kernel of a set was prepared for no sizes: each of its Calls divides the keys as
// planning would for this kernel, were the bounds that the Call is bound with the sizes (Batch::max_q_len and
// max_kv_len, the batch, and the queries of all sequences). A shared handle of something immutable: copies
// are cheap and denote the same set. Threads: any number. Lifetime: keeps the code of its kernels loaded;
// independent of the Runtime. What pick(), kernels() and spec() refer to is valid while any copy of the set
// lives. Empty (default-constructed or moved from): members throw Error.
class ATTNSMITH_API KernelSet {
  public:
    KernelSet() noexcept;  // empty

    // The kernel that prepare() would choose for these sizes. Takes no lock, allocates nothing. Sizes that
    // were asked before take some nanoseconds, others under a microsecond: an engine whose lengths grow with
    // each step may round them. The reference is valid while any copy of the set lives. Throws InvalidRequest
    // for sizes that prepare() refuses.
    [[nodiscard]] const Kernel& pick(const PlanSizes& sizes) const&;
    // Not for a temporary, whose kernels may not outlive it.
    const Kernel& pick(const PlanSizes& sizes) const&& = delete;

    // Bytes of a workspace that serves every kernel of the set, for any tensors within these bounds. Throws
    // InvalidRequest naming the bound that is negative or more than any launch takes.
    [[nodiscard]] std::size_t workspace_bytes(const WorkspaceBounds& bounds) const;

    // Every kernel that pick() can return, each once; valid while any copy of the set lives.
    [[nodiscard]] std::span<const Kernel> kernels() const&;
    // Not for a temporary, whose kernels may not outlive it.
    std::span<const Kernel> kernels() const&& = delete;
    [[nodiscard]] std::size_t size() const;  // the number of kernels()
    // The spec with every default filled in; valid while any copy of the set lives.
    [[nodiscard]] const AttentionSpec& spec() const&;
    // Not for a temporary, whose spec may not outlive it.
    const AttentionSpec& spec() const&& = delete;
    [[nodiscard]] int device() const;  // the CUDA ordinal of the device

    // False if default-constructed or moved from.
    explicit operator bool() const noexcept { return impl_ != nullptr; }

  private:
    friend class Runtime;
    struct Impl;
    std::shared_ptr<const Impl> impl_;
};

// A GPU that the driver found on this machine.
struct DeviceInfo {
    int device = 0;                // the CUDA ordinal, which prepare() takes
    std::string name{};            // the driver's name for it
    int sm = 0;                    // compute capability, 90 for 9.0
    int sm_count = 0;              // streaming multiprocessors
    std::size_t memory_bytes = 0;  // memory of the whole device
};

// [{"device", "index", "name", "sm", "sm_count", "memory_bytes"}]; "index" is the old name of "device".
[[nodiscard]] ATTNSMITH_API std::string to_json(std::span<const DeviceInfo> devices);

// What kernels are prepared with: caches, a compiler, devices. A program needs one; several share nothing but
// the cache directories. Owns the caches, the compile threads and, from the first need on, the opened driver
// and NVRTC. Movable, not copyable. Threads: every member function may be called from any number of threads
// at the same time; move assignment and destruction may not. Lifetime: each Kernel, KernelSet, Call, Buffer
// and Cache made by it stays usable after it. ~Runtime() waits for the kernels that prepare_async() is
// preparing, and for nothing else. RuntimeOptions::log, device_allocate and device_free may be called until
// the last of these objects is gone. Empty (moved from): members throw Error.
class ATTNSMITH_API Runtime {
  public:
    // Takes all options from the environment. Throws InvalidRequest naming a variable that cannot be
    // understood. A cache directory that cannot be used is passed over with a warning.
    Runtime();
    // Throws InvalidRequest naming an option or a variable that cannot be understood, CacheError if keys are
    // named and nothing can verify a signature. A cache directory that cannot be used is passed over with a
    // warning.
    explicit Runtime(const RuntimeOptions& options);
    ~Runtime();  // waits for what prepare_async() is preparing
    Runtime(Runtime&&) noexcept;
    Runtime& operator=(Runtime&&) noexcept;

    // The kernel for this problem on a device. The first call plans, reads the cache or compiles, and loads;
    // later ones are a look-up. Throws InvalidRequest, Unsupported, CompileError, DriverError,
    // LibraryMissing; with OnMiss::error KernelMissing instead of compiling.
    [[nodiscard]] Kernel prepare(const AttentionSpec& spec, const PlanSizes& sizes,
                                 int device = kCurrentDevice) const;
    // Prepares the kernel on another thread, in the CUDA context that is current now; on this thread if no
    // other can be started. The future gives what prepare() returns or throws. The compile is queued after
    // those that a prepare() waits for, and a prepare() of the same kernel moves it to the front. The Runtime
    // waits for it in its destructor; the future, whose copies may be dropped, does not.
    std::shared_future<Kernel> prepare_async(const AttentionSpec& spec, const PlanSizes& sizes,
                                             int device = kCurrentDevice) const;

    // Every kernel that planning could choose for this spec on a device, whatever the sizes, as prewarm()
    // builds them: all are compiled or taken from the cache, and loaded, when this returns. Throws
    // InvalidRequest, Unsupported, CompileError, DriverError, LibraryMissing; with OnMiss::error
    // KernelMissing instead of compiling.
    [[nodiscard]] KernelSet prepare_set(const AttentionSpec& spec, int device = kCurrentDevice) const;

    // The plan as JSON, schema attnsmith.plan/1, for a compute capability such as 90. Any but kCurrentSm
    // needs no GPU. Throws InvalidRequest, Unsupported; with kCurrentSm DriverError and LibraryMissing, too.
    [[nodiscard]] std::string plan_json(const AttentionSpec& spec, const PlanSizes& sizes,
                                        int sm = kCurrentSm) const;

    // Compiles into the cache every kernel that planning could choose for these specs on these compute
    // capabilities. Needs no GPU. Kernels that fail, or cannot be stored, are reported, not thrown; so is a
    // spec that no kernel serves on an SM. Throws InvalidRequest, CacheError (no directory, or one that
    // cannot be written and lacks a kernel: there would be nothing to show for the work), LibraryMissing
    // (there is no NVRTC, and a kernel is not in the cache). Nothing is done for any kernel then.
    [[nodiscard]] PrewarmReport prewarm(std::span<const AttentionSpec> specs, std::span<const int> sms,
                                        const PrewarmOptions& options = {}) const;
    // Prewarms all attentions of a coverage, once for each spec. Its unsupported parts, skipped parts and
    // warnings are in the report, which is not ok() where a part is unsupported. Throws InvalidRequest,
    // CacheError and LibraryMissing as the prewarm() of specs does.
    [[nodiscard]] PrewarmReport prewarm(const Coverage& coverage, const std::vector<int>& sms,
                                        const PrewarmOptions& options = {}) const;

    // The cache directories: what is in them, what can be done with them.
    [[nodiscard]] Cache cache() const;

    // The GPUs of this machine. Empty if there is no CUDA driver that can be opened, and if the driver sees
    // no GPU. Throws DriverError if the driver is there and fails.
    [[nodiscard]] std::vector<DeviceInfo> devices() const;
    // Device memory, not zeroed; 0 bytes are allowed. Throws DriverError (driver_code() 2: out of memory),
    // InvalidRequest for a device that there is not, LibraryMissing.
    [[nodiscard]] Buffer allocate(std::size_t bytes, int device = kCurrentDevice) const;
    // Device memory for Buffer::workspace(), whose first kWorkspaceZeroedBytes are zero. Waits for no stream
    // of the caller's. Throws DriverError (driver_code() 2: out of memory), InvalidRequest for a device that
    // there is not, LibraryMissing.
    [[nodiscard]] Buffer allocate_workspace(std::size_t bytes, int device = kCurrentDevice) const;
    // Waits for all that `stream` was given; null is the default stream of `device`. Throws DriverError.
    void synchronize(Stream stream = nullptr, int device = kCurrentDevice) const;
    // Enqueues the zeroing of what must be zero in a workspace before the first launch that uses it:
    // workspace_zeroed_bytes() at its start. `stream` is a stream of `device`; null is the device's default
    // stream. Waits for nothing. It is not for later: it would clear the status, and what launches in flight
    // count in. Throws InvalidRequest where the workspace is null, too small or misaligned.
    void clear_workspace(const Workspace& workspace, Stream stream = nullptr,
                         int device = kCurrentDevice) const;

    // False if moved from.
    explicit operator bool() const noexcept { return impl_ != nullptr; }

  private:
    friend struct detail::Access;
    struct Impl;
    Impl& impl() const;
    std::shared_ptr<Impl> impl_;
};

}  // namespace attnsmith
