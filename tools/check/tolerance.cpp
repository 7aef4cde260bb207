#include "check/tolerance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/small_floats.hpp"

namespace attnsmith::check {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Equal infinities differ by nothing, nor do two NaNs; one NaN differs by infinity.
double distance(double a, double b) {
    if (a == b || (std::isnan(a) && std::isnan(b))) return 0.0;
    const double difference = std::fabs(a - b);
    return std::isnan(difference) ? kInfinity : difference;
}

}  // namespace

double Tolerance::allowed(double want) const { return absolute + relative * std::fabs(want); }

Tolerance output_tolerance(DType dtype, Precision precision) {
    if (precision == Precision::high) return {1e-5, 1e-5};
    return dtype == DType::fp16 ? Tolerance{1e-3, 1e-3} : Tolerance{1e-2, 1e-2};
}

double unit_roundoff(DType dtype) { return dtype == DType::fp16 ? 0x1p-11 : 0x1p-8; }

Tolerance lse_tolerance(Precision precision) {
    return precision == Precision::high ? Tolerance{1e-5, 1e-5} : Tolerance{3e-4, 2e-6};
}

Comparison compare(const Tolerance& tolerance, std::span<const double> got, std::span<const double> want,
                   std::optional<DType> rounded) {
    // The value nearest to `want` that rounds to `got`, as far as the tolerance goes.
    const auto before_rounding = [&](double value, double wanted) {
        if (!rounded || !std::isfinite(wanted)) return value;
        const double error = tolerance.allowed(wanted);
        const double low = round_to(*rounded, wanted - error), high = round_to(*rounded, wanted + error);
        return value >= low && value <= high ? wanted : value;
    };
    Comparison result;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double error = distance(before_rounding(got[i], want[i]), want[i]);
        // An infinite or NaN `want` allows only itself.
        const double allowed = std::isfinite(want[i]) ? tolerance.allowed(want[i]) : 0.0;
        const double ratio = error == 0 ? 0.0 : error / allowed;
        result.max_abs_error = std::max(result.max_abs_error, error);
        result.worst_ratio = std::max(result.worst_ratio, ratio);
        if (ratio <= 1.0) continue;
        if (result.bad++ == 0) result.first_bad = static_cast<std::int64_t>(i);
    }
    return result;
}

int length_class(std::int64_t keys) {
    int result = 0;
    for (; keys > 0; keys /= 4) ++result;
    return result;
}

void PooledBound::add(std::span<const double> got, std::span<const double> want,
                      std::span<const double> low) {
    for (std::size_t i = 0; i < got.size(); ++i) {
        if (!std::isfinite(want[i])) continue;
        if (!std::isfinite(low[i])) {
            ++overflowed_;
            continue;
        }
        ++judged_;
        error_ = std::max(error_, distance(got[i], want[i]));
        low_error_ = std::max(low_error_, distance(low[i], want[i]));
        const double rounded = round_to(dtype_, want[i]);
        const double there = round_to(dtype_, rounded + 0.3);
        rounding_ = std::max(rounding_, distance(round_to(dtype_, there - 0.3), rounded));
    }
}

double PooledBound::allowed() const { return 2 * low_error_ + 2 * rounding_; }

double PooledBound::ratio() const { return error_ == 0 ? 0.0 : error_ / allowed(); }

std::string PooledBound::describe() const {
    return fmt::format(
        "pooled: max error {:.3g}, allowed {:.3g} (2 x {:.3g} of a plain computation + 2 x {:.3g} of "
        "rounding) over {} elements, {} more where the plain computation overflowed",
        error_, allowed(), low_error_, rounding_, judged_, overflowed_);
}

}  // namespace attnsmith::check
