#include "check/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/parallel.hpp"
#include "check/random.hpp"
#include "check/small_floats.hpp"

namespace attnsmith::check {
namespace {

constexpr std::int64_t kTileKeys = 128;
constexpr std::int64_t kMostItems = 16;  // of one task: they share the conversion of K and V

// One query row and one query head.
struct Item {
    std::int64_t row = 0;  // index into the rows asked for
    std::int64_t head = 0;
    std::int64_t position = 0;  // of the query on the axis of keys
    KeyRange keys;
};

// Some items that attend to the same sequence's same key/value head.
struct Task {
    std::int64_t sequence = 0;
    std::int64_t kv_head = 0;
    std::vector<Item> items;
};

struct Sizes {
    explicit Sizes(const AttentionSpec& spec)
        : dim_qk(head_dim_qk(spec)), dim_vo(head_dim_vo(spec)), q_heads(spec.q_heads), kv(kv_heads(spec)) {}
    std::int64_t dim_qk, dim_vo, q_heads, kv;
};

// dot[j] += sum over four components; the loop over keys vectorises without reordering any sum.
void add_four_components(double* __restrict dot, const double* __restrict q, const double* __restrict keys) {
    const double *k0 = keys, *k1 = k0 + kTileKeys, *k2 = k1 + kTileKeys, *k3 = k2 + kTileKeys;
    const double q0 = q[0], q1 = q[1], q2 = q[2], q3 = q[3];
    for (std::int64_t j = 0; j < kTileKeys; ++j)
        dot[j] += (q0 * k0[j] + q1 * k1[j]) + (q2 * k2[j] + q3 * k3[j]);
}

void add_component(double* __restrict dot, double q, const double* __restrict keys) {
    for (std::int64_t j = 0; j < kTileKeys; ++j) dot[j] += q * keys[j];
}

// sum[d] += p[0] * v[0][d] + ... over `count` rows of V.
void add_weighted_rows(double* __restrict sum, const double* __restrict p, const double* __restrict v,
                       std::int64_t count, std::int64_t dim) {
    std::int64_t j = 0;
    for (; j + 4 <= count; j += 4) {
        const double *v0 = v + j * dim, *v1 = v0 + dim, *v2 = v1 + dim, *v3 = v2 + dim;
        const double p0 = p[j], p1 = p[j + 1], p2 = p[j + 2], p3 = p[j + 3];
        for (std::int64_t d = 0; d < dim; ++d)
            sum[d] += (p0 * v0[d] + p1 * v1[d]) + (p2 * v2[d] + p3 * v3[d]);
    }
    for (; j < count; ++j)
        for (std::int64_t d = 0; d < dim; ++d) sum[d] += p[j] * v[j * dim + d];
}

class TaskRunner {
  public:
    TaskRunner(const ReferenceInput& input, const std::vector<QueryRow>& rows, const Task& task,
               Reference& result)
        : input_(input),
          rows_(rows),
          task_(task),
          result_(result),
          sizes_(input.spec),
          queries_(decode_table(input.spec.dtype)),
          stored_(decode_table(kv_dtype(input.spec))) {
        bool any = false;
        for (const Item& item : task.items) {
            if (item.keys.count() == 0) continue;
            all_.first = any ? std::min(all_.first, item.keys.first) : item.keys.first;
            all_.last = any ? std::max(all_.last, item.keys.last) : item.keys.last;
            any = true;
        }
        width_ = (all_.count() + kTileKeys - 1) / kTileKeys * kTileKeys;
        exact_.resize(task.items.size() * static_cast<std::size_t>(width_));
    }

    void run() {
        dot_products();
        low_ = exact_;
        for (std::size_t n = 0; n < task_.items.size(); ++n) {
            exact_softmax(n);
            low_softmax(n);
        }
        weigh_values();
    }

  private:
    double* exact(std::size_t item) { return exact_.data() + item * static_cast<std::size_t>(width_); }
    double* low(std::size_t item) { return low_.data() + item * static_cast<std::size_t>(width_); }

    std::size_t place(const Item& item) const {
        return static_cast<std::size_t>(item.row * sizes_.q_heads + item.head);
    }

    std::int64_t tile_end(std::int64_t begin) const { return std::min(begin + kTileKeys, all_.last + 1); }

    double scale_of_head(const std::vector<float>& scales) const {
        if (scales.empty()) return 1.0;
        return number_above_0(scales[static_cast<std::size_t>(task_.kv_head)]);
    }

