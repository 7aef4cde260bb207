// Requests and tensors that must be refused, each by the field that is wrong, before anything is launched.
#include <fmt/format.h>

#include <limits>

#include "catalogue.hpp"

namespace attnsmith::gpu_tests {
namespace {

// Runs `action`; empty where it throws InvalidRequest about `field`, else what happened instead.
std::string expect_refusal(const std::string& field, const std::function<void()>& action) {
    try {
        action();
    } catch (const InvalidRequest& error) {
        std::string_view named = error.field();
        for (const std::string_view prefix : {"tensors.", "batch."})
            if (named.starts_with(prefix)) named.remove_prefix(prefix.size());
        const bool right =
            named.starts_with(field) &&
            (named.size() == field.size() || named[field.size()] == '.' || named[field.size()] == '[');
        return right ? "" : fmt::format("refused {} ({}), expected {}", error.field(), error.what(), field);
    }
    return "nothing was thrown; expected InvalidRequest naming " + field;
}

AttentionSpec plain_spec() { return attention(DType::fp16, 64, 4, 2).spec; }

struct BadSpec {
    const char* name;
    const char* field;
    std::function<void(AttentionSpec&)> change;
};

void add_specs(Catalogue& catalogue) {
    const BadSpec specs[] = {
        {"head_dim 0", "head_dim_qk", [](AttentionSpec& s) { s.head_dim_qk = 0; }},
        {"head_dim -8", "head_dim_qk", [](AttentionSpec& s) { s.head_dim_qk = -8; }},
        {"no q_heads", "q_heads", [](AttentionSpec& s) { s.q_heads = 0; }},
        {"kv_heads do not divide", "kv_heads", [](AttentionSpec& s) { s.kv_heads = 3; }},
        {"kv_heads -1", "kv_heads", [](AttentionSpec& s) { s.kv_heads = -1; }},
        {"index_dtype f32", "index_dtype", [](AttentionSpec& s) { s.index_dtype = DType::fp32; }},
        {"window_left -2", "window_left", [](AttentionSpec& s) { s.window_left = -2; }},
        {"window_right -5", "window_right", [](AttentionSpec& s) { s.window_right = -5; }},
        {"scale 0", "scale", [](AttentionSpec& s) { s.scale = 0.0; }},
        {"scale -1", "scale", [](AttentionSpec& s) { s.scale = -1.0; }},
        {"softcap NaN", "softcap",
         [](AttentionSpec& s) { s.softcap = std::numeric_limits<double>::quiet_NaN(); }},
        {"scale infinite", "scale",
         [](AttentionSpec& s) { s.scale = std::numeric_limits<double>::infinity(); }},
        {"alignment 3", "alignment", [](AttentionSpec& s) { s.alignment = 3; }},
        {"page_size 0", "page_size", [](AttentionSpec& s) { s.kv = KvStorage::paged, s.page_size = 0; }},
        {"page_size -1", "page_size", [](AttentionSpec& s) { s.kv = KvStorage::paged, s.page_size = -1; }},
    };
    for (const BadSpec& bad : specs) {
        add(catalogue, "input", std::string("spec: ") + bad.name, [bad](const Context& context) {
            AttentionSpec spec = plain_spec();
            bad.change(spec);
            return expect_refusal(bad.field, [&] { (void)context.runtime.prepare(spec, {}); });
        });
    }
}

// Right tensors, to be spoiled one field at a time.
struct Bound {
    AttentionTensors tensors;
    Batch batch;
    Workspace workspace;
};

struct BadTensors {
    const char* name;
    const char* field;
    std::function<void(Bound&)> change;
    std::function<void(AttentionSpec&)> spec = {};
};

std::byte* moved(void* data, std::int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }

Bound dense_arguments(std::byte* memory) {
    Bound bound;
    const auto at = [&](std::size_t quarter) { return memory + quarter * 65536; };
    bound.tensors.q = Tensor::contiguous(at(0), DType::fp16, {2, 16, 4, 64});
    bound.tensors.k = Tensor::contiguous(at(1), DType::fp16, {2, 32, 2, 64});
    bound.tensors.v = Tensor::contiguous(at(2), DType::fp16, {2, 32, 2, 64});
    bound.tensors.o = Tensor::contiguous(at(3), DType::fp16, {2, 16, 4, 64});
    return bound;
}

void need_pages(Bound& bound) {
    bound.tensors.k = Tensor::contiguous(bound.tensors.k.data, DType::fp16, {4, 16, 2, 64});
    bound.tensors.v = Tensor::contiguous(bound.tensors.v.data, DType::fp16, {4, 16, 2, 64});
    bound.batch.kv_lens = Tensor::contiguous(moved(bound.tensors.o.data, 65536), DType::int32, {2});
    bound.batch.page_table =
        Tensor::contiguous(moved(bound.tensors.o.data, 65536 + 1024), DType::int32, {2, 2});
}

void pages_spec(AttentionSpec& spec) { spec.kv = KvStorage::paged, spec.page_size = 16; }
void ragged_spec(AttentionSpec& spec) { spec.kv = KvStorage::ragged; }
void lse_spec(AttentionSpec& spec) { spec.lse = true; }
void sink_spec(AttentionSpec& spec) { spec.sink = true; }
void alibi_spec(AttentionSpec& spec) { spec.alibi = true; }

const std::vector<BadTensors>& bad_tensors() {
    static const std::vector<BadTensors> list = {
        {"q absent", "q", [](Bound& b) { b.tensors.q.data = nullptr; }},
        {"k absent", "k", [](Bound& b) { b.tensors.k = {}; }},
        {"v absent", "v", [](Bound& b) { b.tensors.v = {}; }},
        {"o absent", "o", [](Bound& b) { b.tensors.o = {}; }},
        {"inner stride of q", "q", [](Bound& b) { b.tensors.q.strides[3] = 2; }},
        {"inner stride of v", "v", [](Bound& b) { b.tensors.v.strides[3] = 0; }},
        {"base of k", "k", [](Bound& b) { b.tensors.k.data = moved(b.tensors.k.data, 8); }},
        {"base of o", "o", [](Bound& b) { b.tensors.o.data = moved(b.tensors.o.data, 2); }},
        {"stride of v", "v", [](Bound& b) { b.tensors.v.strides[1] += 4; }},
        {"dtype of k", "k", [](Bound& b) { b.tensors.k.dtype = DType::bf16; }},
        {"heads of k", "k", [](Bound& b) { b.tensors.k.shape[2] = 1; }},
        {"batch of v", "v", [](Bound& b) { b.tensors.v.shape[0] = 1; }},
        {"length of v", "v", [](Bound& b) { b.tensors.v.shape[1] = 31; }},
        {"head_dim of q", "q", [](Bound& b) { b.tensors.q.shape[3] = 56; }},
        {"rank of q", "q", [](Bound& b) { b.tensors.q.rank = 2; }},
        {"shape of o", "o", [](Bound& b) { b.tensors.o.shape[1] = 15; }},
        {"o over q", "o", [](Bound& b) { b.tensors.o = b.tensors.q; }},
        {"o over v's end", "o", [](Bound& b) { b.tensors.o.data = moved(b.tensors.v.data, 1024); }},
        {"lse absent", "lse", [](Bound&) {}, lse_spec},
        {"lse not asked for", "lse",
         [](Bound& b) {
             b.tensors.lse = Tensor::contiguous(moved(b.tensors.o.data, 65536), DType::fp32, {2, 16, 4});
         }},
        {"lse of f16", "lse",
         [](Bound& b) {
             b.tensors.lse = Tensor::contiguous(moved(b.tensors.o.data, 65536), DType::fp16, {2, 16, 4});
         },
         lse_spec},
        {"sinks absent", "sinks", [](Bound&) {}, sink_spec},
        {"sinks of 3 heads", "sinks",
         [](Bound& b) {
             b.tensors.sinks = Tensor::contiguous(moved(b.tensors.o.data, 65536), DType::fp32, {3});
         },
         sink_spec},
        {"alibi_slopes absent", "alibi_slopes", [](Bound&) {}, alibi_spec},
        {"page_table absent", "page_table", [](Bound& b) { need_pages(b), b.batch.page_table = {}; },
         pages_spec},
        {"page_table without kv_lens", "kv_lens", [](Bound& b) { need_pages(b), b.batch.kv_lens = {}; },
         pages_spec},
        {"page_table of i64", "page_table",
         [](Bound& b) { need_pages(b), b.batch.page_table.dtype = DType::int64; }, pages_spec},
        {"page size", "k", [](Bound& b) { need_pages(b), b.tensors.k.shape[1] = 8; }, pages_spec},
        {"kv_lens of 3", "kv_lens", [](Bound& b) { need_pages(b), b.batch.kv_lens.shape[0] = 3; },
         pages_spec},
        {"kv_indptr absent", "kv_indptr",
         [](Bound& b) {
             b.tensors.k = Tensor::contiguous(b.tensors.k.data, DType::fp16, {64, 2, 64});
             b.tensors.v = Tensor::contiguous(b.tensors.v.data, DType::fp16, {64, 2, 64});
         },
         ragged_spec},
        {"max_q_len -1", "max_q_len", [](Bound& b) { b.batch.max_q_len = -1; }},
        {"workspace too small", "workspace",
         [](Bound& b) {
             b.workspace = {moved(b.tensors.o.data, 65536), 128};
         }},
        {"workspace not aligned", "workspace",
         [](Bound& b) {
             b.workspace = {moved(b.tensors.o.data, 65536 + 16), 65536};
         }},
    };
    return list;
}

std::string bind_bad(const Context& context, const BadTensors& bad) {
    const Buffer memory = context.runtime.allocate(std::size_t{8} * 65536);
    AttentionSpec spec = plain_spec();
    if (bad.spec) bad.spec(spec);
    const Kernel kernel = context.runtime.prepare(spec, {2, 16, 32});
    Bound bound = dense_arguments(static_cast<std::byte*>(memory.data()));
    bad.change(bound);
    return expect_refusal(bad.field, [&] {
        if (bound.workspace.data)
            static_cast<void>(kernel.bind(bound.tensors, bound.batch, bound.workspace));
        else
            static_cast<void>(kernel.bind(bound.tensors, bound.batch));
    });
}

std::string bind_good(const Context& context) {
    const Buffer memory = context.runtime.allocate(std::size_t{8} * 65536);
    const Kernel kernel = context.runtime.prepare(plain_spec(), {2, 16, 32});
    const Bound bound = dense_arguments(static_cast<std::byte*>(memory.data()));
    kernel.bind(bound.tensors, bound.batch).launch();
    context.runtime.synchronize();
    return {};
}

std::string buffer_past_end(const Context& context) {
    Buffer buffer = context.runtime.allocate(64);
    std::byte bytes[64]{};
    for (const auto& action :
         {std::function<void()>([&] { buffer.upload(bytes, 32, 33); }),
          std::function<void()>([&] { buffer.download(bytes, 65); }), std::function<void()>([&] {
              buffer.download(bytes, 2, std::numeric_limits<std::size_t>::max());
          })}) {
        try {
            action();
        } catch (const InvalidRequest&) {
            continue;
        }
        return "a copy past the buffer's end was not refused";
    }
    return {};
}

}  // namespace

void add_input(Catalogue& catalogue) {
    add_specs(catalogue);
    // The tensors that the rest spoils are right as they are.
    add(catalogue, "input", "bind: nothing wrong", bind_good);
    for (const BadTensors& bad : bad_tensors())
        add(catalogue, "input", std::string("bind: ") + bad.name,
            [&bad](const Context& context) { return bind_bad(context, bad); });
    add(catalogue, "input", "copies past a buffer's end", buffer_past_end);
}

}  // namespace attnsmith::gpu_tests
