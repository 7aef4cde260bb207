// Breaks valid arguments, and knows which of what it broke has to be refused.
#pragma once

#include <attnsmith/attnsmith.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "c_api/fuzz_operands.hpp"

namespace attnsmith::test {

class Breaker {
  public:
    explicit Breaker(std::uint64_t seed) : random_(seed) {}

  protected:
    static constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    static constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

    std::mt19937_64& random() { return random_; }

    void start_over() {
        broken_.clear();
        field_.clear();
        must_fail_ = false;
    }

    // ---- Chance

    bool one_in(std::uint64_t n) { return random_() % n == 0; }
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
    template <typename T>
    T any_of(std::initializer_list<T> values) {
        return *(values.begin() + static_cast<std::ptrdiff_t>(below(values.size())));
    }

    // What was broken; `fatal` where that alone has to make the call fail. `field`: what an error that says
    // so has to name, or the start of it, if nothing else was broken; empty where it may name another.
    void breaks(const std::string& what, bool fatal = true, const std::string& field = "") {
        field_ = broken_.empty() ? field : "";
        broken_ += (broken_.empty() ? "" : ", ") + what;
        must_fail_ |= fatal;
    }

    template <typename T>
    T* or_null(T* pointer, const char* name) {
        if (!one_in(16)) return pointer;
        breaks(std::string(name) + " NULL", true, name);
        return nullptr;
    }

    // A struct may be of a header that had no attention_chunk yet.
    static constexpr std::size_t kLeastSpec = offsetof(attnsmith_spec, attention_chunk);
    static constexpr std::size_t kLeastTensors = offsetof(attnsmith_tensors, q_pe);
    static constexpr std::size_t kLeastPrewarm = offsetof(attnsmith_prewarm_options, push);
    static constexpr std::size_t kLeastBatch = offsetof(attnsmith_batch, table_rows);
    static constexpr std::size_t kLeastAddresses = offsetof(attnsmith_tensor_addresses, q_pe);

    // `least` is that of the struct's first version, where it has grown since; 0: it has not.
    void break_size(std::size_t& size, const char* name, std::size_t least = 0) {
        if (!one_in(16)) return;
        if (least == 0) least = size;
        size = any_of<std::size_t>({0, 1, 8, least - 1, least - 8, size + 1, 4096 + 8, std::size_t(-1)});
        breaks(std::string(name) + ".size", true, std::string(name) + ".size");
    }

    // ---- Breaking structs

