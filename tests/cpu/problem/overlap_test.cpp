#include "problem/tensors/overlap.hpp"

#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "attnsmith/tensor.hpp"
#include "support/catch.hpp"

using namespace attnsmith;
using namespace attnsmith::problem;

namespace {

void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }
constexpr std::uintptr_t kBase = 0x100000;

Tensor buffer(std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16,
              std::uintptr_t base = kBase) {
    return Tensor::contiguous(address(base), dtype, shape);
}

bool overlap(const Tensor& a, const Tensor& b) {
    CHECK(may_overlap(a, b) == may_overlap(b, a));
    return may_overlap(a, b);
}

// Every byte, one by one: what may_overlap has to agree with where it says "apart".
std::set<std::int64_t> bytes_of(const Tensor& tensor, bool& itself) {
    std::set<std::int64_t> bytes;
    std::vector<std::int64_t> index(static_cast<std::size_t>(tensor.rank));
    std::int64_t elements = 1;
    for (int axis = 0; axis < tensor.rank; ++axis) elements *= tensor.shape[static_cast<std::size_t>(axis)];
    for (std::int64_t element = 0; element < elements; ++element) {
        std::int64_t rest = element;
        std::int64_t at = 0;
        for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
            at += rest % tensor.shape[axis] * tensor.strides[axis];
            rest /= tensor.shape[axis];
        }
        const std::int64_t begin = reinterpret_cast<std::intptr_t>(tensor.data) + at * size_of(tensor.dtype);
        for (std::int64_t byte = 0; byte < size_of(tensor.dtype); ++byte) {
            if (!bytes.insert(begin + byte).second) itself = true;
        }
    }
    return bytes;
}

}  // namespace

TEST_CASE("separate allocations are apart, the same one is not", "[overlap]") {
    const Tensor a = buffer({4, 8});
    CHECK(overlap(a, a));
    CHECK_FALSE(overlap(a, buffer({4, 8}, DType::bf16, kBase + 64)));
    CHECK(overlap(a, buffer({4, 8}, DType::bf16, kBase + 62)));
    CHECK_FALSE(overlap(a, buffer({4, 8}, DType::bf16, kBase - 64)));
    CHECK(overlap(a, buffer({4, 8}, DType::bf16, kBase - 62)));
}

TEST_CASE("empty and absent tensors overlap nothing", "[overlap]") {
    const Tensor a = buffer({4, 8});
    CHECK_FALSE(overlap(a, buffer({0, 8})));
    CHECK_FALSE(overlap(a, Tensor{}));
    CHECK_FALSE(overlap(a, Tensor::contiguous(nullptr, DType::bf16, {4, 8})));
}

TEST_CASE("slices of packed rows are proved apart", "[overlap]") {
    // [tokens, (4 q + 2 k + 2 v + 4 o) heads, 16].
    const Tensor rows = buffer({100, 12 * 16}).split(1, 12);
    const Tensor q = rows.slice(1, 0, 4);
    const Tensor k = rows.slice(1, 4, 6);
    const Tensor v = rows.slice(1, 6, 8);
    const Tensor o = rows.slice(1, 8, 12);
    for (const Tensor& input : {q, k, v}) CHECK_FALSE(overlap(o, input));
    CHECK(overlap(rows.slice(1, 7, 11), v));
    CHECK(overlap(rows.slice(1, 3, 7), q));
}

TEST_CASE("slices of batches of padded rows are proved apart", "[overlap]") {
    // A batch stride that is no multiple of the row's: 10 rows of 96 and a padding of 32.
    Tensor rows = buffer({3, 10, 96});
    rows.strides[0] = 10 * 96 + 32;
    const Tensor q = rows.slice(2, 0, 64);
    const Tensor o = rows.slice(2, 64, 96);
    CHECK_FALSE(overlap(q, o));
    CHECK(overlap(rows.slice(2, 0, 65), o));
    // They have different lengths, and start at another batch and row.
    CHECK_FALSE(overlap(q.slice(0, 1, 3).slice(1, 2, 10), o.slice(1, 0, 5)));
    CHECK_FALSE(overlap(q.slice(0, 0, 1), o.slice(0, 1, 3)));
}

TEST_CASE("layouts that frameworks make are proved apart", "[overlap]") {
    // [s, b, heads, (q | k | v) dim] of Megatron, and its transposes.
    const Tensor mixed = buffer({7, 2, 4, 3 * 16});
    const Tensor q = mixed.slice(3, 0, 16).permute({1, 0, 2, 3});
    const Tensor v = mixed.slice(3, 32, 48).permute({1, 2, 0, 3});
    CHECK_FALSE(overlap(q, v));
    // [b, 3, h, s, d].
    const Tensor stacked = buffer({2, 3, 4, 7, 16});
    CHECK_FALSE(overlap(stacked.select(1, 0), stacked.select(1, 2)));
    CHECK(overlap(stacked.select(1, 0), stacked));
    // K and V pages in one cache.
    const Tensor cache = buffer({9, 2, 4, 2, 16});
    CHECK_FALSE(overlap(cache.select(1, 0), cache.select(1, 1)));
    // fp32 statistics beside bf16 rows of one workspace row.
    const Tensor row = buffer({50, 64 + 2});
    Tensor lse = Tensor::contiguous(address(kBase + 128), DType::fp32, {50, 1});
    lse.strides[0] = 33;
    CHECK_FALSE(overlap(row.slice(1, 0, 64), lse));
    CHECK(overlap(row, lse));
}

