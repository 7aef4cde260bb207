#include "problem.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>

#include "failure.hpp"

namespace attnsmith::tvm_ffi {
namespace {

using python::field_of;

constexpr std::size_t kMostAxes = python::kMostAxes;

constexpr int kQ = field_of(&attnsmith_tensors::q), kK = field_of(&attnsmith_tensors::k),
              kV = field_of(&attnsmith_tensors::v), kO = field_of(&attnsmith_tensors::o),
              kLse = field_of(&attnsmith_tensors::lse), kQPe = field_of(&attnsmith_tensors::q_pe),
              kKpe = field_of(&attnsmith_tensors::kpe), kKScale = field_of(&attnsmith_tensors::k_scale),
              kVScale = field_of(&attnsmith_tensors::v_scale),
              kQIndptr = field_of(&attnsmith_batch::q_indptr),
              kKvIndptr = field_of(&attnsmith_batch::kv_indptr),
              kPageTable = field_of(&attnsmith_batch::page_table),
              kPageIndptr = field_of(&attnsmith_batch::page_indptr),
              kPageIndices = field_of(&attnsmith_batch::page_indices),
              kLastPageLen = field_of(&attnsmith_batch::last_page_len),
              kTableRows = field_of(&attnsmith_batch::table_rows);
constexpr int kPaging[] = {kPageTable, kPageIndptr, kPageIndices, kLastPageLen, kTableRows};
constexpr int kBatchFields = static_cast<int>(python::kTensors.size());

// As attnsmith/_calls/dispatch.py has them: the most tokens that a kernel is prepared for, and of queries
// times the heads that share a KV head.
constexpr std::int64_t kLongest = std::int64_t{1} << 30, kMostPacked = (std::int64_t{1} << 31) - 1024,
                       kMostSequences = std::int64_t{1} << 20, kUsualLatent = 512, kMostStates = 32;

struct DType {
    std::uint8_t code, bits;
    const char* word;
};
constexpr DType kDTypes[] = {{ATTNSMITH_DL_FLOAT, 16, "fp16"}, {ATTNSMITH_DL_BFLOAT, 16, "bf16"},
                             {ATTNSMITH_DL_FLOAT, 32, "fp32"}, {ATTNSMITH_DL_INT, 32, "int32"},
                             {ATTNSMITH_DL_INT, 64, "int64"},  {ATTNSMITH_DL_E4M3FN, 8, "e4m3"},
                             {ATTNSMITH_DL_E5M2, 8, "e5m2"},   {ATTNSMITH_DL_UINT, 8, "uint8"}};

// The library's word for a dtype. Throws a Failure for one that it has not.
const char* word_of(const View& view, const char* name) {
    for (const DType& one : kDTypes)
        if (one.code == view.dtype.code && one.bits == view.dtype.bits && view.dtype.lanes == 1)
            return one.word;
    std::string accepted;
    for (const DType& one : kDTypes) accepted += (accepted.empty() ? "" : ", ") + std::string(one.word);
    throw refused("ValueError", std::string(name) + ".dtype",
                  "DLPack's type code " + std::to_string(view.dtype.code) + " of " +
                      std::to_string(view.dtype.bits) + " bits",
                  "one of " + accepted);
}

// A JSON object, written one field after the other.
class Request {
  public:
    void add(const char* field, std::string_view word) {
        begin(field);
        text_ += '"';
        for (const char letter : word) {
            if (letter == '"' || letter == '\\') text_ += '\\';
            if (static_cast<unsigned char>(letter) < ' ') {
                char escaped[8];
                std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(letter));
                text_ += escaped;
            } else {
                text_ += letter;
            }
        }
        text_ += '"';
    }
    void add(const char* field, std::int64_t number) {
        begin(field);
        text_ += std::to_string(number);
    }
    void add_number(const char* field, double number) {
        begin(field);
        char digits[32];
        std::snprintf(digits, sizeof digits, "%.17g", number);
        text_ += digits;
    }
    void add_flag(const char* field, bool flag) {
        begin(field);
        text_ += flag ? "true" : "false";
    }
    // An option under the name that it has as an argument, which is its field's.
    void add(const Parameter& parameter, const CallArguments& arguments) {
        const auto option = static_cast<Option>(parameter.place);
        if (const auto& integer = arguments.integer(option)) add(parameter.name, *integer);
        if (const auto& number = arguments.number(option)) add_number(parameter.name, *number);
        if (const auto& word = arguments.word(option)) add(parameter.name, *word);
    }
    std::string done() && { return std::move(text_) + "}"; }

