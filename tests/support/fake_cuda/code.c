/* Libraries, kernels and launches. */
#include <elf.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { MACHINE_CUDA = 190, ABI_BEFORE_CUDA_13 = 0x33 };

struct CUlib_st {
    unsigned char* image;
    size_t bytes;
};
struct CUkern_st {
    struct CUlib_st* library;
    char entry[sizeof((struct fake_cuda_launch*)0)->entry];
    size_t parameter_bytes;
    _Atomic int max_dynamic[MAX_DEVICES];
};

static pthread_mutex_t launches_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int number;
    struct fake_cuda_launch launch;
} kept[FAKE_CUDA_KEPT_LAUNCHES];

EXPORT const struct fake_cuda_launch* fake_cuda_get_launch(int number) {
    const int at = number % FAKE_CUDA_KEPT_LAUNCHES;
    const int is_kept = number > 0 && number <= fake_state.launches && kept[at].number == number;
    return is_kept ? &kept[at].launch : NULL;
}

/* Where the file's header tables end: NVRTC puts them behind all else. */
static size_t image_bytes(const void* image) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    const size_t sections = header.e_shoff + (size_t)header.e_shnum * header.e_shentsize;
    const size_t segments = header.e_phoff + (size_t)header.e_phnum * header.e_phentsize;
    const size_t end = sections > segments ? sections : segments;
    return end > sizeof header ? end : sizeof header;
}

/* A cubin runs on the same major architecture with the same or a newer minor one. */
static int runs_on(const void* image, int device) {
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    if (header.e_machine != MACHINE_CUDA) return 1;
    const unsigned flags =
        header.e_ident[EI_OSABI] == ABI_BEFORE_CUDA_13 ? header.e_flags : header.e_flags >> 8;
    const int target = (int)(flags & 0xff), sm = fake_devices[device].sm;
    return target / 10 == sm / 10 && target <= sm;
}

static int runs_somewhere(const void* image) {
    for (int i = 0; i < fake_device_count; ++i)
        if (runs_on(image, i)) return 1;
    return 0;
}

