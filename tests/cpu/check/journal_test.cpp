// The journal of a suite: what a run that was cut off leaves is what the next one need not do.
#include "check/journal.hpp"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

using namespace attnsmith;
using check::CaseResult;
using check::Journal;
using check::JournalHeader;

namespace {

struct File {
    std::string path = (std::filesystem::temp_directory_path() /
                        ("attnsmith-journal-" + std::to_string(::getpid()) + ".jsonl"))
                           .string();

    File() { std::filesystem::remove(path); }
    ~File() { std::filesystem::remove(path); }
    void append(const std::string& text) const { std::ofstream(path, std::ios::app) << text; }
};

const JournalHeader kHeader{"abc", "a GPU", "a driver", (std::uint64_t{1} << 63) + 5};

CaseResult result_of(const std::string& name, check::Outcome outcome = check::Outcome::passed) {
    CaseResult result;
    result.group = "group", result.name = name;
    result.outcome = outcome;
    result.backend = "wgmma", result.kernel = "64x64 \"stages\" 2\n";
    result.element_ratio = 0.25, result.vacuous_pools = 3, result.milliseconds = 1.5;
    return result;
}

}  // namespace

TEST_CASE("what passed before a run was cut off need not run again", "[check][journal]") {
    const File file;
    CHECK(Journal::seed_of(file.path) == std::nullopt);
    {
        Journal journal(file.path, kHeader);
        CHECK(journal.size() == 0);
        journal.add(result_of("one"), 2);
        journal.add(result_of("two", check::Outcome::failed), 3);
        journal.add(result_of("three"), 4);
    }
    file.append(R"({"group": "group", "name": "torn", "secon)");
    CHECK(Journal::seed_of(file.path) == kHeader.seed);
    {
        Journal journal(file.path, kHeader);
        CHECK(journal.size() == 2);
        CHECK(journal.seconds_before() == 4);
        REQUIRE(journal.passed("group/one") != nullptr);
        const CaseResult& one = *journal.passed("group/one");
        CHECK((one.passed() && one.backend == "wgmma" && one.kernel == "64x64 \"stages\" 2\n"));
        CHECK((one.element_ratio == 0.25 && one.vacuous_pools == 3 && one.milliseconds == 1.5));
        CHECK(journal.passed("group/two") == nullptr);
        CHECK(journal.passed("group/torn") == nullptr);
        CHECK(journal.passed("another/one") == nullptr);
        journal.add(result_of("two"), 7);
    }
    const Journal last(file.path, kHeader);
    CHECK(last.size() == 3);
    CHECK(last.seconds_before() == 11);
}

TEST_CASE("a journal of something else is refused by what differs", "[check][journal]") {
    const File file;
    { Journal(file.path, kHeader).add(result_of("one"), 1); }
    const auto refusal = [&](const JournalHeader& header) {
        try {
            const Journal journal(file.path, header);
        } catch (const std::runtime_error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    JournalHeader other = kHeader;
    other.sources = "def";
    CHECK(refusal(other).find(R"(its sources is "abc", and this run's is "def")") != std::string::npos);
    other = kHeader, other.gpu = "another";
    CHECK(refusal(other).find("its gpu is") != std::string::npos);
    other = kHeader, other.seed = 1;
    CHECK(refusal(other).find("its seed is") != std::string::npos);
    CHECK(refusal(kHeader).empty());

    const File foreign;
    foreign.append("a file of something else\n");
    CHECK_THROWS_AS(Journal(foreign.path, kHeader), std::runtime_error);
    CHECK(std::filesystem::file_size(foreign.path) == 25);
    CHECK_THROWS_AS(Journal("/nonexistent/journal", kHeader), std::runtime_error);
}
