#include <attnsmith/attnsmith.hpp>
#include <iostream>
using namespace attnsmith;

int main() try {
    Runtime runtime;
    const AttentionSpec spec{.head_dim_qk = 128, .q_heads = 32, .kv_heads = 8, .mask = Mask::causal};
    const PlanSizes sizes{.batch = 2, .q_len = 512, .kv_len = 512};
    const Kernel kernel = runtime.prepare(spec, sizes);  // from the cache, or compiled now
    std::vector<std::uint16_t> ones(2 * 512 * 32 * 128, 0x3f80), result(ones.size());  // 1.0 in bf16
    Buffer in = runtime.allocate(2 * ones.size()), out = runtime.allocate(2 * ones.size());
    in.upload(ones.data(), in.bytes());
    const Tensor q = Tensor::contiguous(in.data(), DType::bf16, {2, 512, 32, 128});
    const Tensor kv = Tensor::contiguous(in.data(), DType::bf16, {2, 512, 8, 128});
    const Tensor o = Tensor::contiguous(out.data(), DType::bf16, {2, 512, 32, 128});
    const Call call = kernel.bind({.q = q, .k = kv, .v = kv, .o = o}, {});
    call.launch();                             // on the default stream
    out.download(result.data(), out.bytes());  // waits for it
    std::cout << "the mean of ones is " << (result == ones ? "one\n" : "wrong\n");
} catch (const Error& error) {  // names the field or the device, and the remedy
    std::cerr << error.what() << "\n";
    return 1;
}
