// compiler/nvrtc: opening, compiling, and what each failure says. Needs NVRTC, and no GPU.
// ATTNSMITH_TEST_NVRTC may list more folders with an NVRTC, separated by colons: all of it is tried with
// each.
#include "compiler/nvrtc.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "compiler/cubin_info.hpp"
#include "support/catch.hpp"
#include "support/nvrtc.hpp"

using namespace attnsmith;
using namespace attnsmith::compiler;
using test::nvrtc_folders;

namespace {

namespace fs = std::filesystem;

std::shared_ptr<const Nvrtc> open(const std::string& folder) {
    return Nvrtc::open({.path = folder, .extra_folders = {}});
}

Program program(std::string source, std::string target = "sm_90") {
    Program program;
    program.name = "unit.cu";
    program.source = std::move(source);
    program.target = std::move(target);
    program.options = {"--std=c++17"};
    return program;
}

template <typename Wanted, typename Function>
Wanted caught(Function function) {
    try {
        function();
    } catch (const Wanted& error) {
        return error;
    }
    FAIL("nothing was thrown");
    throw;  // not reached
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// An empty folder, removed with the object.
struct Folder {
    Folder() { fs::create_directories(path); }
    ~Folder() { fs::remove_all(path); }
    fs::path path = fs::temp_directory_path() / ("attnsmith_nvrtc_test_" + std::to_string(std::rand()));
};

}  // namespace

TEST_CASE("nvrtc: an explicit path that is not there is an error, and nothing else is tried", "[nvrtc]") {
    const auto error = caught<LibraryMissing>([] { open("/nowhere/libnvrtc.so.13"); });
    REQUIRE(error.tried().size() == 1);
    CHECK(contains(error.tried()[0], "/nowhere/libnvrtc.so.13"));
    CHECK(contains(error.tried()[0], "No such file"));
    CHECK(contains(error.what(), "correct what ATTNSMITH_NVRTC_PATH or nvrtc_path names, or unset it"));
    CHECK_FALSE(contains(error.what(), "pip install"));  // one may well be installed
    CHECK(contains(error.what(), "ATTNSMITH_NVRTC_PATH"));
}

TEST_CASE("nvrtc: a folder without it, a file that is no library, a library that is another", "[nvrtc]") {
    const Folder folder;
    const auto empty = caught<LibraryMissing>([&] { open(folder.path.string()); });
    CHECK(contains(empty.tried().at(0), (folder.path / "libnvrtc.so").string()));

    std::ofstream(folder.path / "libnvrtc.so.13") << "not a library";
    const auto text = caught<LibraryMissing>([&] { open(folder.path.string()); });
    CHECK(contains(text.tried().at(0), "libnvrtc.so.13"));

    const auto other = caught<LibraryMissing>([] { open("libm.so.6"); });
    CHECK(contains(other.tried().at(0), "is not NVRTC"));
}

TEST_CASE("nvrtc: the search goes over loader names, toolkits and the extra folders", "[nvrtc]") {
    const Folder folder;
    for (const char* name : {"libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so", "libnvrtc.so.13.0.88",
                             "libnvrtc-builtins.so.13.0"})
        std::ofstream(folder.path / name) << "";
    const auto names = nvrtc_candidates({.path = "", .extra_folders = {folder.path.string()}});
    REQUIRE(names.size() >= 7);
    CHECK(std::vector<std::string>(names.begin(), names.begin() + 3) ==
          std::vector<std::string>{"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
    std::vector<std::string> last;
    for (auto name = names.end() - 4; name != names.end(); ++name) last.push_back(fs::path(*name).filename());
    CHECK(last ==
          std::vector<std::string>{"libnvrtc.so.13.0.88", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"});
}

TEST_CASE("nvrtc: version, toolchain, architectures", "[nvrtc]") {
    for (const std::string& folder : nvrtc_folders()) {
        const auto nvrtc = open(folder);
        INFO(nvrtc->path());
        CHECK(nvrtc->version() >= NvrtcVersion{12, 0});
        CHECK(fs::exists(nvrtc->path()));
        const std::string start =
            std::to_string(nvrtc->version().major) + "." + std::to_string(nvrtc->version().minor) + ".";
        CHECK(nvrtc->toolchain().rfind(start, 0) == 0);
        CHECK(nvrtc->toolchain().size() > start.size());
        CHECK(&nvrtc->toolchain() == &nvrtc->toolchain());
        const std::vector<int>& archs = nvrtc->supported_archs();
        CHECK(std::is_sorted(archs.begin(), archs.end()));
        CHECK(std::count(archs.begin(), archs.end(), 90) == 1);
    }
}

TEST_CASE("nvrtc: a program compiles to a cubin, with ptxas' report and its headers", "[nvrtc]") {
    for (const std::string& folder : nvrtc_folders()) {
        const auto nvrtc = open(folder);
        INFO(nvrtc->path());
        const std::string header_text = "#define ANSWER 42  // not NUL-terminated in the view below";
        Program unit = program(
            "#include \"common/answer.cuh\"\n"
            "extern \"C\" __device__ unsigned attnsmith_shared_bytes = ANSWER;\n"
            "extern \"C\" __global__ void entry(float* x) { __shared__ float s[64]; s[threadIdx.x] = "
            "x[threadIdx.x];\n"
            "  __syncthreads(); x[threadIdx.x] = s[threadIdx.x ^ 1]; }\n",
            "sm_90a");
        unit.headers = {{"common/answer.cuh", std::string_view(header_text).substr(0, 17)}};
        unit.options.emplace_back("--ptxas-options=-v");
        const Compiled compiled = nvrtc->compile(unit);
        CHECK(compiled.milliseconds > 0);
        const auto info = CubinInfo::parse(compiled.cubin);
        REQUIRE(info.has_value());
        CHECK(info->entries() == std::vector<std::string>{"entry"});
        CHECK(info->sm() == 90);
        CHECK(info->read_u32("attnsmith_shared_bytes") == 42u);
        const auto resources = parse_ptxas_log(compiled.log);
        REQUIRE(resources.size() == 1);
        CHECK(resources[0].entry == "entry");
        CHECK(resources[0].target == "sm_90a");
        CHECK(resources[0].static_shared_bytes == 256);
        CHECK(resources[0].registers_per_thread > 0);
        CHECK(resources[0].spill_store_bytes == 0);
        CHECK(nvrtc->compile(unit).cubin == compiled.cubin);  // the same bytes every time
    }
}

TEST_CASE("nvrtc: a program that is wrong gives the first error, the log, the options and the source",
          "[nvrtc]") {
    for (const std::string& folder : nvrtc_folders()) {
        const auto nvrtc = open(folder);
        INFO(nvrtc->path());
        Program unit = program("#warning be careful\n\n__device__ int here() { return nowhere; }\n");
        const auto error = caught<CompileError>([&] { nvrtc->compile(unit); });
        INFO(error.what());
        CHECK(contains(error.what(), "unit.cu(3): error: identifier \"nowhere\" is undefined"));
        CHECK(contains(error.what(), "sm_90"));
        CHECK(std::string(error.what()).find('\n') == std::string::npos);
        CHECK(contains(error.log(), "be careful"));
        CHECK(contains(error.numbered_source(), "   3 | __device__ int here() { return nowhere; }\n"));
        CHECK(error.options().at(0) == "--gpu-architecture=sm_90");
        CHECK(error.options() == nvrtc->compile_options(unit));

        unit = program("extern \"C\" __global__ void f() {}");
        unit.options.emplace_back("--no-such-option");
        CHECK(contains(caught<CompileError>([&] { nvrtc->compile(unit); }).what(), "--no-such-option"));
        unit = program("#include \"missing.cuh\"\n");
        CHECK(contains(caught<CompileError>([&] { nvrtc->compile(unit); }).what(), "missing.cuh"));
    }
}

TEST_CASE("nvrtc: a target that it does not know is refused by name", "[nvrtc]") {
    for (const std::string& folder : nvrtc_folders()) {
        const auto nvrtc = open(folder);
        INFO(nvrtc->path());
        const std::string version =
            std::to_string(nvrtc->version().major) + "." + std::to_string(nvrtc->version().minor);
        for (const char* target : {"sm_910", "sm_20", "sm_", "90", "compute_90", "sm_90x", "sm_90aa",
                                   "sm_90f", "sm_99999999999999999999", "sm_-90", ""}) {
            INFO(target);
            const auto error = caught<Unsupported>([&] { nvrtc->compile(program("", target)); });
            CHECK(contains(error.what(), "NVRTC " + version + " does not know " + target));
            REQUIRE(error.refusals().size() == 1);
            CHECK(contains(error.refusals()[0].reason, "90"));
        }
        // One that newer versions know: the remedy is that version.
        const auto& archs = nvrtc->supported_archs();
        for (const auto& [arch, first] :
             {std::pair{121, "12.9"}, {103, "12.9"}, {110, "13.0"}, {120, "12.8"}}) {
            if (std::binary_search(archs.begin(), archs.end(), arch)) continue;
            const std::string target = "sm_" + std::to_string(arch);
            CHECK(contains(caught<Unsupported>([&] { nvrtc->compile(program("", target)); }).what(),
                           std::string("install NVRTC ") + first));
        }
    }
}

TEST_CASE("nvrtc: threads compile side by side", "[nvrtc]") {
    for (const std::string& folder : nvrtc_folders()) {
        const auto nvrtc = open(folder);
        INFO(nvrtc->path());
        constexpr unsigned kThreads = 8;
        std::vector<std::vector<std::byte>> cubins(kThreads);
        std::vector<std::string> errors(kThreads), toolchains(kThreads);
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < kThreads; ++i)
            threads.emplace_back([&, i] {
                const std::string number = std::to_string(i);
                toolchains[i] = nvrtc->toolchain();
                cubins[i] = nvrtc
                                ->compile(program("extern \"C\" __device__ unsigned value = " + number +
                                                  "; extern \"C\" __global__ void entry" + number +
                                                  "(float* x) { x[threadIdx.x] *= " + number + "; }"))
                                .cubin;
                try {
                    nvrtc->compile(program("__device__ int x = error" + number + ";"));
                } catch (const CompileError& error) {
                    errors[i] = error.log();
                }
            });
        for (std::thread& thread : threads) thread.join();
        for (unsigned i = 0; i < kThreads; ++i) {
            const auto info = CubinInfo::parse(cubins[i]);
            REQUIRE(info.has_value());
            CHECK(info->has_entry("entry" + std::to_string(i)));
            CHECK(info->read_u32("value") == i);
            CHECK(contains(errors[i], "error" + std::to_string(i)));
            CHECK(toolchains[i] == nvrtc->toolchain());
        }
    }
}

TEST_CASE("nvrtc: lines are numbered from 1", "[nvrtc]") {
    CHECK(number_lines("a\n\nb") == "   1 | a\n   2 | \n   3 | b\n");
    CHECK(number_lines("") == "");
}

TEST_CASE("nvrtc: a child forked in the middle of a compile gets an error in place of NVRTC's locks",
          "[nvrtc]") {
    const auto nvrtc = open(nvrtc_folders().front());
    std::atomic<bool> stop = false;
    std::atomic<int> begun = 0;
    std::thread busy([&] {
        while (!stop) {
            ++begun;
            (void)nvrtc->compile(program("__global__ void kernel(float* x) { *x = 1; }\n"));
        }
    });
    int lost = 0, wrong = 0;
    for (int round = 0; round < 4; ++round) {
        const int before = begun;
        while (begun == before) std::this_thread::yield();
        const ::pid_t child = ::fork();
        if (child == 0) {
            ::alarm(20);  // it would wait for ever
            try {
                (void)nvrtc->compile(program("__global__ void other(float* x) { *x = 2; }\n"));
                ::_exit(0);
            } catch (const Error& error) {
                ::_exit(contains(error.what(), "forked") ? 1 : 2);
            }
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) == 2) ++wrong;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 1) ++lost;
    }
    stop = true;
    busy.join();
    CHECK(wrong == 0);
    CHECK(lost > 0);
}

TEST_CASE("nvrtc: what is no regular file is refused by name, and not opened", "[nvrtc]") {
    const Folder folder;
    const std::string fifo = folder.path / "libnvrtc.so.13";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    for (const std::string& path : {fifo, folder.path.string()}) {
        const auto error = caught<LibraryMissing>([&] { open(path); });
        REQUIRE(error.tried().size() == 1);
        CHECK(error.tried()[0] == fifo + ": is a FIFO, not a regular file");
    }
    const auto device = caught<LibraryMissing>([] { open("/dev/zero"); });
    CHECK(contains(device.tried()[0], "/dev/zero: is a device"));
}
