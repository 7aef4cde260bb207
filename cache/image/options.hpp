// What an image is made with, beside its entries.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cache/entries/reports.hpp"

namespace attnsmith::cache {

struct ImageOptions {
    std::string directory = {};     // of the image layout
    std::string tag = "latest";     // org.opencontainers.image.ref.name
    std::string architecture = {};  // of the programs that use the entries, in Go's words: "amd64"
    std::vector<std::string> environment = {};  // "NAME=value", for containers made from the image itself
    // Labels beside the store's own, which say how many entries there are, of which toolchains, and their
    // size. Asked once, for the entries that are in the image; their metadata is what was judged.
    std::function<std::map<std::string, std::string>(std::span<const ListedEntry>)> describe = {};
};

}  // namespace attnsmith::cache
