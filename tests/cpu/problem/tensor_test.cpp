#include "attnsmith/tensor.hpp"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "expect.hpp"

using namespace attnsmith;
using attnsmith::test::refused;

namespace {

void* const kBase = reinterpret_cast<void*>(std::uintptr_t{0x10000});
constexpr std::int64_t kInt64Max = std::numeric_limits<std::int64_t>::max();

std::int64_t offset_bytes(const Tensor& tensor) {
    return reinterpret_cast<std::intptr_t>(tensor.data) - reinterpret_cast<std::intptr_t>(kBase);
}
std::vector<std::int64_t> shape(const Tensor& tensor) {
    return {tensor.shape.begin(), tensor.shape.begin() + tensor.rank};
}
std::vector<std::int64_t> strides(const Tensor& tensor) {
    return {tensor.strides.begin(), tensor.strides.begin() + tensor.rank};
}
using List = std::vector<std::int64_t>;

}  // namespace

TEST_CASE("contiguous tensors are row-major", "[tensor]") {
    const Tensor tensor = Tensor::contiguous(kBase, DType::fp16, {2, 3, 5, 8});
    CHECK(tensor.data == kBase);
    CHECK(tensor.dtype == DType::fp16);
    CHECK(shape(tensor) == List{2, 3, 5, 8});
    CHECK(strides(tensor) == List{120, 40, 8, 1});
    CHECK(tensor);
    CHECK(strides(Tensor::contiguous(kBase, DType::fp32, {7, 0, 4})) == List{4, 4, 1});
    CHECK(Tensor::contiguous(kBase, DType::fp32, {}).rank == 0);
    CHECK_FALSE(Tensor{});
}

TEST_CASE("a shape that is none is refused", "[tensor]") {
    CHECK(refused([] {
              (void)Tensor::contiguous(kBase, DType::fp16, {1, 2, 3, 4, 5, 6});
          }).field() == "shape");
    CHECK(refused([] { (void)Tensor::contiguous(kBase, DType::fp16, {2, -1}); }).value() == "-1");
    CHECK(refused([] {
              (void)Tensor::contiguous(kBase, DType::fp16, {2, kInt64Max, 2});
          }).field() == "shape");
}

TEST_CASE("permute reorders shape and strides", "[tensor]") {
    const Tensor tensor = Tensor::contiguous(kBase, DType::bf16, {2, 3, 5, 8}).permute({0, 2, 1, 3});
    CHECK(shape(tensor) == List{2, 5, 3, 8});
    CHECK(strides(tensor) == List{120, 8, 40, 1});
    CHECK(tensor.data == kBase);
    CHECK(tensor.dtype == DType::bf16);
    CHECK(tensor.permute({0, 2, 1, 3}) == Tensor::contiguous(kBase, DType::bf16, {2, 3, 5, 8}));
    for (const auto& axes :
         {std::initializer_list<int>{0, 1, 2}, {0, 1, 2, 4}, {0, 1, 2, -1}, {0, 1, 1, 2}, {}}) {
        CHECK(refused([&] { (void)tensor.permute(axes); }).field() == "axes");
    }
}

TEST_CASE("select takes one index and drops the axis", "[tensor]") {
    const Tensor tensor = Tensor::contiguous(kBase, DType::fp32, {2, 3, 5}).select(1, 2);
    CHECK(shape(tensor) == List{2, 5});
    CHECK(strides(tensor) == List{15, 1});
    CHECK(offset_bytes(tensor) == 10 * 4);
    CHECK(refused([&] { (void)tensor.select(1, 5); }).field() == "index");
    CHECK(refused([&] { (void)tensor.select(1, -1); }).field() == "index");
    CHECK(refused([&] { (void)tensor.select(2, 0); }).field() == "axis");
    CHECK(refused([&] { (void)tensor.select(-1, 0); }).field() == "axis");
}

TEST_CASE("slice keeps the axis", "[tensor]") {
    const Tensor tensor = Tensor::contiguous(kBase, DType::fp16, {4, 6, 8});
    const Tensor sliced = tensor.slice(1, 2, 5);
    CHECK(shape(sliced) == List{4, 3, 8});
    CHECK(strides(sliced) == strides(tensor));
    CHECK(offset_bytes(sliced) == 16 * 2);
    CHECK(tensor.slice(1, 0, 6) == tensor);
    CHECK(shape(tensor.slice(0, 4, 4)) == List{0, 6, 8});
    CHECK(tensor.slice(0, 4, 4).data == kBase);
    CHECK(refused([&] { (void)tensor.slice(1, -1, 2); }).field() == "begin");
    CHECK(refused([&] { (void)tensor.slice(1, 7, 7); }).field() == "begin");
    CHECK(refused([&] { (void)tensor.slice(1, 3, 2); }).field() == "end");
    CHECK(refused([&] { (void)tensor.slice(1, 3, 7); }).field() == "end");
    CHECK(refused([&] { (void)tensor.slice(3, 0, 1); }).field() == "axis");
}

