// The machine code of a cubin.
#pragma once

#include <elf.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

namespace attnsmith::test {

// Its executable sections, one after the other. REQUIRES: CubinInfo has found the cubin to be sound.
inline std::vector<std::byte> code_of(std::span<const std::byte> cubin) {
    Elf64_Ehdr header;
    std::memcpy(&header, cubin.data(), sizeof header);
    std::vector<std::byte> code;
    for (std::size_t i = 0; i < header.e_shnum; ++i) {
        Elf64_Shdr section;
        std::memcpy(&section, cubin.data() + header.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_type != SHT_PROGBITS || (section.sh_flags & SHF_EXECINSTR) == 0) continue;
        const std::span<const std::byte> bytes = cubin.subspan(section.sh_offset, section.sh_size);
        code.insert(code.end(), bytes.begin(), bytes.end());
    }
    return code;
}

}  // namespace attnsmith::test