    void break_spec(attnsmith_spec& spec, const char* name = "spec") {
        break_size(spec.size, name, kLeastSpec);
        const auto set = [&](auto& field, auto value, const char* name, bool fatal = true) {
            field = value;
            breaks(std::string("spec.") + name, fatal, fatal ? name : "");
        };
        const auto number = any_of<std::int32_t>({-1, 7, 1 << 20, std::numeric_limits<std::int32_t>::min(),
                                                  std::numeric_limits<std::int32_t>::max()});
        const double factor = any_of<double>({-1, NAN, INFINITY, -INFINITY, 1e-300, 1e300});
        const bool merge = spec.op == ATTNSMITH_OP_MERGE, append = spec.op == ATTNSMITH_OP_APPEND;
        const bool top_k = spec.op == ATTNSMITH_OP_TOP_K;
        const bool of_8_bits = spec.kv_dtype == ATTNSMITH_DTYPE_E4M3 || spec.kv_dtype == ATTNSMITH_DTYPE_E5M2;
        const std::int32_t right_op = spec.op;
        const std::int64_t other_qk = spec.head_dim_qk == 0 ? 12 : 0;
        if (!merge && !top_k && one_in(12)) {  // as right, but what nothing was compiled for
            spec.kv_dtype = any_of<std::int32_t>({ATTNSMITH_DTYPE_E4M3, ATTNSMITH_DTYPE_E5M2});
            return set(spec.kv_scale, any_of<std::int32_t>({0, 1, 2, 3, 4}), "8 bits", false);
        }
        for (int changes = static_cast<int>(below(3)); changes > 0; --changes) {
            switch (below(merge ? 30 : 29)) {
                case 0: {  // each op has a field that the others lack
                    const std::int32_t op = static_cast<std::int32_t>(below(5));
                    spec.op = op == right_op ? number : op;
                    breaks("spec.op");  // or the other op has a field too many
                    break;
                }
                case 1:
                    set(spec.dtype, any_of<std::int32_t>({3, 4, 5, number}), "dtype");
                    break;
                case 2:
                    set(spec.mask, number, "mask");
                    break;
                case 3:
                    set(spec.kv, number, "kv");
                    break;
                case 4:
                    set(spec.page_order, number, "page_order");
                    break;
                case 5:
                    set(spec.index_dtype, any_of<std::int32_t>({1, 2, 3, number}), "index_dtype");
                    break;
                case 6:
                    set(spec.precision, number, "precision");
                    break;
                case 7:
                    set(spec.consistency, number, "consistency");
                    break;
                case 8:
                    set(spec.alignment, any_of<std::int32_t>({1, 3, 12, 32, number}), "alignment");
                    break;
                case 9:
                    set(spec.alibi, number, "alibi");
                    break;
                case 10:
                    set(spec.sink, number, "sink");
                    break;
                case 11:
                    set(spec.lse, number, "lse");
                    break;
                case 12:
                    set(spec.has_window_left, number, "has_window_left");
                    break;
                case 13:
                    set(spec.has_window_right, number, "has_window_right");
                    break;
                case 14:
                    spec.has_window_left = static_cast<std::int32_t>(below(2));
                    // -1 is no bound, where there may be one.
                    set(spec.window_left, any_of<std::int64_t>({spec.has_window_left != 0 ? -2 : -1, kLeast}),
                        "window_left");
                    break;
                case 15:
                    spec.has_window_right = 0;
                    set(spec.window_right, any_of<std::int64_t>({-1, 1, kMost}), "window_right");
                    break;
                case 16:
                    set(spec.head_dim_qk, any_of<std::int64_t>({other_qk, -8, 4, 60, 520, kMost, kLeast}),
                        "head_dim_qk");
                    break;
                case 17:
                    set(spec.head_dim_vo, any_of<std::int64_t>({-8, 4, 60, 520, kMost}), "head_dim_vo");
                    break;
                case 18:
                    set(spec.q_heads, any_of<std::int64_t>({top_k ? 8 : 0, -1, 1 << 20, kMost}), "q_heads");
                    break;
                case 19:
                    set(spec.kv_heads, any_of<std::int64_t>({3, -1, kMost, kLeast}), "kv_heads");
                    break;
                case 20:
                    set(spec.page_size, any_of<std::int64_t>({-1, kMost, 1 << 21}), "page_size");
                    break;
                case 21:
                    if (one_in(2))
                        set(spec.scale, factor, "scale");
                    else
                        set(spec.softcap, factor, "softcap");
                    break;
                case 22:
                    set(spec.o_dtype, any_of<std::int32_t>({4, 5, number}), "o_dtype");
                    break;
                case 23:
                    set(spec.reserved, number, "reserved");
                    break;
                case 24:
                    set(spec.kv_dtype, any_of<std::int32_t>({3, 4, 8, -1}), "kv_dtype");
                    break;
                case 25:
                    set(spec.kv_scale,
                        of_8_bits ? any_of<std::int32_t>({5, number})
                                  : any_of<std::int32_t>({1, 2, 3, 4, 5, number}),
                        "kv_scale");
                    break;
                case 26:
                    spec.head_dim_ckv = any_of<std::int64_t>({8, -64, 60, 576, kMost, kLeast});
                    breaks("spec.head_dim_ckv", true, append ? "head_dim_" : "head_dim_ckv");
                    break;
                case 27:
                    set(spec.head_dim_kpe, any_of<std::int64_t>({-8, 4, 72, kMost, kLeast}), "head_dim_kpe");
                    break;
                case 28:
                    break_append_field(spec, append, number, factor);
                    break;
                default:
                    set_what_merges_lack(spec);
                    breaks("spec of a merge with fields of attention");
                    break;
            }
        }
    }

    // Values that no append may have. Of another op any value is wrong but 0.
    void break_append_field(attnsmith_spec& spec, bool append, std::int32_t number, double factor) {
        const auto set = [&](auto& field, auto value, const char* name) {
            field = value;
            breaks(std::string("spec.") + name, true, name);
        };
        const std::int32_t word = append || one_in(2) ? number : 1;
        switch (below(11)) {
            case 0:
                return set(spec.slots, word, "slots");
            case 1:
                return set(spec.rope, word, "rope");
            case 2:
                return set(spec.rope_table, word, "rope_table");
            case 3:
                return set(spec.q_norm, word, "q_norm");
            case 4:
                return set(spec.k_norm, word, "k_norm");
            case 5:
                return set(spec.v_norm, word, "v_norm");
            case 6:
                return set(spec.check_slots, word, "check_slots");
            case 7:
                return set(spec.q_dtype,
                           append ? any_of<std::int32_t>({3, 4, 5, 8, -1}) : ATTNSMITH_DTYPE_E4M3, "q_dtype");
            case 8:
                return set(spec.rotary_dim, any_of<std::int64_t>({-2, 3, 66, kMost, kLeast}), "rotary_dim");
            case 9:
                return set(spec.rope_factor, factor, "rope_factor");
            default:
                return set(spec.norm_eps, factor, "norm_eps");
        }
    }

