// What counts as right: an elementwise bound that belongs to the dtype and, tighter, one over pooled
// elements. A NaN is right where the reference has one, and only there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "attnsmith/types.hpp"

namespace attnsmith::check {

struct Tolerance {
    double absolute = 0;
    double relative = 0;

    double allowed(double want) const;
};

// With precision high, of what is computed, before it is rounded to what O is stored as.
Tolerance output_tolerance(DType dtype, Precision precision = Precision::standard);
// What rounding to nearest changes a number by at most, relative to it.
double unit_roundoff(DType dtype);
// LSE is fp32 whatever the inputs are. Its error is that of exp2 and of an fp32 logit.
Tolerance lse_tolerance(Precision precision = Precision::standard);

// The worst element that compare() saw, and the first one out of bounds.
struct Comparison {
    double max_abs_error = 0;
    double worst_ratio = 0;  // error / allowed
    std::int64_t first_bad = -1;
    std::int64_t bad = 0;
};

// `rounded`: what was computed within the tolerance has been rounded to this dtype since, once. What is
// allowed is then whatever such a value rounds to.
Comparison compare(const Tolerance& tolerance, std::span<const double> got, std::span<const double> want,
                   std::optional<DType> rounded = {});

// Rows are pooled with those of the same step that attend to about as many keys, within a factor of 4: an
// output's size and error fall with that number, and one short sequence would set what a long one is allowed.
int length_class(std::int64_t keys);

// max|out - ref| <= 2 * max|low - ref| + 2 * max|(ref + 0.3 - 0.3) - ref|, the last in the dtype's own
// arithmetic. Elements are left out where the reference is not finite (compare() demands the same there) and
// where `low` alone is not: the plain computation overflowed and says nothing.
class PooledBound {
  public:
    explicit PooledBound(DType dtype) : dtype_(dtype) {}

    void add(std::span<const double> got, std::span<const double> want, std::span<const double> low);

    double error() const { return error_; }
    double allowed() const;
    double ratio() const;
    bool holds() const { return error_ <= allowed(); }
    // There were finite references, but the plain computation overflowed at each: nothing was judged.
    bool vacuous() const { return judged_ == 0 && overflowed_ > 0; }
    std::string describe() const;

  private:
    DType dtype_;
    double error_ = 0, low_error_ = 0, rounding_ = 0;
    std::int64_t judged_ = 0, overflowed_ = 0;
};

}  // namespace attnsmith::check