    static double number_above_0(double scale) {
        return scale > 0 && std::isfinite(scale) ? scale : std::numeric_limits<double>::quiet_NaN();
    }

    std::int64_t scale_block(std::int64_t dim) const { return input_.scale_block ? input_.scale_block : dim; }
    std::int64_t stored_key_dim() const {
        return input_.kpe ? sizes_.dim_qk - input_.spec.head_dim_kpe : sizes_.dim_qk;
    }

    // A block's scale of one of a token's two rows, NaN where any of the token's scales makes it so.
    double scale_of_token(const ScaleAccessor& scale, std::int64_t token, std::int64_t block) const {
        double all = 0.0;
        const auto see = [&](const ScaleAccessor& scales, std::int64_t dim) {
            for (std::int64_t b = 0; b * scale_block(dim) < dim; ++b)
                all += number_above_0(scales(task_.sequence, token, task_.kv_head, b));
        };
        see(input_.k_scale, stored_key_dim());
        see(input_.v_scale, sizes_.dim_vo);
        return std::isnan(all) ? all : scale(task_.sequence, token, task_.kv_head, block);
    }

    // As load_row(), with the scale of each block of the token's columns, or with `of_head`.
    void load_scaled(const void* row, std::int64_t token, std::int64_t dim, const ScaleAccessor& scale,
                     double of_head, double* to, std::int64_t step) const {
        if (!scale) return load_row(row, dim, of_head, to, step);
        for (std::int64_t first = 0; first < dim; first += scale_block(dim))
            load_row(static_cast<const std::uint8_t*>(row) + first, std::min(scale_block(dim), dim - first),
                     scale_of_token(scale, token, first / scale_block(dim)), to + first * step, step);
    }

    void load_position(std::int64_t token, double* to) const {
        const auto* from =
            static_cast<const std::uint16_t*>(input_.kpe(task_.sequence, token, task_.kv_head));
        for (std::int64_t d = 0; from && d < input_.spec.head_dim_kpe; ++d)
            to[(input_.kpe_first + d) * kTileKeys] = queries_[from[d]];
    }

    // A key or a value of so many components to `to`, `step` elements apart.
    void load_row(const void* row, std::int64_t dim, double scale, double* to, std::int64_t step) const {
        if (is_fp8(kv_dtype(input_.spec))) {
            const auto* from = static_cast<const std::uint8_t*>(row);
            for (std::int64_t d = 0; d < dim; ++d) to[d * step] = stored_[from[d]] * scale;
        } else {
            const auto* from = static_cast<const std::uint16_t*>(row);
            for (std::int64_t d = 0; d < dim; ++d) to[d * step] = stored_[from[d]] * scale;
        }
    }

    // K's tile as [component][key], zeros after the last key.
    void load_keys(std::int64_t begin, std::vector<double>& tile) const {
        const double scale = scale_of_head(input_.k_scales);
        std::fill(tile.begin(), tile.end(), 0.0 * scale);
        const std::int64_t first = input_.kpe && input_.kpe_first == 0 ? input_.spec.head_dim_kpe : 0;
        for (std::int64_t j = begin; j < tile_end(begin); ++j) {
            const void* row = input_.k(task_.sequence, j, task_.kv_head);
            double* const to = tile.data() + (j - begin);
            if (row)
                load_scaled(row, j, stored_key_dim(), input_.k_scale, scale, to + first * kTileKeys,
                            kTileKeys);
            if (input_.kpe) load_position(j, to);
        }
    }

    void load_values(std::int64_t begin, std::vector<double>& tile) const {
        const double scale = scale_of_head(input_.v_scales);
        for (std::int64_t j = begin; j < tile_end(begin); ++j) {
            const void* row = input_.v(task_.sequence, j, task_.kv_head);
            double* to = tile.data() + (j - begin) * sizes_.dim_vo;
            if (row)
                load_scaled(row, j, sizes_.dim_vo, input_.v_scale, scale, to, 1);
            else
                std::fill_n(to, sizes_.dim_vo, 0.0 * scale);
        }
    }

    std::vector<double> load_query(const Item& item) const {
        const QueryRow& row = rows_[static_cast<std::size_t>(item.row)];
        const auto* from = static_cast<const std::uint16_t*>(input_.q(row.sequence, row.query, item.head));
        std::vector<double> query(static_cast<std::size_t>(sizes_.dim_qk));
        for (std::size_t d = 0; d < query.size(); ++d) query[d] = queries_[from[d]];
        return query;
    }