  private:
    void begin(const char* field) {
        text_ += text_.empty() ? "{\"" : ", \"";
        text_ += field;
        text_ += "\": ";
    }
    std::string text_;
};

// Sizes that are near share a kernel.
std::int64_t rounded(std::int64_t length) {
    return length > 2 ? static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(length))) : length;
}

// The bytes, 2 to 16, that the base and the strides of every tensor are multiples of, as far as they reach an
// element.
std::int64_t alignment_of(const std::vector<const View*>& views) {
    std::uint64_t bits = 0;
    for (const View* const view : views) {
        const auto end = view->shape.begin() + static_cast<std::ptrdiff_t>(view->rank);
        if (std::find(view->shape.begin(), end, 0) != end) continue;
        bits |= reinterpret_cast<std::uintptr_t>(view->data);
        for (std::size_t axis = 0; axis + 1 < view->rank; ++axis)
            if (view->shape[axis] > 1)
                bits |= static_cast<std::uint64_t>(view->strides[axis]) * (view->dtype.bits / 8);
    }
    bits &= 15;
    return bits == 0 ? 16 : std::max<std::int64_t>(static_cast<std::int64_t>(bits & -bits), 2);
}

// kv_scale, by the axes of the keys and of their scales.
const char* kv_scale_of(const View& keys, const View& scale) {
    if (scale.rank == 1 && scale.shape[0] == 1) return "tensor";
    if (scale.rank + 1 == keys.rank) return "token_head";
    if (scale.rank == keys.rank) return "block128";
    if (scale.rank == 1) return "head";
    throw refused("ValueError", "k_scale.shape", scale.shape_text(),
                  "[1], [kv_heads], or the axes of the keys " + keys.shape_text() +
                      " but the last: one scale of each head of each token, or with a last axis one of each "
                      "128 columns");
}

void check_axes(const View& view, const char* name, std::string_view accepted) {
    const auto axes = static_cast<std::size_t>(std::count(accepted.begin(), accepted.end(), ',')) + 1;
    if (view.rank != axes)
        throw refused("ValueError", std::string(name) + ".shape", view.shape_text(), accepted);
}

}  // namespace

Problem::Problem(const CallArguments& arguments) : arguments_(arguments) {
    for (int field = 0; field < static_cast<int>(python::kFields); ++field)
        if (const View* const given = arguments.tensor(field))
            views_[static_cast<std::size_t>(field)] = *given;
    for (const int field : {kKScale, kVScale})  // one number may have no axes
        if (auto& scale = views_[static_cast<std::size_t>(field)]; scale && scale->rank == 0)
            scale = scale->inserted(0);
    read_queries();
    read_keys();
    request = request_text();
    point();
}

const char* Problem::name_of(int field) const {
    for (const Parameter& parameter : arguments_.function.parameters)
        if (parameter.place == field && parameter.is_tensor()) return parameter.name;
    return "";
}

void Problem::need_axes(int field, const char* accepted) const {
    if (has(field)) check_axes(*view(field), name_of(field), accepted);
}

// max_q_len or max_kv_len, which 0 and None leave to the shapes.
std::int64_t Problem::bound(Option option, const char* name, std::int64_t longest) const {
    const std::int64_t given = arguments_.integer(option).value_or(longest);
    if (given < 0)
        throw refused("ValueError", name, std::to_string(given),
                      "an integer from 1; 0 or None for what the shapes allow");
    return std::min(given, longest);
}

void Problem::read_queries() {
    std::int64_t longest = 0;
    if (has(kQIndptr)) {
        need_axes(kQ, "[q_tokens, q_heads, head_dim]");
        need_axes(kQIndptr, "[batch + 1]");
        sequences = view(kQIndptr)->shape[0] - 1;
        q_tokens = longest = view(kQ)->shape[0];
    } else {
        const bool may_be_one =
            arguments_.function.storage == Storage::paged || arguments_.function.storage == Storage::latent;
        if (may_be_one && view(kQ)->rank == 3)  // one query of each sequence
            for (const int field : {kQ, kQPe, kO, kLse})
                if (auto& one = views_[static_cast<std::size_t>(field)];
                    one && one->rank > 0 && one->rank < kMostAxes)
                    one = one->inserted(1);
        need_axes(kQ, "[batch, q_len, q_heads, head_dim]");
        sequences = view(kQ)->shape[0];
        longest = view(kQ)->shape[1];
        q_tokens = sequences * longest;
    }
    batch.max_q_len = bound(kMaxQLen, "max_q_len", longest);
}

