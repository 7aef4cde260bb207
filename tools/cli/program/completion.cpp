#include "cli/program/completion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "problem/compute_capability.hpp"

namespace attnsmith::cli {
namespace {

// What may follow a flag.
struct Values {
    enum class Kind { none, anything, file, directory, words };
    Kind kind = Kind::none;
    std::vector<std::string> words{};
    bool list = false;  // several, divided by commas
};

std::vector<std::string> split(std::string_view text, char divider) {
    std::vector<std::string> parts;
    while (true) {
        const std::size_t end = text.find(divider);
        parts.emplace_back(text.substr(0, end));
        if (end == text.npos) return parts;
        text.remove_prefix(end + 1);
    }
}

std::vector<std::string> sm_words() {
    std::vector<std::string> words = {"all", "native"};
    for (const int sm : problem::known_sms()) words.push_back(std::to_string(sm));
    return words;
}

// By the kind that the help shows: "FILE", "full|causal", "SM[,SM...]".
Values values_of(const Flag& flag) {
    const std::string kind = flag.kind.substr(0, flag.kind.find('['));
    const bool list = kind.size() < flag.kind.size();
    if (kind.empty()) return {};
    if (kind == "FILE") return {Values::Kind::file, {}, list};
    if (kind == "DIR") return {Values::Kind::directory, {}, list};
    if (kind == "SM") return {Values::Kind::words, sm_words(), list};
    if (kind.find('|') != kind.npos) return {Values::Kind::words, split(kind, '|'), list};
    return {Values::Kind::anything, {}, list};
}

Values values_of(const std::optional<Flag>& argument) {
    if (!argument) return {};
    return argument->name == "FILE" ? Values{Values::Kind::file} : Values{};
}

std::vector<const Command*> all_commands(const Command& command) {
    std::vector<const Command*> all = {&command};
    for (const Command* child : command.commands()) {
        for (const Command* one : all_commands(*child)) all.push_back(one);
    }
    return all;
}

// Where a command line may stand, and what may follow there.
struct Place {
    std::string path;  // "attnsmith cache"
    std::vector<const Command*> commands;
    std::vector<Flag> flags;
    bool files = false;
};

// Each command; and, as the arguments of `help`, each again.
std::vector<Place> all_places(const Command& root) {
    std::vector<Place> places;
    for (const Command* command : all_commands(root)) {
        const auto& argument = command->argument_definition();
        const bool of_help = argument && argument->name == kCommandArgument;
        places.push_back({command->path(), of_help ? root.commands() : command->commands(), command->flags(),
                          values_of(argument).kind == Values::Kind::file});
        if (!of_help) continue;
        for (const Command* one : all_commands(root)) {
            if (one == &root) continue;
            places.push_back({command->path() + one->path().substr(root.path().size()), one->commands(), {}});
        }
    }
    return places;
}

// In single quotes, as shells and their completion take any text.
std::string quoted(std::string_view text, std::string_view quote_within) {
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? std::string(quote_within) : std::string(1, c);
    return result + "'";
}

std::string posix_quoted(std::string_view text) { return quoted(text, R"('\'')"); }

std::string fish_quoted(std::string_view text) {
    std::string escaped;
    for (const char c : text) escaped += c == '\\' ? std::string("\\\\") : std::string(1, c);
    return quoted(escaped, "\\'");
}

// "'attnsmith plan' | 'attnsmith cache' | ...": every place but the program itself.
std::string paths_pattern(const Command& root, std::string_view divider) {
    std::vector<std::string> paths;
    for (const Place& place : all_places(root)) {
        if (place.path != root.path()) paths.push_back(posix_quoted(place.path));
    }
    return fmt::format("{}", fmt::join(paths, divider));
}

std::vector<std::string> spellings(const Flag& flag) {
    std::vector<std::string> all = {"--" + flag.name};
    if (!flag.short_name.empty()) all.push_back("-" + flag.short_name);
    return all;
}

// A branch for each flag with a value of its own: "'attnsmith plan --mask') ACTION ;;".
template <typename Action>
std::string value_branches(const Command& root, Action action) {
    std::string text;
    for (const Command* command : all_commands(root)) {
        for (const Flag& flag : command->flags()) {
            const Values values = values_of(flag);
            if (values.kind == Values::Kind::none || flag.value_optional) continue;
            std::vector<std::string> patterns;
            for (const std::string& spelling : spellings(flag))
                patterns.push_back(posix_quoted(command->path() + " " + spelling));
            text += fmt::format("        {}) {}; return ;;\n", fmt::join(patterns, " | "), action(values));
        }
    }
    return text;
}

std::string bash_action(const Values& values) {
    switch (values.kind) {
        case Values::Kind::file:
            return "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- \"$current\")";
        case Values::Kind::directory:
            return "compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- \"$current\")";
        case Values::Kind::words:
            return fmt::format("_attnsmith_words {}",
                               posix_quoted(fmt::format("{}", fmt::join(values.words, " "))));
        default:
            return "COMPREPLY=()";
    }
}

std::vector<std::string> words_at(const Place& place) {
    std::vector<std::string> words;
    for (const Command* child : place.commands) words.push_back(child->name());
    for (const Flag& flag : place.flags) {
        for (std::string& spelling : spellings(flag)) words.push_back(std::move(spelling));
    }
    return words;
}

std::string bash_script(const Command& root) {
    std::string words;
    for (const Place& place : all_places(root)) {
        words += fmt::format("        {}) words={}{} ;;\n", posix_quoted(place.path),
                             posix_quoted(fmt::format("{}", fmt::join(words_at(place), " "))),
                             place.files ? " files=yes" : "");
    }
    return fmt::format(R"bash(# Completion of attnsmith in bash; written by the program itself.

# Completes the last of a list that is divided by commas, with words that are not in it yet.
_attnsmith_words() {{
    local before= word left=
    [[ $current == *,* ]] && before=${{current%,*}},
    for word in $1; do
        [[ ,$before == *",$word,"* ]] || left+=" $word"
    done
    mapfile -t COMPREPLY < <(compgen -P "$before" -W "$left" -- "${{current##*,}}")
}}

_attnsmith() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} at=attnsmith words='' files='' i
    # bash divides --flag=value at the sign.
    if [[ $current == '=' ]]; then
        current=
    elif [[ $previous == '=' ]]; then
        previous=${{COMP_WORDS[COMP_CWORD - 2]}}
    fi
    for ((i = 1; i < COMP_CWORD; ++i)); do
        case "$at ${{COMP_WORDS[i]}}" in
        {}) at+=" ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$at $previous" in
{}    esac
    case $at in
{}    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    if [[ $files == yes && ${{#COMPREPLY[@]}} -eq 0 ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}}
complete -F _attnsmith attnsmith
)bash",
                       paths_pattern(root, " | "), value_branches(root, bash_action), words);
}

std::string zsh_action(const Values& values) {
    switch (values.kind) {
        case Values::Kind::file:
            return "_files";
        case Values::Kind::directory:
            return "_files -/";
        case Values::Kind::words:
            return fmt::format("{} {}", values.list ? "_values -s , value" : "compadd --",
                               fmt::join(values.words, " "));
        default:
            return "_message value";
    }
}

// "name:what it is", for _describe.
std::string zsh_item(std::string_view name, std::string_view text) {
    return posix_quoted(fmt::format("{}:{}", name, text));
}

std::string zsh_script(const Command& root) {
    std::string words;
    for (const Place& place : all_places(root)) {
        std::string commands, flags;
        for (const Command* child : place.commands)
            commands += " " + zsh_item(child->name(), child->summary());
        for (const Flag& flag : place.flags) {
            for (const std::string& spelling : spellings(flag)) flags += " " + zsh_item(spelling, flag.help);
        }
        words += fmt::format("        {}) commands=({}) flags=({}){} ;;\n", posix_quoted(place.path),
                             commands, flags, place.files ? " files=yes" : "");
    }
    return fmt::format(R"zsh(#compdef attnsmith
# Completion of attnsmith in zsh; written by the program itself.
_attnsmith() {{
    local at=attnsmith files= word
    local -a commands flags
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$at $word" in
        {}) at+=" $word" ;;
        esac
    done
    case "$at ${{words[CURRENT-1]}}" in
{}    esac
    case $at in
{}    esac
    (( ${{#commands}} )) && _describe -t commands command commands
    [[ -n $files && ${{words[CURRENT]}} != -* ]] && _files
    _describe -o -t options option flags
}}
_attnsmith "$@"
)zsh",
                       paths_pattern(root, " | "), value_branches(root, zsh_action), words);
}

std::string fish_values(const Flag& flag) {
    const Values values = values_of(flag);
    switch (values.kind) {
        case Values::Kind::none:
            return "";
        case Values::Kind::file:
            return " -r -F";
        case Values::Kind::directory:
            return " -x -a '(__fish_complete_directories)'";
        case Values::Kind::words: {
            const std::string words = fmt::format("{}", fmt::join(values.words, " "));
            return fmt::format("{} -a {}", flag.value_optional ? "" : " -x",
                               fish_quoted(values.list ? "(__attnsmith_list " + words + ")" : words));
        }
        case Values::Kind::anything:
            break;
    }
    return " -x";
}

std::string fish_script(const Command& root) {
    std::string lines;
    for (const Place& place : all_places(root)) {
        const std::string begin = fmt::format("complete -c attnsmith -n \"__attnsmith_at '{}'\"", place.path);
        for (const Command* child : place.commands)
            lines += fmt::format("{} -a {} -d {}\n", begin, child->name(), fish_quoted(child->summary()));
        for (const Flag& flag : place.flags) {
            const std::string letter = flag.short_name.empty() ? "" : " -s " + flag.short_name;
            lines += fmt::format("{} -l {}{}{} -d {}\n", begin, flag.name, letter, fish_values(flag),
                                 fish_quoted(flag.help));
        }
        if (place.files) lines += begin + " -F\n";
    }
    return fmt::format(R"fish(# Completion of attnsmith in fish; written by the program itself.
function __attnsmith_at --description 'Whether the command line is within this command'
    set -l at attnsmith
    set -l words (commandline -opc)
    for word in $words[2..-1]
        switch "$at $word"
            case {}
                set at "$at $word"
        end
    end
    test "$at" = "$argv[1]"
end

function __attnsmith_list --description 'The last of a list that is divided by commas, of words that are not in it'
    set -l given (string split , -- (commandline -ct | string replace -r -- '^--[^=]*=' ''))
    set -e given[-1]
    for word in $argv
        contains -- $word $given; or string join , -- $given $word
    end
end

complete -c attnsmith -f
{})fish",
                       paths_pattern(root, " "), lines);
}

}  // namespace

std::string completion_text(const Command& root, Shell shell) {
    switch (shell) {
        case Shell::bash:
            return bash_script(root);
        case Shell::zsh:
            return zsh_script(root);
        case Shell::fish:
            break;
    }
    return fish_script(root);
}

}  // namespace attnsmith::cli