static uint32_t word_at(const unsigned char* bytes) {
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* Of a section of attributes: each has a byte for its format, one for what it is, and two for its value, or
 * for how many bytes of value follow. A parameter's are its index, its ordinal, its offset, and, from bit 18
 * on, its size. */
static size_t first_parameter(const unsigned char* section, size_t bytes) {
    enum { FORMAT_BYTES = 4, PARAMETER = 0x17, PARAMETER_BYTES = 12 };
    for (size_t at = 0; at + 4 <= bytes;) {
        const size_t follow = section[at] == FORMAT_BYTES ? word_at(section + at) >> 16 : 0;
        if (at + 4 + follow > bytes) return 0;
        const unsigned char* const value = section + at + 4;
        if (section[at + 1] == PARAMETER && follow == PARAMETER_BYTES && (word_at(value + 4) & 0xffff) == 0)
            return word_at(value + 8) >> 18;
        at += 4 + follow;
    }
    return 0;
}

/* Bytes of the kernel's first parameter; 0 where the image does not say. */
static size_t parameter_bytes(CUlibrary library, const char* entry) {
    Elf64_Ehdr header;
    char wanted[160];
    memcpy(&header, library->image, sizeof header);
    if (header.e_machine != MACHINE_CUDA || header.e_shnum == 0) return 0;
    snprintf(wanted, sizeof wanted, ".nv.info.%s", entry);
    const Elf64_Shdr* const sections = (const Elf64_Shdr*)(library->image + header.e_shoff);
    const char* const names = (const char*)library->image + sections[header.e_shstrndx].sh_offset;
    for (int i = 0; i < header.e_shnum; ++i) {
        if (strcmp(names + sections[i].sh_name, wanted) == 0)
            return first_parameter(library->image + sections[i].sh_offset, sections[i].sh_size);
    }
    return 0;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* options, void** values,
                                  unsigned count, CUlibraryOption* library_options, void** library_values,
                                  unsigned library_count) {
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values,
        (void)library_count;
    COUNT(library_loads);
    if (fake_current() != NULL && fake_lose_captures(fake_current(), FAKE_BY_ANY_THREAD))
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (memcmp(code, ELFMAG, SELFMAG) != 0) return CUDA_ERROR_INVALID_IMAGE;
    if (fake_refuse != 0) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (fake_state.refuse_next_loads > 0) {
        --fake_state.refuse_next_loads;
        return fake_state.refuse_code != 0 ? (CUresult)fake_state.refuse_code : CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    if (!runs_somewhere(code)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    *library = malloc(sizeof **library);
    (*library)->bytes = image_bytes(code);
    (*library)->image = malloc((*library)->bytes);
    memcpy((*library)->image, code, (*library)->bytes);
    return CUDA_SUCCESS;
}

/* Kernels of the library are leaked: a use after this is caught by nothing better. */
EXPORT CUresult cuLibraryUnload(CUlibrary library) {
    COUNT(library_unloads);
    free(library->image);
    free(library);
    return CUDA_SUCCESS;
}

static int has_name(CUlibrary library, const char* name) {
    const size_t length = strlen(name) + 1;
    for (size_t i = 0; i + length <= library->bytes; ++i)
        if (memcmp(library->image + i, name, length) == 0) return 1;
    return 0;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
    static struct CUkern_st kernels[4096];
    static atomic_int next;
    if (!has_name(library, name)) return CUDA_ERROR_NOT_FOUND;
    COUNT(kernels);
    *kernel = &kernels[atomic_fetch_add(&next, 1) % 4096];
    (*kernel)->library = library;
    snprintf((*kernel)->entry, sizeof(*kernel)->entry, "%s", name);
    (*kernel)->parameter_bytes = parameter_bytes(library, name);
    for (int i = 0; i < MAX_DEVICES; ++i) (*kernel)->max_dynamic[i] = SHARED_DEFAULT;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
    if (fake_current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (!has_name(library, name)) return CUDA_ERROR_NOT_FOUND;
    *address = (CUdeviceptr)&fake_state.global_u32;
    *bytes = sizeof fake_state.global_u32;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    if (fake_current() == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (!runs_on(kernel->library->image, fake_current()->device)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    if (fake_lose_captures(fake_current(), FAKE_BY_ANY_THREAD)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    COUNT(materialised);
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                                     CUdevice device) {
    const struct entry attributes[] = {
        {CU_FUNC_ATTRIBUTE_NUM_REGS, "", 128},
        {CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, "", 0},
        {CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, "", 0},
        {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, "", kernel->max_dynamic[device]},
        {CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, "", 1024},
    };
    const struct entry* const found = FIND(attributes, (int)attribute);
    if (found == NULL) return CUDA_ERROR_INVALID_VALUE;
    *value = found->value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                     CUdevice device) {
    COUNT(attribute_sets);
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > SHARED_OPTIN)
        return CUDA_ERROR_INVALID_VALUE;
    kernel->max_dynamic[device] = value;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                            size_t shared_bytes) {
    (void)function;
    const int by_threads = 2048 / threads;
    const int by_shared = (int)(233472 / (shared_bytes + 1024));
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                                 void** extra) {
    (void)extra;
    const CUkernel kernel = (CUkernel)function;
    const CUcontext context = config->hStream != NULL ? config->hStream->context : fake_current();
    if (context == NULL) return CUDA_ERROR_INVALID_CONTEXT;
    if (fake_state.fail_launch != 0) return (CUresult)fake_state.fail_launch;
    if (config->gridDimX == 0 || config->gridDimY == 0 || config->gridDimZ == 0 || config->blockDimX == 0 ||
        (int)config->sharedMemBytes > kernel->max_dynamic[context->device])
        return CUDA_ERROR_INVALID_VALUE;
    if (!runs_on(kernel->library->image, context->device)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    const size_t known = fake_state.param_bytes > 0 ? fake_state.param_bytes : kernel->parameter_bytes;
    pthread_mutex_lock(&launches_lock);
    const int number = COUNT(launches);
    struct fake_cuda_launch* const launch = &kept[number % FAKE_CUDA_KEPT_LAUNCHES].launch;
    *launch = (struct fake_cuda_launch){
        .grid = {config->gridDimX, config->gridDimY, config->gridDimZ},
        .block = {config->blockDimX, config->blockDimY, config->blockDimZ},
        .shared_bytes = config->sharedMemBytes,
        .function = function,
        .stream = config->hStream,
        .context = context,
        .device = context->device,
        .parameter_bytes = kernel->parameter_bytes,
    };
    memcpy(launch->entry, kernel->entry, sizeof launch->entry);
    if (known > 0)
        memcpy(launch->parameter, parameters[0],
               known < sizeof launch->parameter ? known : sizeof launch->parameter);
    kept[number % FAKE_CUDA_KEPT_LAUNCHES].number = number;
    fake_state.last_launch = *launch;
    pthread_mutex_unlock(&launches_lock);
    return CUDA_SUCCESS;
}
