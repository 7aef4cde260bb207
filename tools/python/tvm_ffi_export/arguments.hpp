// The arguments of one call, read and told apart by their layout.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "python/native/recipes.hpp"
#include "signatures.hpp"
#include "tvm_ffi.hpp"

namespace attnsmith::tvm_ffi {

// A tensor as the library takes it, with its numbers copied.
struct View {
    void* data = nullptr;
    attnsmith_dl_device device{};
    attnsmith_dl_data_type dtype{};
    std::size_t rank = 0;
    std::array<std::int64_t, python::kMostAxes> shape{}, strides{};

    // Which points to this view's numbers.
    attnsmith_dl_tensor described() const;
    // With an axis of extent 1.
    View inserted(std::size_t axis) const;
    // Without an axis: what it has at `index`.
    View selected(std::size_t axis, std::int64_t index) const;
    // "(2, 8, 64)".
    std::string shape_text() const;
};

class CallArguments {
  public:
    // Throws a Failure that names the argument.
    CallArguments(const Function& function, const Any* given, std::int32_t count);

    const Function& function;
    python::Layout layout;
    bool is_known_by_layout = true;  // else calls with this layout may differ
    std::int32_t device = 0;         // of the first tensor

    const View* tensor(int place) const {
        const auto& found = views_[static_cast<std::size_t>(place)];
        return found ? &*found : nullptr;
    }
    // What was given; nothing where it is None, left out or what stands for none.
    const std::optional<std::int64_t>& integer(Option option) const { return integers_[option]; }
    const std::optional<double>& number(Option option) const { return numbers_[option]; }
    const std::optional<std::string_view>& word(Option option) const { return words_[option]; }
    bool flag(Option option) const { return integers_[option].value_or(0) != 0; }

  private:
    void read_tensor(const Parameter& parameter, const Any& value);
    void read_option(const Parameter& parameter, const Any& value);

    std::array<std::optional<View>, kTensorPlaces> views_;
    std::array<std::optional<std::int64_t>, kOptions> integers_;
    std::array<std::optional<double>, kOptions> numbers_;
    std::array<std::optional<std::string_view>, kOptions> words_;
    std::uintptr_t pointer_bits_ = 0;
    bool has_device_ = false;
};

}  // namespace attnsmith::tvm_ffi
