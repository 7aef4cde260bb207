#include "check/compare_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "check/elements.hpp"
#include "check/small_floats.hpp"
#include "check/tolerance.hpp"

namespace attnsmith::check {
namespace {

class Comparer {
  public:
    Comparer(const Case& test, const Step& step, const Storage& storage, const Storage::Outputs& outputs,
             ComparedValues& found)
        : test_(test),
          step_(step),
          storage_(storage),
          outputs_(outputs),
          found_(found),
          heads_(test.spec.q_heads),
          dim_(head_dim_vo(test.spec)),
          output_(output_dtype(test.spec)) {}

    void compare_outputs(const ReferenceInput& input, const std::vector<QueryRow>& rows,
                         const Reference& want) {
        const std::vector<double> got = outputs_of(rows);
        const Tolerance tolerance = output_tolerance(test_.spec.dtype, test_.spec.precision);
        const Comparison c = compare(tolerance, got, want.out, rounding());
        found_.max_abs_error = c.max_abs_error;
        found_.element_ratio = c.worst_ratio;
        if (c.bad > 0 && !is_rounding(tolerance, got, input, rows, want)) {
            const auto bad = static_cast<std::size_t>(c.first_bad);
            fail(fmt::format("{} of {} elements of o are wrong, first {}: got {}, want {}, tolerance {:.3g}",
                             c.bad, got.size(), where(rows, c.first_bad / dim_, c.first_bad % dim_), got[bad],
                             want.out[bad], tolerance.allowed(want.out[bad])));
        }
        compare_pools(got, input, rows, want);
    }

    void compare_lse(const std::vector<QueryRow>& rows, const Reference& want) {
        std::vector<double> got;
        for (const QueryRow& row : rows)
            for (std::int64_t head = 0; head < heads_; ++head)
                got.push_back(
                    load_at<float>(outputs_.lse, storage_.lse_element(row.sequence, row.query, head)));
        const Comparison c = compare(lse_tolerance(test_.spec.precision), got, want.lse);
        found_.lse_ratio = c.worst_ratio;
        if (c.bad == 0) return;
        const auto bad = static_cast<std::size_t>(c.first_bad);
        fail(fmt::format("{} of {} elements of lse are wrong, first {}: got {}, want {}, tolerance {:.3g}",
                         c.bad, got.size(), where(rows, c.first_bad, -1), got[bad], want.lse[bad],
                         lse_tolerance(test_.spec.precision).allowed(want.lse[bad])));
    }

  private:
    void fail(std::string why) {
        if (found_.fault.empty()) found_.fault = std::move(why);  // the first one is the one to act on
    }

    std::vector<double> outputs_of(const std::vector<QueryRow>& rows) const {
        std::vector<double> got;
        got.reserve(rows.size() * static_cast<std::size_t>(heads_ * dim_));
        for (const QueryRow& row : rows) {
            for (std::int64_t head = 0; head < heads_; ++head) {
                const std::int64_t first = storage_.o_element(row.sequence, row.query, head);
                for (std::int64_t d = 0; d < dim_; ++d) {
                    got.push_back(output_ == DType::fp32
                                      ? load_at<float>(outputs_.o, first + d)
                                      : decode(output_, load_at<std::uint16_t>(outputs_.o, first + d)));
                }
            }
        }
        return got;
    }

    // Whether each element beyond the tolerance, of a few, is as far off as weights and O may be that are
    // rounded to the dtype once: where values are large and cancel, that is more than a tolerance by O alone
    // allows.
    bool is_rounding(const Tolerance& tolerance, std::span<const double> got, const ReferenceInput& input,
                     const std::vector<QueryRow>& rows, const Reference& want) {
        constexpr std::size_t kMostRows = 16;
        if (test_.spec.precision == Precision::high) return false;
        const double unit = unit_roundoff(test_.spec.dtype);
        const auto width = static_cast<std::size_t>(heads_ * dim_);
        std::size_t looked_at = 0;
        for (std::size_t n = 0; n < rows.size(); ++n) {
            std::vector<double> magnitudes;
            for (std::size_t i = n * width; i < (n + 1) * width; ++i) {
                const double error = std::fabs(got[i] - want.out[i]);
                if (error <= tolerance.allowed(want.out[i]) || got[i] == want.out[i]) continue;
                if (std::isnan(error)) return false;
                if (magnitudes.empty()) {
                    if (++looked_at > kMostRows) return false;
                    magnitudes = weighed_magnitudes(input, rows[n]);
                }
                const double allowed = unit * (magnitudes[i - n * width] + std::fabs(want.out[i]));
                found_.rounding_ratio = std::max(found_.rounding_ratio, error / allowed);
                if (!(error <= allowed)) return false;
            }
        }
        return true;
    }

