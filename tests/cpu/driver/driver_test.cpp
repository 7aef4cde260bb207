// driver/ against the stub driver of tests/support/fake_cuda, whose path the build gives as
// ATTNSMITH_FAKE_CUDA.
#include <dlfcn.h>
#include <elf.h>
#include <sys/stat.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "driver/api.hpp"
#include "driver/device.hpp"
#include "driver/launch.hpp"
#include "driver/library.hpp"
#include "driver/memory.hpp"
#include "driver/table.hpp"
#include "support/catch.hpp"
#include "support/fake_cuda/fake_cuda.h"

using namespace attnsmith;
using namespace attnsmith::driver;

namespace {

// Sets an environment variable for a scope.
class Env {
  public:
    Env(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
    ~Env() { unsetenv(name_); }

  private:
    const char* name_;
};

// The fake driver, opened, with fresh counters.
struct Fake {
    Fake() : handle(dlopen(ATTNSMITH_FAKE_CUDA, RTLD_NOW)) {
        REQUIRE(handle != nullptr);
        state = reinterpret_cast<fake_cuda_state* (*)()>(dlsym(handle, "fake_cuda_get_state"))();
        *state = {};
        api = Api::open(ATTNSMITH_FAKE_CUDA);
    }
    ~Fake() {
        api.reset();
        dlclose(handle);
    }
    ContextHandle make_context(int device) const {
        return reinterpret_cast<CUctx_st* (*)(int)>(dlsym(handle, "fake_cuda_make_context"))(device);
    }