    void dot_products() {
        std::vector<std::vector<double>> queries;
        for (const Item& item : task_.items) queries.push_back(load_query(item));
        std::vector<double> tile(static_cast<std::size_t>(sizes_.dim_qk * kTileKeys));
        for (std::int64_t begin = all_.first; begin <= all_.last; begin += kTileKeys) {
            load_keys(begin, tile);
            for (std::size_t n = 0; n < queries.size(); ++n)
                multiply(exact(n) + (begin - all_.first), queries[n].data(), tile.data());
        }
    }

    void multiply(double* dot, const double* query, const double* tile) const {
        std::int64_t d = 0;
        for (; d + 4 <= sizes_.dim_qk; d += 4) add_four_components(dot, query + d, tile + d * kTileKeys);
        for (; d < sizes_.dim_qk; ++d) add_component(dot, query[d], tile + d * kTileKeys);
    }

    // q k^T -> probabilities, in place; keys outside the item's range get 0.
    void exact_softmax(std::size_t n) {
        const Item& item = task_.items[n];
        const AttentionSpec& spec = input_.spec;
        const std::int64_t first = item.keys.first - all_.first, last = item.keys.last - all_.first;
        double* s = exact(n);
        double most = sink_of(item);
        for (std::int64_t j = first; j <= last; ++j) {
            double logit = s[j] * scale_of(spec);
            if (spec.softcap) logit = *spec.softcap * std::tanh(logit / *spec.softcap);
            s[j] = logit + bias(item, j + all_.first);
            most = std::max(most, s[j]);  // passes over a NaN, which the sum then has
        }
        most = base_of(most);
        double sum = spec.sink ? std::exp(sink_of(item) - most) : 0.0;
        for (std::int64_t j = first; j <= last; ++j) sum += s[j] = std::exp(s[j] - most);
        result_.lse[place(item)] = sum == 0 ? -std::numeric_limits<double>::infinity() : most + std::log(sum);
        divide_inside(s, first, last, sum);
    }

    // The same with every intermediate tensor of an eager framework rounded to the dtype.
    void low_softmax(std::size_t n) {
        const Item& item = task_.items[n];
        const AttentionSpec& spec = input_.spec;
        const DType dtype = spec.dtype;
        const std::int64_t first = item.keys.first - all_.first, last = item.keys.last - all_.first;
        double* s = low(n);
        float most = static_cast<float>(sink_of(item));
        for (std::int64_t j = first; j <= last; ++j) {
            double logit = round_to(dtype, round_to(dtype, s[j]) * scale_of(spec));
            if (spec.softcap)
                logit = round_to(dtype, *spec.softcap * round_to(dtype, std::tanh(logit / *spec.softcap)));
            if (spec.alibi) logit = round_to(dtype, logit + bias(item, j + all_.first));
            s[j] = logit;
            most = std::max(most, static_cast<float>(logit));
        }
        most = base_of(most);
        float sum = spec.sink ? std::exp(static_cast<float>(sink_of(item)) - most) : 0.0f;
        for (std::int64_t j = first; j <= last; ++j) {
            const float p = std::exp(static_cast<float>(s[j]) - most);
            sum += p;
            s[j] = p;
        }
        divide_inside(s, first, last, sum);
        for (std::int64_t j = first; j <= last; ++j) s[j] = round_to(dtype, s[j]);
    }

    // What logits are taken relative to. -inf less itself would be NaN: a logit of -inf has no weight, and a
    // row of no others attends to nothing.
    template <typename Float>
    static Float base_of(Float most) {
        return most == -std::numeric_limits<Float>::infinity() ? Float{0} : most;
    }

    // A sum of 0 is one of weights that are all 0.
    void divide_inside(double* s, std::int64_t first, std::int64_t last, double sum) const {
        for (std::int64_t j = 0; j < width_; ++j) s[j] = j < first || j > last || sum == 0 ? 0.0 : s[j] / sum;
    }

    double sink_of(const Item& item) const {
        return input_.spec.sink ? input_.sinks[static_cast<std::size_t>(item.head)]
                                : -std::numeric_limits<double>::infinity();
    }

    double bias(const Item& item, std::int64_t key) const {
        if (!input_.spec.alibi) return 0.0;
        return double{input_.alibi_slopes[static_cast<std::size_t>(item.head)]} *
               static_cast<double>(key - item.position);
    }