TEST_CASE("split makes two axes of one", "[tensor]") {
    const Tensor tensor = Tensor::contiguous(kBase, DType::fp16, {4, 24}).split(1, 3);
    CHECK(shape(tensor) == List{4, 3, 8});
    CHECK(strides(tensor) == List{24, 8, 1});
    CHECK(shape(tensor.split(0, 1)) == List{1, 4, 3, 8});
    CHECK(shape(Tensor::contiguous(kBase, DType::fp16, {0, 8}).split(0, 2)) == List{2, 0, 8});
    CHECK(refused([&] { (void)tensor.split(2, 3); }).field() == "outer");
    CHECK(refused([&] { (void)tensor.split(2, 0); }).field() == "outer");
    CHECK(refused([&] { (void)tensor.split(2, -2); }).field() == "outer");
    CHECK(refused([&] { (void)tensor.split(3, 1); }).field() == "axis");
    CHECK(refused([&] { (void)tensor.split(2, 2).split(0, 2).split(0, 1); }).field() == "rank");
}

TEST_CASE("views of views address the right elements", "[tensor]") {
    // Packed QKV rows [tokens, (q 4 + k 2 + v 2) heads, 16]: v, as [tokens, 2, 16].
    const Tensor packed = Tensor::contiguous(kBase, DType::bf16, {10, 8 * 16});
    const Tensor v = packed.split(1, 8).slice(1, 6, 8);
    CHECK(shape(v) == List{10, 2, 16});
    CHECK(strides(v) == List{128, 16, 1});
    CHECK(offset_bytes(v) == 6 * 16 * 2);
    // K and V in one cache [pages, 2, page_size, heads, dim].
    const Tensor cache = Tensor::contiguous(kBase, DType::fp16, {9, 2, 16, 4, 64});
    CHECK(strides(cache.select(1, 1)) == List{8192, 256, 64, 1});
    CHECK(offset_bytes(cache.select(1, 1)) == 4096 * 2);
}

TEST_CASE("a view of a tensor whose rank is out of range is refused", "[tensor]") {
    for (const int rank : {-3, Tensor::kMaxRank + 1, 20, 1000}) {
        Tensor tensor;
        tensor.data = reinterpret_cast<void*>(256);
        tensor.shape.fill(4);
        tensor.strides.fill(1);
        tensor.rank = rank;
        const std::function<void()> views[] = {[&] { (void)tensor.split(0, 2); },
                                               [&] { (void)tensor.select(0, 0); },
                                               [&] { (void)tensor.slice(0, 0, 1); },
                                               [&] {
                                                   (void)tensor.permute({0, 1, 2, 3, 4, 5});
                                               },
                                               [&] { (void)tensor.elements(); }};
        for (const auto& view : views) CHECK(refused(view).field() == "rank");
    }
}

TEST_CASE("an absent tensor stays absent", "[tensor]") {
    const Tensor tensor = Tensor::contiguous(nullptr, DType::fp16, {4, 6});
    CHECK(tensor.select(0, 3).data == nullptr);
    CHECK(tensor.slice(1, 3, 6).data == nullptr);
}

TEST_CASE("offsets that no pointer has are refused", "[tensor]") {
    Tensor tensor = Tensor::contiguous(kBase, DType::fp32, {4, 4});
    tensor.strides[0] = kInt64Max / 2;
    CHECK(refused([&] { (void)tensor.select(0, 3); }).field() == "strides");
    CHECK(refused([&] { (void)tensor.slice(0, 1, 2); }).field() == "strides");
    tensor.shape[0] = 8;
    CHECK(refused([&] { (void)tensor.split(0, 2); }).field() == "strides");
}

TEST_CASE("a strided tensor has the shape and strides that were given", "[tensor]") {
    const std::vector<std::int64_t> extents = {4, 6}, apart = {128, 2};
    const Tensor tensor = Tensor::strided(kBase, DType::fp16, extents, apart);
    CHECK(tensor == Tensor::strided(kBase, DType::fp16, {4, 6}, {128, 2}));
    CHECK(shape(tensor) == extents);
    CHECK(strides(tensor) == apart);
    CHECK((tensor.data == kBase && tensor.dtype == DType::fp16));
    CHECK(refused([&] { (void)Tensor::strided(kBase, DType::fp16, {4, 6}, {1}); }).field() == "strides");
    CHECK(refused([&] { (void)Tensor::strided(kBase, DType::fp16, {4, -6}, {6, 1}); }).field() == "shape");
    CHECK(refused([&] {
              (void)Tensor::strided(kBase, DType::fp16, {1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1});
          }).field() == "shape");
}

TEST_CASE("a row-major tensor is made of a shape that is known at run time", "[tensor]") {
    const std::vector<std::int64_t> extents = {4, 6, 8};
    CHECK(Tensor::contiguous(kBase, DType::bf16, extents) ==
          Tensor::contiguous(kBase, DType::bf16, {4, 6, 8}));
}

TEST_CASE("a tensor counts its elements, whatever its strides are", "[tensor]") {
    CHECK(Tensor::contiguous(kBase, DType::fp16, {4, 6, 8}).elements() == 192);
    CHECK(Tensor::contiguous(kBase, DType::fp16, {4, 6, 8}).slice(1, 2, 4).elements() == 64);
    CHECK(Tensor::contiguous(kBase, DType::fp16, {4, 0, 8}).elements() == 0);
    CHECK(Tensor{}.elements() == 1);
    Tensor vast = Tensor::contiguous(kBase, DType::fp16, {4, 4});
    vast.shape[0] = kInt64Max;
    CHECK(refused([&] { (void)vast.elements(); }).field() == "shape");
}

TEST_CASE("a tensor is absent if it has neither data nor a rank", "[tensor]") {
    CHECK_FALSE(Tensor{});
    CHECK(Tensor::contiguous(nullptr, DType::fp16, {0, 8}));
    CHECK(Tensor::contiguous(kBase, DType::fp16, {}));
}
