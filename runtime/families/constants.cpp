#include "families/constants.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace attnsmith::families {

namespace {

std::string_view name_of(abi::OperandStage stage) {
    switch (stage) {
        case abi::OperandStage::as_loaded:
            return "as_loaded";
        case abi::OperandStage::dequant_in_registers:
            return "dequant_in_registers";
        case abi::OperandStage::dequant_ring:
            return "dequant_ring";
        case abi::OperandStage::dequant_in_place:
            return "dequant_in_place";
        case abi::OperandStage::dequant_ahead:
            return "dequant_ahead";
    }
    return "?";
}

}  // namespace

std::string Constant::text() const {
    switch (kind) {
        case Kind::element:
            switch (static_cast<DType>(value)) {
                case DType::fp16:
                    return "f16";
                case DType::bf16:
                    return "bf16";
                case DType::e4m3:
                    return "e4m3";
                case DType::e5m2:
                    return "e5m2";
                default:
                    return "f32";  // no other type has kernels
            }
        case Kind::index:
            return static_cast<DType>(value) == DType::int64 ? "int64" : "int32";
        case Kind::integer:
            return std::to_string(value);
        case Kind::flag:
            return value != 0 ? "true" : "false";
        case Kind::operand_stage:
            return fmt::format("abi::OperandStage::{}", name_of(static_cast<abi::OperandStage>(value)));
    }
    return "?";
}

std::string Constant::declaration() const {
    if (kind == Kind::element || kind == Kind::index) return fmt::format("using {} = {};", name, text());
    return fmt::format("static constexpr auto {} = {};", name, text());
}

int Constants::integer(std::string_view name, int absent) const {
    const auto found = std::ranges::find(list_, name, &Constant::name);
    return found == list_.end() ? absent : found->value;
}

}  // namespace attnsmith::families
