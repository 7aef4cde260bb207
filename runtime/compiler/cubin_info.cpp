#include "compiler/cubin_info.hpp"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <type_traits>

namespace attnsmith::compiler {
namespace {

// ---- ptxas' report. Its lines, in all versions from 12.0 to 13.5:
//   ptxas info    : Compiling entry function 'NAME' for 'sm_90a'
//   ptxas info    : Function properties for NAME
//   ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
//   ptxas info    : Used 12 registers, used 1 barriers, 16 bytes smem

std::optional<std::string_view> text_after(std::string_view line, std::string_view mark) {
    const std::size_t at = line.find(mark);
    if (at == line.npos) return std::nullopt;
    return line.substr(at + mark.size());
}

std::string_view quoted(std::string_view text) {  // what stands before the next quote
    return text.substr(0, std::min(text.find('\''), text.size()));
}

// The number right before `unit`, as in "16 bytes smem"; 0 where the line has no such unit.
int number_before(std::string_view line, std::string_view unit) {
    const std::size_t end = line.find(unit);
    if (end == line.npos || end == 0) return 0;
    std::size_t begin = end;
    while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
    int number = 0;
    std::from_chars(line.data() + begin, line.data() + end, number);
    return number;
}

void read_line(std::string_view line, std::vector<EntryResources>& entries, std::string_view& function) {
    if (const auto name = text_after(line, "Compiling entry function '")) {
        EntryResources entry;
        entry.entry = quoted(*name);
        if (const auto target = text_after(*name, "' for '")) entry.target = quoted(*target);
        entries.push_back(std::move(entry));
        function = {};
    } else if (const auto properties = text_after(line, "Function properties for ")) {
        function = *properties;
    } else if (!entries.empty() && line.find(" bytes stack frame") != line.npos) {
        EntryResources& entry = entries.back();
        entry.spill_store_bytes += number_before(line, " bytes spill stores");
        entry.spill_load_bytes += number_before(line, " bytes spill loads");
        if (function == entry.entry) entry.stack_bytes = number_before(line, " bytes stack frame");
    } else if (!entries.empty() && line.find(": Used ") != line.npos) {
        EntryResources& entry = entries.back();
        if (entry.registers_per_thread != 0) return;
        entry.registers_per_thread = number_before(line, " registers");
        entry.static_shared_bytes = number_before(line, " bytes smem");
    }
}

// ---- The ELF file.

constexpr std::uint16_t kMachineCuda = 190;     // EM_CUDA
constexpr unsigned char kSymbolIsEntry = 0x10;  // STO_CUDA_ENTRY, in st_other

// Bounds-checked reads: everything in a file may be a lie.
class Reader {
  public:
    explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}

    template <typename T>
    std::optional<T> read(std::uint64_t offset) const {
        static_assert(std::is_trivially_copyable_v<T>);
        if (!contains(offset, sizeof(T))) return std::nullopt;
        T value;
        std::memcpy(&value, bytes_.data() + offset, sizeof(T));  // the bytes need not be aligned
        return value;
    }
    bool contains(std::uint64_t offset, std::uint64_t size) const {
        return offset <= bytes_.size() && size <= bytes_.size() - offset;
    }
    // The NUL-terminated text at `offset` of a string table.
    std::optional<std::string_view> text(const Elf64_Shdr& table, std::uint64_t offset) const {
        if (table.sh_type != SHT_STRTAB || offset >= table.sh_size) return std::nullopt;
        const char* const begin = reinterpret_cast<const char*>(bytes_.data() + table.sh_offset + offset);
        const std::size_t length = strnlen(begin, table.sh_size - offset);
        if (length == table.sh_size - offset) return std::nullopt;
        return std::string_view(begin, length);
    }