    // But not head_dim_qk, with which the spec may be one of attention once its op is changed, too.
    void set_what_merges_lack(attnsmith_spec& spec) {
        std::int32_t* const flags[] = {&spec.mask,        &spec.page_order,      &spec.precision,
                                       &spec.consistency, &spec.o_dtype,         &spec.alibi,
                                       &spec.sink,        &spec.has_window_left, &spec.has_window_right};
        switch (below(5)) {
            case 0:
                spec.kv = any_of<std::int32_t>({ATTNSMITH_KV_RAGGED, ATTNSMITH_KV_PAGED});
                return;
            case 1:
                spec.index_dtype = ATTNSMITH_DTYPE_INT64;
                return;
            case 2:
                (one_in(2) ? spec.scale : spec.softcap) = 0.125;
                return;
            case 3:
                (one_in(2) ? spec.kv_heads : spec.page_size) = 16;
                return;
            default:
                *flags[below(std::size(flags))] = 1;
                return;
        }
    }

    const attnsmith_sizes* break_sizes(attnsmith_sizes& sizes) {
        sizes = {sizeof sizes, kBatch, kQueries, kKeys};
        if (one_in(6)) return nullptr;
        break_size(sizes.size, "sizes");
        if (one_in(10)) {
            std::int64_t* const fields[] = {&sizes.batch, &sizes.q_len, &sizes.kv_len};
            *fields[below(3)] = any_of<std::int64_t>({-1, kLeast, kMost, std::int64_t{1} << 31});
            breaks("sizes");
        }
        return &sizes;
    }

    void break_tensor(FuzzTensor& tensor) {
        attnsmith_dl_tensor& view = tensor.view;
        const bool sound = view.ndim >= 1 && view.ndim <= 5;
        const std::size_t axis = below(sound ? static_cast<std::size_t>(view.ndim) : 1);
        const auto says = [&](const char* what, bool fatal = true) {
            breaks(tensor.name + "." + what, fatal);
        };
        // Wrong by itself, whatever the others are.
        const auto says_by_name = [&](const char* what) {
            breaks(tensor.name + "." + what, true, tensor.name);
        };
        switch (below(12)) {
            case 0:
                if (tensor.optional) return;
                *tensor.slot = nullptr;
                return says("NULL");
            case 1:
                view.ndim = any_of<std::int32_t>({-1, 6, 7, 1 << 30, -(1 << 30)});
                return says_by_name("ndim");
            case 2:
                view.ndim = 0;
                return says("ndim 0");
            case 3:
                view.shape = nullptr;
                return says_by_name("shape NULL");
            case 4:
                tensor.shape[axis] =
                    any_of<std::int64_t>({-1, kLeast, kMost, std::int64_t{1} << 31, std::int64_t{1} << 62});
                return says("shape", tensor.shape[axis] < 0 || !tensor.takes_any(axis));
            case 5:
                if (!sound) return;
                if (view.strides == nullptr) tensor.write_compact_strides();
                tensor.strides[axis] = any_of<std::int64_t>({-1, kLeast, kMost, std::int64_t{1} << 62});
                return says("strides", tensor.shape[axis] != 1);  // which a row of one never takes
            case 6:
                if (!sound || view.strides != nullptr) return;
                tensor.write_compact_strides();
                tensor.strides[axis] =
                    any_of<std::int64_t>({0, 3, std::int64_t{1} << 40, (std::int64_t{1} << 60) + 8});
                return says("odd strides", false);
            case 7:
                view.byte_offset = any_of<std::uint64_t>({~std::uint64_t{0}, ~std::uint64_t{255}});
                return says_by_name("byte_offset");
            case 8:
                view.byte_offset = any_of<std::uint64_t>({1, 17});
                return says("odd byte_offset");
            case 9:
                view.data = nullptr;
                return says_by_name("data NULL");
            case 10:
                view.dtype = any_of<attnsmith_dl_data_type>({{1, 32, 1},
                                                             {2, 64, 1},
                                                             {2, 16, 1},
                                                             {4, 16, 2},
                                                             {4, 16, 0},
                                                             {0, 8, 1},
                                                             {255, 255, 65535}});
                return says("dtype");
            case 11:
                view.device =
                    any_of<attnsmith_dl_device>({{1, 0}, {2, 1}, {2, -1}, {0, 0}, {-1, -1}, {1 << 30, 0}});
                return says_by_name("device");
        }
    }

