// From checked tensors to the bytes that a kernel gets as its parameter.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "attnsmith/batch.hpp"
#include "problem/tensors/operands.hpp"

namespace attnsmith::families {

// What the caller binds, checked, and the workspace, laid out as LaunchContext has it.
struct Binding {
    const problem::Operands& operands;
    void* workspace = nullptr;
};

// A struct of abi/ as bytes, at a multiple of 64, which tensor maps need.
class ArgumentBlock {
  public:
    static constexpr std::size_t kAlignment = 64;
    static constexpr std::size_t kMostBytes = 4096;  // whatever the toolchain and the driver

    ArgumentBlock() = default;

    template <class Arguments>
    explicit ArgumentBlock(const Arguments& arguments) : size_(sizeof arguments) {
        static_assert(std::is_trivially_copyable_v<Arguments> && alignof(Arguments) <= kAlignment &&
                      sizeof(Arguments) <= kMostBytes);
        bytes_.reset(static_cast<std::byte*>(::operator new (size_, std::align_val_t{kAlignment})));
        std::memcpy(bytes_.get(), &arguments, size_);
    }

    const void* data() const { return bytes_.get(); }
    std::span<std::byte> bytes() { return {bytes_.get(), size_}; }
    std::span<const std::byte> bytes() const { return {bytes_.get(), size_}; }

  private:
    struct Free {
        void operator()(std::byte* bytes) const { ::operator delete (bytes, std::align_val_t{kAlignment}); }
    };

    std::unique_ptr<std::byte, Free> bytes_;
    std::size_t size_ = 0;
};

inline constexpr int kMaxTensorMapRank = 5;
// Bytes that no stride of a tensor map reaches.
inline constexpr std::uint64_t kTensorMapStrideEnd = std::uint64_t{1} << 40;

// A tensor as the copy engine is to read it, in boxes that are swizzled by 128 bytes, with zeros where they
// reach beyond it. Axes innermost first.
struct TensorMapRequest {
    std::size_t offset = 0;                     // in the argument block, of the map
    const void* data = nullptr;                 // a multiple of 16
    std::optional<problem::Operand> operand{};  // whose address that is; the workspace's, else
    DType dtype = DType::bf16;                  // f16 or bf16, or of 8 bits
    int rank = 0;
    std::array<std::uint64_t, kMaxTensorMapRank> extents{};      // elements, none 0
    std::array<std::uint64_t, kMaxTensorMapRank - 1> strides{};  // bytes, of the axes from the second on
    std::array<std::uint32_t, kMaxTensorMapRank> box{};          // elements; of the first axis 128 bytes
};

// Where an argument block has the address of a tensor.
struct AddressSlot {
    std::size_t offset = 0;
    problem::Operand operand{};
};

struct Bound {
    ArgumentBlock arguments;
    std::vector<TensorMapRequest> maps{};      // that the driver encodes into the block
    std::span<const AddressSlot> addresses{};  // that a launch may replace, besides those in maps; of a table

    // The block with other addresses of its tensors. Its maps still have those that they were encoded with.
    void copy_with(const problem::OperandAddresses& replaced, std::byte* block) const {
        std::memcpy(block, arguments.data(), arguments.bytes().size());
        for (const AddressSlot& slot : addresses)
            std::memcpy(block + slot.offset, &at(replaced, slot.operand), sizeof(void*));
    }
};

}  // namespace attnsmith::families