  private:
    std::span<const std::byte> bytes_;
};

bool is_cuda_elf(const Elf64_Ehdr& header) {
    return std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_ident[EI_CLASS] == ELFCLASS64 &&
           header.e_ident[EI_DATA] == ELFDATA2LSB && header.e_machine == kMachineCuda &&
           header.e_shentsize == sizeof(Elf64_Shdr);
}

// Read off NVRTC 12.0 to 13.5: ABI 0x33 (to 12.x, up to sm_90) keeps the architecture in the lowest byte of
// e_flags, ABI 0x41 (sm_100 and up, and everything from 13.0) in the next.
int sm_of(const Elf64_Ehdr& header) {
    if (header.e_ident[EI_OSABI] == 0x33) return static_cast<int>(header.e_flags & 0xff);
    if (header.e_ident[EI_OSABI] == 0x41) return static_cast<int>(header.e_flags >> 8 & 0xff);
    return 0;
}

// All sections; nullopt where one lies outside of the file.
std::optional<std::vector<Elf64_Shdr>> read_sections(const Reader& reader, const Elf64_Ehdr& header) {
    if (!reader.contains(header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr)))
        return std::nullopt;
    std::vector<Elf64_Shdr> sections;
    for (std::uint64_t i = 0; i < header.e_shnum; ++i) {
        const auto section = reader.read<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr));
        if (!section) return std::nullopt;
        if (section->sh_type != SHT_NOBITS && !reader.contains(section->sh_offset, section->sh_size))
            return std::nullopt;
        sections.push_back(*section);
    }
    return sections;
}

// Sections of variables at namespace scope: __device__ and __constant__.
bool holds_variables(std::string_view section_name) {
    return section_name == ".nv.global.init" || section_name == ".nv.global" ||
           section_name == ".nv.constant3";
}

// The initial value of a 4-byte variable. One in a section without bytes starts as 0.
std::optional<std::uint32_t> value_of(const Reader& reader, const Elf64_Shdr& section,
                                      const Elf64_Sym& symbol) {
    if (symbol.st_size != 4 || section.sh_size < 4 || symbol.st_value > section.sh_size - 4)
        return std::nullopt;
    if (section.sh_type == SHT_NOBITS) return 0;
    return reader.read<std::uint32_t>(section.sh_offset + symbol.st_value);
}

}  // namespace

std::vector<EntryResources> parse_ptxas_log(std::string_view log) {
    std::vector<EntryResources> entries;
    std::string_view function;  // whose properties come next
    while (!log.empty()) {
        const std::size_t end = std::min(log.find('\n'), log.size());
        read_line(log.substr(0, end), entries, function);
        log.remove_prefix(std::min(end + 1, log.size()));
    }
    return entries;
}

std::optional<CubinInfo> CubinInfo::parse(std::span<const std::byte> cubin) {
    const Reader reader(cubin);
    const auto header = reader.read<Elf64_Ehdr>(0);
    if (!header || !is_cuda_elf(*header)) return std::nullopt;
    const auto sections = read_sections(reader, *header);
    if (!sections || header->e_shstrndx >= sections->size()) return std::nullopt;
    const Elf64_Shdr& section_names = (*sections)[header->e_shstrndx];

    CubinInfo info;
    info.sm_ = sm_of(*header);
    for (const Elf64_Shdr& table : *sections) {
        if (table.sh_type != SHT_SYMTAB) continue;
        if (table.sh_entsize != sizeof(Elf64_Sym) || table.sh_link >= sections->size()) return std::nullopt;
        for (std::uint64_t at = 0; at + sizeof(Elf64_Sym) <= table.sh_size; at += sizeof(Elf64_Sym)) {
            const auto symbol = reader.read<Elf64_Sym>(table.sh_offset + at);
            if (!symbol) return std::nullopt;
            if (symbol->st_shndx == SHN_UNDEF || symbol->st_shndx >= sections->size()) continue;
            const auto name = reader.text((*sections)[table.sh_link], symbol->st_name);
            const Elf64_Shdr& section = (*sections)[symbol->st_shndx];
            const auto section_name = reader.text(section_names, section.sh_name);
            if (!name || !section_name) return std::nullopt;
            const int type = ELF64_ST_TYPE(symbol->st_info);
            if (type == STT_FUNC && (symbol->st_other & kSymbolIsEntry) != 0)
                info.entries_.emplace_back(*name);
            else if (type == STT_OBJECT && holds_variables(*section_name))
                if (const auto value = value_of(reader, section, *symbol))
                    info.variables_.push_back({std::string(*name), *value});
        }
    }
    std::sort(info.entries_.begin(), info.entries_.end());
    return info;
}

bool CubinInfo::has_entry(std::string_view name) const noexcept {
    return std::find(entries_.begin(), entries_.end(), name) != entries_.end();
}

std::optional<std::uint32_t> CubinInfo::read_u32(std::string_view symbol) const {
    const auto found = std::find_if(variables_.begin(), variables_.end(),
                                    [&](const Variable& variable) { return variable.name == symbol; });
    return found == variables_.end() ? std::nullopt : std::optional(found->value);
}

}  // namespace attnsmith::compiler
