// What a compile produced: ptxas' report, and the facts that a cubin (an ELF64 file) states of itself.
// Cubins come from disk as well, so the reader trusts nothing in them: wrong bytes give nullopt, never a bad
// access.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace attnsmith::compiler {

// ptxas' account of one entry, from the log of a compile with --ptxas-options=-v.
struct EntryResources {
    std::string entry;
    std::string target;  // "sm_90a"
    int registers_per_thread = 0;
    int stack_bytes = 0;
    int spill_store_bytes = 0;
    int spill_load_bytes = 0;
    int static_shared_bytes = 0;  // dynamic shared memory is not counted: ptxas does not know it

    bool operator==(const EntryResources&) const = default;
};

// Entries in the order of the log. Spills of functions that were not inlined are added to the entry that
// calls them. Empty where the log has no report.
std::vector<EntryResources> parse_ptxas_log(std::string_view log);

class CubinInfo {
  public:
    // nullopt: not a 64-bit little-endian CUDA ELF, or cut off, or with parts that lie outside of it.
    static std::optional<CubinInfo> parse(std::span<const std::byte> cubin);

    const std::vector<std::string>& entries() const noexcept { return entries_; }  // kernels, sorted
    bool has_entry(std::string_view name) const noexcept;

    // The compute capability that the machine code is for: 90 for sm_90 and sm_90a, which the file does not
    // tell apart since CUDA 13. 0 where the file is of an ABI that is not known here.
    int sm() const noexcept { return sm_; }

    // The initial value of a 4-byte __device__ or __constant__ variable; nullopt where there is none of that
    // name and size. This is how a kernel's unit exports facts of itself.
    std::optional<std::uint32_t> read_u32(std::string_view symbol) const;

  private:
    struct Variable {
        std::string name;
        std::uint32_t value = 0;
    };

    CubinInfo() = default;

    std::vector<std::string> entries_;
    std::vector<Variable> variables_;
    int sm_ = 0;
};

}  // namespace attnsmith::compiler
