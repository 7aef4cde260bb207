#include "compiler/embedded.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace attnsmith::compiler {
namespace {

const EmbeddedFile& find_file(std::string_view name) {
    for (const EmbeddedFile& file : embedded_files()) {
        if (file.name == name) return file;
    }
    throw Error(fmt::format("kernel_templates has no file {}", name));
}

// Names in lines of the form: #include "name". Host-only includes in angle brackets are not ours to give.
std::vector<std::string_view> included_names(std::string_view text) {
    constexpr std::string_view kDirective = "#include \"";
    std::vector<std::string_view> names;
    for (std::size_t at = text.find(kDirective); at != std::string_view::npos;
         at = text.find(kDirective, at + 1)) {
        const std::size_t begin = at + kDirective.size();
        names.push_back(text.substr(begin, text.find('"', begin) - begin));
    }
    return names;
}

void collect(std::string_view text, std::vector<Header>& headers) {
    for (std::string_view name : included_names(text)) {
        const bool known =
            std::any_of(headers.begin(), headers.end(), [&](const Header& h) { return h.name == name; });
        if (known) continue;
        const EmbeddedFile& file = find_file(name);
        headers.push_back({file.name, file.text});
        collect(file.text, headers);
    }
}

}  // namespace

std::vector<Header> reachable_headers(std::string_view source) {
    std::vector<Header> headers;
    collect(source, headers);
    return headers;
}

}  // namespace attnsmith::compiler
