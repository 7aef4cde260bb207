// Users' tuning tables from files: the environment or the options name them, and what they say wins.
#include "engine/tuning_files.hpp"

#include <nlohmann/json.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "attnsmith/runtime.hpp"
#include "planner/tuning_json.hpp"
#include "problem/expect.hpp"
#include "settings/environment.hpp"
#include "support/catch.hpp"

using namespace attnsmith;

namespace {

// A file with a table for head dims 128, removed at the end.
class TableFile {
  public:
    TableFile(const std::string& name, int tile_kv)
        : path_((std::filesystem::temp_directory_path() / ("attnsmith-tuning-" + name)).string()) {
        const planner::MeasuredEntry entry{{.match = {.sm = 90, .head_dim_qk = 128, .head_dim_vo = 128},
                                            .tile = {.tile_q = 128, .tile_kv = tile_kv, .stages = 2}}};
        std::ofstream(path_) << planner::to_json(std::vector{entry});
    }
    ~TableFile() { std::filesystem::remove(path_); }
    TableFile(const TableFile&) = delete;
    TableFile& operator=(const TableFile&) = delete;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

nlohmann::json planned(const std::vector<std::string>& files) {
    const Runtime runtime({.use_cache = false, .tuning_files = files});
    const AttentionSpec spec{.head_dim_qk = 128, .q_heads = 32, .kv_heads = 8};
    return nlohmann::json::parse(runtime.plan_json(spec, {8, 4096, 4096}, 90))["kernels"][0];
}

}  // namespace

TEST_CASE("a file's tiles win over the library's, and those of files in front", "[engine][tuning]") {
    const TableFile first("first.json", 144), second("second.json", 96);
    CHECK(planned({})["tuning"] == "table");
    CHECK(planned({first.path()})["tuning"] == "user");
    CHECK(planned({first.path()})["tile_kv"] == 144);
    CHECK(planned({second.path(), first.path()})["tile_kv"] == 96);
    CHECK(engine::load_tuning({first.path(), second.path()}).loaded().size() == 2);

    ::setenv("ATTNSMITH_TUNING", (second.path() + ":" + first.path()).c_str(), 1);
    CHECK(engine::settle({}).tuning_files == std::vector{second.path(), first.path()});
    CHECK(planned({})["tile_kv"] == 96);
    CHECK(planned({first.path()})["tile_kv"] == 144);
    ::unsetenv("ATTNSMITH_TUNING");
}

TEST_CASE("a tuning file that cannot be read is named", "[engine][tuning]") {
    const auto refused = [](const std::string& file) {
        return test::refused([&] { Runtime({.use_cache = false, .tuning_files = {file}}); });
    };
    CHECK(refused("/nowhere/tuning.json").field() == "/nowhere/tuning.json");
    CHECK(test::contains(refused("/nowhere/tuning.json").value(), "No such file"));
    CHECK(test::contains(refused("/tmp").value(), "directory"));
    CHECK(refused("").field() == "\"\"");
    CHECK(refused("/dev/zero").field() == "/dev/zero");
}
