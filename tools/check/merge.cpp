#include "check/merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "check/elements.hpp"
#include "check/judge.hpp"
#include "check/placement.hpp"
#include "check/random.hpp"
#include "check/small_floats.hpp"
#include "check/storage.hpp"
#include "check/tolerance.hpp"

namespace attnsmith::check {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::byte kNaNByte{0xff};  // 0xffff and 0xffffffff are NaN in every type

template <typename T>
void fill(std::vector<std::byte>& bytes, T value) {
    for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T))
        std::memcpy(bytes.data() + at, &value, sizeof(T));
}

// One tensor of the case: where it lies, and its bytes on both sides.
struct Placed {
    Place place;
    Image image;

    Tensor tensor() const { return place.tensor(image.device.data()); }
};

class MergeRun {
  public:
    MergeRun(Runtime& runtime, const MergeCase& test, const RunOptions& options, CaseResult& result)
        : runtime_(runtime),
          test_(test),
          result_(result),
          random_(derive_seed(options.seed, test.full_name())),
          launch_(options.launch),
          pooled_(test.spec.dtype) {}

    void run() {
        make_states();
        if (!test_.in_place) make_outputs();
        const Kernel kernel = runtime_.prepare(test_.spec, {1, std::max<std::int64_t>(1, test_.tokens), 1});
        result_.backend = "cuda_core";
        const Call call = kernel.bind(tensors());
        const Outputs first = launch(call);
        for (int n = 1; n < test_.launches && result_.passed(); ++n) {
            const Outputs again = launch(call);
            if (again.o != first.o) fail(fmt::format("launch {} gave other bits in o", n + 1));
            if (again.lse != first.lse) fail(fmt::format("launch {} gave other bits in lse", n + 1));
        }
        if (call.status()) fail("the status is not clear");
        check_inputs();
        check_outside(first);
        if (result_.passed()) check_values(first);
    }

  private:
    struct Outputs {
        std::vector<std::byte> o, lse;  // whole images
    };

    void fail(const std::string& why) {
        if (result_.outcome == Outcome::failed) return;  // the first reason is the one to act on
        result_.outcome = Outcome::failed;
        result_.detail = why;
    }

    std::int64_t heads() const { return test_.spec.q_heads; }
    std::int64_t dim() const { return test_.spec.head_dim_vo; }

    // Rank 3 is an o, rank 2 an lse. `number` makes each tensor's strides its own.
    Place place(int rank, int number) const {
        const std::int64_t size = rank == 3 ? 2 : 4;
        Place p{rank == 3 ? test_.spec.dtype : DType::fp32, rank, {test_.tokens, heads()}, {}, 0};
        p.first = static_cast<std::int64_t>(kGuardBytes) / size + (rank == 3 ? test_.base : 0);
        const std::size_t inner = test_.heads_first ? 0 : 1, outer = 1 - inner;
        if (rank == 3) {
            p.shape[2] = dim();
            p.strides[2] = 1;
            p.strides[inner] = dim() + test_.pad * (1 + number % 3);
        } else {
            p.strides[inner] = test_.lse_stride * (1 + number % 2);
        }
        p.strides[outer] = p.strides[inner] * p.shape[inner] + test_.pad * (3 + number % 4);
        return p;
    }

    Placed make(std::string name, int rank, int number) {
        Placed made{place(rank, number), {}};
        made.image = {std::move(name), std::vector<std::byte>(made.place.image_bytes(), kNaNByte),
                      runtime_.allocate(made.place.image_bytes())};
        return made;
    }

    void make_states() {
        for (int s = 0; s < test_.states; ++s) {
            o_states_.push_back(make(fmt::format("o_states[{}]", s), 3, s));
            lse_states_.push_back(make(fmt::format("lse_states[{}]", s), 2, s));
            for (std::int64_t token = 0; token < test_.tokens; ++token)
                for (std::int64_t head = 0; head < heads(); ++head) fill_row(s, token, head);
        }
        if (test_.nan_state) spoil_row(*test_.nan_state);
        for (auto* list : {&o_states_, &lse_states_})
            for (Placed& state : *list) state.image.upload();
    }

