// Where text goes: standard output for results, standard error for progress and errors.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/program/terminal.hpp"

namespace attnsmith::cli {

// Makes sure that descriptors 0, 1 and 2 are open, so that no file of ours becomes the program's output, and
// that a reader who leaves early, or a file that may not grow (`ulimit -f`), is an error of a write, not a
// signal.
void prepare_standard_streams();

// Writes to standard output. Trouble is remembered: the work goes on, and finish_output() tells.
void print(std::string_view text);
void print_json(const nlohmann::ordered_json& json);
void print_json(const std::string& json);  // of text that is JSON already

// Why standard output did not take everything; empty where it did, and where its reader left of its own
// accord.
std::string finish_output();

// Whether anything was given to print() yet.
bool has_printed();

// One line on standard error: "attnsmith: error: ...".
void print_error(std::string_view message);
// One line on standard error, of what is no error: "attnsmith: warning: ...".
void print_warning(std::string_view message);
// Any text on standard error; nothing under --quiet.
void print_note(std::string_view text);

// How much is said: errors and results alone under --quiet, every reason under --verbose. JSON has all in any
// case.
enum class Verbosity { quiet, usual, verbose };
Verbosity verbosity();
void set_verbosity(Verbosity verbosity);

// On one line, and with everything that a terminal would obey or hide written out: for all text that is not
// this program's own, before it is printed.
std::string printable(std::string_view text);

// "1 layer", "2 layers"; `several` where that is not the word with an "s": "entries".
std::string counted(std::uint64_t count, std::string_view one, std::string_view several = {});

// "1.5 MiB"
std::string human_bytes(std::uint64_t bytes);

// Columns of text, as wide as they must be. The first row is the header.
class Table {
  public:
    // '<' or '>' for each column.
    explicit Table(std::string_view alignment) : alignment_(alignment) {}
    // What a cell holds is printable(); its first one is in that style.
    void add(std::vector<std::string> row, Style first = Style::plain);
    bool empty() const { return rows_.size() < 2; }
    std::string text(std::string_view indent = "") const;

  private:
    std::string alignment_;
    std::vector<std::vector<std::string>> rows_;
};

}  // namespace attnsmith::cli
