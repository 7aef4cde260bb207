// Op merge as it is used: attention over parts of the keys, each with its lse, merged, is attention over all
// of them. And what its kernel refuses to bind.
#include <fmt/format.h>

#include <memory>

#include "catalogue.hpp"
#include "check/random.hpp"
#include "check/reference.hpp"
#include "check/small_floats.hpp"
#include "check/tolerance.hpp"
#include "cuda_driver.hpp"

namespace attnsmith::gpu_tests {
namespace {

// One sequence, its keys in parts: part p has keys ends[p - 1] .. ends[p] - 1.
struct Parts {
    AttentionSpec spec;  // of attention over all keys, with lse
    std::int64_t queries = 1;
    std::vector<std::int64_t> ends;
    bool in_graph = false;

    std::int64_t keys() const { return ends.back(); }
};

struct Host {
    std::vector<std::uint16_t> o;
    std::vector<float> lse;
};

class PartsRun {
  public:
    PartsRun(const Context& context, const Parts& parts)
        : context_(context), parts_(parts), random_(context.seed), spec_(parts.spec) {
        spec_.head_dim_vo = check::head_dim_vo(spec_);
        spec_.kv_heads = check::kv_heads(spec_);
        q_ = upload(values(parts.queries * spec_.q_heads * spec_.head_dim_qk, q_host_));
        k_ = upload(values(parts.keys() * spec_.kv_heads * spec_.head_dim_qk, k_host_));
        v_ = upload(values(parts.keys() * spec_.kv_heads * spec_.head_dim_vo, v_host_));
    }

    std::string run() {
        const State whole = attend(0, parts_.keys(), spec_);
        std::vector<State> states;
        for (std::size_t p = 0; p < parts_.ends.size(); ++p) {
            AttentionSpec part = spec_;
            // A causal mask ends at the last key: only the part that holds that one has it.
            if (p + 1 < parts_.ends.size()) part.mask = Mask::full;
            states.push_back(attend(p == 0 ? 0 : parts_.ends[p - 1], parts_.ends[p], part));
        }
        const Host merged = read(merge_all(states));
        const std::string by_reference = compare(merged, reference(), 1.0, "the fp64 attention");
        if (!by_reference.empty()) return by_reference;
        // Both sides are within the tolerance.
        return compare(merged, as_reference(read(whole)), 2.0, "one attention");
    }

  private:
    struct State {
        std::shared_ptr<Buffer> o, lse;
    };

    const std::vector<std::uint16_t>& values(std::int64_t count, std::vector<std::uint16_t>& host) {
        for (std::int64_t i = 0; i < count; ++i)
            host.push_back(check::encode(spec_.dtype, random_.uniform(-2, 2)));
        return host;
    }

    Buffer upload(const std::vector<std::uint16_t>& host) const {
        Buffer buffer = context_.runtime.allocate(host.size() * 2);
        buffer.upload(host.data(), host.size() * 2);
        return buffer;
    }

    State make_state() const {
        const auto rows = static_cast<std::size_t>(parts_.queries * spec_.q_heads);
        State state{std::make_shared<Buffer>(
                        context_.runtime.allocate(rows * static_cast<std::size_t>(spec_.head_dim_vo) * 2)),
                    std::make_shared<Buffer>(context_.runtime.allocate(rows * 4))};
        const std::vector<std::byte> poison(state.o->bytes(), std::byte{0xff});
        state.o->upload(poison.data(), state.o->bytes());
        state.lse->upload(poison.data(), state.lse->bytes());
        return state;
    }

    Tensor o(const State& state) const {
        return Tensor::contiguous(state.o->data(), spec_.dtype,
                                  {parts_.queries, spec_.q_heads, spec_.head_dim_vo});
    }
    Tensor lse(const State& state) const {
        return Tensor::contiguous(state.lse->data(), DType::fp32, {parts_.queries, spec_.q_heads});
    }

    State attend(std::int64_t begin, std::int64_t end, const AttentionSpec& spec) const {
        State state = make_state();
        const auto dense = [](Tensor tensor) { return tensor.split(0, 1); };
        const std::int64_t heads = spec.kv_heads, keys = parts_.keys();
        const Tensor q =
            Tensor::contiguous(q_.data(), spec.dtype, {parts_.queries, spec.q_heads, spec.head_dim_qk});
        const Tensor k = Tensor::contiguous(k_.data(), spec.dtype, {keys, heads, spec.head_dim_qk});
        const Tensor v = Tensor::contiguous(v_.data(), spec.dtype, {keys, heads, spec.head_dim_vo});
        const Kernel kernel = context_.runtime.prepare(spec, {1, parts_.queries, end - begin});
        const Call call = kernel.bind({.q = dense(q),
                                       .k = dense(k.slice(0, begin, end)),
                                       .v = dense(v.slice(0, begin, end)),
                                       .o = dense(o(state)),
                                       .lse = dense(lse(state))},
                                      {});
        call.launch();
        context_.runtime.synchronize();  // the call's workspace goes with it
        return state;
    }

