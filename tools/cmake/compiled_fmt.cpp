// The parts of fmt that do not depend on what is formatted, for every file of ours (target attnsmith_fmt).
#include <fmt/format-inl.h>

// Templates that fmt's headers declare and leave to one file to instantiate.
FMT_BEGIN_NAMESPACE
namespace detail {

template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
#if FMT_VERSION >= 100000 && FMT_VERSION < 110100
template void vformat_to<char>(buffer<char>&, string_view, vformat_args<>::type, locale_ref);
#endif

}  // namespace detail
FMT_END_NAMESPACE