void Problem::read_keys() {
    struct Stored {
        const char *word, *keys, *latents;
    };
    static constexpr Stored kDense{"dense", "[batch, kv_len, kv_heads, head_dim]",
                                   "[batch, kv_len, columns]"},
        kRagged{"ragged", "[kv_tokens, kv_heads, head_dim]", "[kv_tokens, columns]"},
        kOfPages{"paged", "[pages, page_size, kv_heads, head_dim]", "[pages, page_size, columns]"};
    const Storage said = arguments_.function.storage;
    const bool is_latent = said == Storage::latent;
    const bool has_pages =
        std::any_of(std::begin(kPaging), std::end(kPaging), [&](int field) { return has(field); });
    const bool is_paged = said == Storage::paged || (is_latent && has_pages);
    const bool is_ragged = said == Storage::ragged || (is_latent && !is_paged && has(kKvIndptr));
    const Stored& stored = is_paged ? kOfPages : is_ragged ? kRagged : kDense;
    storage_ = stored.word;

    const View& keys = *view(kK);
    std::size_t heads_axis = is_ragged ? 1 : 2, tokens_axis = heads_axis - 1;
    if (is_latent) {
        const auto axes = static_cast<std::size_t>(is_ragged ? 2 : 3);
        if (keys.rank != axes + 1 || keys.shape[axes - 1] != 1) check_axes(keys, name_of(kK), stored.latents);
    } else {
        need_axes(kK, stored.keys);
        need_axes(kV, stored.keys);
        if (const auto& order = arguments_.word(kPageOrder)) {  // which is not "NHD"
            if (*order != "HND")
                throw refused("ValueError", "page_order", '"' + std::string(*order) + '"',
                              "\"NHD\" or \"HND\"");
            std::swap(heads_axis, tokens_axis);
        }
        kv_heads_ = keys.shape[heads_axis];
    }
    std::int64_t longest = keys.shape[tokens_axis];
    if (is_paged) {
        page_size_ = longest;
        need_axes(kPageTable, "[batch, pages a sequence]");
        need_axes(kPageIndices, "[pages of all sequences]");
        const std::int64_t listed = has(kPageTable)     ? view(kPageTable)->shape[1]
                                    : has(kPageIndices) ? view(kPageIndices)->shape[0]
                                                        : 0;
        if (__builtin_mul_overflow(listed, page_size_, &longest)) longest = kLongest;
        longest = std::min(longest, kLongest);
    }
    batch.max_kv_len = bound(kMaxKvLen, "max_kv_len", longest);
}

// That of the first of the lengths, offsets and tables; NULL where there are none. The library checks the
// others.
const char* Problem::index_dtype() const {
    for (int field = kBatchFields; field < static_cast<int>(python::kFields); ++field) {
        if (!has(field)) continue;
        const std::string_view word = word_of(*view(field), name_of(field));
        if (word != "int32" && word != "int64")
            throw refused("ValueError", std::string(name_of(field)) + ".dtype", word, "int32 or int64");
        return word.data();
    }
    return nullptr;
}

