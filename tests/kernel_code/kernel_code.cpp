// Writes what the machine code of every kernel is, for compare.py: a line of JSON for each.
//
//     attnsmith-kernel-code [--sm 80,90] [--only REGEX] [--keep FOLDER] > FILE
//
// --only takes those with a match in their name; --keep writes their sources and cubins to a folder, for
// nvdisasm. The first line says which NVRTC compiled them. A kernel that does not compile has "error" instead
// of "code".
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cache/digest/sha256.hpp"
#include "compiler/cubin_info.hpp"
#include "cubins/translation_unit.hpp"
#include "families/traits.hpp"
#include "kernel_code/code_sections.hpp"
#include "kernel_code/every_kernel.hpp"
#include "support/nvrtc.hpp"

namespace {

using namespace attnsmith;
using Json = nlohmann::ordered_json;

std::vector<int> known_sms() {
    std::vector<int> sms;
    for (const families::DeviceTraits& device : families::known_devices()) sms.push_back(device.sm);
    std::ranges::sort(sms);
    const auto twice = std::ranges::unique(sms);
    sms.erase(twice.begin(), twice.end());
    return sms;
}

// Empty where the text is no list of known SMs.
std::vector<int> read_sms(std::string_view text) {
    const std::vector<int> known = known_sms();
    std::vector<int> sms;
    while (true) {
        const std::string_view part = text.substr(0, text.find(','));
        int sm = 0;
        const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), sm);
        const bool whole = error == std::errc() && end == part.data() + part.size();
        if (!whole || std::ranges::find(known, sm) == known.end()) return {};
        sms.push_back(sm);
        if (part.size() == text.size()) return sms;
        text.remove_prefix(part.size() + 1);
    }
}

void write_file(const std::filesystem::path& path, const void* data, std::size_t size) {
    std::ofstream file(path, std::ios::binary);
    file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
    if (!file.flush()) throw std::runtime_error(path.string() + " cannot be written");
}

// `folder`: to keep what was compiled in; empty: nowhere.
Json describe(const compiler::Nvrtc& nvrtc, const families::KernelConfig& kernel,
              const std::filesystem::path& folder) {
    Json line = {{"kernel", kernel.name()}, {"target", kernel.target}};
    try {
        const compiler::Program program = engine::translation_unit(kernel).program;
        const compiler::Compiled compiled = nvrtc.compile(program);
        if (!folder.empty()) {
            const std::filesystem::path file = folder / fmt::format("{}, {}", kernel.name(), kernel.target);
            write_file(file.string() + ".cu", program.source.data(), program.source.size());
            write_file(file.string() + ".cubin", compiled.cubin.data(), compiled.cubin.size());
        }
        if (!compiler::CubinInfo::parse(compiled.cubin)) throw std::runtime_error("the cubin is not sound");
        const std::vector<std::byte> code = test::code_of(compiled.cubin);
        line["code"] = cache::sha256_of(code).hex();
        line["bytes"] = code.size();
        for (const compiler::EntryResources& entry : compiler::parse_ptxas_log(compiled.log)) {
            line["registers"] = entry.registers_per_thread;
            line["spilled_bytes"] = entry.spill_store_bytes + entry.spill_load_bytes;
        }
    } catch (const std::exception& error) {
        line["error"] = error.what();
    }
    return line;
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<int> sms = known_sms();
    std::regex only("");
    std::filesystem::path folder;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 < argc && std::strcmp(argv[i], "--sm") == 0)
            sms = read_sms(argv[i + 1]);
        else if (i + 1 < argc && std::strcmp(argv[i], "--only") == 0)
            only = argv[i + 1];
        else if (i + 1 < argc && std::strcmp(argv[i], "--keep") == 0)
            folder = argv[i + 1];
        else
            sms.clear(), i = argc;
    }
    if (sms.empty()) {
        std::fputs(
            fmt::format("usage: attnsmith-kernel-code [--sm LIST] [--only REGEX] [--keep FOLDER], of {}\n",
                        fmt::join(known_sms(), ", "))
                .c_str(),
            stderr);
        return 2;
    }
    std::vector<families::KernelConfig> kernels;
    for (const int sm : sms) {
        for (const families::KernelConfig& kernel : test::every_kernel(sm)) {
            if (std::regex_search(kernel.name(), only)) kernels.push_back(kernel);
        }
    }
    const auto nvrtc = compiler::Nvrtc::open(test::nvrtc_options());
    std::puts(Json{{"nvrtc", nvrtc->toolchain()}, {"kernels", kernels.size()}}.dump().c_str());
    std::atomic<std::size_t> next = 0;
    std::mutex mutex;
    const auto work = [&] {
        for (std::size_t i; (i = next++) < kernels.size();) {
            const std::string line = describe(*nvrtc, kernels[i], folder).dump();
            const std::lock_guard lock(mutex);
            std::puts(line.c_str());
            std::fflush(stdout);
        }
    };
    std::vector<std::jthread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
        threads.emplace_back(work);
    threads.clear();
    return std::ferror(stdout) == 0 ? 0 : 1;
}
