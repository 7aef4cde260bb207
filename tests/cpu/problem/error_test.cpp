#include "attnsmith/error.hpp"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

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
    CHECK(error.driver_code() == 700);
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

TEST_CASE("a cache error says the file that it is about", "[error]") {
    const CacheError error("the export failed: the disk is full", "/kernels.bundle");
    CHECK(std::string(error.what()) == "the export failed: the disk is full");
    CHECK(error.path() == "/kernels.bundle");
    CHECK(CacheError("there is no cache directory").path().empty());
}

TEST_CASE("copies of an error have its fields, and copying does not throw", "[error]") {
    STATIC_REQUIRE(std::is_nothrow_copy_constructible_v<InvalidRequest>);
    STATIC_REQUIRE(std::is_nothrow_copy_assignable_v<CompileError>);
    std::optional<InvalidRequest> error(std::in_place, "page_size", "-1", "an integer from 1");
    const InvalidRequest copy = *error;
    InvalidRequest moved = std::move(*error);
    CHECK(error->field() == "page_size");  // a move copies, so that no error is ever without its fields
    error.reset();
    CHECK(copy.field() == "page_size");
    moved = InvalidRequest("q_heads", "0", "an integer from 1");
    CHECK(moved.field() == "q_heads");
    CHECK(copy.accepted() == "an integer from 1");
}

TEST_CASE("the details of an error are its kind, its message and its fields", "[error]") {
    const std::pair<Error, const char*> cases[] = {
        {InvalidRequest("page_size", "-1", "1"),
         R"j({"code": "invalid_request", "message": "page_size: -1 is not accepted; expected 1",
             "field": "page_size", "value": "-1", "accepted": "1"})j"},
        {Unsupported("no", {{"mma", "why"}}),
         R"j({"code": "unsupported", "message": "no: mma (why)",
             "refusals": [{"candidate": "mma", "reason": "why"}]})j"},
        {CompileError("no", "log", {"-a"}, "1: x"),
         R"j({"code": "compile_error", "message": "no", "log": "log", "options": ["-a"],
             "numbered_source": "1: x"})j"},
        {DriverError("cuInit", 3, "m"),
         R"j({"code": "driver_error", "message": "cuInit failed: m (CUDA error 3)", "call": "cuInit",
             "driver_code": 3, "meaning": "m"})j"},
        {LibraryMissing("NVRTC", {"a"}, ""),
         R"j({"code": "library_missing", "message": "NVRTC could not be opened; tried a",
             "library": "NVRTC", "tried": ["a"]})j"},
        {KernelMissing("no", R"({"op": "merge"})", 90, "00", "c"),
         R"j({"code": "kernel_missing", "message": "no", "request": {"op": "merge"}, "sm": 90,
             "key": "00", "command": "c"})j"},
        {CacheError("no", "/f"), R"j({"code": "cache_error", "message": "no", "path": "/f"})j"},
        {Error("no"), R"j({"code": "failed", "message": "no"})j"},
    };
    for (const auto& [error, wanted] : cases) {  // copied as the base, which has the fields
        const nlohmann::json details = nlohmann::json::parse(error.details_json());
        CHECK(details == nlohmann::json::parse(wanted));
        CHECK(details.at("code") == to_string(error.kind()));
    }
    CHECK(Error("no").kind() == ErrorKind::failed);
    CHECK(DriverError("cuInit", 3, "m").kind() == ErrorKind::driver_error);
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
