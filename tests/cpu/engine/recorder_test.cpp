// What a program asked for, in a file: once a process, whole lines whoever writes, and never a reason to
// fail.
#include "engine/recorder.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <sstream>
#include <thread>

#include "attnsmith/coverage.hpp"
#include "cache/fixture.hpp"
#include "engine/fake_runtime.hpp"
#include "problem/request/recorded.hpp"
#include "support/variable.hpp"

using namespace attnsmith;
using cache::testing::ChildProcess;
using cache::testing::read_text;
using cache::testing::TemporaryDirectory;
using cache::testing::Warnings;
using cache::testing::write_text;
using test::Variable;

namespace {

problem::Problem merge(std::int64_t heads) {
    return problem::validate({.op = Op::merge, .head_dim_vo = 64, .q_heads = heads}, {});
}

std::shared_ptr<const engine::Log> log_to(Warnings& warnings) {
    return std::make_shared<const engine::Log>(
        LogLevel::warn, [warn = warnings.callback()](LogLevel, std::string_view line) { warn(line); });
}

std::vector<std::string> lines_of(const std::string& file) {
    std::istringstream text(read_text(file));
    std::vector<std::string> lines;
    for (std::string line; std::getline(text, line);) lines.push_back(line + "\n");
    return lines;
}

// Prepares without a GPU and without NVRTC: a plan that is there fails at its kernel.
RuntimeOptions options_for(const std::string& file) {
    RuntimeOptions options = test::fake_options();
    options.nvrtc_path = ATTNSMITH_FAKE_NVRTC;
    options.record_file = file;
    return options;
}

}  // namespace

TEST_CASE("each spec is recorded once, whatever its sizes", "[engine][recorder]") {
    const TemporaryDirectory temporary;
    Warnings warnings;
    engine::Recorder recorder(temporary / "file", log_to(warnings));
    const problem::Problem small = merge(1);
    problem::Problem large = small;
    large.sizes = {.batch = 9, .q_len = 100, .kv_len = 7};
    for (const problem::Problem& problem : {small, large, merge(2), small}) recorder.record(problem);
    CHECK(lines_of(temporary / "file") ==
          std::vector{problem::recorded_line(merge(1)), problem::recorded_line(merge(2))});
    CHECK(warnings.count() == 0);
    engine::Recorder nowhere("", log_to(warnings));
    nowhere.record(small);
    CHECK(warnings.count() == 0);
}

TEST_CASE("threads and forked children append whole lines", "[engine][recorder][fork]") {
    const TemporaryDirectory temporary;
    Warnings warnings;
    engine::Recorder recorder(temporary / "file", log_to(warnings));
    recorder.record(merge(1));
    constexpr int kChildren = 6, kSpecs = 40;
    std::vector<ChildProcess> children;
    for (int child = 0; child < kChildren; ++child) {
        children.emplace_back([&] {
            std::vector<std::jthread> threads;
            for (int thread = 0; thread < 2; ++thread)
                threads.emplace_back([&] {
                    for (int heads = 1; heads <= kSpecs; ++heads) recorder.record(merge(heads));
                });
            return 0;
        });
    }
    for (ChildProcess& child : children) CHECK(child.wait() == 0);
    const auto lines = lines_of(temporary / "file");
    CHECK(lines.size() == 1 + kChildren * kSpecs);  // a child begins anew
    for (int heads = 1; heads <= kSpecs; ++heads)
        CHECK(std::ranges::count(lines, problem::recorded_line(merge(heads))) ==
              kChildren + (heads == 1 ? 1 : 0));
    CHECK(recorded_coverage(read_text(temporary / "file"), "file").specs().size() == kSpecs);
}

TEST_CASE("a line follows another process's torn one on a line of its own", "[engine][recorder]") {
    const TemporaryDirectory temporary;
    Warnings warnings;
    const std::string file = temporary / "file";
    const std::string torn = problem::recorded_line(merge(3)).substr(0, 60);
    write_text(file, torn);
    engine::Recorder(file, log_to(warnings)).record(merge(1));
    engine::Recorder(file, log_to(warnings)).record(merge(2));
    CHECK(read_text(file) ==
          torn + "\n" + problem::recorded_line(merge(1)) + problem::recorded_line(merge(2)));
    const Coverage coverage = recorded_coverage(read_text(file), "file");
    CHECK(coverage.specs().size() == 2);
    CHECK(coverage.skipped.size() == 1);
}