    void weigh_values() {
        std::vector<double> tile(static_cast<std::size_t>(sizes_.dim_vo * kTileKeys));
        for (std::int64_t begin = all_.first; begin <= all_.last; begin += kTileKeys) {
            load_values(begin, tile);
            for (std::size_t n = 0; n < task_.items.size(); ++n) add_tile(n, begin, tile);
        }
        for (const Item& item : task_.items) {
            double* low_row = result_.low.data() + place(item) * static_cast<std::size_t>(sizes_.dim_vo);
            for (std::int64_t d = 0; d < sizes_.dim_vo; ++d)
                low_row[d] = round_to(input_.spec.dtype, low_row[d]);
        }
    }

    void add_tile(std::size_t n, std::int64_t begin, const std::vector<double>& tile) {
        const Item& item = task_.items[n];
        const std::int64_t from = std::max(begin, item.keys.first);
        const std::int64_t count = std::min(tile_end(begin), item.keys.last + 1) - from;
        if (count <= 0) return;
        const double* v = tile.data() + (from - begin) * sizes_.dim_vo;
        const std::size_t at = place(item) * static_cast<std::size_t>(sizes_.dim_vo);
        const std::int64_t key = from - all_.first;
        add_weighted_rows(result_.out.data() + at, exact(n) + key, v, count, sizes_.dim_vo);
        add_weighted_rows(result_.low.data() + at, low(n) + key, v, count, sizes_.dim_vo);
    }

    const ReferenceInput& input_;
    const std::vector<QueryRow>& rows_;
    const Task& task_;
    Reference& result_;
    Sizes sizes_;
    const double *queries_, *stored_;  // the numbers of q's bits, and of k's and v's
    KeyRange all_;                     // the keys that any item needs
    std::int64_t width_ = 0;           // of exact_ and low_, whole tiles
    std::vector<double> exact_, low_;  // logits, then probabilities: [items][width_]
};

Item make_item(const ReferenceInput& input, const std::vector<QueryRow>& rows, std::int64_t row,
               std::int64_t head) {
    const QueryRow& query = rows[static_cast<std::size_t>(row)];
    const SequenceLengths& lengths = input.sequences[static_cast<std::size_t>(query.sequence)];
    return {row, head, query.query + lengths.kv - lengths.q, attended_keys(input.spec, lengths, query.query)};
}

// Rows of one sequence are expected side by side. Tasks are small enough that all threads have work.
std::vector<Task> make_tasks(const ReferenceInput& input, const std::vector<QueryRow>& rows, int threads) {
    const Sizes sizes(input.spec);
    const auto total = static_cast<std::int64_t>(rows.size()) * sizes.q_heads;
    const auto most = std::clamp<std::int64_t>(total / (4 * thread_count(threads)), 1, kMostItems);
    const std::int64_t group = sizes.q_heads / sizes.kv;
    std::vector<Task> tasks;
    for (std::int64_t kv_head = 0; kv_head < sizes.kv; ++kv_head) {
        for (std::size_t row = 0; row < rows.size(); ++row) {
            for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                const bool full = tasks.empty() || tasks.back().kv_head != kv_head ||
                                  tasks.back().sequence != rows[row].sequence ||
                                  static_cast<std::int64_t>(tasks.back().items.size()) >= most;
                if (full) tasks.push_back({rows[row].sequence, kv_head, {}});
                tasks.back().items.push_back(make_item(input, rows, static_cast<std::int64_t>(row), head));
            }
        }
    }
    return tasks;
}

}  // namespace

DType output_dtype(const AttentionSpec& spec) { return spec.o_dtype.value_or(spec.dtype); }
DType kv_dtype(const AttentionSpec& spec) { return spec.kv_dtype.value_or(spec.dtype); }
std::int64_t head_dim_qk(const AttentionSpec& spec) {
    return spec.op == Op::mla ? spec.head_dim_ckv + spec.head_dim_kpe : spec.head_dim_qk;
}
std::int64_t head_dim_vo(const AttentionSpec& spec) {
    if (spec.op == Op::mla) return spec.head_dim_ckv;
    return spec.head_dim_vo ? spec.head_dim_vo : spec.head_dim_qk;
}

std::int64_t kv_heads(const AttentionSpec& spec) {
    if (spec.op == Op::mla) return 1;
    return spec.kv_heads ? spec.kv_heads : spec.q_heads;
}

double scale_of(const AttentionSpec& spec) {
    return spec.scale.value_or(1.0 / std::sqrt(static_cast<double>(spec.head_dim_qk)));
}

