// Gives a fuzz target the files of its corpus, one after the other: replay FOLDER.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/fuzz.hpp"

int main(int count, char** arguments) {
    int files = 0;
    for (int i = 1; i < count; ++i) {
        for (const auto& found : std::filesystem::recursive_directory_iterator(arguments[i])) {
            if (!found.is_regular_file()) continue;
            std::ifstream file(found.path(), std::ios::binary);
            const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
            std::printf("%s\n", found.path().c_str());
            std::fflush(stdout);  // the last one named is the one that ends us
            LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
            // As well as every shorter text of it.
            for (std::size_t size = 0; size < bytes.size() && bytes.size() < 4096; ++size) {
                LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), size);
            }
            ++files;
        }
    }
    return files > 0 ? 0 : 1;
}
