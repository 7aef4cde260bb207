// How many members an aggregate has, counted by the compiler.
#pragma once

#include <cstddef>

namespace attnsmith::problem {

// Stands for a value of any type, in a braced list that is never evaluated.
struct AnyValue {
    template <class Value>
    operator Value() const;
};

// An aggregate takes as many values in braces as it has members, and no more.
template <class Aggregate, class... Members>
consteval std::size_t member_count() {
    if constexpr (requires { Aggregate{Members{}..., AnyValue{}}; })
        return member_count<Aggregate, Members..., AnyValue>();
    else
        return sizeof...(Members);
}

}  // namespace attnsmith::problem
