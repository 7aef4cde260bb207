#include "check/storage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "check/small_floats.hpp"
#include "check/values.hpp"

namespace attnsmith::check {
namespace {

constexpr std::byte kNaNByte{0xff};  // 0xffff and 0xffffffff are NaN in every type

bool all_equal(const std::vector<Step>& steps, std::vector<std::int64_t> Step::*lengths,
               std::int64_t length) {
    for (const Step& step : steps)
        for (const std::int64_t n : step.*lengths)
            if (n != length) return false;
    return true;
}

void fill_pattern(Image& image, const void* pattern, std::size_t bytes) {
    for (std::size_t at = 0; at + bytes <= image.host.size(); at += bytes)
        std::memcpy(image.host.data() + at, pattern, bytes);
}

Image float_image(std::string name, const std::vector<float>& values) {
    Image image{std::move(name),
                std::vector<std::byte>(values.size() * sizeof(float) + 2 * kGuardBytes, kNaNByte),
                {}};
    if (!values.empty())
        std::memcpy(image.host.data() + kGuardBytes, values.data(), values.size() * sizeof(float));
    return image;
}

// Those of models are spread over several orders.
float drawn_scale(Random& random) {
    constexpr double kLeast = 0.02, kMost = 3;
    return static_cast<float>(std::exp(random.uniform(std::log(kLeast), std::log(kMost))));
}

bool is_number_above_0(float scale) { return scale > 0 && std::isfinite(scale); }

}  // namespace

std::vector<std::byte> Image::download() const {
    std::vector<std::byte> bytes(host.size());
    device.download(bytes.data(), bytes.size());
    return bytes;
}

Storage::Storage(const Runtime& runtime, const Case& test, std::uint64_t seed)
    : test_(test),
      capacity_(capacity_of(test)),
      placement_(place_tensors(test, capacity_)),
      random_(seed),
      before_load_(seed),
      images_(kRoles),
      alias_(kRoles) {
    for (std::size_t role = 0; role < kRoles; ++role) alias_[role] = role;
    if (placement_.k_in_q) alias_[kK] = kQ;
    if (placement_.v_in_k) alias_[kV] = alias_[kK];
    if (placement_.scales_inline)
        alias_[kKScale] = alias_[kK], alias_[kVScale] = alias_[kV];
    else if (has_token_scales() && test.spec.op == Op::mla)
        alias_[kVScale] = kKScale;  // latents are the values, too
    if (placement_.kpe_in_k) alias_[kKpe] = alias_[kK];
    make_head_vectors();
    make_scales();
    set_indices(test.steps.at(0));
    allocate(runtime);
}

void Storage::make_head_vectors() {
    const double heads = static_cast<double>(test_.spec.q_heads);
    for (std::int64_t head = 0; head < test_.spec.q_heads; ++head) {
        const auto given = [&](const std::vector<float>& values) {
            return values[static_cast<std::size_t>(head) % values.size()];
        };
        if (test_.spec.sink)
            sinks_.push_back(test_.sinks.empty() ? static_cast<float>(random_.uniform(-3, 6))
                                                 : given(test_.sinks));
        // The slopes of the ALiBi paper, 2^(-8 (h + 1) / heads).
        if (test_.spec.alibi)
            slopes_.push_back(test_.alibi_slopes.empty() ? static_cast<float>(std::exp2(
                                                               -8.0 * static_cast<double>(head + 1) / heads))
                                                         : given(test_.alibi_slopes));
    }
    images_[kSinks] = float_image("sinks", sinks_);
    images_[kSlopes] = float_image("alibi_slopes", slopes_);
}

// All KV heads have one scale, or each has its own. They are spread over those that models have, so that a
// kernel which takes another head's, or a key's for a value's, is far off.
void Storage::make_scales() {
    const DType dtype = kv_dtype(test_.spec);
    if (!is_fp8(dtype) || has_token_scales()) return;
    const auto make = [&](const std::vector<float>& given, std::vector<float>& scales,
                          std::vector<Quantiser>& quantisers) {
        for (std::int64_t head = 0; head < kv_heads(test_.spec); ++head) {
            const bool is_first = head == 0;
            if (test_.spec.kv_scale == KvScale::none)
                scales.push_back(1);
            else if (test_.spec.kv_scale == KvScale::tensor && !is_first)
                scales.push_back(scales[0]);
            else if (given.empty())
                scales.push_back(drawn_scale(random_));
            else
                scales.push_back(given[static_cast<std::size_t>(head) % given.size()]);
            quantisers.push_back(!is_first && scales.back() == scales[0]
                                     ? quantisers[0]
                                     : Quantiser(test_.spec.dtype, dtype, scales.back()));
        }
    };
    make(test_.k_scales, k_scales_, key_quantisers_);
    make(test_.v_scales, v_scales_, value_quantisers_);
    // Latents are the values, too.
    if (test_.spec.op == Op::mla) v_scales_ = k_scales_, value_quantisers_ = key_quantisers_;
    set_scales({});
}

void Storage::set_scales(const Step& step) {
    k_scales_now_ = k_scales_, v_scales_now_ = v_scales_;
    if (test_.spec.kv_scale == KvScale::none || has_token_scales()) return;
    const std::size_t heads = k_scales_.size(), given = test_.spec.kv_scale == KvScale::head ? heads : 1;
    k_scales_now_.resize(given), v_scales_now_.resize(given);
    if (step.spoil_scales) step.spoil_scales(k_scales_now_, v_scales_now_);
    if (test_.spec.op == Op::mla) v_scales_now_ = k_scales_now_;
    const auto set = [&](Role role, const char* name, const std::vector<float>& scales) {
        images_[role].name = name;
        images_[role].host = float_image(name, scales).host;
    };
    set(kKScale, "k_scale", k_scales_now_);
    set(kVScale, "v_scale", v_scales_now_);
    if (test_.scales_at_launch)
        set(kNoScale, "scales that no launch has", std::vector<float>(given, std::nanf("")));
    k_scales_now_.resize(heads, k_scales_now_[0]), v_scales_now_.resize(heads, v_scales_now_[0]);
}

bool Storage::has_good_scales(std::int64_t kv_head) const {
    const auto is_good = [&](const std::vector<float>& scales) {
        if (scales.empty()) return true;
        return is_number_above_0(scales[static_cast<std::size_t>(kv_head)]);
    };
    return is_good(k_scales_now_) && is_good(v_scales_now_);
}

bool Storage::has_good_scales(const QueryRow& row, std::int64_t kv_head) const {
    if (!has_token_scales()) return has_good_scales(kv_head);
    const SequenceLengths& lengths = lengths_[static_cast<std::size_t>(row.sequence)];
    const KeyRange keys = attended_keys(test_.spec, lengths, row.query);
    for (std::int64_t token = keys.first; token <= keys.last; ++token) {
        for (const bool of_key : {true, false}) {
            const float* const scales = scales_at(of_key, row.sequence, token, kv_head);
            const std::int64_t count =
                scales_of(test_.spec, of_key ? stored_key_dim(test_.spec) : head_dim_vo(test_.spec));
            if (scales && !std::all_of(scales, scales + count, is_number_above_0)) return false;
        }
    }
    return true;
}

const float* Storage::scales_at(bool of_key, std::int64_t sequence, std::int64_t token,
                                std::int64_t head) const {
    const std::int64_t at =
        kv_element(of_key ? placement_.k_scale : placement_.v_scale, sequence, token, head);
    if (at < 0) return nullptr;
    return reinterpret_cast<const float*>(image_of(of_key ? kKScale : kVScale).host.data()) + at;
}

// What has no place is drawn all the same, as keys and values are.
void Storage::draw_scales(bool of_key, std::int64_t sequence, std::int64_t token, std::int64_t head,
                          bool has_place) {
    const std::vector<float>& given = of_key ? test_.k_scales : test_.v_scales;
    const std::int64_t count =
        scales_of(test_.spec, of_key ? stored_key_dim(test_.spec) : head_dim_vo(test_.spec));
    auto* const to = has_place ? const_cast<float*>(scales_at(of_key, sequence, token, head)) : nullptr;
    for (std::int64_t block = 0; block < count; ++block) {
        const float drawn = drawn_scale(scale_random_);
        const auto turn = static_cast<std::size_t>(token + head + block);
        if (to) to[block] = given.empty() ? drawn : given[turn % given.size()];
    }
}

void Storage::spoil(const SpoiledScale& spoiled) {
    for (std::int64_t head = 0; head < kv_heads(test_.spec); ++head) {
        if (spoiled.head >= 0 && spoiled.head != head) continue;
        const float* const scales = scales_at(spoiled.of_key, spoiled.sequence, spoiled.token, head);
        const_cast<float*>(scales)[spoiled.block] = spoiled.value;
    }
}

// Images of scales of tokens, and one that has the places of either for a Call that has others at launch.
void Storage::allocate_scales() {
    const std::size_t k = placement_.k_scale.image_bytes(), v = placement_.v_scale.image_bytes();
    if (placement_.scales_inline) {
        for (const auto& [role, bytes] : {std::pair{kK, k}, {kV, v}}) {
            std::vector<std::byte>& host = image_of(role).host;
            host.resize(std::max(host.size(), bytes));
        }
        // Behind the scales of the last row, where there are any: the columns of its position.
        if (placement_.kpe_in_k) {
            std::vector<std::byte>& host = image_of(kK).host;
            host.resize(std::max(host.size(), placement_.kpe.image_bytes()));
        }
    } else {
        images_[kKScale] = {"k_scale", std::vector<std::byte>(k), {}};
        if (alias_[kVScale] == kVScale) images_[kVScale] = {"v_scale", std::vector<std::byte>(v), {}};
    }
    if (test_.scales_at_launch)
        images_[kNoScale] = {
            "scales that no launch has", std::vector<std::byte>(std::max(k, v), kNaNByte), {}};
}

void Storage::allocate(const Runtime& runtime) {
    std::size_t bytes[] = {placement_.q.image_bytes(), placement_.k.image_bytes(),
                           placement_.v.image_bytes()};
    if (alias_[kV] == kK) bytes[kK] = std::max(bytes[kK], bytes[kV]);
    if (alias_[kV] == kQ) bytes[kQ] = std::max({bytes[kQ], bytes[kK], bytes[kV]});
    const char* names[] = {"q", "k", "v"};
    for (const Role role : {kQ, kK, kV})
        if (alias_[role] == role) images_[role] = {names[role], std::vector<std::byte>(bytes[role]), {}};
    if (placement_.is_q_pe_apart)
        images_[kQPe] = {"q_pe", std::vector<std::byte>(placement_.q_pe.image_bytes()), {}};
    if (placement_.is_kpe_apart && !placement_.kpe_in_k)
        images_[kKpe] = {"kpe", std::vector<std::byte>(placement_.kpe.image_bytes()), {}};
    if (has_token_scales()) allocate_scales();
    o_ = {"o", std::vector<std::byte>(placement_.o.image_bytes()), {}};
    lse_ = {"lse", std::vector<std::byte>(placement_.lse.image_bytes()), {}};
    with_poison(output_dtype(test_.spec), [&](auto poison) { fill_pattern(o_, &poison, sizeof poison); });
    fill_pattern(lse_, &kPoisonF32, sizeof kPoisonF32);
    for (Image& image : images_)
        if (!image.host.empty()) image.device = runtime.allocate(image.host.size());
    for (Image* image : {&o_, &lse_}) image->device = runtime.allocate(image->host.size());
    for (const Role role : {kSinks, kSlopes}) images_[role].upload();
}

bool Storage::lens_needed(bool q) const {
    return test_.always_lens ||
           !all_equal(test_.steps, q ? &Step::q_lens : &Step::kv_lens,
                      q ? capacity_.q_rows : capacity_.kv_rows) ||
           std::any_of(test_.steps.begin(), test_.steps.end(), [](const Step& s) { return bool(s.spoil); });
}

bool Storage::uses(Role role) const {
    const bool paged = test_.spec.kv == KvStorage::paged;
    const bool padded = test_.page_list == PageList::padded;
    switch (role) {
        case kQIndptr:
            return test_.q_storage == QStorage::ragged;
        case kQLens:
            return test_.q_storage == QStorage::dense && lens_needed(true);
        case kKvIndptr:
            return test_.spec.kv == KvStorage::ragged;
        case kKvLens:
            return (paged && padded) || (test_.spec.kv == KvStorage::dense && lens_needed(false));
        case kTable:
            return paged && padded;
        case kTableRows:
            return paged && padded && test_.spare_table_rows.has_value();
        case kPageIndptr:
        case kPageIndices:
        case kLastPage:
            return paged && !padded;
        default:
            return true;
    }
}

IndexShape Storage::shape_of(Role role) const {
    const std::int64_t batch = capacity_.batch;
    switch (role) {
        case kQLens:
        case kKvLens:
        case kLastPage:
        case kTableRows:
            return {1, batch, batch};
        case kTable:
            return {batch + test_.spare_table_rows.value_or(0), capacity_.columns,
                    capacity_.columns + test_.layout.table_pad};
        case kPageIndices:
            return {1, capacity_.page_entries, capacity_.page_entries};
        default:
            return {1, batch + 1, batch + 1};
    }
}

void Storage::set_index_image(Role role, const std::vector<std::int64_t>& values, const IndexShape& shape) {
    if (!uses(role)) return;
    static const char* const names[] = {
        "q",         "k",       "v",          "sinks",       "alibi_slopes", "q_indptr",      "q_lens",
        "kv_indptr", "kv_lens", "page_table", "page_indptr", "page_indices", "last_page_len", "table_rows"};
    images_[role].name = names[role];
    images_[role].host = encode_indices(values, shape, test_.spec.index_dtype).bytes;
}

void Storage::set_indices(const Step& step) {
    const IndexArrays good = make_indices(test_, capacity_, step, random_);
    IndexArrays a = good;
    if (step.spoil) step.spoil(a);
    // Nonsense says nothing about where tokens lie, so that the host keeps to what it was before.
    indices_ = step.only_safety ? good : a;
    lengths_.clear();
    for (std::size_t s = 0; s < step.q_lens.size(); ++s)
        lengths_.push_back({step.q_lens[s], step.kv_lens[s]});
    set_index_image(kQIndptr, a.q_indptr, shape_of(kQIndptr));
    set_index_image(kQLens, a.q_lens, shape_of(kQLens));
    set_index_image(kKvIndptr, a.kv_indptr, shape_of(kKvIndptr));
    set_index_image(kKvLens, a.kv_lens, shape_of(kKvLens));
    set_index_image(kTable, a.page_table, shape_of(kTable));
    set_index_image(kTableRows, a.table_rows, shape_of(kTableRows));
    set_index_image(kPageIndptr, a.page_indptr, shape_of(kPageIndptr));
    set_index_image(kPageIndices, a.page_indices, shape_of(kPageIndices));
    set_index_image(kLastPage, a.last_page_len, shape_of(kLastPage));
}

void Storage::load(const Step& step) {
    if (step.same_data)
        random_ = before_load_;
    else
        before_load_ = random_;
    set_indices(step);
    set_scales(step);
    const auto empty = [&](Role role) {
        if (alias_[role] == role) std::fill(images_[role].host.begin(), images_[role].host.end(), kNaNByte);
    };
    for (const Role role : {kQ, kK, kV, kQPe, kKpe}) empty(role);
    if (has_token_scales()) empty(kKScale), empty(kVScale);
    fill_values(step);
    for (const Planted& planted : step.planted) plant(planted);
    for (const SpoiledScale& spoiled : step.spoiled_scales) spoil(spoiled);
    copy_positions();
    for (Image& image : images_)
        if (!image.host.empty()) image.upload();
}

std::int64_t Storage::first_seen_key(std::int64_t sequence) const {
    const SequenceLengths& lengths = lengths_[static_cast<std::size_t>(sequence)];
    std::int64_t first = lengths.kv;
    for (std::int64_t query = 0; query < lengths.q; ++query) {
        const KeyRange keys = attended_keys(test_.spec, lengths, query);
        if (keys.count() > 0) first = std::min(first, keys.first);
    }
    return first;
}

// What has no place is drawn all the same, so that Step::same_data means the same numbers elsewhere.
void Storage::fill_values(const Step& step) {
    ValueSource source(test_.values, test_.spec.dtype, random_.next());
    if (has_token_scales()) scale_random_ = Random(random_.next());
    std::vector<std::uint16_t> key(static_cast<std::size_t>(head_dim_qk(test_.spec)));
    std::vector<std::uint16_t> value(static_cast<std::size_t>(head_dim_vo(test_.spec)));
    for (std::size_t s = 0; s < lengths_.size(); ++s) {
        const auto sequence = static_cast<std::int64_t>(s);
        for (std::int64_t token = 0; token < lengths_[s].q; ++token)
            for (std::int64_t head = 0; head < test_.spec.q_heads; ++head)
                source.query(element(kQ, q_element(sequence, token, head)), head_dim_qk(test_.spec));
        const std::int64_t first = step.evicted ? first_seen_key(sequence) : 0;
        for (std::int64_t token = 0; token < lengths_[s].kv; ++token) {
            const bool has_place = token >= first && kv_element(placement_.k, sequence, token, 0) >= 0;
            for (std::int64_t head = 0; head < kv_heads(test_.spec); ++head) {
                source.key(key.data(), head_dim_qk(test_.spec), head);
                source.value(value.data(), head_dim_vo(test_.spec));
                if (has_token_scales()) draw_scales(true, sequence, token, head, has_place);
                // Latents are the values, too.
                if (has_token_scales() && test_.spec.op != Op::mla)
                    draw_scales(false, sequence, token, head, has_place);
                if (!has_place) continue;
                if (test_.spec.op == Op::mla && test_.spec.kv_scale == KvScale::block128)
                    store_position(sequence, token, key);
                else
                    store_token(placement_.k, kK, sequence, token, head, key);
                store_token(placement_.v, kV, sequence, token, head, value);
            }
        }
    }
}

// The columns of the position of a key of latents, which have no scale.
void Storage::store_position(std::int64_t sequence, std::int64_t token,
                             const std::vector<std::uint16_t>& key) {
    if (!placement_.is_kpe_apart) return;
    const std::int64_t at = kv_element(placement_.kpe, sequence, token, 0);
    std::memcpy(element(kKpe, at), key.data() + position_first(),
                static_cast<std::size_t>(test_.spec.head_dim_kpe) * sizeof key[0]);
}

void Storage::store_token(const Place& place, Role role, std::int64_t sequence, std::int64_t token,
                          std::int64_t head, const std::vector<std::uint16_t>& row) {
    const std::int64_t index = kv_element(place, sequence, token, head);
    if (!has_token_scales()) return store_row(role, index, head, row);
    const float* const scales = scales_at(role == kK, sequence, token, head);
    const std::int64_t block =
        test_.spec.kv_scale == KvScale::block128 ? 128 : static_cast<std::int64_t>(row.size());
    auto* const to = reinterpret_cast<std::uint8_t*>(stored(role, index));
    const double* const numbers = decode_table(test_.spec.dtype);
    for (std::size_t d = 0; d < row.size(); ++d)
        to[d] = static_cast<std::uint8_t>(
            encode(kv_dtype(test_.spec), numbers[row[d]] / scales[static_cast<std::int64_t>(d) / block]));
}

void Storage::store_row(Role role, std::int64_t index, std::int64_t head,
                        const std::vector<std::uint16_t>& row) {
    std::byte* const to = stored(role, index);
    const std::vector<Quantiser>& quantisers = role == kK ? key_quantisers_ : value_quantisers_;
    if (quantisers.empty())
        std::memcpy(to, row.data(), row.size() * sizeof row[0]);
    else
        quantisers[static_cast<std::size_t>(head)].quantise(row.data(), static_cast<std::int64_t>(row.size()),
                                                            reinterpret_cast<std::uint8_t*>(to));
}

void Storage::plant(const Planted& planted) {
    const bool query = planted.where == Planted::Where::q, key = planted.where == Planted::Where::k;
    const std::int64_t heads = query ? test_.spec.q_heads : kv_heads(test_.spec);
    for (std::int64_t head = 0; head < heads; ++head) {
        if (planted.head >= 0 && planted.head != head) continue;
        const std::int64_t row =
            query ? q_element(planted.sequence, planted.token, head)
                  : kv_element(key ? placement_.k : placement_.v, planted.sequence, planted.token, head);
        if (query) {
            element(kQ, row)[planted.component] = encode(test_.spec.dtype, planted.value);
            continue;
        }
        const std::vector<float>& scales = key ? k_scales_ : v_scales_;
        double scale = scales.empty() ? 1.0 : scales[static_cast<std::size_t>(head)];
        if (has_token_scales())
            scale = scales_at(key, planted.sequence, planted.token,
                              head)[test_.spec.kv_scale == KvScale::block128 ? planted.component / 128 : 0];
        const std::uint16_t bits = encode(kv_dtype(test_.spec), planted.value / scale);
        // A number of 8 bits is the lower byte, which is the first.
        std::memcpy(stored(key ? kK : kV, row + planted.component), &bits,
                    static_cast<std::size_t>(size_of(kv_dtype(test_.spec))));
    }
}

void Storage::poison_outputs() {
    o_.upload();
    lse_.upload();
}

Tensor Storage::index_tensor(Role role) const {
    if (!uses(role)) return {};
    const IndexShape shape = shape_of(role);
    Tensor tensor;
    tensor.data = static_cast<std::byte*>(images_[role].device.data()) + kGuardBytes;
    tensor.dtype = test_.spec.index_dtype;
    tensor.rank = role == kTable ? 2 : 1;
    if (role == kTable) {
        tensor.shape = {shape.rows, shape.columns};
        tensor.strides = {shape.row_stride, 1};
    } else {
        tensor.shape = {shape.columns};
        tensor.strides = {1};
    }
    return tensor;
}

AttentionTensors Storage::tensors() const {
    AttentionTensors tensors;
    tensors.q = placement_.q.tensor(image_of(kQ).device.data());
    tensors.k = placement_.k.tensor(image_of(kK).device.data());
    if (test_.spec.op == Op::mla)
        state_latents(tensors);
    else
        tensors.v = placement_.v.tensor(image_of(kV).device.data());
    tensors.o = placement_.o.tensor(o_.device.data());
    if (test_.spec.lse) tensors.lse = placement_.lse.tensor(lse_.device.data());
    const auto vector = [&](Role role, std::int64_t count) {
        return Tensor::contiguous(vector_data(role), DType::fp32, {count});
    };
    if (test_.spec.sink) tensors.sinks = vector(kSinks, test_.spec.q_heads);
    if (test_.spec.alibi) tensors.alibi_slopes = vector(kSlopes, test_.spec.q_heads);
    if (test_.layout.kv_as_bytes)
        for (Tensor* const stored : {&tensors.k, &tensors.v, &tensors.kpe})
            if (is_fp8(stored->dtype)) stored->dtype = DType::uint8;
    if (has_token_scales()) add_scales(tensors);
    if (test_.spec.kv_scale == KvScale::none || has_token_scales()) return tensors;
    const std::int64_t scales = test_.spec.kv_scale == KvScale::head ? kv_heads(test_.spec) : 1;
    tensors.k_scale = vector(test_.scales_at_launch ? kNoScale : kKScale, scales);
    if (test_.spec.op == Op::mla) return tensors;
    tensors.v_scale = vector(test_.scales_at_launch ? kNoScale : kVScale, scales);
    return tensors;
}

void Storage::add_scales(AttentionTensors& tensors) const {
    const auto scales = [&](Role role, const Place& place) {
        const Image& image = test_.scales_at_launch ? images_[kNoScale] : image_of(role);
        return place.tensor(image.device.data());
    };
    tensors.k_scale = scales(kKScale, placement_.k_scale);
    if (test_.spec.op != Op::mla) {
        tensors.v_scale = scales(kVScale, placement_.v_scale);
        return;
    }
    // With the axis of heads exactly where k has it.
    const int head = test_.spec.kv == KvStorage::ragged ? 1 : 2;
    if (!test_.layout.latent_heads) tensors.k_scale = tensors.k_scale.select(head, 0);
}

const float* Storage::vector_data(Role role) const {
    return reinterpret_cast<const float*>(static_cast<std::byte*>(images_[role].device.data()) + kGuardBytes);
}

TensorAddresses Storage::addresses() const {
    TensorAddresses addresses;
    if (!test_.scales_at_launch) return addresses;
    if (has_token_scales()) {
        const auto at = [&](Role role, const Place& place) {
            const auto* const image = static_cast<const float*>(image_of(role).device.data());
            return image + place.first;
        };
        addresses.k_scale = at(kKScale, placement_.k_scale);
        if (test_.spec.op != Op::mla) addresses.v_scale = at(kVScale, placement_.v_scale);
        return addresses;
    }
    addresses.k_scale = vector_data(kKScale);
    if (test_.spec.op != Op::mla) addresses.v_scale = vector_data(kVScale);
    return addresses;
}

std::int64_t Storage::position_first() const {
    return test_.layout.latents_apart ? 0 : test_.spec.head_dim_ckv;
}

// Columns of the position that come first in the images of q and k, into tensors of their own.
void Storage::copy_positions() {
    const auto copy = [&](Role from, const Place& whole, Role to, const Place& place) {
        const bool ragged = place.rank == 3;
        const std::int64_t last = ragged ? 1 : place.shape[2], columns = test_.spec.head_dim_kpe;
        const std::int64_t bytes = size_of(place.dtype);
        for (std::int64_t a = 0; a < place.shape[0]; ++a)
            for (std::int64_t b = 0; b < place.shape[1]; ++b)
                for (std::int64_t c = 0; c < last; ++c)
                    std::memcpy(
                        images_[to].host.data() + bytes * (ragged ? place.at(a, b) : place.at(a, b, c)),
                        image_of(from).host.data() + bytes * (ragged ? whole.at(a, b) : whole.at(a, b, c)),
                        static_cast<std::size_t>(bytes * columns));
    };
    if (placement_.is_q_pe_apart) copy(kQ, placement_.q, kQPe, placement_.q_pe);
    if (placement_.is_kpe_apart && test_.spec.kv_scale != KvScale::block128)
        copy(kK, placement_.k, kKpe, placement_.kpe);
}

// Columns of the position behind the others, or apart from them.
void Storage::state_latents(AttentionTensors& tensors) const {
    const std::int64_t latent = test_.spec.head_dim_ckv, position = test_.spec.head_dim_kpe;
    const auto part = [](const Tensor& whole, std::int64_t first, std::int64_t columns) {
        Tensor tensor = whole;
        tensor.data = static_cast<std::byte*>(whole.data) + first * size_of(whole.dtype);
        tensor.shape[static_cast<std::size_t>(whole.rank - 1)] = columns;
        return tensor;
    };
    if (!test_.layout.latent_heads) tensors.k = tensors.k.select(tensors.k.rank - 2, 0);
    if (placement_.is_q_pe_apart) {
        tensors.q = part(tensors.q, position, latent);
        tensors.q_pe = placement_.q_pe.tensor(images_[kQPe].device.data());
    }
    if (!placement_.is_kpe_apart) return;
    if (test_.spec.kv_scale != KvScale::block128) tensors.k = part(tensors.k, position, latent);
    tensors.kpe = placement_.kpe.tensor(image_of(kKpe).device.data());
    // Tensors of keys have the axis of heads or not, each by itself.
    if (test_.layout.latent_heads) tensors.kpe = tensors.kpe.select(tensors.kpe.rank - 2, 0);
}

Batch Storage::batch() const {
    Batch batch;
    batch.q_indptr = index_tensor(kQIndptr);
    batch.q_lens = index_tensor(kQLens);
    batch.kv_indptr = index_tensor(kKvIndptr);
    batch.kv_lens = index_tensor(kKvLens);
    batch.page_table = index_tensor(kTable);
    batch.table_rows = index_tensor(kTableRows);
    batch.page_indptr = index_tensor(kPageIndptr);
    batch.page_indices = index_tensor(kPageIndices);
    batch.last_page_len = index_tensor(kLastPage);
    if (!test_.give_bounds) return batch;
    batch.max_q_len = test_.max_q_len.value_or(capacity_.longest_q);
    batch.max_kv_len = test_.max_kv_len.value_or(capacity_.longest_kv);
    return batch;
}

std::size_t Storage::workspace_bytes(const Kernel& kernel) const {
    const Batch bounds = batch();
    const bool dense = test_.q_storage == QStorage::dense;
    const std::int64_t max_q = bounds.max_q_len ? bounds.max_q_len : capacity_.q_rows;
    std::int64_t max_kv = bounds.max_kv_len;
    if (!max_kv) {
        switch (test_.spec.kv) {
            case KvStorage::dense:
                max_kv = capacity_.kv_rows;
                break;
            case KvStorage::ragged:
                max_kv = capacity_.kv_tokens;
                break;
            case KvStorage::paged:
                max_kv = test_.spec.page_size *
                         (test_.page_list == PageList::padded ? capacity_.columns : capacity_.page_entries);
        }
    }
    return kernel.workspace_bytes(
        {capacity_.batch, dense ? capacity_.batch * max_q : capacity_.q_tokens, max_kv});
}

ReferenceInput Storage::reference_input() const {
    ReferenceInput input;
    input.spec = test_.spec;
    input.sequences = lengths_;
    input.sinks = sinks_;
    input.alibi_slopes = slopes_;
    input.k_scales = k_scales_now_;
    input.v_scales = v_scales_now_;
    if (has_token_scales()) {
        input.k_scale = [this](std::int64_t s, std::int64_t t, std::int64_t h, std::int64_t block) {
            return scales_at(true, s, t, h)[block];
        };
        input.v_scale = [this](std::int64_t s, std::int64_t t, std::int64_t h, std::int64_t block) {
            return scales_at(false, s, t, h)[block];
        };
        input.scale_block = test_.spec.kv_scale == KvScale::block128 ? 128 : 0;
        if (placement_.is_kpe_apart && test_.spec.kv_scale == KvScale::block128) {
            input.kpe_first = position_first();
            input.kpe = [this](std::int64_t s, std::int64_t t, std::int64_t h) -> const void* {
                const std::int64_t at = kv_element(placement_.kpe, s, t, h);
                return at < 0 ? nullptr : image_of(kKpe).host.data() + at * size_of(placement_.kpe.dtype);
            };
        }
    }
    input.q = [this](std::int64_t s, std::int64_t t, std::int64_t h) {
        return image_of(kQ).host.data() + q_element(s, t, h) * size_of(test_.spec.dtype);
    };
    input.k = [this](std::int64_t s, std::int64_t t, std::int64_t h) {
        return stored(kK, kv_element(placement_.k, s, t, h));
    };
    input.v = [this](std::int64_t s, std::int64_t t, std::int64_t h) {
        return stored(kV, kv_element(placement_.v, s, t, h));
    };
    return input;
}

Storage::Outputs Storage::read_outputs() const { return {o_.download(), lse_.download()}; }

std::string Storage::unwritten(const Outputs& outputs) const {
    const auto is_poison = [](const std::vector<std::byte>& bytes, std::int64_t element, const auto& poison) {
        return std::memcmp(bytes.data() + element * static_cast<std::int64_t>(sizeof poison), &poison,
                           sizeof poison) == 0;
    };
    for (const QueryRow& row : all_rows(lengths_)) {
        for (std::int64_t head = 0; head < test_.spec.q_heads; ++head) {
            const auto where = [&](const std::string& tensor) {
                return fmt::format("{}[sequence {}, query {}, head {}] was not written", tensor, row.sequence,
                                   row.query, head);
            };
            const std::int64_t first = o_element(row.sequence, row.query, head);
            bool is_left = false;
            with_poison(output_dtype(test_.spec), [&](auto poison) {
                for (std::int64_t d = 0; d < head_dim_vo(test_.spec); ++d)
                    is_left = is_left || is_poison(outputs.o, first + d, poison);
            });
            if (is_left) return where("o");
            if (test_.spec.lse &&
                is_poison(outputs.lse, lse_element(row.sequence, row.query, head), kPoisonF32))
                return where("lse");
        }
    }
    return {};
}

std::string Storage::changed_input() const {
    for (const Image& image : images_)
        if (!image.host.empty() && image.download() != image.host) return image.name;
    return {};
}

std::uint16_t* Storage::element(Role role, std::int64_t index) {
    return reinterpret_cast<std::uint16_t*>(image_of(role).host.data()) + index;
}

const std::byte* Storage::stored(Role role, std::int64_t index) const {
    return index < 0 ? nullptr : image_of(role).host.data() + index * size_of(kv_dtype(test_.spec));
}

std::byte* Storage::stored(Role role, std::int64_t index) {
    return const_cast<std::byte*>(std::as_const(*this).stored(role, index));
}

std::int64_t Storage::q_element(std::int64_t sequence, std::int64_t token, std::int64_t head) const {
    if (test_.q_storage == QStorage::dense) return placement_.q.at(sequence, token, head);
    return placement_.q.at(indices_.q_indptr[static_cast<std::size_t>(sequence)] + token, head);
}

std::int64_t Storage::o_element(std::int64_t sequence, std::int64_t query, std::int64_t head) const {
    if (test_.q_storage == QStorage::dense) return placement_.o.at(sequence, query, head);
    return placement_.o.at(indices_.q_indptr[static_cast<std::size_t>(sequence)] + query, head);
}

std::int64_t Storage::lse_element(std::int64_t sequence, std::int64_t query, std::int64_t head) const {
    if (test_.q_storage == QStorage::dense) return placement_.lse.at(sequence, query, head);
    return placement_.lse.at(indices_.q_indptr[static_cast<std::size_t>(sequence)] + query, head);
}

std::int64_t Storage::page_of(std::int64_t sequence, std::int64_t number) const {
    const auto s = static_cast<std::size_t>(sequence);
    const bool padded = test_.page_list == PageList::padded;
    const std::int64_t at =
        padded ? indices_.row_of(sequence) * indices_.columns + number : indices_.page_indptr[s] + number;
    const auto& list = padded ? indices_.page_table : indices_.page_indices;
    const std::int64_t page = list.at(static_cast<std::size_t>(at));
    return page >= 0 && page < indices_.pages ? page : -1;
}

std::int64_t Storage::kv_element(const Place& place, std::int64_t sequence, std::int64_t token,
                                 std::int64_t head) const {
    if (test_.spec.kv == KvStorage::dense) return place.at(sequence, token, head);
    if (test_.spec.kv == KvStorage::ragged)
        return place.at(indices_.kv_indptr[static_cast<std::size_t>(sequence)] + token, head);
    const std::int64_t page = page_of(sequence, token / test_.spec.page_size);
    if (page < 0) return -1;
    const std::int64_t slot = token % test_.spec.page_size;
    return test_.spec.page_order == PageOrder::NHD ? place.at(page, slot, head) : place.at(page, head, slot);
}

}  // namespace attnsmith::check
