// TMA descriptors over the stub driver, which writes what it was given and refuses what a driver refuses.
#include "driver/tensor_map.hpp"

#include <cuda.h>

#include <array>
#include <cstring>
#include <span>

#include "attnsmith/error.hpp"
#include "driver/device.hpp"
#include "support/catch.hpp"
#include "support/fake_cuda/fake_cuda.h"

using namespace attnsmith;

namespace {

struct Request {
    const void* data;
    DType dtype;
    std::size_t rank;
    std::array<std::uint64_t, 3> extents;
    std::array<std::uint64_t, 2> strides;
    std::array<std::uint32_t, 3> box;
};

Request request() {
    return {.data = reinterpret_cast<const void*>(std::uintptr_t{0x1000}),
            .dtype = DType::fp16,
            .rank = 3,
            .extents = {96, 40, 7},
            .strides = {1024, 0},
            .box = {64, 32, 1}};
}

void encode(const driver::Api& api, const Request& r, void* map) {
    driver::encode_tensor_map(api,
                              {.data = r.data,
                               .dtype = r.dtype,
                               .extents = std::span(r.extents).first(r.rank),
                               .strides = r.strides,
                               .box = r.box},
                              map);
}

}  // namespace

TEST_CASE("a tensor map is encoded as asked", "[driver]") {
    const auto api = driver::Api::open(ATTNSMITH_FAKE_CUDA);
    const driver::ContextScope scope(*api, 0);
    alignas(64) std::array<std::byte, driver::kTensorMapBytes> bytes{};
    encode(*api, request(), bytes.data());
    fake_cuda_tensor_map map;
    std::memcpy(&map, bytes.data(), sizeof map);
    CHECK(map.address == 0x1000);
    CHECK(map.rank == 3);
    CHECK(map.type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
    CHECK(map.extents[0] == 96);
    CHECK(map.extents[2] == 7);
    CHECK(map.strides[0] == 1024);
    CHECK(map.strides[1] == 0);
    CHECK(map.box[1] == 32);
    CHECK(map.swizzle == CU_TENSOR_MAP_SWIZZLE_128B);
    CHECK(map.interleave == CU_TENSOR_MAP_INTERLEAVE_NONE);
    CHECK(map.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    Request bf16 = request();
    bf16.dtype = DType::bf16;
    encode(*api, bf16, bytes.data());
    std::memcpy(&map, bytes.data(), sizeof map);
    CHECK(map.type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
    for (const DType stored : {DType::e4m3, DType::e5m2, DType::uint8}) {
        Request bytes_each = request();
        bytes_each.dtype = stored;
        bytes_each.box[0] = 128;
        encode(*api, bytes_each, bytes.data());
        std::memcpy(&map, bytes.data(), sizeof map);
        CHECK(map.type == CU_TENSOR_MAP_DATA_TYPE_UINT8);
    }
}

TEST_CASE("L2 fetches no more at a time than rows of a box have next to each other", "[driver]") {
    const auto api = driver::Api::open(ATTNSMITH_FAKE_CUDA);
    const driver::ContextScope scope(*api, 0);
    const auto promotion = [&](std::uint64_t columns, std::uint64_t stride) {
        Request r = request();
        r.extents[0] = columns;
        r.strides[0] = stride;
        std::array<std::byte, driver::kTensorMapBytes> bytes{};
        encode(*api, r, bytes.data());
        fake_cuda_tensor_map map;
        std::memcpy(&map, bytes.data(), sizeof map);
        return map.promotion;
    };
    CHECK(promotion(128, 1024) == CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
    CHECK(promotion(96, 1024) == CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    CHECK(promotion(64, 1024) == CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
    CHECK(promotion(48, 1024) == CU_TENSOR_MAP_L2_PROMOTION_L2_64B);
    CHECK(promotion(64, 128) == CU_TENSOR_MAP_L2_PROMOTION_L2_256B);  // one row behind the other
}

TEST_CASE("a tensor map that is moved begins elsewhere, and is the same otherwise", "[driver]") {
    const auto api = driver::Api::open(ATTNSMITH_FAKE_CUDA);
    const driver::ContextScope scope(*api, 0);
    alignas(64) std::array<std::byte, driver::kTensorMapBytes> moved{}, elsewhere{};
    encode(*api, request(), moved.data());
    Request other = request();
    other.data = reinterpret_cast<const void*>(std::uintptr_t{0x7000});
    encode(*api, other, elsewhere.data());
    driver::move_tensor_map(*api, other.data, moved.data());
    CHECK(moved == elsewhere);
    const void* const odd = reinterpret_cast<const void*>(std::uintptr_t{0x7008});
    CHECK_THROWS_AS(driver::move_tensor_map(*api, odd, moved.data()), DriverError);
    CHECK(moved == elsewhere);
}

TEST_CASE("what the driver refuses to encode is an error of its call", "[driver]") {
    const auto api = driver::Api::open(ATTNSMITH_FAKE_CUDA);
    const driver::ContextScope scope(*api, 0);
    const auto refuses = [&](auto change) {
        Request changed = request();
        change(changed);
        std::array<std::byte, driver::kTensorMapBytes> bytes{};
        REQUIRE_THROWS_AS(encode(*api, changed, bytes.data()), DriverError);
    };
    refuses([](Request& r) { r.data = nullptr; });
    refuses([](Request& r) { r.data = reinterpret_cast<const void*>(std::uintptr_t{0x1008}); });
    refuses([](Request& r) { r.rank = 0; });
    refuses([](Request& r) { r.extents[1] = 0; });
    refuses([](Request& r) { r.extents[1] = (std::uint64_t{1} << 32) + 1; });
    refuses([](Request& r) { r.strides[0] = 1032; });
    refuses([](Request& r) { r.strides[0] = std::uint64_t{1} << 40; });
    refuses([](Request& r) { r.box[0] = 128; });
    refuses([](Request& r) { r.box[1] = 257; });
}
