// Over the stub driver: what a Call says of lengths, in which stream's order, and that neither it nor a bind
// touches what other threads capture.
#include <cuda.h>

#include <cstring>
#include <optional>
#include <thread>

#include "abi/attention_arguments.h"
#include "engine/fake_runtime.hpp"
#include "problem/expect.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::fake;
using attnsmith::test::fake_options;
using attnsmith::test::refused;

namespace {

template <typename Function>
Function* entry(const char* name) {
    return reinterpret_cast<Function*>(dlsym(dlopen(ATTNSMITH_FAKE_CUDA, RTLD_NOW), name));
}
#define DRIVER(name, symbol) entry<decltype(name)>(symbol)

class OwnStream {
  public:
    explicit OwnStream(unsigned flags = CU_STREAM_NON_BLOCKING) {
        CUcontext primary = nullptr;
        DRIVER(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain")(&primary, 0);
        DRIVER(cuCtxPushCurrent, "cuCtxPushCurrent_v2")(primary);
        CHECK(DRIVER(cuStreamCreate, "cuStreamCreate")(&stream_, flags) == CUDA_SUCCESS);
        DRIVER(cuCtxPopCurrent, "cuCtxPopCurrent_v2")(&primary);
    }
    ~OwnStream() { DRIVER(cuStreamDestroy, "cuStreamDestroy_v2")(stream_); }
    OwnStream(const OwnStream&) = delete;
    OwnStream& operator=(const OwnStream&) = delete;
    operator Stream() const { return stream_; }

    void begin_capture() const {
        CHECK(DRIVER(cuStreamBeginCapture, "cuStreamBeginCapture_v2")(
                  stream_, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    }
    CUresult end_capture() const {
        CUgraph graph = nullptr;
        const CUresult result = DRIVER(cuStreamEndCapture, "cuStreamEndCapture")(stream_, &graph);
        if (graph != nullptr) DRIVER(cuGraphDestroy, "cuGraphDestroy")(graph);
        return result;
    }

  private:
    CUstream stream_ = nullptr;
};

// Runs `meanwhile` in this thread while another one captures `stream`, which comes out whole.
template <typename Meanwhile>
void beside_capture(const OwnStream& stream, Meanwhile meanwhile) {
    std::thread([&] {
        stream.begin_capture();
        std::thread(meanwhile).join();
        CHECK(stream.end_capture() == CUDA_SUCCESS);
    }).join();
    CHECK(fake().lost_captures == 0);
}

int waits() { return fake().stream_waits + fake().default_stream_waits + fake().context_waits; }

const AttentionSpec kSpec{.dtype = DType::bf16, .head_dim_qk = 64, .q_heads = 4};

Call bound(const Kernel& kernel) {
    return kernel.bind({.q = at(1, DType::bf16, {1, 64, 4, 64}),
                        .k = at(2, DType::bf16, {1, 64, 4, 64}),
                        .v = at(3, DType::bf16, {1, 64, 4, 64}),
                        .o = at(4, DType::bf16, {1, 64, 4, 64})},
                       {});
}

Call bound_merge(Runtime& runtime) {
    const Kernel kernel = runtime.prepare({.op = Op::merge, .head_dim_vo = 64, .q_heads = 3}, {});
    return kernel.bind(MergeTensors{.o_states = {at(1, DType::bf16, {5, 3, 64})},
                                    .lse_states = {at(2, DType::fp32, {5, 3})},
                                    .o = at(4, DType::bf16, {5, 3, 64})});
}

// Where the kernels of the call find the workspace.
unsigned char* workspace_of(const Call& call, Stream stream) {
    call.launch(stream);
    abi::AttentionArguments arguments;
    std::memcpy(&arguments, fake().last_launch.parameter, sizeof arguments);
    return reinterpret_cast<unsigned char*>(arguments.status);
}

void set_word(unsigned char* workspace, std::uint32_t word) { std::memcpy(workspace, &word, sizeof word); }

struct Attention {
    Attention() {
        fake() = {};
        fake().defer = 1;
        runtime.emplace(fake_options());
        kernel = runtime->prepare(kSpec, {1, 64, 64});
        call = bound(kernel);
        workspace = workspace_of(call, stream);
    }

    OwnStream stream;
    std::optional<Runtime> runtime;
    Kernel kernel;
    Call call;
    unsigned char* workspace = nullptr;
};

}  // namespace

TEST_CASE("the bits of a status word are the members of a CallStatus", "[engine][status]") {
    CHECK_FALSE(CallStatus::from_word(0));
    CHECK(CallStatus::from_word(kStatusQLenClamped).q_len_clamped());
    CHECK(CallStatus::from_word(kStatusKvLenClamped).kv_len_clamped());
    CHECK(CallStatus::from_word(kStatusPageOutOfRange).page_out_of_range());
    CHECK_FALSE(CallStatus::from_word(kStatusPageOutOfRange).kv_len_clamped());
    const CallStatus shared = CallStatus::from_word(kStatusWorkspaceNotZeroed);
    CHECK(shared.workspace_not_zeroed());
    CHECK(shared);
    CHECK_FALSE((shared.q_len_clamped() || shared.kv_len_clamped() || shared.page_out_of_range()));
    CHECK(CallStatus::from_word(kStatusScaleNotPositive).scale_not_positive());
    CHECK(CallStatus::from_word(kStatusSlotOutOfRange).slot_out_of_range());
    CHECK(CallStatus::from_word(kStatusPositionOutOfRange).position_out_of_range());
    CHECK(CallStatus::from_word(kStatusSlotWrittenTwice).slot_written_twice());
    CHECK(shared.bits == kStatusWorkspaceNotZeroed);
}

TEST_CASE("a status in words names each bit, one of a later version by its number", "[engine][status]") {
    CHECK(to_string(CallStatus{}).empty());
    CHECK(to_string(CallStatus{kStatusKvLenClamped}) == "kv_len_clamped");
    CHECK(to_string(CallStatus{0xff}) ==
          "q_len_clamped, kv_len_clamped, page_out_of_range, workspace_not_zeroed, scale_not_positive, "
          "slot_out_of_range, position_out_of_range, slot_written_twice");
    CHECK(to_string(CallStatus{kStatusQLenClamped | 1u << 12}) == "q_len_clamped, bit 12");
    CHECK(CallStatus{1u << 12});
}

TEST_CASE("a workspace of the call's own begins with zeros, and no stream of the caller's is waited for",
          "[engine][status]") {
    const Attention attention;
    for (int i = 0; i < abi::kZeroedBytes; ++i) REQUIRE(attention.workspace[i] == 0);
    CHECK(fake().default_stream_waits == 0);
}

TEST_CASE("status waits for its stream alone and says what lies in the workspace", "[engine][status]") {
    const Attention attention;
    const int before = waits();
    set_word(attention.workspace, kStatusQLenClamped | kStatusPageOutOfRange | kStatusWorkspaceNotZeroed);
    const CallStatus status = attention.call.status(attention.stream);
    CHECK(status.q_len_clamped());
    CHECK_FALSE(status.kv_len_clamped());
    CHECK(status.page_out_of_range());
    CHECK(status.workspace_not_zeroed());
    CHECK(waits() == before + 1);
    CHECK(fake().default_stream_waits == 0);
    CHECK(fake().host_allocations == 1);
    CHECK(attention.call.status(nullptr).q_len_clamped());  // sticky, and the default stream's as well
    CHECK(fake().default_stream_waits == 1);
    CHECK(fake().host_allocations == 1);
}

TEST_CASE("clearing the status leaves alone what kernels count in, and waits for nothing",
          "[engine][status]") {
    const Attention attention;
    std::memset(attention.workspace, 7, abi::kZeroedBytes);
    const int before = waits();
    attention.call.clear_status(attention.stream);
    CHECK(waits() == before);
    CHECK_FALSE(attention.call.status(attention.stream));
    for (int i = 4; i < abi::kZeroedBytes; ++i) REQUIRE(attention.workspace[i] == 7);
}

TEST_CASE("the status word is copied in the stream's order", "[engine][status]") {
    Attention attention;
    set_word(attention.workspace, kStatusKvLenClamped);
    std::uint32_t word = 1, cleared = 1, merged = 1;
    const int before = waits();
    attention.call.copy_status(&word, attention.stream);
    attention.call.clear_status(attention.stream);
    attention.call.copy_status(&cleared, attention.stream);
    const Call merge = bound_merge(*attention.runtime);
    merge.copy_status(&merged, attention.stream);
    CHECK(waits() == before);
    attention.runtime->synchronize(attention.stream);
    CHECK(word == kStatusKvLenClamped);
    CHECK(cleared == 0);
    CHECK(merged == 0);
    CHECK_FALSE(merge.status(attention.stream));
    CHECK(refused([&] { attention.call.copy_status(nullptr); }).field() == "word");
}

TEST_CASE("statuses, binds and copies leave other threads' captures alone", "[engine][status]") {
    Attention attention;
    const OwnStream captured;
    Buffer buffer = attention.runtime->allocate(16);
    beside_capture(captured, [&] {
        set_word(attention.workspace, kStatusKvLenClamped);
        CHECK(attention.call.status(attention.stream).kv_len_clamped());
        CHECK(attention.call.status().kv_len_clamped());
        attention.call.clear_status(attention.stream);
        CHECK_FALSE(bound(attention.kernel).status(attention.stream));  // made, asked and freed
        (void)attention.runtime->prepare({.head_dim_qk = 128, .q_heads = 2}, {1, 64, 64});
        const std::uint32_t in = 4711;
        std::uint32_t out = 0;
        buffer.upload(&in, sizeof in);
        buffer.download(&out, sizeof out);
        CHECK(out == in);
        buffer = Buffer();
        attention.runtime->synchronize(attention.stream);
    });
}

TEST_CASE("a stream that is being captured is not waited for, and its capture lives", "[engine][status]") {
    const Attention attention;
    const OwnStream captured;
    std::uint32_t word = 0;
    beside_capture(captured, [&] {
        CHECK(refused([&] { (void)attention.call.status(captured); }).field() == "stream");
        CHECK_THROWS_AS(attention.runtime->synchronize(captured), DriverError);
        attention.call.copy_status(&word, captured);
        attention.call.clear_status(captured);
    });
}

TEST_CASE("the default stream is left alone while one that waits for it is captured", "[engine][status]") {
    const Attention attention;
    const OwnStream captured(CU_STREAM_DEFAULT);
    Buffer buffer = attention.runtime->allocate(16);
    std::uint32_t word = 0;
    beside_capture(captured, [&] {
        CHECK(refused([&] { (void)attention.call.status(); }).field() == "stream");
        CHECK_THROWS_AS(buffer.upload(&word, sizeof word), DriverError);
        CHECK_THROWS_AS(buffer.download(&word, sizeof word), DriverError);
        CHECK_THROWS_AS(attention.runtime->synchronize(), DriverError);
        CHECK_FALSE(attention.call.status(attention.stream));
        CHECK_FALSE(bound(attention.kernel).status(attention.stream));
    });
}

TEST_CASE("a thread binds in the middle of its own capture", "[engine][status]") {
    const Attention attention;
    const OwnStream captured;
    captured.begin_capture();
    const Call call = bound(attention.kernel);
    call.launch(captured);
    CHECK(captured.end_capture() == CUDA_SUCCESS);
    CHECK(*workspace_of(call, attention.stream) == 0);
}
