// Every operation on files fails in turn, in every way that disks have: the caller gets its kernel, and is
// told once why it is not kept. NVRTC is a stand-in, so that thousands of compiles take seconds.
#include <fmt/format.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "attnsmith/runtime.hpp"
#include "cache/faulty_file_system.hpp"
#include "cache/fixture.hpp"
#include "cubins/cubins.hpp"
#include "planner/plan.hpp"
#include "planner/repository_tuning.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using cache::testing::FaultyFileSystem;
using cache::testing::kOperations;
using cache::testing::Operation;
using cache::testing::TemporaryDirectory;
using cache::testing::Warnings;
using engine::Origin;

namespace {

constexpr int kErrors[] = {ENOSPC, EDQUOT, EROFS, EACCES, EPERM, EIO, EMFILE, ENFILE, ESTALE};
constexpr std::size_t kKernels = 3;

const auto accept_all = [](const engine::Cubin&) { return std::nullopt; };

// A process of its own, as far as the cache can tell.
class Caller {
  public:
    Caller(const std::string& directory, cache::FileSystem* files)
        : cubins_(settings(directory, files),
                  std::make_shared<const engine::Log>(
                      LogLevel::warn,
                      [told = warnings_.callback()](LogLevel, std::string_view line) { told(line); })) {}

    engine::Obtained obtain(const engine::KernelSource& source) { return cubins_.obtain(source, accept_all); }
    engine::Cubins& cubins() { return cubins_; }
    std::vector<std::string> warnings() const { return warnings_.messages(); }

  private:
    static engine::Settings settings(const std::string& directory, cache::FileSystem* files) {
        engine::Settings settings;
        if (!directory.empty()) settings.cache_dirs = {directory};
        settings.file_system = files;
        settings.nvrtc.path = ATTNSMITH_FAKE_NVRTC;
        settings.compile_threads = 1;
        return settings;
    }

    Warnings warnings_;
    engine::Cubins cubins_;
};

struct Sample {
    engine::KernelSource source;
    std::vector<std::byte> bytes;
};

// Some kernels, and what they are where no disk is asked.
const std::vector<Sample>& kernels() {
    static const std::vector<Sample> all = [] {
        Caller caller("", nullptr);
        std::vector<Sample> made;
        for (std::size_t i = 0; i < kKernels; ++i) {
            const AttentionSpec spec{
                .op = Op::merge, .head_dim_vo = 64 + 8 * static_cast<std::int64_t>(i), .q_heads = 1};
            const auto set =
                planner::kernel_set(problem::validate(spec, {}).spec, 90, planner::repository_tuning());
            auto source = caller.cubins().source_of(set.kernels().front());
            auto bytes = caller.obtain(source).cubin->bytes;
            made.push_back({std::move(source), std::move(bytes)});
        }
        return made;
    }();
    return all;
}

// All kernels, by one process, in a directory that may have them.
void ask_for_all(Caller& caller) {
    for (const Sample& kernel : kernels()) {
        const auto cubin = caller.obtain(kernel.source).cubin;
        REQUIRE(cubin);
        REQUIRE(cubin->bytes == kernel.bytes);
        REQUIRE(cubin->entry == kernel.source.unit.entry);
    }
}

// Nothing that the fault left behind misleads anybody.
void check_what_is_left(const std::string& directory) {
    Caller later(directory, nullptr);
    ask_for_all(later);
    CHECK(later.warnings().empty());
    CHECK(later.cubins().store().verify().bad.empty());
    CHECK(later.cubins().store().list().entries.size() == kKernels);
}

// How many operations it takes where none fails.
std::size_t operations(bool warm) {
    const TemporaryDirectory temporary;
    FaultyFileSystem files;
    if (warm) {
        Caller first(temporary / "cache", nullptr);
        ask_for_all(first);
    }
    Caller caller(temporary / "cache", &files);
    ask_for_all(caller);
    return files.count_all();
}

void fill(const std::string& directory, bool warm) {
    if (!warm) return;
    Caller first(directory, nullptr);
    ask_for_all(first);
}

}  // namespace

TEST_CASE("faults: any one operation fails, cold and warm: the kernels are had, at most one warning",
          "[faults]") {
    for (const bool warm : {false, true}) {
        const std::size_t count = operations(warm);
        REQUIRE(count > kKernels);
        for (const int error_number : kErrors) {
            for (std::size_t n = 0; n < count; ++n) {
                INFO((warm ? "warm" : "cold") << ", operation " << n << ": " << std::strerror(error_number));
                const TemporaryDirectory temporary;
                fill(temporary / "cache", warm);
                FaultyFileSystem files;
                files.fail_once_at(n, error_number);
                Caller caller(temporary / "cache", &files);
                ask_for_all(caller);
                REQUIRE(caller.warnings().size() <= 1);
                if (n % 7 == 0) check_what_is_left(temporary / "cache");
            }
        }
    }
}

