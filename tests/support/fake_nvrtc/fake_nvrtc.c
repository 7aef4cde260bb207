/* A stand-in for libnvrtc.so: Nvrtc::open() takes it by its path. What it "compiles" is a small ELF file with
 * the entry and the shared bytes that the source names, and nothing to run; the same program gives the same
 * bytes, another program or build others. The shared bytes must be a number in the source, as the merge
 * kernels' are.
 *
 * Environment, read at each compile:
 *   FAKE_NVRTC_LOG      a file that gets a line for each compile, those of other processes among them
 *   FAKE_NVRTC_MS       how long a compile takes
 *   FAKE_NVRTC_BLOCK    a file; a compile does not end as long as it is there
 *   FAKE_NVRTC_FAIL     1: a compile fails, as one of a source with an #error does; "memory": it has none
 *   FAKE_NVRTC_SPILL_STORES, FAKE_NVRTC_SPILL_LOADS  bytes, in what it says of the kernel (0)
 *   FAKE_NVRTC_BUILD    the build number (default 88); "none": it cannot be told
 * and when it is opened:
 *   FAKE_NVRTC_BLOCK_OPEN  a file; opening does not end as long as it is there. With ".reached" behind its
 *                       name there is another one from then on
 *   FAKE_NVRTC_VERSION  major * 1000 + minor * 10, as CUDA writes it (default 13000) */
#include <elf.h>
#include <fcntl.h>
#include <nvrtc.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { MACHINE_CUDA = 190, ABI_CUDA_13 = 0x41, SYMBOL_IS_ENTRY = 0x10, CODE_BYTES = 256, NAME_BYTES = 64 };
enum { NONE, NAMES, SYMBOLS, GLOBALS, CODE, SECTIONS };

static const int archs[] = {80, 86, 87, 89, 90, 100, 103, 110, 120, 121};

struct image {
    Elf64_Ehdr header;
    Elf64_Sym symbols[3];
    char names[2 * NAME_BYTES + 64];
    uint32_t shared_bytes;
    unsigned char code[CODE_BYTES];
    Elf64_Shdr sections[SECTIONS]; /* behind all else, as NVRTC has them */
};

struct _nvrtcProgram {
    char* source;
    uint64_t headers; /* their hash */
    char log[256];
    char ptx[64];
    struct image image;
};

static int from_environment(const char* name, int otherwise) {
    const char* text = getenv(name);
    return text != NULL && *text != '\0' ? atoi(text) : otherwise;
}

static uint64_t hash(uint64_t state, const char* text) { /* FNV-1a */
    for (; *text != '\0'; ++text) state = (state ^ (unsigned char)*text) * 0x100000001b3;
    return state;
}

static void sleep_ms(int milliseconds) {
    const struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static const char* build_number(void) {
    const char* build = getenv("FAKE_NVRTC_BUILD");
    return build == NULL ? "88" : build;
}

static void count(uint64_t program) {
    const char* name = getenv("FAKE_NVRTC_LOG");
    if (name == NULL) return;
    char line[32];
    const int length = snprintf(line, sizeof line, "%016llx\n", (unsigned long long)program);
    const int file = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0 || write(file, line, (size_t)length) != length) abort(); /* a test would count wrong */
    close(file);
}

static void wait_while_there(const char* file) {
    while (file != NULL && access(file, F_OK) == 0) sleep_ms(1);
}

static void take_time(void) {
    sleep_ms(from_environment("FAKE_NVRTC_MS", 0));
    wait_while_there(getenv("FAKE_NVRTC_BLOCK"));
}

static void take_time_to_open(void) {
    const char* const block = getenv("FAKE_NVRTC_BLOCK_OPEN");
    char reached[4096];
    if (block == NULL || snprintf(reached, sizeof reached, "%s.reached", block) >= (int)sizeof reached)
        return;
    const int file = open(reached, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file >= 0) close(file);
    wait_while_there(block);
}