    void fill_row(int s, std::int64_t token, std::int64_t head) {
        const auto n = static_cast<std::size_t>(s);
        Placed& lse = lse_states_[n];
        const double value = draw_lse(token, head);
        store_at(lse.image.host, lse.place.at(token, head), static_cast<float>(value));
        if (value == -kInfinity) return;  // its o stays NaN
        Placed& o = o_states_[n];
        for (std::int64_t d = 0; d < dim(); ++d)
            store_at(o.image.host, o.place.at(token, head, d), encode(test_.spec.dtype, random_.normal()));
    }

    double draw_lse(std::int64_t token, std::int64_t head) {
        const double value = 2 * random_.normal();
        switch (test_.lse) {
            case MergeLse::near:
                return value;
            case MergeLse::large:
                return (token + head) % 2 ? value + 1e4 : value - 1e4;
            case MergeLse::gaps:
                return random_.integer(0, 2) == 0 ? -kInfinity : value;
            case MergeLse::no_keys:
                break;
        }
        return -kInfinity;
    }

    void spoil_row(int s) {
        Placed& lse = lse_states_[static_cast<std::size_t>(s)];
        const std::int64_t token = random_.integer(0, test_.tokens - 1);
        store_at(lse.image.host, lse.place.at(token, random_.integer(0, heads() - 1)),
                 std::numeric_limits<float>::quiet_NaN());
    }

    void make_outputs() {
        o_ = make("o", 3, test_.states);
        fill(o_.image.host, kPoison);
        if (!test_.spec.lse) return;
        lse_ = make("lse", 2, test_.states);
        fill(lse_.image.host, kPoisonF32);
    }

    // The tensor that the merge writes: its own, or a state's.
    Placed& output_o() { return test_.in_place ? o_states_[static_cast<std::size_t>(*test_.in_place)] : o_; }
    Placed& output_lse() {
        return test_.in_place ? lse_states_[static_cast<std::size_t>(*test_.in_place)] : lse_;
    }

    MergeTensors tensors() {
        MergeTensors tensors;
        for (const Placed& o : o_states_) tensors.o_states.push_back(o.tensor());
        for (const Placed& lse : lse_states_) tensors.lse_states.push_back(lse.tensor());
        tensors.o = output_o().tensor();
        if (test_.spec.lse) tensors.lse = output_lse().tensor();
        return tensors;
    }

    Outputs launch(const Call& call) {
        output_o().image.upload();
        if (test_.spec.lse) output_lse().image.upload();
        if (launch_) {
            launch_(runtime_, call);
        } else {
            call.launch();
            runtime_.synchronize();
        }
        Outputs outputs{output_o().image.download(), {}};
        if (test_.spec.lse) outputs.lse = output_lse().image.download();
        return outputs;
    }

    void check_inputs() {
        for (int s = 0; s < test_.states; ++s) {
            const bool written = test_.in_place == s;
            for (auto* list : {&o_states_, &lse_states_}) {
                const Image& image = (*list)[static_cast<std::size_t>(s)].image;
                if (written && (list == &o_states_ || test_.spec.lse)) continue;
                if (image.download() != image.host) fail("the launch wrote into " + image.name);
            }
        }
    }

    // Once the elements are put back, all is as it was before the launch.
    void check_outside(Outputs outputs) {
        const Placed &o = output_o(), &lse = output_lse();
        for (std::int64_t token = 0; token < test_.tokens; ++token) {
            for (std::int64_t head = 0; head < heads(); ++head) {
                for (std::int64_t d = 0; d < dim(); ++d) {
                    const std::int64_t at = o.place.at(token, head, d);
                    store_at(outputs.o, at, load_at<std::uint16_t>(o.image.host, at));
                }
                if (!test_.spec.lse) continue;
                const std::int64_t at = lse.place.at(token, head);
                store_at(outputs.lse, at, load_at<std::uint32_t>(lse.image.host, at));
            }
        }
        if (outputs.o != o.image.host) fail("o was written outside its elements");
        if (test_.spec.lse && outputs.lse != lse.image.host) fail("lse was written outside its elements");
    }

    MergeRows states_of(std::int64_t token, std::int64_t head) const {
        MergeRows row{test_.spec.dtype, dim(), {}, {}};
        for (std::size_t s = 0; s < o_states_.size(); ++s) {
            const Placed &o = o_states_[s], &lse = lse_states_[s];
            row.lse.push_back(load_at<float>(lse.image.host, lse.place.at(token, head)));
            auto& values = row.o.emplace_back();
            for (std::int64_t d = 0; d < dim(); ++d)
                values.push_back(decode(test_.spec.dtype,
                                        load_at<std::uint16_t>(o.image.host, o.place.at(token, head, d))));
        }
        return row;
    }