    // In as many steps as there are states for; a step's result is the next one's first state, in place.
    State merge_all(const std::vector<State>& states) const {
        const Kernel kernel = context_.runtime.prepare(merge_spec(), {1, parts_.queries, 1});
        State merged = states.size() > MergeTensors::kMaxStates ? states[0] : make_state();
        MergeTensors tensors;
        for (std::size_t s = 0; s < states.size(); ++s) {
            tensors.o_states.push_back(o(states[s]));
            tensors.lse_states.push_back(lse(states[s]));
            if (tensors.o_states.size() < MergeTensors::kMaxStates && s + 1 < states.size()) continue;
            tensors.o = o(merged);
            tensors.lse = lse(merged);
            launch(kernel.bind(tensors));
            tensors.o_states = {o(merged)};
            tensors.lse_states = {lse(merged)};
        }
        return merged;
    }

    void launch(const Call& call) const {
        if (!parts_.in_graph) {
            call.launch();
            return context_.runtime.synchronize();
        }
        const CurrentContext current;
        const TestStream stream;
        const CapturedGraph graph(stream, [&] { call.launch(stream.get()); });
        graph.launch(stream);
        stream.synchronize();
    }

    AttentionSpec merge_spec() const {
        return {.op = Op::merge,
                .dtype = spec_.dtype,
                .head_dim_vo = spec_.head_dim_vo,
                .q_heads = spec_.q_heads,
                .lse = true};
    }

    Host read(const State& state) const {
        Host host{std::vector<std::uint16_t>(state.o->bytes() / 2),
                  std::vector<float>(state.lse->bytes() / sizeof(float))};
        state.o->download(host.o.data(), state.o->bytes());
        state.lse->download(host.lse.data(), state.lse->bytes());
        return host;
    }

    check::Reference as_reference(const Host& host) const {
        check::Reference result;
        for (const std::uint16_t bits : host.o) result.out.push_back(check::decode(spec_.dtype, bits));
        result.lse.assign(host.lse.begin(), host.lse.end());
        return result;
    }

    check::Reference reference() const {
        const auto rows = [](const std::vector<std::uint16_t>& host, std::int64_t heads, std::int64_t dim) {
            return [&host, heads, dim](std::int64_t, std::int64_t token, std::int64_t head) {
                return host.data() + (token * heads + head) * dim;
            };
        };
        const check::ReferenceInput input{spec_,
                                          {{parts_.queries, parts_.keys()}},
                                          rows(q_host_, spec_.q_heads, spec_.head_dim_qk),
                                          rows(k_host_, spec_.kv_heads, spec_.head_dim_qk),
                                          rows(v_host_, spec_.kv_heads, spec_.head_dim_vo),
                                          {},
                                          {}};
        return check::compute_reference(input, check::all_rows(input.sequences), context_.threads);
    }

    // Empty where all is within `factor` times the tolerances.
    std::string compare(const Host& got, const check::Reference& want, double factor,
                        const char* what) const {
        const check::Reference values = as_reference(got);
        const auto o = check::compare(check::output_tolerance(spec_.dtype), values.out, want.out);
        const auto lse = check::compare(check::lse_tolerance(), values.lse, want.lse);
        if (o.worst_ratio <= factor && lse.worst_ratio <= factor) return {};
        return fmt::format("differs from {}: o {:.2f}, lse {:.2f} of what is allowed ({:.0f})", what,
                           o.worst_ratio, lse.worst_ratio, factor);
    }