/* The word before "(const __grid_constant__": the kernel. */
static int find_entry(const char* source, char* name) {
    const char* end = strstr(source, "(const __grid_constant__");
    if (end == NULL) return 0;
    const char* begin = end;
    while (begin > source && begin[-1] != '\n' && begin[-1] != ' ') --begin;
    if (end - begin >= NAME_BYTES) return 0;
    memcpy(name, begin, (size_t)(end - begin));
    name[end - begin] = '\0';
    return 1;
}

static uint32_t find_shared_bytes(const char* source) {
    static const char mark[] = "attnsmith_shared_bytes = ";
    const char* at = strstr(source, mark);
    return at == NULL ? 0 : (uint32_t)strtoul(at + sizeof mark - 1, NULL, 10);
}

static Elf64_Word add_name(struct image* image, size_t* used, const char* name) {
    const size_t at = *used, bytes = strlen(name) + 1;
    memcpy(image->names + at, name, bytes);
    *used += bytes;
    return (Elf64_Word)at;
}

static void place(struct image* image, int section, Elf64_Word type, const void* at, size_t bytes) {
    image->sections[section].sh_type = type;
    image->sections[section].sh_offset = (Elf64_Off)((const char*)at - (const char*)image);
    image->sections[section].sh_size = bytes;
}

static void build(struct image* image, const char* entry, uint32_t shared_bytes, int sm, uint64_t program) {
    size_t used = 1;
    memset(image, 0, sizeof *image);
    memcpy(image->header.e_ident, ELFMAG, SELFMAG);
    image->header.e_ident[EI_CLASS] = ELFCLASS64;
    image->header.e_ident[EI_DATA] = ELFDATA2LSB;
    image->header.e_ident[EI_VERSION] = EV_CURRENT;
    image->header.e_ident[EI_OSABI] = ABI_CUDA_13;
    image->header.e_type = ET_EXEC;
    image->header.e_machine = MACHINE_CUDA;
    image->header.e_version = EV_CURRENT;
    image->header.e_flags = (Elf64_Word)sm << 8;
    image->header.e_ehsize = sizeof image->header;
    image->header.e_shoff = offsetof(struct image, sections);
    image->header.e_shentsize = sizeof *image->sections;
    image->header.e_shnum = SECTIONS;
    image->header.e_shstrndx = NAMES;

    place(image, NAMES, SHT_STRTAB, image->names, sizeof image->names);
    place(image, SYMBOLS, SHT_SYMTAB, image->symbols, sizeof image->symbols);
    place(image, GLOBALS, SHT_PROGBITS, &image->shared_bytes, sizeof image->shared_bytes);
    place(image, CODE, SHT_PROGBITS, image->code, sizeof image->code);
    image->sections[SYMBOLS].sh_entsize = sizeof *image->symbols;
    image->sections[SYMBOLS].sh_link = NAMES;
    image->sections[CODE].sh_flags = SHF_EXECINSTR;
    image->sections[NAMES].sh_name = add_name(image, &used, ".strtab");
    image->sections[SYMBOLS].sh_name = add_name(image, &used, ".symtab");
    image->sections[GLOBALS].sh_name = add_name(image, &used, ".nv.global.init");
    image->sections[CODE].sh_name = add_name(image, &used, ".text");

    Elf64_Sym* const kernel = &image->symbols[1];
    kernel->st_name = add_name(image, &used, entry);
    kernel->st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    kernel->st_other = SYMBOL_IS_ENTRY;
    kernel->st_shndx = CODE;
    kernel->st_size = sizeof image->code;
    Elf64_Sym* const variable = &image->symbols[2];
    variable->st_name = add_name(image, &used, "attnsmith_shared_bytes");
    variable->st_info = ELF64_ST_INFO(STB_GLOBAL, STT_OBJECT);
    variable->st_shndx = GLOBALS;
    variable->st_size = sizeof image->shared_bytes;

    image->shared_bytes = shared_bytes;
    for (int i = 0; i < CODE_BYTES; ++i) image->code[i] = (unsigned char)(program >> i % 8 * 8);
}

