#include "compiler/nvrtc.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <mutex>
#include <utility>

#include "compiler/inside.hpp"
#include "compiler/nvrtc_library.hpp"

namespace attnsmith::compiler {

struct Nvrtc::Impl {
    NvrtcLibrary library;
    std::vector<int> archs;

    mutable std::mutex toolchain_mutex;
    mutable std::string toolchain;  // empty until it was asked for

    std::string version_text() const {
        return fmt::format("{}.{}", library.found.major, library.found.minor);
    }
    // Options that change no code.
    std::vector<std::string> neutral_options() const;
    void learn_archs();
    std::string read_build() const;
};

namespace {

void check(const NvrtcLibrary& library, nvrtcResult result, const char* call) {
    if (result != NVRTC_SUCCESS)
        throw Error(fmt::format("{} failed: {}", call, library.error_string(result)));
}

// One nvrtcProgram. NVRTC wants NUL-terminated texts, so those of the headers are copied.
class Unit {
  public:
    Unit(const NvrtcLibrary& library, const Program& program) : library_(library) {
        std::vector<std::string> names, texts;
        for (const Header& header : program.headers) {
            names.emplace_back(header.name);
            texts.emplace_back(header.text);
        }
        const auto name_pointers = pointers(names), text_pointers = pointers(texts);
        check(library_,
              library_.create_program(&program_, program.source.c_str(), program.name.c_str(),
                                      static_cast<int>(names.size()), text_pointers.data(),
                                      name_pointers.data()),
              "nvrtcCreateProgram");
    }
    ~Unit() { library_.destroy_program(&program_); }
    Unit(const Unit&) = delete;
    Unit& operator=(const Unit&) = delete;

    nvrtcResult compile(const std::vector<std::string>& options) {
        return library_.compile_program(program_, static_cast<int>(options.size()), pointers(options).data());
    }

    std::string log() const {
        std::string text = output<std::string>(library_.log_size, library_.log, "nvrtcGetProgramLog");
        text.erase(std::find(text.begin(), text.end(), '\0'), text.end());
        return text;
    }
    std::string ptx() const { return output<std::string>(library_.ptx_size, library_.ptx, "nvrtcGetPTX"); }
    std::vector<std::byte> cubin() const {
        return output<std::vector<std::byte>>(library_.cubin_size, library_.cubin, "nvrtcGetCUBIN");
    }

  private:
    static std::vector<const char*> pointers(const std::vector<std::string>& texts) {
        std::vector<const char*> result;
        for (const std::string& text : texts) result.push_back(text.c_str());
        return result;
    }

    template <typename Bytes, typename Size, typename Get>
    Bytes output(Size size_of_output, Get get, const char* call) const {
        std::size_t size = 0;
        check(library_, size_of_output(program_, &size), call);
        Bytes bytes(size, typename Bytes::value_type{});
        if (size > 0) check(library_, get(program_, reinterpret_cast<char*>(bytes.data())), call);
        return bytes;
    }

