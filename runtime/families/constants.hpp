// The constants of a kernel's machine code: what its source states, and what tells it from its family's other
// kernels. A family has them as a struct of its own, whose members are named once, in visit(): equality,
// order, source text and key all follow from that.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "abi/operand_stage.h"
#include "attnsmith/types.hpp"

namespace attnsmith::families {

struct Constant {
    enum class Kind : std::uint8_t {
        element,  // an element type of common/element.cuh
        index,    // an integer type of abi/integers.h
        integer,
        flag,
        operand_stage  // of abi/operand_stage.h
    };

    std::string_view name;  // as the source has it; a literal
    Kind kind = Kind::integer;
    int value = 0;  // a DType, a number, or 0 and 1

    std::string text() const;         // "bf16", "int64", "128", "true"
    std::string declaration() const;  // "static constexpr auto tile_q = 128;"

    auto operator<=>(const Constant&) const = default;
};

class Constants {
  public:
    Constants() = default;

    // Takes them from a struct with
    //   template <class Self, class Visitor> static void visit(Self& self, Visitor& visitor)
    // that names its members to the visitor's functions of Constant's kinds, in the source's order.
    template <class Struct>
    static Constants of(const Struct& values) {
        Writer writer;
        Struct::visit(values, writer);
        Constants constants;
        constants.list_ = std::move(writer.list);
        return constants;
    }

    // REQUIRES: made of the same struct, or of one whose visit() begins with this one's.
    template <class Struct>
    Struct as() const {
        Struct values{};
        Reader reader{list_.data()};
        Struct::visit(values, reader);
        return values;
    }

    // Those of a name that several families have; `absent` where this one has none.
    int integer(std::string_view name, int absent = 0) const;

    const std::vector<Constant>& list() const { return list_; }

    auto operator<=>(const Constants&) const = default;

  private:
    struct Writer {
        std::vector<Constant> list;

        void element(std::string_view name, DType value) { add(name, Constant::Kind::element, value); }
        void index(std::string_view name, DType value) { add(name, Constant::Kind::index, value); }
        void integer(std::string_view name, int value) { add(name, Constant::Kind::integer, value); }
        void flag(std::string_view name, bool value) { add(name, Constant::Kind::flag, value); }
        void operand_stage(std::string_view name, abi::OperandStage value) {
            add(name, Constant::Kind::operand_stage, value);
        }

        template <class Value>
        void add(std::string_view name, Constant::Kind kind, Value value) {
            list.push_back({name, kind, static_cast<int>(value)});
        }
    };

    struct Reader {
        const Constant* next;

        void element(std::string_view, DType& value) { value = static_cast<DType>((next++)->value); }
        void index(std::string_view, DType& value) { value = static_cast<DType>((next++)->value); }
        void integer(std::string_view, int& value) { value = (next++)->value; }
        void flag(std::string_view, bool& value) { value = (next++)->value != 0; }
        void operand_stage(std::string_view, abi::OperandStage& value) {
            value = static_cast<abi::OperandStage>((next++)->value);
        }
    };

    std::vector<Constant> list_;
};

}  // namespace attnsmith::families
