// Whether a function that is declared here has the signature of another project's: each of its types is
// alike, as the test that includes this says by a type with alike<Ours, Theirs>().
#pragma once

#include <type_traits>

template <class Types, class Ours, class Theirs>
struct Functions : std::false_type {};
template <class Types, class OurResult, class... Ours, class TheirResult, class... Theirs>
struct Functions<Types, OurResult (*)(Ours...), TheirResult (*)(Theirs...)> {
    static constexpr bool value = [] {
        if constexpr (sizeof...(Ours) != sizeof...(Theirs))
            return false;
        else
            return Types::template alike<OurResult, TheirResult>() &&
                   (Types::template alike<Ours, Theirs>() && ...);
    }();
};
