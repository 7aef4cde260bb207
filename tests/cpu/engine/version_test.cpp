// What a program may ask of the library that is loaded.
#include "attnsmith/version.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "attnsmith/runtime.hpp"
#include "support/catch.hpp"

using namespace attnsmith;

TEST_CASE("The loaded library has the version of its headers") {
    CHECK(version() == ATTNSMITH_VERSION);
    CHECK(std::to_string(ATTNSMITH_VERSION_MAJOR) + "." + std::to_string(ATTNSMITH_VERSION_MINOR) + "." +
              std::to_string(ATTNSMITH_VERSION_PATCH) ==
          version());
}

TEST_CASE("Each feature is there once, by its own name alone") {
    std::vector<std::string> names = features();
    for (const std::string& name : names) {
        CHECK(has_feature(name));
        CHECK_FALSE(has_feature(name + " "));
    }
    CHECK(has_feature("op:attention"));
    CHECK(has_feature("backend:mma"));
    CHECK_FALSE(has_feature(""));
    std::ranges::sort(names);
    CHECK(std::ranges::adjacent_find(names) == names.end());
}

TEST_CASE("A library wants no more zeroed bytes than its headers say") {
    CHECK(workspace_zeroed_bytes() <= kWorkspaceZeroedBytes);
}