    const Context& context_;
    const Parts& parts_;
    check::Random random_;
    AttentionSpec spec_;
    std::vector<std::uint16_t> q_host_, k_host_, v_host_;
    Buffer q_, k_, v_;
};

void add_parts(Catalogue& catalogue, const std::string& name, const Parts& parts) {
    add(catalogue, "merge", name, [parts](const Context& context) { return PartsRun(context, parts).run(); });
}

Parts parts_of(DType dtype, std::int64_t queries, std::vector<std::int64_t> ends) {
    Parts parts{attention(dtype, 128, 8, 2).spec, queries, std::move(ends)};
    parts.spec.lse = true;
    return parts;
}

void add_attentions(Catalogue& catalogue) {
    for (const DType dtype : {DType::fp16, DType::bf16}) {
        const std::string name = word(dtype);
        add_parts(catalogue, name + " two halves of the keys", parts_of(dtype, 70, {150, 301}));
        Parts prefix = parts_of(dtype, 64, {500, 577});
        prefix.spec.mask = Mask::causal;
        add_parts(catalogue, name + " a prefix and a causal rest", prefix);
        add_parts(catalogue, name + " decode, a long half and a short one", parts_of(dtype, 1, {8000, 8100}));
        Parts replayed = parts_of(dtype, 33, {40, 200, 333});
        replayed.in_graph = true;
        add_parts(catalogue, name + " three parts, in a graph", replayed);
    }
    std::vector<std::int64_t> ends;
    for (std::int64_t end = 9; ends.size() < 70; end += 5) ends.push_back(end);
    add_parts(catalogue, "70 parts, merged in steps", parts_of(DType::fp16, 5, ends));
}

// Memory enough for the tensors of a small merge.
struct Small {
    explicit Small(const Context& context)
        : runtime(context.runtime), memory(context.runtime.allocate(std::size_t{1} << 16)) {}

    AttentionSpec spec{.op = Op::merge, .dtype = DType::fp16, .head_dim_vo = 64, .q_heads = 4};
    Runtime& runtime;
    Buffer memory;

    Tensor at(std::int64_t place, DType dtype, std::initializer_list<std::int64_t> shape) const {
        return Tensor::contiguous(static_cast<std::byte*>(memory.data()) + place * 8192, dtype, shape);
    }
    MergeTensors tensors() const {
        const Tensor lse = at(3, DType::fp32, {8, 4});
        return {.o_states = {at(0, DType::fp16, {8, 4, 64}), at(1, DType::fp16, {8, 4, 64})},
                .lse_states = {lse, lse},
                .o = at(2, DType::fp16, {8, 4, 64})};
    }
};

std::string other_op(const Context& context) {
    const Small small(context);
    const Kernel merge = small.runtime.prepare(small.spec, {});
    const Kernel attends = small.runtime.prepare(attention(DType::fp16, 64, 4, 2).spec, {});
    const std::string first = refusal("op", [&] { static_cast<void>(merge.bind(AttentionTensors{}, {})); });
    if (!first.empty()) return first;
    return refusal("op", [&] { static_cast<void>(attends.bind(small.tensors())); });
}

std::string bad_states(const Context& context) {
    const Small small(context);
    const Kernel kernel = small.runtime.prepare(small.spec, {});
    MergeTensors many = small.tensors();
    many.o_states.resize(33, many.o_states[0]);
    const std::string first = refusal("o_states", [&] { static_cast<void>(kernel.bind(many)); });
    if (!first.empty()) return first;
    MergeTensors over = small.tensors();
    over.o.data = static_cast<std::byte*>(over.o_states[1].data) + 512;
    return refusal("o", [&] { static_cast<void>(kernel.bind(over)); });
}

std::string what_a_call_says(const Context& context) {
    const Small small(context);
    const Kernel kernel = small.runtime.prepare(small.spec, {});
    const Call call = kernel.bind(small.tensors());
    call.launch();
    if (call.status()) return "the status is not clear";
    call.clear_status();
    if (kernel.workspace_bytes({1, 8, 1}) != 0) return "a merge wants a workspace";
    if (call.describe().find("merge states") == std::string::npos) return "describe(): " + call.describe();
    MergeTensors none = small.tensors();
    for (Tensor* o : {&none.o_states[0], &none.o_states[1], &none.o}) o->shape[0] = 0;
    for (Tensor& lse : none.lse_states) lse.shape[0] = 0;
    const Call nothing = kernel.bind(none);
    nothing.launch();
    return nothing.describe() == "nothing to launch" ? "" : "0 tokens: " + nothing.describe();
}

}  // namespace

void add_merged(Catalogue& catalogue) {
    add_attentions(catalogue);
    add(catalogue, "merge", "tensors of another op", other_op);
    add(catalogue, "merge", "too many states, an output over a state", bad_states);
    add(catalogue, "merge", "status, workspace and description", what_a_call_says);
}

}  // namespace attnsmith::gpu_tests