    void break_operands(Operands& operands) {
        break_size(operands.tensors.size, "tensors", kLeastTensors);
        break_batch(operands.batch, operands.list, false);
    }

    void break_operands(AppendOperands& operands) {
        attnsmith_append_tensors& tensors = operands.tensors;
        break_size(tensors.size, "tensors");
        const bool in_place = operands.by_table && one_in(4);
        if (in_place) operands.find("q_out")->view.data = operands.find("q")->view.data;
        if (operands.list.back().optional && one_in(4)) operands.leave_out_last();
        break_batch(operands.batch, operands.list, !operands.by_table);
        if (tensors.q == nullptr) tensors.q_out = &operands.find("q_out")->view;  // neither would be right
        if (!broken_.empty()) return;
        if (one_in(8)) return share_memory(operands, in_place);
        if (one_in(8)) tensors.q = tensors.q_out = tensors.q_scale = nullptr;
    }

    void break_operands(TopKOperands& operands) {
        break_size(operands.tensors.size, "tensors");
        for (int left_out = static_cast<int>(below(3)); left_out > 0; --left_out) operands.leave_out_last();
        break_batch(operands.batch, operands.list, true);
        if (broken_.empty() && one_in(8)) {
            const FuzzTensor& other = *operands.list.begin();
            operands.find("indices")->view.data = other.view.data;
            breaks("indices on " + other.name);
        }
    }

    // And the tensors, those of the batch among them.
    void break_batch(attnsmith_batch& batch, std::vector<FuzzTensor>& list, bool must_be_empty) {
        break_size(batch.size, "batch", kLeastBatch);
        for (int changes = static_cast<int>(below(4)); changes > 0; --changes)
            break_tensor(list[below(list.size())]);
        if (one_in(10)) {
            std::int64_t& bound = one_in(2) ? batch.max_q_len : batch.max_kv_len;
            bound = any_of<std::int64_t>({-1, kLeast, kMost});
            breaks("batch bound", bound < 0 || must_be_empty, "batch.max_");
        }
        if (one_in(12)) {  // a tensor that the kernel does not take
            const attnsmith_dl_tensor** const slots[] = {&batch.last_page_len, &batch.page_indices};
            *slots[below(2)] = &list.back().view;
            breaks("extra tensor");
        }
    }

    // What is written on memory of another tensor.
    void share_memory(AppendOperands& operands, bool in_place) {
        std::vector<FuzzTensor*> outputs;
        for (FuzzTensor& tensor : operands.list)
            if (tensor.output && !(in_place && tensor.name == "q_out")) outputs.push_back(&tensor);
        FuzzTensor& output = *outputs[below(outputs.size())];
        const FuzzTensor& other = operands.list[below(operands.list.size())];
        if (&output == &other) return;
        output.view.data = other.view.data;
        if (output.name == "q_out" && other.name == "q")  // all of it would be in place
            output.view.data = static_cast<char*>(output.view.data) + 256;
        breaks(output.name + " on " + other.name);
    }

    // Other addresses for some of a call's tensors, which `moved` then has by name.
    void vary_addresses(attnsmith_tensor_addresses& at, TensorList& operands,
                        std::map<std::string, std::uintptr_t>& moved) {
        constexpr std::uintptr_t kAway = std::uintptr_t{1} << 45;
        for (const auto& [name, slot] : slots_of(at)) {
            const FuzzTensor* const tensor = operands.find(name);
            if (tensor == nullptr || one_in(3)) continue;
            const auto bound = reinterpret_cast<std::uintptr_t>(tensor->view.data);
            moved[name] = bound + kAway + 16 * below(1000);
            slot(moved[name]);
        }
    }