TEST_CASE("broadcast and backward axes are understood", "[overlap]") {
    Tensor broadcast = buffer({4, 8});
    broadcast.strides[0] = 0;
    CHECK_FALSE(overlap(broadcast, buffer({4, 8}, DType::bf16, kBase + 16)));
    CHECK(overlap(broadcast, buffer({4, 8}, DType::bf16, kBase + 14)));
    Tensor backward = buffer({4, 8});
    backward.strides[0] = -8;
    CHECK(overlap(backward, buffer({1, 8}, DType::bf16, kBase - 48)));
    CHECK_FALSE(overlap(backward, buffer({1, 8}, DType::bf16, kBase - 64)));
    CHECK_FALSE(overlap(backward, buffer({1, 8}, DType::bf16, kBase + 16)));
}

TEST_CASE("what is too large to reason about may overlap", "[overlap]") {
    Tensor huge = buffer({4, 8});
    huge.strides[0] = std::numeric_limits<std::int64_t>::max();
    CHECK(overlap(huge, buffer({1}, DType::bf16, 8)));
    huge = buffer({4, 8});
    huge.shape[0] = std::numeric_limits<std::int64_t>::max();
    CHECK(overlap(huge, buffer({1}, DType::bf16, 8)));
    huge.rank = 77;
    CHECK(overlap(huge, buffer({1}, DType::bf16, 8)));
    CHECK(may_overlap_itself(huge));
}

TEST_CASE("elements of one tensor", "[overlap]") {
    CHECK_FALSE(may_overlap_itself(buffer({3, 4, 5})));
    CHECK_FALSE(may_overlap_itself(buffer({3, 4, 5}).permute({2, 0, 1})));
    CHECK_FALSE(may_overlap_itself(buffer({3, 8, 5}).slice(1, 2, 4)));
    CHECK_FALSE(may_overlap_itself(Tensor{}));
    CHECK_FALSE(may_overlap_itself(Tensor::contiguous(nullptr, DType::int32, {5, 0})));
    Tensor tensor = buffer({3, 4});
    tensor.strides[0] = 3;
    CHECK(may_overlap_itself(tensor));
    tensor.strides[0] = 0;
    CHECK(may_overlap_itself(tensor));
    tensor.shape[0] = 1;
    CHECK_FALSE(may_overlap_itself(tensor));
    tensor.shape[0] = 0;
    CHECK_FALSE(may_overlap_itself(tensor));
}

TEST_CASE("apart is only said of tensors that share no byte", "[overlap][property]") {
    std::mt19937_64 engine(3);
    const auto between = [&](std::int64_t least, std::int64_t most) {
        return std::uniform_int_distribution<std::int64_t>(least, most)(engine);
    };
    const auto random_tensor = [&] {
        Tensor tensor;
        tensor.dtype = between(0, 1) == 0 ? DType::bf16 : DType::fp32;
        tensor.data = address(kBase + static_cast<std::uintptr_t>(between(0, 60)));
        tensor.rank = static_cast<int>(between(0, 4));
        for (std::size_t axis = 0; axis < static_cast<std::size_t>(tensor.rank); ++axis) {
            const std::int64_t strides[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 0, -4};
            tensor.shape[axis] = between(between(0, 9) == 0 ? 0 : 1, 4);
            tensor.strides[axis] = strides[between(0, 11)];
        }
        return tensor;
    };
    int apart = 0;
    int proved = 0;
    for (int i = 0; i < 20000; ++i) {
        const Tensor a = random_tensor();
        const Tensor b = random_tensor();
        bool a_itself = false;
        bool b_itself = false;
        const auto a_bytes = bytes_of(a, a_itself);
        const auto b_bytes = bytes_of(b, b_itself);
        bool shared = false;
        for (const std::int64_t byte : a_bytes) shared = shared || b_bytes.contains(byte);
        if (shared) REQUIRE(may_overlap(a, b));
        if (a_itself) REQUIRE(may_overlap_itself(a));
        REQUIRE(may_overlap(a, b) == may_overlap(b, a));
        apart += shared ? 0 : 1;
        proved += may_overlap(a, b) ? 0 : 1;
    }
    // It sees most of the pairs that are apart, even among strides that no real layout has.
    CHECK(proved > apart * 3 / 4);
}