static nvrtcResult fail(nvrtcProgram program, const char* reason) {
    snprintf(program->log, sizeof program->log, "stand_in.cu(1): error: %s\n", reason);
    return NVRTC_ERROR_COMPILATION;
}

EXPORT const char* nvrtcGetErrorString(nvrtcResult result) {
    return result == NVRTC_SUCCESS ? "NVRTC_SUCCESS" : "an error of the stand-in";
}

EXPORT nvrtcResult nvrtcVersion(int* major, int* minor) {
    take_time_to_open();
    const int version = from_environment("FAKE_NVRTC_VERSION", 13000);
    *major = version / 1000;
    *minor = version % 1000 / 10;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int* number) {
    *number = sizeof archs / sizeof *archs;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcGetSupportedArchs(int* supported) {
    memcpy(supported, archs, sizeof archs);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name,
                                      int headers, const char* const* texts, const char* const* names) {
    (void)name;
    *program = calloc(1, sizeof **program);
    if (*program == NULL || ((*program)->source = strdup(source)) == NULL) return NVRTC_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < headers; ++i)
        (*program)->headers = hash(hash((*program)->headers, names[i]), texts[i]);
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
    free((*program)->source);
    free(*program);
    *program = NULL;
    return NVRTC_SUCCESS;
}

EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count_of_options,
                                       const char* const* options) {
    if (strstr(program->source, "attnsmith_build") != NULL) {
        snprintf(program->ptx, sizeof program->ptx, "attnsmith_build = %s;\n", build_number());
        return NVRTC_SUCCESS;
    }
    uint64_t id = hash(program->headers, program->source);
    int sm = 0;
    for (int i = 0; i < count_of_options; ++i) {
        id = hash(id, options[i]);
        sscanf(options[i], "--gpu-architecture=sm_%d", &sm);
    }
    count(id);
    take_time();
    char entry[NAME_BYTES];
    const char* failure = getenv("FAKE_NVRTC_FAIL");
    if (failure != NULL && strcmp(failure, "memory") == 0) return NVRTC_ERROR_OUT_OF_MEMORY;
    if (from_environment("FAKE_NVRTC_FAIL", 0)) return fail(program, "told to fail");
    if (strstr(program->source, "#error") != NULL) return fail(program, "#error");
    if (!find_entry(program->source, entry)) return fail(program, "no kernel of attnsmith's");
    build(&program->image, entry, find_shared_bytes(program->source), sm, hash(id, build_number()));
    snprintf(program->log, sizeof program->log,
             "ptxas info    : Compiling entry function '%s' for 'sm_%d'\n"
             "    %d bytes stack frame, %d bytes spill stores, %d bytes spill loads\n"
             "ptxas info    : Used 32 registers\n",
             entry, sm, from_environment("FAKE_NVRTC_SPILL_STORES", 0),
             from_environment("FAKE_NVRTC_SPILL_STORES", 0), from_environment("FAKE_NVRTC_SPILL_LOADS", 0));
    return NVRTC_SUCCESS;
}

/* The sizes of texts count their NUL. */
#define OUTPUT(name, at, bytes)                                                   \
    EXPORT nvrtcResult nvrtcGet##name##Size(nvrtcProgram program, size_t* size) { \
        *size = (bytes);                                                          \
        (void)program;                                                            \
        return NVRTC_SUCCESS;                                                     \
    }                                                                             \
    EXPORT nvrtcResult nvrtcGet##name(nvrtcProgram program, char* output) {       \
        memcpy(output, (at), (bytes));                                            \
        return NVRTC_SUCCESS;                                                     \
    }
OUTPUT(ProgramLog, program->log, strlen(program->log) + 1)
OUTPUT(PTX, program->ptx, strlen(program->ptx) + 1)
OUTPUT(CUBIN, &program->image, sizeof program->image)