    // What O was rounded to once it was computed, where only that rounding may add to the tolerance.
    std::optional<DType> rounding() const {
        if (test_.spec.precision != Precision::high || output_ == DType::fp32) return std::nullopt;
        return output_;
    }

    void compare_pools(std::span<const double> got, const ReferenceInput& input,
                       const std::vector<QueryRow>& rows, const Reference& want) {
        std::map<int, PooledBound> pools;
        const auto width = static_cast<std::size_t>(heads_ * dim_);  // of one query row
        for (std::size_t n = 0; n < rows.size(); ++n) {
            const SequenceLengths& lengths = input.sequences[static_cast<std::size_t>(rows[n].sequence)];
            const std::int64_t keys = attended_keys(test_.spec, lengths, rows[n].query).count();
            const auto of_row = [&](std::span<const double> all) { return all.subspan(n * width, width); };
            if (keys == 0 &&
                std::any_of(of_row(got).begin(), of_row(got).end(), [](double x) { return x != 0; }))
                fail(fmt::format("o{} sees no key and is not 0",
                                 where(rows, static_cast<std::int64_t>(n) * heads_, -1)));
            pools.try_emplace(length_class(keys), test_.spec.dtype)
                .first->second.add(of_row(got), of_row(want.out), of_row(want.low));
        }
        for (const auto& [keys, pool] : pools) {
            found_.pooled_ratio = std::max(found_.pooled_ratio, pool.ratio());
            found_.vacuous_pools += pool.vacuous();
            const std::string which =
                fmt::format("rows of fewer than {} keys: ", std::int64_t{1} << 2 * keys);
            if (!pool.holds()) fail(which + pool.describe());
            if (pool.vacuous() && !test_.plain_overflows)
                fail(which + "the pooled bound is vacuous, the plain computation overflowed everywhere");
        }
    }

    // `line` counts heads of rows.
    std::string where(const std::vector<QueryRow>& rows, std::int64_t line, std::int64_t d) const {
        const QueryRow& row = rows[static_cast<std::size_t>(line / heads_)];
        const auto s = static_cast<std::size_t>(row.sequence);
        return fmt::format("[sequence {}, query {}, head {}{}] (q_len {}, kv_len {})", row.sequence,
                           row.query, line % heads_, d < 0 ? "" : fmt::format(", {}", d), step_.q_lens[s],
                           step_.kv_lens[s]);
    }

    const Case& test_;
    const Step& step_;
    const Storage& storage_;
    const Storage::Outputs& outputs_;
    ComparedValues& found_;
    std::int64_t heads_, dim_;
    DType output_;
};

}  // namespace

ComparedValues compare_values(const Case& test, const Step& step, const Storage& storage,
                              const Storage::Outputs& outputs, const CompareOptions& options) {
    const ReferenceInput input = storage.reference_input();
    const std::vector<QueryRow> rows =
        sample_rows(input, options.budget, derive_seed(options.seed, "rows of " + test.full_name()));
    ComparedValues found{.fault = {}, .compared = rows.size(), .total = all_rows(input.sequences).size()};
    const Reference want = compute_reference(input, rows, options.threads);
    Comparer comparer(test, step, storage, outputs, found);
    comparer.compare_outputs(input, rows, want);
    if (test.spec.lse) comparer.compare_lse(rows, want);
    return found;
}

}  // namespace attnsmith::check