    void check_values(const Outputs& outputs) {
        for (std::int64_t token = 0; token < test_.tokens && result_.passed(); ++token)
            for (std::int64_t head = 0; head < heads(); ++head) check_row(outputs, token, head);
        result_.pooled_ratio = pooled_.ratio();
        if (!pooled_.holds()) fail(pooled_.describe());
    }

    void check_row(const Outputs& outputs, std::int64_t token, std::int64_t head) {
        const MergedRow want = reference_merge(states_of(token, head));
        std::vector<double> got;
        for (std::int64_t d = 0; d < dim(); ++d)
            got.push_back(decode(test_.spec.dtype,
                                 load_at<std::uint16_t>(outputs.o, output_o().place.at(token, head, d))));
        std::vector<double> lse;
        if (test_.spec.lse) lse.push_back(load_at<float>(outputs.lse, output_lse().place.at(token, head)));
        if (std::isnan(want.lse)) {
            got.insert(got.end(), lse.begin(), lse.end());
            if (!std::ranges::all_of(got, [](double x) { return std::isnan(x); }))
                fail(fmt::format("[token {}, head {}] has a NaN lse, but is not all NaN", token, head));
            return;
        }
        pooled_.add(got, want.o, want.low);
        const Comparison o = compare(output_tolerance(test_.spec.dtype), got, want.o);
        result_.max_abs_error = std::max(result_.max_abs_error, o.max_abs_error);
        result_.element_ratio = std::max(result_.element_ratio, o.worst_ratio);
        if (o.bad > 0) {
            const auto bad = static_cast<std::size_t>(o.first_bad);
            fail(fmt::format("o[token {}, head {}, {}]: got {}, want {}", token, head, bad, got[bad],
                             want.o[bad]));
        }
        if (!test_.spec.lse) return;
        const Comparison c = compare(lse_tolerance(), lse, std::vector<double>{want.lse});
        result_.lse_ratio = std::max(result_.lse_ratio, c.worst_ratio);
        if (c.bad > 0)
            fail(fmt::format("lse[token {}, head {}]: got {}, want {}", token, head, lse[0], want.lse));
    }

    Runtime& runtime_;
    const MergeCase& test_;
    CaseResult& result_;
    Random random_;
    std::function<void(const Runtime&, const Call&)> launch_;
    PooledBound pooled_;
    std::vector<Placed> o_states_, lse_states_;
    Placed o_, lse_;
};

}  // namespace

MergedRow reference_merge(const MergeRows& row) {
    const auto dim = static_cast<std::size_t>(row.head_dim);
    MergedRow merged{std::vector<double>(dim), std::vector<double>(dim), -kInfinity};
    double top = -kInfinity;
    for (const double lse : row.lse) top = std::isnan(lse) || lse > top ? lse : top;
    if (top == -kInfinity) return merged;
    double total = 0;
    for (const double lse : row.lse) total += std::exp(lse - top);
    merged.lse = top + std::log(total);
    for (std::size_t s = 0; s < row.lse.size(); ++s) {
        if (row.lse[s] == -kInfinity) continue;
        const double weight = std::exp(row.lse[s] - top) / total;
        for (std::size_t d = 0; d < dim; ++d) {
            merged.o[d] += weight * row.o[s][d];
            merged.low[d] = round_to(row.dtype, merged.low[d] + round_to(row.dtype, weight) * row.o[s][d]);
        }
    }
    return merged;
}

std::string MergeCase::describe() const {
    std::string text =
        fmt::format("merge {} {} heads {} tokens {} states {} alignment {}", to_string(spec.dtype),
                    spec.head_dim_vo, spec.q_heads, tokens, states, spec.alignment);
    if (spec.lse) text += " lse";
    if (in_place) text += fmt::format(" in place of state {}", *in_place);
    return text;
}

CaseResult run_merge(Runtime& runtime, const MergeCase& test, const RunOptions& options) {
    CaseResult result = judge(test.group, test.name,
                              [&](CaseResult& filled) { MergeRun(runtime, test, options, filled).run(); });
    if (result.outcome == Outcome::failed) result.detail += "\n    " + test.describe();
    return result;
}

}  // namespace attnsmith::check
