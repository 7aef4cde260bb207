// What an installation holds beside the program, written by the program itself when it is built, from the
// same definitions as its help: completion for shells, and man pages.
#include <fmt/format.h>

#include <filesystem>

#include "cli/commands.hpp"
#include "cli/program/completion.hpp"
#include "cli/program/files.hpp"
#include "cli/program/man_page.hpp"

namespace attnsmith::cli {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& file, const std::string& text) {
    std::error_code error;
    fs::create_directories(file.parent_path(), error);
    if (error)
        throw Error(fmt::format("{}: cannot be made: {}", file.parent_path().string(), error.message()));
    write_text(file.string(), text);
}

void write_man_pages(const Command& command, const fs::path& folder) {
    write(folder / (man_page_name(command) + ".1"), man_page(command));
    for (const Command* one : command.commands()) write_man_pages(*one, folder);
}

}  // namespace

void add_documents(Command& root) {
    Command& documents =
        root.add_hidden_command("__documents", "Write what belongs into the folder share of an installation");
    documents.add_argument("DIR", "the folder, made where it is missing");
    documents.on_run([&root](const Command& command) {
        const fs::path share = command.argument();
        write(share / "bash-completion/completions/attnsmith", completion_text(root, Shell::bash));
        write(share / "zsh/site-functions/_attnsmith", completion_text(root, Shell::zsh));
        write(share / "fish/vendor_completions.d/attnsmith.fish", completion_text(root, Shell::fish));
        write_man_pages(root, share / "man/man1");
        return static_cast<int>(kSuccess);
    });
}

}  // namespace attnsmith::cli
