#include "driver/library.hpp"

#include <elf.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "driver/device.hpp"
#include "driver/memory.hpp"
#include "driver/table.hpp"

namespace attnsmith::driver {
namespace {

// Codes that are about the image, not about the state of the driver or the device.
constexpr std::array kRefusals = {
    CUDA_ERROR_INVALID_IMAGE,
    CUDA_ERROR_NO_BINARY_FOR_GPU,
    CUDA_ERROR_INVALID_PTX,
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    CUDA_ERROR_JIT_COMPILATION_DISABLED,
    CUDA_ERROR_INVALID_SOURCE,
    CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND,
    CUDA_ERROR_SHARED_OBJECT_INIT_FAILED,
    CUDA_ERROR_NOT_FOUND,
};

void check_load(const Api& api, CUresult result, const char* call) {
    if (result == CUDA_SUCCESS) return;
    if (std::find(kRefusals.begin(), kRefusals.end(), result) != kRefusals.end())
        throw LoadRefused(call, result, api.meaning(result));
    api.fail(result, call);
}

// Whether all parts that the ELF headers name lie within the file. cuLibraryLoadData is told no length: it
// would read on behind a file that was cut off.
bool is_whole_elf(std::span<const std::byte> file) {
    Elf64_Ehdr header;
    if (file.size() < sizeof header) return false;
    std::memcpy(&header, file.data(), sizeof header);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64)
        return false;
    const auto within = [&](std::uint64_t offset, std::uint64_t bytes) {
        return offset <= file.size() && bytes <= file.size() - offset;
    };
    if (header.e_shnum != 0 && header.e_shentsize != sizeof(Elf64_Shdr)) return false;
    if (!within(header.e_phoff, std::uint64_t{header.e_phnum} * header.e_phentsize)) return false;
    if (!within(header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr))) return false;
    for (std::size_t i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr section;
        std::memcpy(&section, file.data() + header.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_type != SHT_NOBITS && !within(section.sh_offset, section.sh_size)) return false;
    }
    return true;
}

int kernel_attribute(const Api& api, CUfunction_attribute which, CUkernel kernel, CUdevice device) {
    int value = 0;
    check_load(api, api.table().kernel_attribute(&value, which, kernel, device), "cuKernelGetAttribute");
    return value;
}

}  // namespace

std::shared_ptr<const Library> Library::load(std::shared_ptr<const Api> api,
                                             std::span<const std::byte> cubin) {
    if (!is_whole_elf(cubin))
        throw LoadRefused("cuLibraryLoadData", CUDA_ERROR_INVALID_IMAGE,
                          "the image is not a whole ELF file; it was not given to the driver");
    const BesideCaptures relaxed(*api);
    CUlibrary handle = nullptr;
    check_load(*api,
               api->table().library_load(&handle, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
               "cuLibraryLoadData");
    return std::shared_ptr<const Library>(new Library(std::move(api), handle));
}

Library::Library(std::shared_ptr<const Api> api, LibraryHandle handle)
    : api_(std::move(api)), handle_(handle) {}

// At process exit the driver may have gone first; it says CUDA_ERROR_DEINITIALIZED then, which is as good.
Library::~Library() {
    const BesideCaptures relaxed(*api_);
    api_->table().library_unload(handle_);
}

void Library::read_global(const std::string& name, std::span<std::byte> into, int ordinal) const {
    const ContextScope scope(*api_, ordinal);
    const BesideCaptures relaxed(*api_);
    CUdeviceptr address = 0;
    std::size_t bytes = 0;
    api_->check(api_->table().library_global(&address, &bytes, handle_, name.c_str()), "cuLibraryGetGlobal");
    if (bytes != into.size())
        throw DriverError(
            "cuLibraryGetGlobal", CUDA_ERROR_INVALID_VALUE,
            name + " has " + std::to_string(bytes) + " bytes, not " + std::to_string(into.size()));
    copy_and_wait(*api_, into.data(), reinterpret_cast<const void*>(address), bytes);
}

std::uint32_t Library::read_global_u32(const std::string& name, int ordinal) const {
    std::uint32_t value = 0;
    read_global(name, std::as_writable_bytes(std::span(&value, 1)), ordinal);
    return value;
}

KernelFunction::KernelFunction(std::shared_ptr<const Library> library, const std::string& entry, int ordinal,
                               std::size_t dynamic_shared_bytes)
    : library_(std::move(library)), entry_(entry), ordinal_(ordinal) {
    const Table& table = api().table();
    const CUdevice device = api().device_handle(ordinal);
    const BesideCaptures relaxed(api());
    check_load(api(), table.library_kernel(&kernel_, library_->handle(), entry_.c_str()),
               "cuLibraryGetKernel");
    materialise();
    // Only ever raised: another KernelFunction of the same entry may count on what it set.
    constexpr auto kLimit = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    const auto wanted = static_cast<int>(dynamic_shared_bytes);
    if (kernel_attribute(api(), kLimit, kernel_, device) < wanted)
        api().check(table.kernel_set_attribute(kLimit, wanted, kernel_, device), "cuKernelSetAttribute");
}

FunctionHandle KernelFunction::materialise() const {
    const ContextScope scope(api(), ordinal_);
    const BesideCaptures relaxed(api());
    CUfunction function = nullptr;
    check_load(api(), api().table().kernel_function(&function, kernel_), "cuKernelGetFunction");
    return function;
}

KernelAttributes KernelFunction::attributes() const {
    const CUdevice device = api().device_handle(ordinal_);
    const auto get = [&](CUfunction_attribute which) {
        return kernel_attribute(api(), which, kernel_, device);
    };
    KernelAttributes attributes;
    attributes.registers_per_thread = get(CU_FUNC_ATTRIBUTE_NUM_REGS);
    attributes.local_bytes_per_thread = get(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
    attributes.static_shared_bytes = get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    attributes.dynamic_shared_bytes = get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    attributes.max_threads_per_block = get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    return attributes;
}

int KernelFunction::ctas_per_sm(int threads, std::size_t dynamic_shared_bytes) const {
    const ContextScope scope(api(), ordinal_);
    int ctas = 0;
    api().check(api().table().occupancy(&ctas, materialise(), threads, dynamic_shared_bytes),
                "cuOccupancyMaxActiveBlocksPerMultiprocessor");
    return ctas;
}

}  // namespace attnsmith::driver
