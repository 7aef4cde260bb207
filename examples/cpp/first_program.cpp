#include <attnsmith/attnsmith.hpp>
#include <iostream>
#include <vector>
namespace as = attnsmith;

int main() try {
    as::Runtime runtime;
    const as::AttentionSpec spec{.head_dim_qk = 128, .q_heads = 32, .kv_heads = 8, .mask = as::Mask::causal};
    const as::Kernel kernel = runtime.prepare(spec, {.batch = 2, .q_len = 512, .kv_len = 512});
    std::vector<std::uint16_t> ones(2 * 512 * 32 * 128, 0x3f80), result(ones.size());  // 1.0 in bf16
    as::Buffer in = runtime.allocate(2 * ones.size()), out = runtime.allocate(2 * ones.size());
    in.upload(ones.data(), in.bytes());
    const as::Tensor q = as::Tensor::contiguous(in.data(), as::DType::bf16, {2, 512, 32, 128});
    const as::Tensor kv = as::Tensor::contiguous(in.data(), as::DType::bf16, {2, 512, 8, 128});
    const as::Tensor o = as::Tensor::contiguous(out.data(), as::DType::bf16, {2, 512, 32, 128});
    const as::Call call = kernel.bind({.q = q, .k = kv, .v = kv, .o = o}, {});
    call.launch();                             // on the default stream
    out.download(result.data(), out.bytes());  // waits for it
    std::cout << "the mean of ones is " << (result == ones ? "one\n" : "wrong\n");
} catch (const as::Error& error) {  // names the field or the device, and the remedy
    std::cerr << error.what() << "\n";
    return 1;
}