    void break_addresses(attnsmith_tensor_addresses& at, TensorList& operands) {
        break_size(at.size, "addresses", kLeastAddresses);
        if (one_in(2)) return;
        const auto slots = slots_of(at);
        const auto& [name, slot] = slots[below(slots.size())];
        const FuzzTensor* const tensor = operands.find(name);
        const std::string field = "addresses." + name;
        if (tensor == nullptr) {
            slot(std::uintptr_t{1} << 46);
            return breaks(field + " of no tensor", true, field);
        }
        const auto bound = reinterpret_cast<std::uintptr_t>(tensor->view.data);
        switch (below(3)) {
            case 0:
                slot(bound + 1 + 4 * below(3));
                return breaks(field + " odd", true, field);
            case 1:
                slot(~std::uintptr_t{15});
                return breaks(field + " at the end of memory", tensor->operand, field);  // few scales fit
            default:
                if (!tensor->output) return;
                // All that it takes is on what q had, and q may be elsewhere.
                at.q = nullptr;
                slot(reinterpret_cast<std::uintptr_t>(operands.find("q")->view.data));
                return breaks(field + " on q");
        }
    }

    using Slot = std::function<void(std::uintptr_t)>;
    static std::vector<std::pair<std::string, Slot>> slots_of(attnsmith_tensor_addresses& at) {
        const auto to = [](auto& member) {
            return [&member](std::uintptr_t address) {
                member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(address);
            };
        };
        return {{"q", to(at.q)},
                {"k", to(at.k)},
                {"v", to(at.v)},
                {"o", to(at.o)},
                {"lse", to(at.lse)},
                {"sinks", to(at.sinks)},
                {"alibi_slopes", to(at.alibi_slopes)},
                {"q_pe", to(at.q_pe)},
                {"kpe", to(at.kpe)},
                {"k_scale", to(at.k_scale)},
                {"v_scale", to(at.v_scale)}};
    }

    void break_merge(MergeOperands& operands) {
        attnsmith_merge_tensors& tensors = operands.tensors;
        if (tensors.state_count > MergeOperands::kMostStates) breaks("more states than a merge takes");
        break_size(tensors.size, "tensors");
        vary_merge(operands);
        FuzzTensor& tensor = operands.list[below(operands.list.size())];
        const std::size_t axis = below(static_cast<std::size_t>(tensor.view.ndim));
        switch (below(8)) {
            case 0:
                return;
            case 1:
                return share_memory(operands);
            case 2:
                tensor.shape[axis] += one_in(2) ? 1 : -1;
                return breaks(tensor.name + ".shape off by one");
            case 3:
                tensor.view.dtype = tensor.view.dtype.bits == 16 ? kF32 : kBf16;
                return breaks(tensor.name + ".dtype of another");
            case 4:
                if (operands.has_lse)
                    tensors.lse = nullptr;
                else
                    tensors.lse = &operands.lse_state(0).view;
                return breaks("lse or none");
            case 5:
                (one_in(2) ? tensors.o_states : tensors.lse_states) = nullptr;
                return breaks("states NULL");
            case 6:  // an entry is NULL where the list is long enough
                tensors.state_count =
                    any_of<std::size_t>({0, std::min(tensors.state_count + 1, MergeOperands::kRoom), 4097,
                                         std::size_t(-1), std::size_t{1} << 61});
                return breaks("state_count");
            default:
                for (int changes = 1 + static_cast<int>(below(3)); changes > 0; --changes)
                    break_tensor(operands.list[below(operands.list.size())]);
        }
    }

    // What is as right: in place of a state, states that share memory, memory of all devices.
    void vary_merge(MergeOperands& operands) {
        const std::size_t states = operands.tensors.state_count;
        const auto any_o = [&]() -> FuzzTensor& { return operands.o_state(below(states)); };
        const auto any_lse = [&]() -> FuzzTensor& { return operands.lse_state(below(states)); };
        if (one_in(4)) any_o().view.data = any_o().view.data;
        if (one_in(4)) any_lse().view.data = any_lse().view.data;
        if (one_in(4)) operands.o().view.data = any_o().view.data;
        if (operands.has_lse && one_in(4)) operands.lse().view.data = any_lse().view.data;
        if (one_in(4)) any_o().view.device = {ATTNSMITH_DL_CUDA_MANAGED, 5};
        if (one_in(8)) any_lse().write_compact_strides();
    }

