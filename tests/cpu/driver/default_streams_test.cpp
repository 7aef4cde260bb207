// The default streams, each of which is that of whatever context is current: a kernel is launched into its
// own device's.
#include <cuda.h>

#include <cstdlib>

#include "driver/device.hpp"
#include "engine/fake_runtime.hpp"
#include "engine/runtime_impl.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::fake;
using attnsmith::test::launch_of;

TEST_CASE("driver: a default stream is the kernel's device's, whichever context is current", "[driver]") {
    ::setenv("FAKE_CUDA_DEVICES", "2", 1);
    RuntimeOptions options = test::fake_options();
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    Runtime runtime(options);
    const Tensor o = at(1, DType::bf16, {10, 3, 64}), lse = at(2, DType::fp32, {10, 3});
    const Kernel kernel = runtime.prepare({.op = Op::merge, .head_dim_vo = 64, .q_heads = 3}, {}, 1);
    const Call call =
        kernel.bind(MergeTensors{.o_states = {o}, .lse_states = {lse}, .o = at(3, DType::bf16, {10, 3, 64})});
    const driver::Api& api = *engine::impl_of(runtime).driver();
    for (const Stream stream : {Stream{nullptr}, Stream{CU_STREAM_LEGACY}, Stream{CU_STREAM_PER_THREAD}}) {
        const auto device_of_launch = [&] {
            const int before = fake().launches;
            call.launch(stream);
            REQUIRE(fake().launches == before + 1);
            CHECK(launch_of(before + 1).stream == stream);
            return launch_of(before + 1).device;
        };
        CHECK(device_of_launch() == 1);  // no context is current
        const driver::ContextScope other(api, 0);
        CHECK(device_of_launch() == 1);
        CHECK(driver::current_device(api) == 0);
        const driver::ContextScope own(api, 1);
        CHECK(device_of_launch() == 1);
    }
}

TEST_CASE("driver: the oldest driver that serves is that of CUDA 12.0", "[driver]") {
    ::setenv("FAKE_CUDA_VERSION", "12000", 1);
    CHECK(driver::Api::open(ATTNSMITH_FAKE_CUDA)->version_text() == "12.0");
    ::setenv("FAKE_CUDA_VERSION", "12090", 1);
    CHECK(driver::Api::open(ATTNSMITH_FAKE_CUDA)->version_text() == "12.9");
    ::setenv("FAKE_CUDA_VERSION", "13110", 1);
    CHECK(driver::Api::open(ATTNSMITH_FAKE_CUDA)->version_text() == "13.11");
    ::setenv("FAKE_CUDA_VERSION", "11990", 1);
    CHECK_THROWS_AS(driver::Api::open(ATTNSMITH_FAKE_CUDA), LibraryMissing);
    ::unsetenv("FAKE_CUDA_VERSION");
}
