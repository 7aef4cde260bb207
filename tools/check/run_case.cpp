#include "check/run_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "check/half.hpp"
#include "check/kernel_choice.hpp"
#include "check/storage.hpp"
#include "check/tolerance.hpp"
#include "problem/json_text.hpp"

namespace attnsmith::check {
namespace {

constexpr std::size_t kStatusBytes = 256;  // of a workspace, zeroed by its owner

// A workspace of exactly the promised size, between guard zones, all NaN but the status.
class GuardedWorkspace {
  public:
    GuardedWorkspace(const Runtime& runtime, std::size_t bytes)
        : bytes_(bytes), buffer_(runtime.allocate(bytes + 2 * kGuardBytes)) {
        std::vector<std::byte> fill(bytes + 2 * kGuardBytes, std::byte{0xff});
        std::fill_n(fill.begin() + kGuardBytes, std::min(kStatusBytes, bytes), std::byte{0});
        buffer_.upload(fill.data(), fill.size());
    }

    Workspace workspace() const { return {static_cast<std::byte*>(buffer_.data()) + kGuardBytes, bytes_}; }

    bool guards_intact() const { return intact(0) && intact(kGuardBytes + bytes_); }

  private:
    bool intact(std::size_t offset) const {
        std::vector<std::byte> guard(kGuardBytes);
        buffer_.download(guard.data(), guard.size(), offset);
        return std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == std::byte{0xff}; });
    }

    std::size_t bytes_;
    Buffer buffer_;
};

std::string describe(const CallStatus& status) {
    std::string text;
    if (status.q_len_clamped) text += " q_len_clamped";
    if (status.kv_len_clamped) text += " kv_len_clamped";
    if (status.page_out_of_range) text += " page_out_of_range";
    return text.empty() ? "clean" : text.substr(1);
}

bool same(const CallStatus& a, const CallStatus& b) {
    return a.q_len_clamped == b.q_len_clamped && a.kv_len_clamped == b.kv_len_clamped &&
           a.page_out_of_range == b.page_out_of_range;
}