    const NvrtcLibrary& library_;
    nvrtcProgram program_ = nullptr;
};

// 90 of sm_90a; 0 of anything that is not sm_<number> with at most one letter after it.
int arch_of(std::string_view target) {
    if (!target.starts_with("sm_")) return 0;
    const char* const end = target.data() + target.size();
    int arch = 0;
    const auto [rest, error] = std::from_chars(target.data() + 3, end, arch);
    if (error != std::errc() || end - rest > 1) return 0;
    return rest == end || *rest == 'a' || *rest == 'f' ? arch : 0;
}

// The first NVRTC that compiles for an architecture, where it is newer than the oldest that we open.
const char* first_nvrtc_for(int arch, bool family) {
    if (arch == 88 || arch == 110) return "13.0";
    if (arch == 103 || arch == 121 || family) return "12.9";
    if (arch >= 100 && arch <= 120) return "12.8";
    return nullptr;
}

[[noreturn]] void refuse_target(const Program& program, const NvrtcLibrary& library,
                                const std::vector<int>& archs) {
    const std::string version = fmt::format("NVRTC {}.{}", library.found.major, library.found.minor);
    const char* first = first_nvrtc_for(arch_of(program.target), program.target.ends_with('f'));
    const std::string remedy =
        first != nullptr
            ? fmt::format("install NVRTC {} or newer (pip install --upgrade nvidia-cuda-nvrtc)", first)
            : "choose another NVRTC with ATTNSMITH_NVRTC_PATH, or another target";
    const std::string reason =
        fmt::format("{} at {} compiles for {} only", version, library.path, fmt::join(archs, ", "));
    throw Unsupported(fmt::format("{} does not know {}; {}", version, program.target, remedy),
                      {{program.target, reason}});
}

// The first line of the log that is an error; the last resort is the log's first line.
std::string first_error(std::string_view log) {
    std::string_view first, error;
    while (!log.empty() && error.empty()) {
        const std::size_t end = std::min(log.find('\n'), log.size());
        const std::string_view line = log.substr(0, end);
        log.remove_prefix(std::min(end + 1, log.size()));
        if (first.empty()) first = line;
        const bool is_error = line.find("error") != line.npos || line.find("fatal") != line.npos;
        if (is_error && line.find("warning") == line.npos) error = line;
    }
    return std::string(error.empty() ? first : error);
}

void refuse_broken_library(nvrtcResult result, std::string_view log, const NvrtcLibrary& library) {
    if (result != NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) return;
    throw LibraryMissing("NVRTC's builtins (libnvrtc-builtins.so, beside " + library.path + ")",
                         {first_error(log)},
                         "copy or install it into the same folder, or install NVRTC anew");
}

}  // namespace

void Nvrtc::Impl::learn_archs() {
    int count = 0;
    check(library, library.arch_count(&count), "nvrtcGetNumSupportedArchs");
    archs.resize(static_cast<std::size_t>(std::max(count, 0)));
    check(library, library.archs(archs.data()), "nvrtcGetSupportedArchs");
    std::sort(archs.begin(), archs.end());
}

std::vector<std::string> Nvrtc::Impl::neutral_options() const {
    // NVRTC would raise the stack limit of the whole process otherwise.
    std::vector<std::string> options = {"--modify-stack-limit=false"};
    // Where a driver is installed NVRTC opens it for a disk cache of its own; ours is enough. 12.8 refuses
    // the option.
    if (NvrtcVersion{library.found.major, library.found.minor} >= NvrtcVersion{12, 9})
        options.emplace_back("--no-cache");
    return options;
}

// The API tells major and minor only; the build is known to the preprocessor.
std::string Nvrtc::Impl::read_build() const {
    Program program;
    program.name = "toolchain.cu";
    program.source = "extern \"C\" __device__ int attnsmith_build = __CUDACC_VER_BUILD__;\n";
    Unit unit(library, program);
    const nvrtcResult result = unit.compile(neutral_options());
    refuse_broken_library(result, unit.log(), library);
    check(library, result, "nvrtcCompileProgram");
    const std::string ptx = unit.ptx();
    constexpr std::string_view kMark = "attnsmith_build = ";
    const std::size_t at = ptx.find(kMark);
    const std::size_t digits = at == ptx.npos ? ptx.npos : at + kMark.size();
    int build = 0;
    if (digits == ptx.npos ||
        std::from_chars(ptx.data() + digits, ptx.data() + ptx.size(), build).ec != std::errc())
        throw Error("NVRTC at " + library.path + " did not tell its build number");
    return fmt::format("{}.{}", version_text(), build);
}

std::shared_ptr<const Nvrtc> Nvrtc::open(const NvrtcOptions& options) {
    const InsideNvrtc inside;
    auto impl = std::make_unique<Impl>();
    impl->library = open_nvrtc_library(options);
    impl->learn_archs();
    return std::shared_ptr<const Nvrtc>(new Nvrtc(std::move(impl)));
}

Nvrtc::Nvrtc(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Nvrtc::~Nvrtc() = default;

const std::string& Nvrtc::path() const noexcept { return impl_->library.path; }
NvrtcVersion Nvrtc::version() const noexcept { return impl_->library.found; }
const std::vector<int>& Nvrtc::supported_archs() const noexcept { return impl_->archs; }

const std::string& Nvrtc::toolchain() const {
    const InsideNvrtc inside;
    const std::lock_guard lock(impl_->toolchain_mutex);
    if (impl_->toolchain.empty()) impl_->toolchain = impl_->read_build();
    return impl_->toolchain;
}

std::vector<std::string> Nvrtc::compile_options(const Program& program) const {
    std::vector<std::string> options = {"--gpu-architecture=" + program.target};
    options.insert(options.end(), program.options.begin(), program.options.end());
    const std::vector<std::string> neutral = impl_->neutral_options();
    options.insert(options.end(), neutral.begin(), neutral.end());
    return options;
}

Compiled Nvrtc::compile(const Program& program) const {
    const InsideNvrtc inside;
    const NvrtcLibrary& library = impl_->library;
    if (!std::binary_search(impl_->archs.begin(), impl_->archs.end(), arch_of(program.target)))
        refuse_target(program, library, impl_->archs);

    const std::vector<std::string> options = compile_options(program);
    const auto start = std::chrono::steady_clock::now();
    Unit unit(library, program);
    const nvrtcResult result = unit.compile(options);
    Compiled compiled;
    compiled.log = unit.log();
    if (result == NVRTC_SUCCESS) {
        compiled.cubin = unit.cubin();
        const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
        compiled.milliseconds = elapsed.count();
        return compiled;
    }

    // The architecture is known, but not this variant of it: 12.8 has sm_100a and no sm_100f.
    if (compiled.log.find("--gpu-architecture") != std::string::npos ||
        compiled.log.find("--nv_arch") != std::string::npos)
        refuse_target(program, library, impl_->archs);
    refuse_broken_library(result, compiled.log, library);
    if (result == NVRTC_ERROR_OUT_OF_MEMORY) check(library, result, "nvrtcCompileProgram");  // may pass
    std::string error = first_error(compiled.log);
    if (error.empty()) error = library.error_string(result);
    throw CompileError(fmt::format("NVRTC {} for {}: {}", impl_->version_text(), program.target, error),
                       std::move(compiled.log), options, number_lines(program.source));
}

std::string number_lines(std::string_view source) {
    std::string text;
    for (int line = 1; !source.empty(); ++line) {
        const std::size_t end = std::min(source.find('\n'), source.size());
        fmt::format_to(std::back_inserter(text), "{:4} | {}\n", line, source.substr(0, end));
        source.remove_prefix(std::min(end + 1, source.size()));
    }
    return text;
}

}  // namespace attnsmith::compiler
