// A process with several GPUs: a kernel is of one of them, and is loaded and launched there.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <vector>

#include "driver/device.hpp"
#include "engine/fake_runtime.hpp"
#include "engine/runtime_impl.hpp"
#include "problem/expect.hpp"
#include "support/variable.hpp"

using namespace attnsmith;
using attnsmith::test::at;
using attnsmith::test::fake;
using attnsmith::test::launch_of;
using attnsmith::test::refused;

namespace {

const AttentionSpec kMerge{.op = Op::merge, .head_dim_vo = 64, .q_heads = 3};

// Three devices, the last of which runs other cubins.
Runtime make_runtime() {
    ::setenv("FAKE_CUDA_DEVICES", "3", 1);
    ::setenv("FAKE_CUDA_SM", "90,90,89", 1);
    ::setenv("FAKE_CUDA_SM_COUNT", "132,78,58", 1);
    RuntimeOptions options = test::fake_options();
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    return Runtime(options);
}

MergeTensors tensors() {
    const Tensor o = at(1, DType::bf16, {10, 3, 64}), lse = at(2, DType::fp32, {10, 3});
    return {.o_states = {o}, .lse_states = {lse}, .o = at(3, DType::bf16, {10, 3, 64})};
}

}  // namespace

TEST_CASE("a kernel that one device has is loaded again for another", "[engine][devices]") {
    Runtime runtime = make_runtime();
    (void)runtime.devices();
    const int loads = fake().library_loads;
    const Kernel first = runtime.prepare(kMerge, {}, 0);
    CHECK(fake().library_loads == loads + 1);
    const Kernel second = runtime.prepare(kMerge, {}, 1);
    CHECK(fake().library_loads == loads + 2);
    CHECK((first.device() == 0 && second.device() == 1));
    // Another problem, of which the kernel is the same.
    const Kernel third = runtime.prepare(kMerge, {1, 100, 1}, 1);
    CHECK(fake().library_loads == loads + 2);
    for (const Kernel* const kernel : {&first, &second, &third}) {
        const int before = fake().launches;
        kernel->bind(tensors()).launch();
        REQUIRE(fake().launches == before + 1);
        CHECK(launch_of(before + 1).device == kernel->device());
    }
    CHECK(driver::current_context(*engine::impl_of(runtime).driver()) == nullptr);
}

TEST_CASE("each device is planned for as what it is", "[engine][devices]") {
    Runtime runtime = make_runtime();
    const std::vector<DeviceInfo> devices = runtime.devices();
    REQUIRE(devices.size() == 3);
    CHECK((devices[1].sm == 90 && devices[1].sm_count == 78 && devices[2].sm == 89));
    for (const DeviceInfo& device : devices) {
        const families::DeviceTraits traits = engine::impl_of(runtime).traits(device.device);
        CHECK((traits.sm == device.sm && traits.sm_count == device.sm_count && traits.name == device.name));
    }
    const Kernel ada = runtime.prepare(kMerge, {}, 2);
    const int before = fake().launches;
    ada.bind(tensors()).launch();  // in a context where a cubin of the others would be refused
    CHECK(launch_of(before + 1).device == 2);
    CHECK(test::contains(ada.plan_json(), "\"sm\": \"89\""));
    CHECK(refused([&] { (void)runtime.prepare(kMerge, {}, 3); }).field() == "device");
}

TEST_CASE("the current device is that of the caller's context", "[engine][devices]") {
    Runtime runtime = make_runtime();
    CHECK(runtime.prepare(kMerge, {}).device() == 0);
    const driver::ContextScope scope(*engine::impl_of(runtime).driver(), 1);
    CHECK(runtime.prepare(kMerge, {}).device() == 1);
    CHECK(runtime.prepare_async(kMerge, {1, 9, 1}).get().device() == 1);
    CHECK(runtime.prepare(kMerge, {}, 0).device() == 0);
    const Buffer buffer = runtime.allocate(512, 2);
    CHECK(buffer.bytes() == 512);
}

