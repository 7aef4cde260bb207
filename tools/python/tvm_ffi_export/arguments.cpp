#include "arguments.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "failure.hpp"

namespace attnsmith::tvm_ffi {
namespace {

using python::kMostAxes;

constexpr const char* kTypeError = "TypeError";
constexpr const char* kValueError = "ValueError";

const attnsmith_dl_tensor* tensor_in(const Any& value) {
    if (value.type_index == kTensorPointer) return static_cast<const attnsmith_dl_tensor*>(value.pointer);
    if (value.type_index == kTensor) return reinterpret_cast<const attnsmith_dl_tensor*>(value.object + 1);
    return nullptr;
}

std::optional<std::string_view> text_in(const Any& value) {
    switch (value.type_index) {
        case kRawText:
            return value.text;
        case kSmallText:
            return std::string_view(value.bytes, value.small_length);
        case kText: {
            const auto& text = *reinterpret_cast<const ByteArray*>(value.object + 1);
            return std::string_view(text.data, text.size);
        }
        default:
            return std::nullopt;
    }
}

std::string shown(const Any& value) {
    if (tensor_in(value) != nullptr) return "a tensor";
    if (const auto text = text_in(value)) return '"' + std::string(text->substr(0, 80)) + '"';
    switch (value.type_index) {
        case kNone:
            return "None";
        case kInteger:
            return std::to_string(value.integer);
        case kBool:
            return value.integer != 0 ? "True" : "False";
        case kNumber:
            return std::to_string(value.number);
        default:
            return "a value of TVM FFI's type " + std::to_string(value.type_index);
    }
}

bool is_on_gpu(const attnsmith_dl_device& device) {
    return device.device_type == ATTNSMITH_DL_CUDA || device.device_type == ATTNSMITH_DL_CUDA_MANAGED;
}

View view_of(const attnsmith_dl_tensor& tensor, const char* name) {
    if (!is_on_gpu(tensor.device))
        throw refused(kValueError, std::string(name) + ".device",
                      "DLPack's device type " + std::to_string(tensor.device.device_type),
                      "memory of a CUDA GPU");
    if (tensor.ndim < 0 || tensor.ndim > kMostAxes)
        throw refused(kValueError, std::string(name) + ".ndim", std::to_string(tensor.ndim),
                      "up to " + std::to_string(kMostAxes) + " axes");
    if (tensor.ndim > 0 && tensor.shape == nullptr)
        throw refused(kValueError, std::string(name) + ".shape", "NULL",
                      std::to_string(tensor.ndim) + " extents");
    View view;
    view.data = tensor.data == nullptr ? nullptr : static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
    view.device = tensor.device;
    view.dtype = tensor.dtype;
    view.rank = static_cast<std::size_t>(tensor.ndim);
    std::copy_n(tensor.shape, view.rank, view.shape.begin());
    std::int64_t step = 1;
    for (std::size_t axis = view.rank; axis-- > 0;) {
        view.strides[axis] = tensor.strides == nullptr ? step : tensor.strides[axis];
        if (view.shape[axis] < 0 ||
            __builtin_mul_overflow(step, std::max<std::int64_t>(view.shape[axis], 1), &step))
            throw refused(kValueError, std::string(name) + ".shape", view.shape_text(),
                          "extents from 0 that memory has room for");
    }
    return view;
}

// Whether an option's value is that which stands for none, such as -1 of a window.
bool is_none(const Parameter& parameter, double value) {
    return parameter.fallback != nullptr && parameter.kind != Kind::word &&
           value == std::atof(parameter.fallback);
}

}  // namespace

attnsmith_dl_tensor View::described() const {
    return {data,
            device,
            static_cast<std::int32_t>(rank),
            dtype,
            const_cast<std::int64_t*>(shape.data()),
            const_cast<std::int64_t*>(strides.data()),
            0};  // which the library only reads
}

View View::inserted(std::size_t axis) const {
    View wider = *this;
    for (std::size_t i = rank; i > axis; --i) {
        wider.shape[i] = shape[i - 1];
        wider.strides[i] = strides[i - 1];
    }
    wider.shape[axis] = 1;  // its stride, that of the axis that was there, reaches nothing
    ++wider.rank;
    return wider;
}

View View::selected(std::size_t axis, std::int64_t index) const {
    View narrower = *this;
    if (data != nullptr)
        narrower.data = static_cast<std::byte*>(data) + index * strides[axis] * (dtype.bits / 8);
    for (std::size_t i = axis; i + 1 < rank; ++i) {
        narrower.shape[i] = shape[i + 1];
        narrower.strides[i] = strides[i + 1];
    }
    --narrower.rank;
    return narrower;
}

std::string View::shape_text() const {
    std::string text = "(";
    for (std::size_t axis = 0; axis < rank; ++axis)
        text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
    return text + ")";
}

CallArguments::CallArguments(const Function& of, const Any* given, std::int32_t count) : function(of) {
    const std::size_t most = of.parameters.size(), least = of.required();
    if (count < 0 || static_cast<std::size_t>(count) < least || static_cast<std::size_t>(count) > most)
        throw Failure{kTypeError, std::string(of.name) + ": " + std::to_string(count) +
                                      " arguments are not accepted; expected " + std::to_string(least) +
                                      " to " + std::to_string(most) + ": " + of.signature()};
    layout.add(reinterpret_cast<std::uintptr_t>(&of));
    constexpr Any kLeftOut{kNone, 0, {0}};
    for (std::size_t i = 0; i < most; ++i) {
        const Parameter& parameter = of.parameters[i];
        const Any& value = i < static_cast<std::size_t>(count) ? given[i] : kLeftOut;
        if (parameter.is_tensor())
            read_tensor(parameter, value);
        else
            read_option(parameter, value);
    }
    layout.add(pointer_bits_ & 15);
    is_known_by_layout = is_known_by_layout && layout.fits();
}

void CallArguments::read_tensor(const Parameter& parameter, const Any& value) {
    const attnsmith_dl_tensor* const tensor = tensor_in(value);
    if (tensor == nullptr) {
        const bool may_be_none = parameter.kind == Kind::tensor_or_none;
        if (value.type_index != kNone || !may_be_none)
            throw refused(kTypeError, parameter.name, shown(value),
                          may_be_none ? "a tensor, or None" : "a tensor");
        layout.add(std::uint64_t{0});
        return;
    }
    const View& view =
        views_[static_cast<std::size_t>(parameter.place)].emplace(view_of(*tensor, parameter.name));
    if (!has_device_) device = view.device.device_id;
    has_device_ = true;
    // NULL would be the address that was bound before.
    const auto end = view.shape.begin() + static_cast<std::ptrdiff_t>(view.rank);
    if (view.data == nullptr && std::find(view.shape.begin(), end, 0) == end) is_known_by_layout = false;
    if (python::is_aligned(parameter.place)) pointer_bits_ |= reinterpret_cast<std::uintptr_t>(view.data);
    const auto dtype = static_cast<std::uint64_t>(view.dtype.code) |
                       static_cast<std::uint64_t>(view.dtype.bits) << 8 |
                       static_cast<std::uint64_t>(view.dtype.lanes) << 16;
    layout.add(1 + view.rank + (dtype << 8));
    layout.add(static_cast<std::uint64_t>(static_cast<std::uint32_t>(view.device.device_type)) << 32 |
               static_cast<std::uint32_t>(view.device.device_id));
    layout.add(static_cast<std::int64_t>(view.rank), view.shape.data());
    layout.add(static_cast<std::int64_t>(view.rank), view.strides.data());
}

void CallArguments::read_option(const Parameter& parameter, const Any& value) {
    const auto place = static_cast<std::size_t>(parameter.place);
    if (value.type_index == kNone) {
        if (parameter.fallback == nullptr) throw refused(kTypeError, parameter.name, "None", "a number");
        layout.add(std::uint64_t{0});
        return;
    }
    const auto wrong = [&](const char* accepted) {
        return refused(kTypeError, parameter.name, shown(value),
                       parameter.fallback == nullptr ? accepted : std::string(accepted) + ", or None");
    };
    switch (parameter.kind) {
        case Kind::flag:
            if (value.type_index != kBool) throw wrong("True or False");
            if (value.integer != 0) integers_[place] = 1;
            break;
        case Kind::integer:
            if (value.type_index != kInteger) throw wrong("an integer");
            if (!is_none(parameter, static_cast<double>(value.integer))) integers_[place] = value.integer;
            break;
        case Kind::number: {
            if (value.type_index != kInteger && value.type_index != kNumber) throw wrong("a number");
            const double number =
                value.type_index == kInteger ? static_cast<double>(value.integer) : value.number;
            if (!std::isfinite(number))
                throw refused(kValueError, parameter.name, shown(value), "a finite number");
            if (!is_none(parameter, number)) numbers_[place] = number;
            break;
        }
        default: {
            const auto text = text_in(value);
            if (!text) throw wrong("a word");
            if (*text != parameter.fallback) words_[place] = *text;
        }
    }
    const std::uint64_t is_given = integers_[place] || numbers_[place] ? 1
                                   : words_[place]                     ? 2 + words_[place]->size()
                                                                       : 0;
    layout.add(is_given);
    if (integers_[place]) layout.add(static_cast<std::uint64_t>(*integers_[place]));
    if (numbers_[place]) {
        std::uint64_t bits = 0;
        std::memcpy(&bits, &*numbers_[place], sizeof bits);
        layout.add(bits);
    }
    if (words_[place]) {
        std::uint64_t bits = 0;
        if (words_[place]->size() > sizeof bits) is_known_by_layout = false;  // no word is as long
        std::memcpy(&bits, words_[place]->data(), std::min(sizeof bits, words_[place]->size()));
        layout.add(bits);
    }
}

}  // namespace attnsmith::tvm_ffi