    void* handle;
    fake_cuda_state* state;
    std::shared_ptr<const Api> api;
};

// The least that the library takes for a cubin: an ELF header, and the name of a kernel behind it.
std::vector<std::byte> tiny_cubin(std::string_view entry = "entry") {
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_phoff = sizeof header;  // one segment header, which is the name
    header.e_phnum = 1;
    header.e_phentsize = static_cast<Elf64_Half>(entry.size() + 1);
    std::vector<std::byte> bytes(sizeof header + entry.size() + 1);
    std::memcpy(bytes.data(), &header, sizeof header);
    std::memcpy(bytes.data() + sizeof header, entry.data(), entry.size());
    return bytes;
}

template <typename Function>
std::string message_of(Function function) {
    try {
        function();
    } catch (const Error& error) {
        return error.what();
    }
    return "nothing was thrown";
}

}  // namespace

TEST_CASE("driver: a missing library is an error with what was tried and the remedy", "[driver]") {
    try {
        Api::open("/nowhere/libcuda.so.1");
        FAIL("opened");
    } catch (const LibraryMissing& error) {
        REQUIRE(error.tried().size() == 1);
        CHECK(error.tried()[0].find("/nowhere/libcuda.so.1") == 0);
        CHECK(error.tried()[0].find("No such file") != std::string::npos);
        CHECK(std::string(error.what()).find("525") != std::string::npos);
    }
}

TEST_CASE("driver: the usual names are tried in order", "[driver]") {
    std::shared_ptr<const Api> api;
    try {
        api = Api::open();
    } catch (const LibraryMissing& error) {
        REQUIRE(error.tried().size() == 3);
        CHECK(error.tried()[0].find("libcuda.so.1") == 0);
        CHECK(error.tried()[1].find("libcuda.so") == 0);
        CHECK(error.tried()[2].find("/usr/lib/wsl/lib/libcuda.so.1") == 0);
    } catch (const DriverError& error) {
        WARN("a driver without a usable GPU: " << error.what());
    }
    if (api != nullptr) CHECK(api->version() >= 12000);
}

TEST_CASE("driver: what is no regular file is refused by name, and not opened", "[driver]") {
    const std::string fifo = "./driver_test_fifo";
    std::remove(fifo.c_str());
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    CHECK(message_of([&] { Api::open(fifo); }).find(fifo + ": is a FIFO, not a regular file") !=
          std::string::npos);
    std::remove(fifo.c_str());
    CHECK(message_of([&] { Api::open("/tmp"); }).find("/tmp: is a directory") != std::string::npos);
    CHECK(message_of([&] { Api::open("/dev/zero"); }).find("/dev/zero: is a device") != std::string::npos);
}

TEST_CASE("driver: a file that is no library, and a library that is no driver", "[driver]") {
    const std::string text = "driver_test_not_a_library.so";
    std::ofstream(text) << "not a library";
    CHECK(message_of([&] { Api::open("./" + text); }).find("could not be opened") != std::string::npos);
    std::remove(text.c_str());
    CHECK(message_of([] { Api::open("libm.so.6"); }).find("no CUDA driver") != std::string::npos);
}

TEST_CASE("driver: one that is too old says which is needed", "[driver]") {
    const Env version("FAKE_CUDA_VERSION", "11080");
    const std::string message = message_of([] { Api::open(ATTNSMITH_FAKE_CUDA); });
    CHECK(message.find("CUDA 11.8") != std::string::npos);
    CHECK(message.find("525") != std::string::npos);
}

TEST_CASE("driver: no GPU is a DriverError with code 100", "[driver]") {
    const Env devices("FAKE_CUDA_DEVICES", "0");
    try {
        Api::open(ATTNSMITH_FAKE_CUDA);
        FAIL("opened");
    } catch (const DriverError& error) {
        CHECK(error.call() == "cuInit");
        CHECK(error.driver_code() == 100);
        CHECK(error.meaning().find("CUDA_ERROR_NO_DEVICE") == 0);
    }
}

TEST_CASE("driver: every symbol that is asked for is one that the toolkit's stub exports", "[driver]") {
    void* stub = nullptr;
    for (const char* path :
         {"/usr/local/cuda/lib64/stubs/libcuda.so", "/usr/local/cuda/lib/stubs/libcuda.so"})
        if (stub == nullptr) stub = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (stub == nullptr) {
        WARN("skipped: no CUDA toolkit with a stub libcuda.so");
        return;
    }
#define ATTNSMITH_CHECK_ENTRY(field, symbol) \
    INFO(#symbol);                           \
    CHECK(dlsym(stub, #symbol) != nullptr);
    ATTNSMITH_DRIVER_ENTRIES(ATTNSMITH_CHECK_ENTRY)
#undef ATTNSMITH_CHECK_ENTRY
    dlclose(stub);
}

TEST_CASE("driver: the toolkit's stub is not taken for a driver", "[driver]") {
    for (const char* path :
         {"/usr/local/cuda/lib64/stubs/libcuda.so", "/usr/local/cuda/lib/stubs/libcuda.so"}) {
        if (!std::ifstream(path)) continue;
        CHECK(message_of([&] { Api::open(path); }).find("stub") != std::string::npos);
    }
}

TEST_CASE("driver: an error that the driver does not name", "[driver]") {
    const Fake fake;
    CHECK(message_of([&] { fake.api->check(12345, "cuSomething"); }).find("cuSomething") == 0);
    CHECK_NOTHROW(fake.api->check(0, "cuSomething"));
}

TEST_CASE("driver: a device's traits", "[driver]") {
    const Env sm("FAKE_CUDA_SM", "89"), devices("FAKE_CUDA_DEVICES", "2");
    const Fake fake;
    CHECK(fake.api->version_text() == "13.0");
    const std::vector<Device> all = query_devices(*fake.api);
    REQUIRE(all.size() == 2);
    CHECK(all[1].ordinal == 1);
    CHECK(all[0].sm == 89);
    CHECK(all[0].name == "Fake GPU");
    CHECK(all[0].shared_bytes_per_block == 232448);
    CHECK(all[0].ctas_per_sm == 32);
    CHECK(message_of([&] { query_device(*fake.api, 2); }).find("0 to 1") != std::string::npos);
    CHECK(message_of([&] { query_device(*fake.api, -1); }).find("device: -1") == 0);
}

TEST_CASE("driver: a scope uses the primary context where there is none, and restores that", "[driver]") {
    const Env devices("FAKE_CUDA_DEVICES", "2");
    Fake fake;
    REQUIRE(current_context(*fake.api) == nullptr);
    CHECK(current_device(*fake.api) == 0);
    {
        const ContextScope outer(*fake.api, 1);
        CHECK(outer.device() == 1);
        CHECK(current_context(*fake.api) == fake.api->primary_context(1));
        const ContextScope inner(*fake.api);  // there is a context already
        CHECK(inner.context() == outer.context());
        {
            const ContextScope other(*fake.api, 0);
            CHECK(other.device() == 0);
            CHECK(other.context() == fake.api->primary_context(0));
        }
        CHECK(current_context(*fake.api) == outer.context());
    }
    CHECK(current_context(*fake.api) == nullptr);
    CHECK(fake.state->primary_retains == 2);
    fake.api.reset();
    CHECK(fake.state->primary_releases == 2);
}

TEST_CASE("driver: a caller's context is used and left alone", "[driver]") {
    const Env devices("FAKE_CUDA_DEVICES", "2");
    Fake fake;
    const ContextHandle mine = fake.make_context(1);
    const ContextScope caller(*fake.api, mine);
    {
        const ContextScope scope(*fake.api, 1);
        CHECK(scope.context() == mine);
        CHECK(scope.device() == 1);
        const DeviceMemory memory(fake.api, 64);
        memory.fill(7);
    }
    CHECK(current_context(*fake.api) == mine);
    CHECK(fake.state->primary_retains == 0);
}

TEST_CASE("driver: threads that race for the primary context retain it once", "[driver]") {
    Fake fake;
    fake.state->retain_us = 20000;  // all of them are there before the first is through
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([&] { const ContextScope scope(*fake.api); });
    for (std::thread& thread : threads) thread.join();
    CHECK(fake.state->primary_retains > 1);
    CHECK(fake.state->primary_retains - fake.state->primary_releases == 1);
    fake.api.reset();
    CHECK(fake.state->primary_retains == fake.state->primary_releases);
}

TEST_CASE("driver: a kernel is loaded, set up and unloaded", "[driver]") {
    Fake fake;
    {
        const auto library = Library::load(fake.api, tiny_cubin());
        const KernelFunction kernel(library, "entry", 0, 100000);
        CHECK(fake.state->library_loads == 1);
        CHECK(fake.state->materialised == 1);
        CHECK(fake.state->attribute_sets == 1);
        CHECK(kernel.attributes().dynamic_shared_bytes == 100000);
        CHECK(kernel.attributes().registers_per_thread == 128);
        CHECK(kernel.ctas_per_sm(256, 100000) == 2);
        CHECK(kernel.device() == 0);
        // No more than the default limit: nothing to set.
        const KernelFunction small(library, "entry", 0, 1024);
        CHECK(fake.state->attribute_sets == 1);
    }
    CHECK(fake.state->library_unloads == 1);
    CHECK(current_context(*fake.api) == nullptr);
}

TEST_CASE("driver: more shared memory than the device has is an error, not a refusal of the image",
          "[driver]") {
    Fake fake;
    const auto library = Library::load(fake.api, tiny_cubin());
    CHECK_THROWS_AS(KernelFunction(library, "entry", 0, 1 << 20), DriverError);
    CHECK(message_of([&] { KernelFunction(library, "entry", 0, 1 << 20); }).find("cuKernelSetAttribute") ==
          0);
}

TEST_CASE("driver: an image that the driver refuses is LoadRefused", "[driver]") {
    Fake fake;
    fake.state->refuse_next_loads = 1;
    try {
        Library::load(fake.api, tiny_cubin());
        FAIL("loaded");
    } catch (const LoadRefused& error) {
        CHECK(error.call() == "cuLibraryLoadData");
        CHECK(error.driver_code() == CUDA_ERROR_NO_BINARY_FOR_GPU);
    }
    CHECK_NOTHROW(Library::load(fake.api, tiny_cubin()));
    // An entry that is not in the image: the image is the wrong one.
    const auto library = Library::load(fake.api, tiny_cubin());
    CHECK_THROWS_AS(KernelFunction(library, "another", 0, 0), LoadRefused);
    // Out of memory is not about the image.
    fake.state->refuse_next_loads = 1;
    fake.state->refuse_code = CUDA_ERROR_OUT_OF_MEMORY;
    try {
        Library::load(fake.api, tiny_cubin());
        FAIL("loaded");
    } catch (const LoadRefused&) {
        FAIL("taken for a refusal");
    } catch (const DriverError& error) {
        CHECK(error.driver_code() == CUDA_ERROR_OUT_OF_MEMORY);
    }
}

TEST_CASE("driver: an image that is cut off never reaches the driver, which knows no length", "[driver]") {
    Fake fake;
    const std::vector<std::byte> whole = tiny_cubin();
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
        const std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bytes));
        CHECK_THROWS_AS(Library::load(fake.api, part), LoadRefused);
    }
    // A section that begins behind the end, or ends there, in a file that holds both headers.
    std::vector<std::byte> sectioned(sizeof(Elf64_Ehdr) + sizeof(Elf64_Shdr) + 64);
    Elf64_Ehdr header{};
    std::memcpy(&header, whole.data(), sizeof header);
    header.e_phnum = 0, header.e_shnum = 1;
    header.e_shentsize = sizeof(Elf64_Shdr), header.e_shoff = sizeof header;
    std::memcpy(sectioned.data(), &header, sizeof header);
    for (const std::size_t bytes : {std::size_t{65}, std::size_t{1} << 40}) {
        Elf64_Shdr section{};
        section.sh_type = SHT_PROGBITS;
        section.sh_offset = sectioned.size() - 64, section.sh_size = bytes;
        std::memcpy(sectioned.data() + sizeof header, &section, sizeof section);
        CHECK_THROWS_AS(Library::load(fake.api, sectioned), LoadRefused);
    }
    std::vector<std::byte> text(4096, std::byte{'.'});
    CHECK_THROWS_AS(Library::load(fake.api, text), LoadRefused);
    CHECK(fake.state->library_loads == 0);
}

TEST_CASE("driver: a global variable is read", "[driver]") {
    Fake fake;
    fake.state->global_u32 = 4711;
    const auto library = Library::load(fake.api, tiny_cubin("attnsmith_shared_bytes"));
    CHECK(library->read_global_u32("attnsmith_shared_bytes") == 4711);
    std::array<std::byte, 8> eight{};
    CHECK_THROWS_AS(library->read_global("attnsmith_shared_bytes", eight), DriverError);
    try {
        library->read_global_u32("nothing");
        FAIL("found");
    } catch (const DriverError& error) {
        CHECK(error.driver_code() == CUDA_ERROR_NOT_FOUND);
    }
}

namespace {

struct Launchable : Fake {
    KernelFunction kernel{Library::load(api, tiny_cubin()), "entry", 0, 65536};
    LaunchConfig config{.grid = {3, 4, 5}, .block = {128, 1, 1}, .shared_bytes = 65536};
    std::array<int, 32> params{};

