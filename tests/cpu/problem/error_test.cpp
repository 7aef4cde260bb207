#include "attnsmith/error.hpp"

#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "support/catch.hpp"

using namespace attnsmith;

TEST_CASE("an invalid request says the field, the value and what would be accepted", "[error]") {
    const InvalidRequest error("page_size", "-1", "an integer from 1");
    CHECK(error.field() == "page_size");
    CHECK(error.value() == "-1");
    CHECK(error.accepted() == "an integer from 1");
    CHECK(std::string(error.what()) == "page_size: -1 is not accepted; expected an integer from 1");
}

TEST_CASE("unsupported lists each candidate with its reason", "[error]") {
    const Unsupported error("no kernel for this problem", {{"wgmma", "needs 9.0"}, {"mma", "needs 8.0"}});
    CHECK(std::string(error.what()) == "no kernel for this problem: wgmma (needs 9.0), mma (needs 8.0)");
    REQUIRE(error.refusals().size() == 2);
    CHECK(error.refusals()[1] == Refusal{"mma", "needs 8.0"});
    CHECK(std::string(Unsupported("op mla", {}).what()) == "op mla");
}

TEST_CASE("a compile error keeps log, options and source", "[error]") {
    const CompileError error("line 3: expected ;", "the log", {"-arch=sm_90a"}, "1: x");
    CHECK(std::string(error.what()) == "line 3: expected ;");
    CHECK(error.log() == "the log");
    CHECK(error.options() == std::vector<std::string>{"-arch=sm_90a"});
    CHECK(error.numbered_source() == "1: x");
}

TEST_CASE("a driver error says the call, the code and its meaning", "[error]") {
    const DriverError error("cuLaunchKernelEx", 700, "an illegal memory access was encountered");
    CHECK(std::string(error.what()) ==
          "cuLaunchKernelEx failed: an illegal memory access was encountered (CUDA error 700)");
    CHECK(error.call() == "cuLaunchKernelEx");
    CHECK(error.code() == 700);
    CHECK(error.meaning() == "an illegal memory access was encountered");
}

TEST_CASE("a missing library says what was tried and the remedy", "[error]") {
    const LibraryMissing error("NVRTC", {"libnvrtc.so.13", "/opt/cuda/lib64/libnvrtc.so"},
                               "set ATTNSMITH_NVRTC_PATH");
    CHECK(std::string(error.what()) ==
          "NVRTC could not be opened; tried libnvrtc.so.13, /opt/cuda/lib64/libnvrtc.so; set "
          "ATTNSMITH_NVRTC_PATH");
    CHECK(error.library() == "NVRTC");
    CHECK(error.tried().size() == 2);
    CHECK(std::string(LibraryMissing("NVRTC", {}, "").what()) == "NVRTC could not be opened; tried nothing");
}

TEST_CASE("every error is an attnsmith::Error", "[error]") {
    std::ifstream file(ATTNSMITH_SOURCE_DIR "/runtime/include/attnsmith/error.hpp");
    REQUIRE(file);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const std::regex declaration(R"(\nclass ATTNSMITH_API (\w+)([^;{]*)\{)");
    std::set<std::string> errors;
    for (std::sregex_iterator found(text.begin(), text.end(), declaration), end; found != end; ++found) {
        const std::string name = (*found)[1], bases = (*found)[2];
        if (name == "Error") continue;
        INFO(name);
        CHECK(bases == " : public Error ");
        errors.insert(name);
    }
    CHECK(errors.contains("InvalidRequest"));
    CHECK(errors.size() > 5);
}

TEST_CASE("no error's message tells a terminal anything, and its parts stay exact", "[error]") {
    const std::string hostile = "/a\nb\x1b[31m\u202e\u009b";
    const std::string seen = "/a\\x0ab\\x1b[31m\\u202e\\u009b";
    const InvalidRequest invalid("cache_dirs", hostile, "a directory");
    CHECK(std::string(invalid.what()) == "cache_dirs: " + seen + " is not accepted; expected a directory");
    CHECK(invalid.value() == hostile);
    const LibraryMissing library("NVRTC", {hostile}, hostile);
    CHECK(std::string(library.what()) == "NVRTC could not be opened; tried " + seen + "; " + seen);
    CHECK(library.tried().front() == hostile);
    const KernelMissing kernel("it is not in " + hostile, "{}", 90, "00", "attnsmith --cache " + hostile);
    CHECK(std::string(kernel.what()) == "it is not in " + seen);
    CHECK(kernel.command() == "attnsmith --cache " + hostile);
    CHECK(std::string(Unsupported(hostile, {{hostile, hostile}}).what()) ==
          seen + ": " + seen + " (" + seen + ")");
    const CompileError compile(hostile, "two\nlines", {}, "");
    CHECK(std::string(compile.what()) == seen);
    CHECK(compile.log() == "two\nlines");
    CHECK(std::string(Error(hostile).what()) == seen);
    CHECK(std::string(CacheError("not in " + hostile).what()) == "not in " + seen);
    CHECK(std::string(DriverError("call", 1, hostile).what()) == "call failed: " + seen + " (CUDA error 1)");
}

TEST_CASE("what was tried to open a library is told with each reason once", "[error]") {
    const LibraryMissing error("NVRTC",
                               {"a.so: no such file", "b.so: no such file", "c.so: is no NVRTC", "d"}, "");
    CHECK(std::string(error.what()) ==
          "NVRTC could not be opened; tried a.so, b.so: no such file, c.so: is no NVRTC, d");
    CHECK(error.tried().size() == 4);
}