TEST_CASE("a device's memory ends", "[engine][devices]") {
    ::setenv("FAKE_CUDA_MEMORY", "4096", 1);
    const Runtime runtime = make_runtime();
    (void)runtime.devices();
    const Buffer most = runtime.allocate(4096, 1);
    CHECK_NOTHROW(runtime.allocate(4096, 0));
    try {
        (void)runtime.allocate(1, 1);
        FAIL("allocated");
    } catch (const DriverError& error) {
        CHECK(error.driver_code() == 2);
        CHECK(error.call() == "cuMemAlloc");
    }
    ::unsetenv("FAKE_CUDA_MEMORY");
    (void)make_runtime().devices();
}

TEST_CASE("problems that are prepared are kept, but not without end", "[engine][devices]") {
    Runtime runtime = make_runtime();
    const auto kept = [&] { return engine::impl_of(runtime).prepared.size(); };
    constexpr std::size_t kMost = 4096;
    for (std::size_t i = 1; i <= kMost; ++i)
        (void)runtime.prepare(kMerge, {1, static_cast<std::int64_t>(i), 1}, 0);
    CHECK(kept() == kMost);
    (void)runtime.prepare(kMerge, {1, 1, 1}, 0);  // one of them
    CHECK(kept() == kMost);
    const int loads = fake().library_loads;
    (void)runtime.prepare(kMerge, {1, 0, 1}, 0);
    CHECK((kept() >= 1 && kept() <= kMost));
    CHECK(fake().library_loads == loads);
}

TEST_CASE("no GPU and no driver are an empty list of devices, a driver that fails is an error",
          "[engine][devices]") {
    {
        const test::Variable none("FAKE_CUDA_DEVICES", "0");
        CHECK(Runtime(test::fake_options()).devices().empty());
    }
    RuntimeOptions no_driver = test::fake_options();
    no_driver.driver_path = "/nowhere/libcuda.so.1";
    CHECK(Runtime(no_driver).devices().empty());
    const test::Variable broken("FAKE_CUDA_INIT", "999");  // CUDA_ERROR_UNKNOWN
    try {
        (void)Runtime(test::fake_options()).devices();
        FAIL("a list");
    } catch (const DriverError& error) {
        CHECK(error.driver_code() == 999);
        CHECK(error.call() == "cuInit");
    }
}

TEST_CASE("a capability given as a device and a device given as a capability are told apart",
          "[engine][devices]") {
    const Runtime runtime = make_runtime();
    const InvalidRequest device = refused([&] { (void)runtime.prepare(kMerge, {}, 90); });
    CHECK(device.field() == "device");
    CHECK(device.accepted() == "a device from 0 to 2; 90 is a compute capability, which sm takes");
    CHECK(refused([&] { (void)runtime.prepare(kMerge, {}, 85); }).accepted() == "0 to 2");
    for (const int ordinal : {-1, 1}) {
        const InvalidRequest sm = refused([&] { (void)runtime.plan_json(kMerge, {}, ordinal); });
        CHECK(sm.field() == "sm");
        CHECK(test::contains(sm.accepted(), "; the ordinal of a GPU is a device"));
    }
    CHECK(nlohmann::json::parse(runtime.plan_json(kMerge, {}))["device"]["sm_count"] == 132);
}

TEST_CASE("a buffer says which device it is of", "[engine][devices]") {
    const Runtime runtime = make_runtime();
    CHECK(runtime.allocate(512, 2).device() == 2);
    CHECK(runtime.allocate(0).device() == 0);
}

TEST_CASE("the JSON of devices has the ordinal by its new and its old name", "[engine][devices]") {
    const std::vector<DeviceInfo> devices = {{.device = 3, .name = "H100", .sm = 90}};
    const char* const wanted =
        R"([{"device": 3, "index": 3, "name": "H100", "sm": 90, "sm_count": 0, "memory_bytes": 0}])";
    CHECK(nlohmann::json::parse(to_json(devices)) == nlohmann::json::parse(wanted));
}