TEST_CASE("faults: from some operation on all fail: the kernels are had, one warning a cause", "[faults]") {
    for (const bool warm : {false, true}) {
        const std::size_t count = operations(warm);
        for (const int error_number : kErrors) {
            for (std::size_t n = 0; n < count; ++n) {
                INFO((warm ? "warm" : "cold")
                     << ", from operation " << n << ": " << std::strerror(error_number));
                const TemporaryDirectory temporary;
                fill(temporary / "cache", warm);
                FaultyFileSystem files;
                std::size_t met = 0;
                files.fault = [&](Operation) { return met++ >= n ? error_number : 0; };
                Caller caller(temporary / "cache", &files);
                ask_for_all(caller);
                // It can be neither read nor written: one line for each.
                const auto warnings = caller.warnings();
                REQUIRE(warnings.size() <= 2);
                REQUIRE((warnings.size() < 2 || warnings[0].substr(0, 30) != warnings[1].substr(0, 30)));
                if (n % 7 == 0) check_what_is_left(temporary / "cache");
            }
        }
    }
}

TEST_CASE("faults: an operation that always fails costs one warning over all kernels", "[faults]") {
    for (const bool warm : {false, true}) {
        for (const int error_number : kErrors) {
            for (std::size_t operation = 0; operation < kOperations; ++operation) {
                INFO((warm ? "warm" : "cold")
                     << ", operation kind " << operation << ": " << std::strerror(error_number));
                const TemporaryDirectory temporary;
                fill(temporary / "cache", warm);
                FaultyFileSystem files;
                files.fail_always(static_cast<Operation>(operation), error_number);
                Caller caller(temporary / "cache", &files);
                ask_for_all(caller);
                REQUIRE(caller.warnings().size() <= 1);
                check_what_is_left(temporary / "cache");
            }
        }
    }
}

TEST_CASE("faults: short writes and short reads change nothing", "[faults]") {
    for (const std::size_t most : {std::size_t{1}, std::size_t{61}, std::size_t{4096}}) {
        const TemporaryDirectory temporary;
        FaultyFileSystem files;
        files.most_bytes_per_write = most;
        files.most_bytes_per_read = most;
        Caller writer(temporary / "cache", &files);
        ask_for_all(writer);
        Caller reader(temporary / "cache", &files);
        for (const Sample& kernel : kernels()) {
            const engine::Obtained obtained = reader.obtain(kernel.source);
            CHECK(obtained.origin == Origin::disk);
            CHECK(obtained.cubin->bytes == kernel.bytes);
        }
        CHECK(writer.warnings().empty());
        CHECK(reader.warnings().empty());
    }
}

TEST_CASE("faults: a write that takes nothing any more is a full disk, not a hang", "[faults]") {
    const TemporaryDirectory temporary;
    FaultyFileSystem files;
    files.most_bytes_per_write = 0;
    Caller caller(temporary / "cache", &files);
    ask_for_all(caller);
    CHECK(caller.warnings().size() == 1);
    check_what_is_left(temporary / "cache");
}

TEST_CASE("faults: file systems without locks, or with locks that are never to be had, give right answers",
          "[faults]") {
    for (const int error_number : {ENOLCK, ENOSYS, EOPNOTSUPP, EINVAL}) {
        const TemporaryDirectory temporary;
        FaultyFileSystem files;
        files.fail_always(Operation::file_lock, error_number);
        Caller caller(temporary / "cache", &files);
        ask_for_all(caller);
        REQUIRE(caller.warnings().size() == 1);
        CHECK_THAT(caller.warnings().front(), Catch::Contains("has no locks"));
        CHECK(caller.cubins().store().list().entries.size() == kKernels);
    }
}

TEST_CASE("faults: real file systems that are full, or may not be written to", "[faults]") {
    const TemporaryDirectory temporary;
    const std::string place = temporary / "mounted";
    std::filesystem::create_directory(place);
    for (const char* options : {"size=8k", "nr_inodes=3", "size=1m"}) {
        const bool read_only = std::string_view(options) == "size=1m";
        if (::mount("none", place.c_str(), "tmpfs", 0, options) != 0) {
            WARN("skipped: mounting a file system takes rights that are lacking here: "
                 << std::strerror(errno));
            return;
        }
        if (read_only) ::mount("none", place.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, options);
        {
            INFO(options << (read_only ? ", read-only" : ""));
            Caller caller(place + "/cache", nullptr);
            ask_for_all(caller);
            CHECK(caller.warnings().size() == 1);
        }
        ::umount(place.c_str());
    }
}

TEST_CASE("faults: without a home the kernels stay in memory, and the caller is told so once", "[faults]") {
    for (const char* name : {"HOME", "XDG_CACHE_HOME", "ATTNSMITH_CACHE_DIR"}) ::unsetenv(name);
    Warnings warnings;
    RuntimeOptions options;
    options.log_level = LogLevel::warn;
    options.log = [told = warnings.callback()](LogLevel, std::string_view line) { told(line); };
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    options.driver_path = ATTNSMITH_FAKE_CUDA;
    Runtime runtime(options);
    for (const std::int64_t dim : {64, 72}) {
        CHECK_NOTHROW(runtime.prepare({.op = Op::merge, .head_dim_vo = dim, .q_heads = 1}, {}, 0));
    }
    REQUIRE(warnings.count() == 1);
    CHECK_THAT(warnings.messages().front(), Catch::Contains("HOME"));
}
