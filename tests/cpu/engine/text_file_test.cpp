// Files that are read whole, however many reads that takes.
#include "engine/text_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "cache/fixture.hpp"
#include "support/catch.hpp"

using namespace attnsmith;

TEST_CASE("a text that comes in pieces is read to its end", "[engine]") {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    std::thread writer([&] {
        for (const std::string piece : {"one ", "two ", "three"}) {
            CHECK(::write(ends[1], piece.data(), piece.size()) == static_cast<ssize_t>(piece.size()));
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        ::close(ends[1]);
    });
    std::string text;
    const std::error_code error = engine::read_text(ends[0], text);
    writer.join();
    ::close(ends[0]);
    CHECK_FALSE(error);
    CHECK(text == "one two three");
}

TEST_CASE("a file that cannot be read says why", "[engine]") {
    std::string text;
    CHECK(engine::read_text(std::string("/nowhere/request.json"), text) ==
          std::errc::no_such_file_or_directory);
    CHECK(engine::read_text(std::string("/tmp"), text) == std::errc::is_a_directory);
    CHECK_FALSE(engine::read_text(std::string("/dev/null"), text));
    CHECK(text.empty());
}

TEST_CASE("a FIFO is read once somebody writes to it", "[engine]") {
    const cache::testing::TemporaryDirectory temporary;
    const std::string fifo = temporary / "fifo";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    for (const std::string& sent : {std::string("one two"), std::string()}) {
        CAPTURE(sent);
        std::thread writer([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the reader is first
            const int file = ::open(fifo.c_str(), O_WRONLY);
            for (const char& byte : sent) {
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                CHECK(::write(file, &byte, 1) == 1);
            }
            ::close(file);
        });
        std::string text;
        const std::error_code error = engine::read_text(fifo, text);
        writer.join();
        CHECK(error.message() == std::error_code().message());
        CHECK(text == sent);
    }
}

TEST_CASE("a FIFO that nobody writes to is an error", "[engine]") {
    const cache::testing::TemporaryDirectory temporary;
    const std::string fifo = temporary / "fifo";
    REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
    cache::testing::ChildProcess child([&] {
        ::alarm(60);
        std::string text;
        const std::error_code error = engine::read_text(fifo, text);
        return error.message().find("a FIFO that nobody opened for writing") != std::string::npos ? 0 : 1;
    });
    CHECK(child.wait() == 0);
}