template <typename T>
T load_at(const std::vector<std::byte>& bytes, std::int64_t element) {
    T value;
    std::memcpy(&value, bytes.data() + element * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
}

template <typename T>
void store_at(std::vector<std::byte>& bytes, std::int64_t element, T value) {
    std::memcpy(bytes.data() + element * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

// Element number of the first value in the image that is not `poison`; -1 where there is none.
template <typename T>
std::int64_t first_not(const std::vector<std::byte>& bytes, T poison) {
    for (std::size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T))
        if (std::memcmp(bytes.data() + at, &poison, sizeof(T)) != 0)
            return static_cast<std::int64_t>(at / sizeof(T));
    return -1;
}

class CaseRun {
  public:
    CaseRun(Runtime& runtime, const Case& test, const RunOptions& options, CaseResult& result)
        : runtime_(runtime),
          test_(test),
          options_(options),
          result_(result),
          heads_(test.spec.q_heads),
          dim_(head_dim_vo(test.spec)),
          output_(output_dtype(test.spec)) {}

    void run() {
        const Kernel kernel = prepare_case(runtime_, test_);
        note_plan(kernel);
        Storage storage(runtime_, test_, derive_seed(options_.seed, test_.full_name()));
        storage.load(test_.steps.at(0));
        const std::size_t bytes = storage.workspace_bytes(kernel);
        if (bytes < kStatusBytes) return fail(fmt::format("workspace_bytes() is {}, less than 256", bytes));
        const GuardedWorkspace workspace(runtime_, bytes);
        const Call call = test_.call_owns_workspace
                              ? kernel.bind(storage.tensors(), storage.batch())
                              : kernel.bind(storage.tensors(), storage.batch(), workspace.workspace());
        if (call.describe().find(" splits of ") != std::string::npos) result_.kernel += " split";
        for (step_ = 0; step_ < test_.steps.size() && result_.passed(); ++step_)
            run_step(storage, call, workspace);
        finish();
    }

  private:
    void fail(const std::string& why) {
        if (result_.outcome == Outcome::failed) return;  // the first reason is the one to act on
        result_.outcome = Outcome::failed;
        result_.detail = test_.steps.size() > 1 ? fmt::format("step {}: {}", step_, why) : why;
    }

    void note_plan(const Kernel& kernel) {
        const auto plan = problem::parse_json(kernel.plan_json()).value_or(nullptr);
        if (plan.is_discarded()) return fail("plan_json() is not JSON");
        for (const auto& entry : plan.value("kernels", nlohmann::json::array())) {
            if (entry.value("role", "") != "attention") continue;
            result_.backend = entry.value("backend", "");
            result_.kernel = fmt::format("{}x{} stages {}", entry.value("tile_q", 0),
                                         entry.value("tile_kv", 0), entry.value("stages", 0));
            const auto cache = entry.find("cache");
            if (cache != entry.end() && cache->is_object()) result_.toolchain = cache->value("toolchain", "");
        }
    }

    void run_step(Storage& storage, const Call& call, const GuardedWorkspace& workspace) {
        const Step& step = test_.steps[step_];
        if (step_ > 0) storage.load(step);
        const Storage::Outputs outputs = launch(storage, call);
        for (int n = 1; n < test_.launches && result_.passed(); ++n) {
            const Storage::Outputs again = launch(storage, call);
            // Nonsense may give two sequences the same rows, and either may come last.
            if (step.only_safety) continue;
            if (again.o != outputs.o) fail(fmt::format("launch {} gave other bits in o", n + 1));
            if (again.lse != outputs.lse) fail(fmt::format("launch {} gave other bits in lse", n + 1));
        }
        check_status(call, step);
        const std::string changed = storage.changed_input();
        if (!changed.empty()) fail("the launch wrote into the buffer of " + changed);
        if (!workspace.guards_intact()) fail("the launch wrote outside its workspace");
        if (step.same_data && (outputs.o != before_.o || outputs.lse != before_.lse))
            fail("what no row sees changed the result's bits");
        if (!result_.passed()) return;
        before_ = outputs;
        if (step.only_safety) return check_outside_tensors(storage, outputs);
        check_untouched(storage, outputs);
        check_values(storage, outputs);
    }

    Storage::Outputs launch(Storage& storage, const Call& call) {
        storage.poison_outputs();
        if (options_.launch) {
            options_.launch(runtime_, call);
        } else {
            call.launch();
            runtime_.synchronize();
        }
        return storage.read_outputs();
    }

    void check_status(const Call& call, const Step& step) {
        const CallStatus status = call.status();
        if (!step.any_status && !same(status, step.status))
            fail(fmt::format("status is {}, expected {}", describe(status), describe(step.status)));
        if (!status) return;
        call.clear_status();
        if (call.status()) fail("clear_status() left " + describe(call.status()));
    }

    // Where values are not promised: guards, and the gaps between the rows of padded tensors.
    void check_outside_tensors(const Storage& storage, Storage::Outputs outputs) {
        with_poison(output_, [&](auto poison) { erase_tensor(outputs.o, storage.o_place(), poison); });
        if (test_.spec.lse) erase_tensor(outputs.lse, storage.lse_place(), kPoisonF32);
        check_all_poison(storage, outputs, "its tensor");
    }

    // Each element becomes poison again.
    template <typename T>
    static void erase_tensor(std::vector<std::byte>& image, const Place& place, T poison) {
        const auto extent = [&](int axis) {
            return axis < place.rank ? place.shape[static_cast<std::size_t>(axis)] : 1;
        };
        for (std::int64_t a = 0; a < extent(0); ++a)
            for (std::int64_t b = 0; b < extent(1); ++b)
                for (std::int64_t c = 0; c < extent(2); ++c)
                    for (std::int64_t d = 0; d < extent(3); ++d)
                        store_at(image, place.at(a, b, c) + d * (place.rank > 3 ? place.strides[3] : 0),
                                 poison);
    }

    // Every element that is not a row of a sequence must still be poison, and every element that is must not
    // be.
    void check_untouched(const Storage& storage, Storage::Outputs outputs) {
        if (const std::string row = storage.unwritten(outputs); !row.empty()) fail(row);
        for (const QueryRow& row : all_rows(storage.reference_input().sequences)) {
            for (std::int64_t head = 0; head < heads_; ++head) {
                const std::int64_t first = storage.o_element(row.sequence, row.query, head);
                with_poison(output_, [&](auto poison) {
                    for (std::int64_t d = 0; d < dim_; ++d) store_at(outputs.o, first + d, poison);
                });
                if (test_.spec.lse)
                    store_at(outputs.lse, storage.lse_element(row.sequence, row.query, head), kPoisonF32);
            }
        }
        check_all_poison(storage, outputs, "its sequences");
    }

    void check_all_poison(const Storage& storage, const Storage::Outputs& outputs, const char* outside) {
        with_poison(output_, [&](auto poison) {
            if (const auto at = first_not(outputs.o, poison); at >= 0)
                fail(fmt::format("o was written outside {}, {} elements from its first", outside,
                                 at - storage.o_place().first));
        });
        if (const auto at = first_not(outputs.lse, kPoisonF32); at >= 0)
            fail(fmt::format("lse was written outside {}, {} elements from its first", outside,
                             at - storage.lse_place().first));
    }

    void check_values(const Storage& storage, const Storage::Outputs& outputs) {
        const ReferenceInput input = storage.reference_input();
        const std::vector<QueryRow> rows = sample_rows(
            input, options_.reference_budget, derive_seed(options_.seed, "rows of " + test_.full_name()));
        compared_ += rows.size();
        total_ += all_rows(input.sequences).size();
        const Reference want = compute_reference(input, rows, options_.threads);
        compare_outputs(storage, outputs, input, rows, want);
        if (test_.spec.lse) compare_lse(storage, outputs, rows, want);
    }

    void compare_outputs(const Storage& storage, const Storage::Outputs& outputs, const ReferenceInput& input,
                         const std::vector<QueryRow>& rows, const Reference& want) {
        std::vector<double> got;
        got.reserve(want.out.size());
        for (const QueryRow& row : rows) {
            for (std::int64_t head = 0; head < heads_; ++head) {
                const std::int64_t first = storage.o_element(row.sequence, row.query, head);
                for (std::int64_t d = 0; d < dim_; ++d) {
                    got.push_back(output_ == DType::f32
                                      ? load_at<float>(outputs.o, first + d)
                                      : decode(output_, load_at<std::uint16_t>(outputs.o, first + d)));
                }
            }
        }
        const Tolerance tolerance = output_tolerance(test_.spec.dtype, test_.spec.precision);
        const Comparison c = compare(tolerance, got, want.out, rounding());
        result_.max_abs_error = std::max(result_.max_abs_error, c.max_abs_error);
        result_.element_ratio = std::max(result_.element_ratio, c.worst_ratio);
        if (c.bad > 0) {
            const auto bad = static_cast<std::size_t>(c.first_bad);
            fail(fmt::format("{} of {} elements of o are wrong, first {}: got {}, want {}, tolerance {:.3g}",
                             c.bad, got.size(), where(rows, c.first_bad / dim_, c.first_bad % dim_), got[bad],
                             want.out[bad], tolerance.allowed(want.out[bad])));
        }
        compare_pools(got, input, rows, want);
    }

    // What O was rounded to once it was computed, where only that rounding may add to the tolerance.
    std::optional<DType> rounding() const {
        if (test_.spec.precision != Precision::high || output_ == DType::f32) return std::nullopt;
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
            result_.pooled_ratio = std::max(result_.pooled_ratio, pool.ratio());
            result_.vacuous_pools += pool.vacuous();
            const std::string which =
                fmt::format("rows of fewer than {} keys: ", std::int64_t{1} << 2 * keys);
            if (!pool.holds()) fail(which + pool.describe());
            if (pool.vacuous() && !test_.plain_overflows)
                fail(which + "the pooled bound is vacuous, the plain computation overflowed everywhere");
        }
    }

    void compare_lse(const Storage& storage, const Storage::Outputs& outputs,
                     const std::vector<QueryRow>& rows, const Reference& want) {
        std::vector<double> got;
        for (const QueryRow& row : rows)
            for (std::int64_t head = 0; head < heads_; ++head)
                got.push_back(
                    load_at<float>(outputs.lse, storage.lse_element(row.sequence, row.query, head)));
        const Comparison c = compare(lse_tolerance(test_.spec.precision), got, want.lse);
        result_.lse_ratio = std::max(result_.lse_ratio, c.worst_ratio);
        if (c.bad == 0) return;
        const auto bad = static_cast<std::size_t>(c.first_bad);
        fail(fmt::format("{} of {} elements of lse are wrong, first {}: got {}, want {}, tolerance {:.3g}",
                         c.bad, got.size(), where(rows, c.first_bad, -1), got[bad], want.lse[bad],
                         lse_tolerance(test_.spec.precision).allowed(want.lse[bad])));
    }

    // `line` counts heads of rows.
    std::string where(const std::vector<QueryRow>& rows, std::int64_t line, std::int64_t d) const {
        const QueryRow& row = rows[static_cast<std::size_t>(line / heads_)];
        const Step& step = test_.steps[step_];
        const auto s = static_cast<std::size_t>(row.sequence);
        return fmt::format("[sequence {}, query {}, head {}{}] (q_len {}, kv_len {})", row.sequence,
                           row.query, line % heads_, d < 0 ? "" : fmt::format(", {}", d), step.q_lens[s],
                           step.kv_lens[s]);
    }

    void finish() {
        if (result_.passed() && compared_ < total_)
            result_.detail = fmt::format("compared {} of {} query rows, drawn at random", compared_, total_);
    }

    Runtime& runtime_;
    const Case& test_;
    const RunOptions& options_;
    CaseResult& result_;
    std::int64_t heads_, dim_;
    DType output_;
    Storage::Outputs before_;  // of the last step
    std::size_t step_ = 0;
    std::size_t compared_ = 0, total_ = 0;
};

// Whether no later call in this process can succeed: CUDA_ERROR_ILLEGAL_ADDRESS, _LAUNCH_TIMEOUT, and
// _HARDWARE_STACK_ERROR .. _LAUNCH_FAILED of cuda.h.
bool is_device_lost(const DriverError& error) {
    return error.code() == 700 || error.code() == 702 || (error.code() >= 714 && error.code() <= 719);
}

}  // namespace

CaseResult judge(const std::string& group, const std::string& name,
                 const std::function<void(CaseResult&)>& body) {
    const auto start = std::chrono::steady_clock::now();
    CaseResult result;
    result.group = group;
    result.name = name;
    const auto failed = [&](const std::exception& error) {
        result.outcome = Outcome::failed;
        result.detail = std::string("threw: ") + error.what();
    };
    try {
        body(result);
    } catch (const NotHere& reason) {
        result.outcome = Outcome::skipped;
        result.detail = reason.what();
    } catch (const DriverError& error) {
        failed(error);
        result.device_lost = is_device_lost(error);
    } catch (const std::exception& error) {
        failed(error);
    }
    const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - start;
    result.milliseconds = elapsed.count();
    return result;
}

CaseResult run_case(Runtime& runtime, const Case& test, const RunOptions& options) {
    CaseResult result = judge(test.group, test.name,
                              [&](CaseResult& filled) { CaseRun(runtime, test, options, filled).run(); });
    if (result.outcome == Outcome::failed) result.detail += "\n    " + test.describe();
    return result;
}

}  // namespace attnsmith::check