    // An output on memory of another tensor, or of its own elements.
    void share_memory(MergeOperands& operands) {
        const std::size_t states = operands.tensors.state_count, i = below(states);
        const auto offset = [](const FuzzTensor& tensor, std::int64_t bytes) -> void* {
            return static_cast<char*>(tensor.view.data) + bytes;
        };
        const auto set_strides = [](FuzzTensor& tensor, std::initializer_list<std::int64_t> strides) {
            std::copy(strides.begin(), strides.end(), tensor.strides.begin());
            tensor.view.strides = tensor.strides.data();
        };
        FuzzTensor& o = operands.o();
        breaks("shared memory");
        switch (below(operands.has_lse ? 8 : 5)) {
            case 0:
                o.view.data = offset(operands.o_state(i), 16 * any_of<std::int64_t>({-3, -1, 1, 5, 60}));
                return;
            case 1:  // the same elements in another order
                o.view.data = operands.o_state(i).view.data;
                return set_strides(o, {kDim, kBatch * kQueries * kDim, 1});
            case 2:
                o.view.data = operands.lse_state(i).view.data;
                return;
            case 3:
                return set_strides(o, {any_of<std::int64_t>({0, kDim, kDim * (kHeads - 1)}), kDim, 1});
            case 4:
                if (states == 1) {
                    o.view.data = offset(operands.o_state(0), 32);
                    return;
                }
                o.view.data = operands.o_state(i).view.data;
                operands.o_state((i + 1) % states).view.data = offset(o, 16);
                return;
            case 5:
                operands.lse().view.data =
                    offset(operands.lse_state(i), 4 * any_of<std::int64_t>({-2, -1, 1, 7}));
                return;
            case 6:
                operands.lse().view.data = one_in(2) ? o.view.data : operands.o_state(i).view.data;
                return;
            default:
                return set_strides(operands.lse(), {any_of<std::int64_t>({0, 1, kHeads - 1}), 1});
        }
    }

    std::int32_t break_device() {
        if (!one_in(8)) return any_of<std::int32_t>({-1, 0, 1});
        breaks("device");
        return any_of<std::int32_t>({-2, 2, 1 << 30, -(1 << 30)});
    }

    const attnsmith_workspace* break_workspace(attnsmith_workspace& workspace, void* data,
                                               std::size_t bytes) {
        workspace = {sizeof workspace, data, bytes};
        break_size(workspace.size, "workspace");
        if (one_in(12)) workspace.data = nullptr, breaks("workspace.data");
        if (one_in(12) && workspace.data != nullptr) {
            workspace.data = static_cast<char*>(workspace.data) + 1 + below(255),
            breaks("workspace.data odd");
        }
        if (one_in(12)) workspace.bytes = below(256), breaks("workspace.bytes");
        return &workspace;
    }

    struct Range {
        std::size_t bytes, offset;
    };

    Range break_range(std::size_t buffer_bytes) {
        Range range{below(buffer_bytes), 0};
        range.offset = below(buffer_bytes - range.bytes + 1);
        if (one_in(2)) return range;
        range.bytes =
            any_of<std::size_t>({buffer_bytes + 1, std::size_t(-1), std::size_t{1} << 63, buffer_bytes});
        range.offset = 1 + any_of<std::size_t>({0, buffer_bytes, std::size_t(-2), std::size_t{1} << 63});
        breaks("range");
        return range;
    }

    std::string break_text(const char* valid) {
        std::string text = valid;
        if (one_in(8)) return text;
        if (one_in(8)) {
            text.resize(below(text.size()));  // without its last brace
            breaks("cut");
            return text;
        }
        if (one_in(16)) {
            breaks("deep");
            return std::string(100 + below(100000), any_of({'[', '{'}));
        }
        static const char* const kPieces[] = {"null", "-1",       "1e999", "99999999999999999999",
                                              "\"",   "{",        "}",     "[",
                                              "]",    ",",        ":",     "true",
                                              "\xff", "\xc0\x80", "NaN",   "\"head_dim\":",
                                              "\\",   "\"kv\"",   "0",     "1.5",
                                              "\x01"};
        for (int edits = 1 + static_cast<int>(below(3)); edits > 0; --edits) {
            const std::size_t at = below(text.size());
            switch (below(3)) {
                case 0:
                    text.erase(at, 1 + below(12));
                    break;
                case 1:
                    text.insert(at, kPieces[below(std::size(kPieces))]);
                    break;
                case 2:
                    text[at] = static_cast<char>(1 + below(255));
                    break;
            }
            if (text.empty()) text = " ";
        }
        breaks("text", false);
        return text;
    }

    std::string broken_, field_;
    bool must_fail_ = false;

  private:
    std::mt19937_64 random_;
};

}  // namespace attnsmith::test