std::string Problem::request_text() const {
    const View &queries = *view(kQ), &keys = *view(kK);
    const bool is_latent = arguments_.function.storage == Storage::latent;
    const std::int64_t q_heads = queries.shape[queries.rank - 2], columns = queries.shape[queries.rank - 1];
    Request text;
    text.add("op", is_latent ? "mla" : "attention");
    const std::string_view queries_dtype = word_of(queries, name_of(kQ));
    text.add("dtype", queries_dtype);
    text.add("q_heads", q_heads);
    if (is_latent) {
        const std::int64_t key_columns = keys.shape[keys.rank - 1];
        const std::int64_t ckv = arguments_.integer(kHeadDimCkv)
                                     .value_or(has(kQPe)   ? columns
                                               : has(kKpe) ? key_columns
                                                           : kUsualLatent);
        const View* const position = has(kQPe) ? view(kQPe) : view(kKpe);
        text.add("head_dim_ckv", ckv);
        text.add("head_dim_kpe", position != nullptr && position->rank > 0
                                     ? position->shape[position->rank - 1]
                                     : std::max({columns, key_columns, ckv}) - ckv);
    } else {
        text.add("kv_heads", kv_heads_);
        text.add("head_dim_qk", columns);
        text.add("head_dim_vo", view(kV)->shape[view(kV)->rank - 1]);
    }
    text.add("kv", storage_);
    if (storage_ == std::string_view("paged")) text.add("page_size", page_size_);
    text.add("mask", arguments_.flag(kCausal) ? "causal" : "full");
    for (const Parameter& parameter : arguments_.function.parameters) {
        const bool is_field = !parameter.is_tensor() && parameter.place != kCausal &&
                              parameter.place != kMaxQLen && parameter.place != kMaxKvLen &&
                              parameter.place != kHeadDimCkv;
        if (is_field) text.add(parameter, arguments_);
    }
    text.add_flag("sink", has(field_of(&attnsmith_tensors::sinks)));
    text.add_flag("alibi", has(field_of(&attnsmith_tensors::alibi_slopes)));
    text.add_flag("lse", has(kLse));
    const std::string_view o_dtype = word_of(*view(kO), name_of(kO)), stored = word_of(keys, name_of(kK));
    if (o_dtype != queries_dtype) text.add("o_dtype", o_dtype);
    if (keys.dtype.bits == 8 && stored != "uint8" && !arguments_.word(kKvDType))
        text.add("kv_dtype", stored);  // those of uint8 are what the caller says
    if (has(kKScale)) text.add("kv_scale", kv_scale_of(keys, *view(kKScale)));
    if (const char* const word = index_dtype()) text.add("index_dtype", word);

    std::vector<const View*> aligned;
    for (int field = 0; field < kBatchFields; ++field)
        if (python::is_aligned(field) && has(field)) aligned.push_back(view(field));
    text.add("alignment", alignment_of(aligned));
    const std::int64_t group = std::max<std::int64_t>(q_heads / std::max<std::int64_t>(kv_heads_, 1), 1);
    text.add("batch", std::clamp<std::int64_t>(sequences, 1, kMostSequences));
    text.add("q_len",
             std::max<std::int64_t>(std::min({rounded(batch.max_q_len), kLongest, kMostPacked / group}), 0));
    text.add("kv_len", std::min(rounded(batch.max_kv_len), kLongest));
    return std::move(text).done();
}

void Problem::point() {
    tensors.size = sizeof tensors;
    batch.size = sizeof batch;
    std::size_t field = 0;
    const auto described = [&](std::size_t at) -> const attnsmith_dl_tensor* {
        if (!views_[at]) return nullptr;
        memory_[at] = views_[at]->described();
        return &memory_[at];
    };
    for (const auto member : python::kTensors) tensors.*member = described(field++);
    for (const auto member : python::kBatch) batch.*member = described(field++);
}

Merge::Merge(const CallArguments& arguments) {
    const View &o_states = *arguments.tensor(kOStates), &lse_states = *arguments.tensor(kLseStates);
    const View *const out = arguments.tensor(kO), *const lse = arguments.tensor(kLse);
    check_axes(o_states, "o_states", "[tokens, states, heads, head_dim]");
    check_axes(lse_states, "lse_states", "[tokens, states, heads]");
    const std::int64_t tokens = o_states.shape[0], states = o_states.shape[1];
    if (states < 1 || states > kMostStates)
        throw refused("ValueError", "o_states.shape", o_states.shape_text(),
                      "1 to " + std::to_string(kMostStates) + " states");
    if (lse_states.shape[1] != states)
        throw refused("ValueError", "lse_states.shape", lse_states.shape_text(),
                      std::to_string(states) + " states, as o_states has");

    const auto count = static_cast<std::size_t>(states);
    views_.reserve(2 * count + 2);
    for (const View* const all : {&o_states, &lse_states})
        for (std::int64_t state = 0; state < states; ++state) views_.push_back(all->selected(1, state));
    views_.push_back(*out);
    if (lse != nullptr) views_.push_back(*lse);
    for (const View& view : views_) memory_.push_back(view.described());
    for (std::size_t i = 0; i < count; ++i) {
        o_states_.push_back(&memory_[i]);
        lse_states_.push_back(&memory_[count + i]);
    }
    tensors = {sizeof tensors,      count,
               o_states_.data(),    lse_states_.data(),
               &memory_[2 * count], lse == nullptr ? nullptr : &memory_[2 * count + 1]};

    std::vector<const View*> aligned{&views_[2 * count]};
    for (std::size_t i = 0; i < count; ++i) aligned.push_back(&views_[i]);
    Request text;
    text.add("op", "merge");
    text.add("dtype", word_of(o_states, "o_states"));
    text.add("head_dim", o_states.shape[3]);
    text.add("q_heads", o_states.shape[2]);
    text.add_flag("lse", lse != nullptr);
    text.add("alignment", alignment_of(aligned));
    text.add("q_len", std::min(rounded(tokens), kLongest));
    request = std::move(text).done();
}

}  // namespace attnsmith::tvm_ffi