TEST_CASE("a disk that is full tears no line but its last", "[engine][recorder]") {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "file";
    const std::size_t line = problem::recorded_line(merge(1)).size();
    ChildProcess child([&] {
        rlimit limit{};
        ::getrlimit(RLIMIT_FSIZE, &limit);
        const rlimit full{.rlim_cur = 2 * line + line / 2, .rlim_max = limit.rlim_max};
        ::setrlimit(RLIMIT_FSIZE, &full);
        Warnings warnings;
        engine::Recorder recorder(file, log_to(warnings));
        for (int heads = 1; heads <= 4; ++heads) recorder.record(merge(heads));
        if (warnings.count() != 1) return 1;
        // There is room again: what could not be written is written with the next line.
        ::setrlimit(RLIMIT_FSIZE, &limit);
        recorder.record(merge(5));
        return warnings.count() == 1 ? 0 : 2;
    });
    CHECK(child.wait() == 0);
    const Coverage coverage = recorded_coverage(read_text(file), "file");
    CHECK(coverage.specs() ==
          std::vector{merge(1).spec, merge(2).spec, merge(3).spec, merge(4).spec, merge(5).spec});
    CHECK(coverage.skipped.size() == 1);
}

TEST_CASE("a runtime that ends leaves what could not be written before", "[engine][recorder]") {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "later/file";
    {
        Runtime runtime(options_for(file));
        for (const std::int64_t heads : {1, 2, 1}) (void)runtime.prepare(merge(heads).spec, {});
        REQUIRE(::mkdir((temporary / "later").c_str(), 0700) == 0);
        (void)runtime.prepare(merge(1).spec, {});  // which is prepared already
    }
    CHECK(lines_of(file) == std::vector{problem::recorded_line(merge(1)), problem::recorded_line(merge(2))});
}

TEST_CASE("a file that cannot be written is told once, and fails nothing", "[engine][recorder]") {
    const TemporaryDirectory temporary;
    ::mkfifo((temporary / "pipe").c_str(), 0600);
    const std::string files[] = {temporary / "none/file", temporary.path().string(), temporary / "pipe",
                                 "/dev/null"};
    for (const std::string& file : files) {
        CAPTURE(file);
        Warnings warnings;
        engine::Recorder recorder(file, log_to(warnings));
        for (int heads = 1; heads <= 3; ++heads) CHECK_NOTHROW(recorder.record(merge(heads)));
        REQUIRE(warnings.count() == 1);
        CHECK_THAT(warnings.messages()[0], Catch::Contains("is not recorded in " + file + ": "));
    }
}

TEST_CASE("a runtime records what it is asked to prepare, also in vain", "[engine][recorder]") {
    const TemporaryDirectory temporary;
    const std::string file = temporary / "file";
    const AttentionSpec served = merge(1).spec;
    AttentionSpec not_served{
        .head_dim_qk = 64, .q_heads = 1, .precision = Precision::high, .consistency = Consistency::bitwise};
    {
        Runtime runtime(options_for(file));
        for (std::int64_t tokens : {1, 2, 3}) CHECK_NOTHROW(runtime.prepare(served, {1, tokens, 1}));
        runtime.prepare_async(merge(2).spec, {}).wait();
        CHECK_THROWS_AS(runtime.prepare(not_served, {}), Unsupported);
        AttentionSpec invalid = served;
        invalid.q_heads = 0;
        CHECK_THROWS_AS(runtime.prepare(invalid, {}), InvalidRequest);
        // What is only planned is not run.
        CHECK_NOTHROW(runtime.plan_json(merge(3).spec, {}, 90));
    }
    const auto specs = recorded_coverage(read_text(file), "file").specs();
    CHECK(specs == std::vector{served, merge(2).spec, problem::validate(not_served, {}).spec});
}

TEST_CASE("the environment names the file, which an option overrides", "[engine][recorder][environment]") {
    const TemporaryDirectory temporary;
    const Variable variable("ATTNSMITH_RECORD", temporary / "from-environment");
    (void)Runtime(options_for({})).prepare(merge(1).spec, {});
    (void)Runtime(options_for(temporary / "from-option")).prepare(merge(2).spec, {});
    CHECK(lines_of(temporary / "from-environment") == std::vector{problem::recorded_line(merge(1))});
    CHECK(lines_of(temporary / "from-option") == std::vector{problem::recorded_line(merge(2))});
}