KeyRange attended_keys(const AttentionSpec& spec, const SequenceLengths& lengths, std::int64_t query) {
    const std::int64_t position = query + lengths.kv - lengths.q;
    KeyRange keys{0, lengths.kv - 1};
    if (spec.mask == Mask::causal) {
        // A block's last key; one at a negative position has none.
        const std::int64_t block = spec.causal_block.value_or(1);
        const std::int64_t last = position >= 0 ? (position / block + 1) * block - 1 : -1;
        keys.last = std::min(keys.last, last);
    }
    if (spec.window_left) keys.first = std::max(keys.first, position - *spec.window_left);
    if (spec.window_right) keys.last = std::min(keys.last, position + *spec.window_right);
    if (const std::optional<std::int64_t> chunk = spec.attention_chunk) {
        // Rounds to negative infinity, as the definition does.
        const std::int64_t index = position >= 0 ? position / *chunk : -((*chunk - 1 - position) / *chunk);
        keys.first = std::max(keys.first, index * *chunk);
        keys.last = std::min(keys.last, (index + 1) * *chunk - 1);
    }
    return keys.count() > 0 ? keys : KeyRange{};
}

std::vector<QueryRow> all_rows(const std::vector<SequenceLengths>& sequences) {
    std::vector<QueryRow> rows;
    for (std::size_t s = 0; s < sequences.size(); ++s)
        for (std::int64_t query = 0; query < sequences[s].q; ++query)
            rows.push_back({static_cast<std::int64_t>(s), query});
    return rows;
}

double reference_cost(const ReferenceInput& input, const std::vector<QueryRow>& rows) {
    const Sizes sizes(input.spec);
    double keys = 0;
    for (const QueryRow& row : rows) {
        const SequenceLengths& lengths = input.sequences[static_cast<std::size_t>(row.sequence)];
        keys += static_cast<double>(attended_keys(input.spec, lengths, row.query).count());
    }
    // Two per multiply-add, V twice (exact and low); a softmax of about 60.
    return keys * static_cast<double>(sizes.q_heads) *
           static_cast<double>(2 * sizes.dim_qk + 4 * sizes.dim_vo + 60);
}

std::vector<QueryRow> sample_rows(const ReferenceInput& input, double budget, std::uint64_t seed) {
    std::vector<QueryRow> rows = all_rows(input.sequences);
    const double cost = reference_cost(input, rows);
    if (cost <= budget) return rows;
    const double keep = budget / cost;
    Random random(seed);
    std::vector<QueryRow> sample;
    for (const QueryRow& row : rows) {
        const std::int64_t last = input.sequences[static_cast<std::size_t>(row.sequence)].q - 1;
        const bool edge = row.query == 0 || row.query == last;
        if (random.uniform() < keep || edge) sample.push_back(row);
    }
    return sample;
}

Reference compute_reference(const ReferenceInput& input, const std::vector<QueryRow>& rows, int threads) {
    const Sizes sizes(input.spec);
    const std::size_t lines = rows.size() * static_cast<std::size_t>(sizes.q_heads);
    Reference result;
    result.out.assign(lines * static_cast<std::size_t>(sizes.dim_vo), 0.0);
    result.low = result.out;
    result.lse.assign(lines, 0.0);
    const std::vector<Task> tasks = make_tasks(input, rows, threads);
    parallel_for(static_cast<std::int64_t>(tasks.size()), threads, [&](std::int64_t i) {
        TaskRunner(input, rows, tasks[static_cast<std::size_t>(i)], result).run();
    });
    return result;
}

std::vector<double> weighed_magnitudes(const ReferenceInput& input, const QueryRow& row) {
    ReferenceInput positive = input;
    const bool is_stored = is_fp8(kv_dtype(input.spec));
    const auto columns = static_cast<std::size_t>(head_dim_vo(input.spec));
    std::vector<std::uint8_t> bytes(columns);
    std::vector<std::uint16_t> halves(columns);
    positive.v = [&](std::int64_t sequence, std::int64_t token, std::int64_t head) -> const void* {
        const void* const values = input.v(sequence, token, head);
        if (values == nullptr) return nullptr;
        for (std::size_t i = 0; i < columns; ++i) {
            if (is_stored)
                bytes[i] = static_cast<const std::uint8_t*>(values)[i] & 0x7f;
            else
                halves[i] = static_cast<const std::uint16_t*>(values)[i] & 0x7fff;
        }
        return is_stored ? static_cast<const void*>(bytes.data()) : halves.data();
    };
    return compute_reference(positive, {row}, 1)
        .out;  // by one thread, which is done with a row before the next
}

}  // namespace attnsmith::check