    Launchable() {
        std::iota(params.begin(), params.end(), 1);
        state->param_bytes = sizeof params;
        state->context_queries = 0;
    }
};

}  // namespace

TEST_CASE("driver: a launch passes grid, block, shared bytes, stream and the parameter", "[driver]") {
    Launchable it;
    const ContextScope scope(*it.api);
    const driver::Stream stream(it.api);
    it.state->context_queries = 0;
    launch(*it.api, it.kernel.handle(), it.config, it.params.data(), stream.handle());
    const fake_cuda_launch& last = it.state->last_launch;
    CHECK(it.state->launches == 1);
    CHECK(last.grid[0] == 3);
    CHECK(last.grid[2] == 5);
    CHECK(last.block[0] == 128);
    CHECK(last.shared_bytes == 65536);
    CHECK(last.stream == stream.handle());
    CHECK(std::memcmp(last.parameter, it.params.data(), sizeof it.params) == 0);
    CHECK(it.state->context_queries == 0);  // one driver call and no other
}

TEST_CASE("driver: a launch runs in the caller's context, whichever it is", "[driver]") {
    Launchable it;
    for (int i = 0; i < 2; ++i) {
        const ContextHandle mine = it.make_context(0);
        const ContextScope scope(*it.api, mine);
        launch(*it.api, it.kernel.handle(), it.config, it.params.data(), nullptr);
        CHECK(it.state->last_launch.context == mine);
    }
}

TEST_CASE("driver: a launch without a context runs in the primary one and leaves none", "[driver]") {
    Launchable it;
    launch(*it.api, it.kernel.handle(), it.config, it.params.data(), nullptr);
    CHECK(it.state->last_launch.context == it.api->primary_context(0));
    CHECK(current_context(*it.api) == nullptr);
}

TEST_CASE("driver: a launch that fails names the call", "[driver]") {
    Launchable it;
    it.state->fail_launch = CUDA_ERROR_LAUNCH_FAILED;
    CHECK(message_of([&] {
              launch(*it.api, it.kernel.handle(), it.config, it.params.data(), nullptr);
          }).find("cuLaunchKernelEx failed: CUDA_ERROR_LAUNCH_FAILED") == 0);
    const ContextScope scope(*it.api);
    CHECK_THROWS_AS(launch(*it.api, it.kernel.handle(), it.config, it.params.data(), nullptr), DriverError);
}

TEST_CASE("driver: memory is filled, copied, moved and freed", "[driver]") {
    Fake fake;
    {
        DeviceMemory memory(fake.api, 1024);
        REQUIRE(memory.data() != nullptr);
        memory.fill(0);
        const std::array<int, 4> in{1, 2, 3, 4};
        memory.upload(in.data(), sizeof in, 16);
        std::array<int, 8> out{};
        memory.download(out.data(), sizeof out);
        CHECK(out == std::array<int, 8>{0, 0, 0, 0, 1, 2, 3, 4});

        DeviceMemory other(std::move(memory));
        CHECK(memory.data() == nullptr);
        memory = DeviceMemory(fake.api, 32);
        other = std::move(memory);
        CHECK(other.bytes() == 32);
        CHECK(fake.state->frees == 1);
    }
    CHECK(fake.state->frees == 2);
    const DeviceMemory empty(fake.api, 0);
    CHECK(empty.data() == nullptr);
    empty.fill(1);
    fake.state->fail_alloc = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK(message_of([&] {
              DeviceMemory(fake.api, 1);
          }).find("cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY") == 0);
}

TEST_CASE("driver: memory is freed in the context that it was made in", "[driver]") {
    Fake fake;
    std::unique_ptr<DeviceMemory> memory;
    const ContextHandle mine = fake.make_context(0);
    {
        const ContextScope scope(*fake.api, mine);
        memory = std::make_unique<DeviceMemory>(fake.api, 16);
    }
    memory->fill(1);  // works without a current context
    memory.reset();
    CHECK(fake.state->frees == 1);
    CHECK(current_context(*fake.api) == nullptr);
}

TEST_CASE("driver: streams, events and graphs", "[driver]") {
    Fake fake;
    const driver::Stream stream(fake.api);
    const Event start(fake.api), end(fake.api);
    start.record(stream.handle());
    CHECK_THROWS_AS(elapsed_ms(start, end), DriverError);
    end.record(stream.handle());
    end.synchronize();
    CHECK(elapsed_ms(start, end) == 1.0f);

    const Graph graph(fake.api, stream.handle(), [] {});
    graph.launch(stream.handle());
    CHECK(fake.state->graph_launches == 1);
    // What the caller throws comes through, and the capture is ended.
    CHECK_THROWS_AS(Graph(fake.api, stream.handle(), [] { throw Error("mine"); }), Error);
    CHECK_NOTHROW(Graph(fake.api, stream.handle(), [] {}));
    CHECK(fake.state->captures == 3);
}
