// NVRTCs of other versions than the one at hand, as the stand-in says that it is.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "compiler/nvrtc.hpp"
#include "problem/expect.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using compiler::Nvrtc;

namespace {

std::shared_ptr<const Nvrtc> open(int version) {
    ::setenv("FAKE_NVRTC_VERSION", std::to_string(version).c_str(), 1);
    compiler::NvrtcOptions options;
    options.path = ATTNSMITH_FAKE_NVRTC;
    auto nvrtc = Nvrtc::open(options);
    ::unsetenv("FAKE_NVRTC_VERSION");
    return nvrtc;
}

bool has_option(const Nvrtc& nvrtc, const std::string& option) {
    compiler::Program program;
    program.target = "sm_90";
    const std::vector<std::string> options = nvrtc.compile_options(program);
    return std::ranges::find(options, option) != options.end();
}

}  // namespace

TEST_CASE("nvrtc: 12.0 is the oldest that serves", "[nvrtc]") {
    CHECK(open(12000)->version() == compiler::NvrtcVersion{12, 0});
    try {
        open(11080);
        FAIL("opened");
    } catch (const LibraryMissing& error) {
        CHECK(test::contains(error.what(), "is NVRTC 11.8; 12.0 or newer is needed"));
    }
}

TEST_CASE("nvrtc: its own cache is off from 12.9 on, which is when it takes the option", "[nvrtc]") {
    CHECK(has_option(*open(12090), "--no-cache"));
    CHECK(has_option(*open(13000), "--no-cache"));
    CHECK_FALSE(has_option(*open(12080), "--no-cache"));
    for (const int version : {12000, 12090, 13000}) {
        CHECK(has_option(*open(version), "--gpu-architecture=sm_90"));
        CHECK(has_option(*open(version), "--modify-stack-limit=false"));
    }
}

TEST_CASE("nvrtc: a target is an architecture, or one with a or f behind it", "[nvrtc]") {
    const auto nvrtc = open(13000);
    const auto compile = [&](const std::string& target) {
        compiler::Program program;
        program.name = "nothing.cu";
        program.target = target;
        nvrtc->compile(program);
    };
    for (const char* const target :
         {"sm_90x", "sm_90aa", "sm_9", "sm_", "90", "compute_90", "sm_91", "sm_-90"}) {
        CAPTURE(target);
        CHECK_THROWS_AS(compile(target), Unsupported);
    }
}
