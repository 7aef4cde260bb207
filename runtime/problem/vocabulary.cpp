#include "problem/vocabulary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "attnsmith/attnsmith.h"

namespace attnsmith {
namespace problem {
namespace {

constexpr auto alias = Spelling::alias;

constexpr Word<DType> kDTypes[] = {
    {"fp16", DType::fp16, ATTNSMITH_DTYPE_FP16},
    {"bf16", DType::bf16, ATTNSMITH_DTYPE_BF16},
    {"fp32", DType::fp32, ATTNSMITH_DTYPE_FP32},
    {"int32", DType::int32, ATTNSMITH_DTYPE_INT32},
    {"int64", DType::int64, ATTNSMITH_DTYPE_INT64},
    {"e4m3", DType::e4m3, ATTNSMITH_DTYPE_E4M3},
    {"e5m2", DType::e5m2, ATTNSMITH_DTYPE_E5M2},
    {"uint8", DType::uint8, ATTNSMITH_DTYPE_UINT8},
    {"f16", DType::fp16, ATTNSMITH_DTYPE_FP16, alias},
    {"half", DType::fp16, ATTNSMITH_DTYPE_FP16, alias},
    {"float16", DType::fp16, ATTNSMITH_DTYPE_FP16, alias},
    {"bfloat16", DType::bf16, ATTNSMITH_DTYPE_BF16, alias},
    {"f32", DType::fp32, ATTNSMITH_DTYPE_FP32, alias},
    {"float32", DType::fp32, ATTNSMITH_DTYPE_FP32, alias},
    {"i32", DType::int32, ATTNSMITH_DTYPE_INT32, alias},
    {"i64", DType::int64, ATTNSMITH_DTYPE_INT64, alias},
    {"fp8", DType::e4m3, ATTNSMITH_DTYPE_E4M3, alias},
    {"fp8_e4m3", DType::e4m3, ATTNSMITH_DTYPE_E4M3, alias},
    {"float8_e4m3fn", DType::e4m3, ATTNSMITH_DTYPE_E4M3, alias},
    {"fp8_e5m2", DType::e5m2, ATTNSMITH_DTYPE_E5M2, alias},
    {"float8_e5m2", DType::e5m2, ATTNSMITH_DTYPE_E5M2, alias},
    {"u8", DType::uint8, ATTNSMITH_DTYPE_UINT8, alias},
};
constexpr DType kFloatDTypes[] = {DType::fp16, DType::bf16};
constexpr DType kOutputDTypes[] = {DType::fp16, DType::bf16, DType::fp32};
constexpr DType kKvDTypes[] = {DType::fp16, DType::bf16, DType::e4m3, DType::e5m2};
constexpr DType kIndexDTypes[] = {DType::int32, DType::int64};

constexpr Word<Mask> kMasks[] = {{"full", Mask::full, ATTNSMITH_MASK_FULL},
                                 {"causal", Mask::causal, ATTNSMITH_MASK_CAUSAL},
                                 {"none", Mask::full, ATTNSMITH_MASK_FULL, alias}};

constexpr Word<KvStorage> kKvStorages[] = {{"dense", KvStorage::dense, ATTNSMITH_KV_DENSE},
                                           {"ragged", KvStorage::ragged, ATTNSMITH_KV_RAGGED},
                                           {"paged", KvStorage::paged, ATTNSMITH_KV_PAGED}};

constexpr Word<PageOrder> kPageOrders[] = {{"NHD", PageOrder::NHD, ATTNSMITH_PAGE_ORDER_NHD},
                                           {"HND", PageOrder::HND, ATTNSMITH_PAGE_ORDER_HND},
                                           {"nhd", PageOrder::NHD, ATTNSMITH_PAGE_ORDER_NHD, alias},
                                           {"hnd", PageOrder::HND, ATTNSMITH_PAGE_ORDER_HND, alias}};

constexpr Word<Precision> kPrecisions[] = {
    {"standard", Precision::standard, ATTNSMITH_PRECISION_STANDARD},
    {"high", Precision::high, ATTNSMITH_PRECISION_HIGH},
    {"default", Precision::standard, ATTNSMITH_PRECISION_STANDARD, alias}};

constexpr Word<Consistency> kConsistencies[] = {
    {"standard", Consistency::standard, ATTNSMITH_CONSISTENCY_STANDARD},
    {"bitwise", Consistency::bitwise, ATTNSMITH_CONSISTENCY_BITWISE},
    {"default", Consistency::standard, ATTNSMITH_CONSISTENCY_STANDARD, alias}};

constexpr Word<KvScale> kKvScales[] = {{"none", KvScale::none, ATTNSMITH_KV_SCALE_NONE},
                                       {"tensor", KvScale::tensor, ATTNSMITH_KV_SCALE_TENSOR},
                                       {"head", KvScale::head, ATTNSMITH_KV_SCALE_HEAD},
                                       {"token_head", KvScale::token_head, ATTNSMITH_KV_SCALE_TOKEN_HEAD},
                                       {"block128", KvScale::block128, ATTNSMITH_KV_SCALE_BLOCK128}};

constexpr Word<Slots> kSlots[] = {{"mapping", Slots::mapping, ATTNSMITH_SLOTS_MAPPING},
                                  {"table", Slots::table, ATTNSMITH_SLOTS_TABLE}};

constexpr Word<Rope> kRopes[] = {{"none", Rope::none, ATTNSMITH_ROPE_NONE},
                                 {"half", Rope::half, ATTNSMITH_ROPE_HALF},
                                 {"interleaved", Rope::interleaved, ATTNSMITH_ROPE_INTERLEAVED},
                                 {"neox", Rope::half, ATTNSMITH_ROPE_HALF, alias},
                                 {"gptj", Rope::interleaved, ATTNSMITH_ROPE_INTERLEAVED, alias}};

constexpr Word<RopeTable> kRopeTables[] = {
    {"cos_sin", RopeTable::cos_sin, ATTNSMITH_ROPE_TABLE_COS_SIN},
    {"frequencies", RopeTable::frequencies, ATTNSMITH_ROPE_TABLE_FREQUENCIES}};

constexpr Word<LogLevel> kLogLevels[] = {{"off", LogLevel::off, ATTNSMITH_LOG_OFF},
                                         {"error", LogLevel::error, ATTNSMITH_LOG_ERROR},
                                         {"warn", LogLevel::warn, ATTNSMITH_LOG_WARN},
                                         {"info", LogLevel::info, ATTNSMITH_LOG_INFO},
                                         {"debug", LogLevel::debug, ATTNSMITH_LOG_DEBUG}};

constexpr Word<CacheTrust> kCacheTrusts[] = {{"owner", CacheTrust::owner, ATTNSMITH_CACHE_TRUST_OWNER},
                                             {"group", CacheTrust::group, ATTNSMITH_CACHE_TRUST_GROUP},
                                             {"all", CacheTrust::all, ATTNSMITH_CACHE_TRUST_ALL}};

constexpr Word<Toolchain> kToolchains[] = {{"newest", Toolchain::newest, ATTNSMITH_TOOLCHAIN_NEWEST},
                                           {"exact", Toolchain::exact, ATTNSMITH_TOOLCHAIN_EXACT}};

constexpr Word<OnMiss> kOnMisses[] = {{"compile", OnMiss::compile, ATTNSMITH_ON_MISS_COMPILE},
                                      {"error", OnMiss::error, ATTNSMITH_ON_MISS_ERROR}};

// The C ABI has no numbers for warnings: it has their words.
constexpr Word<WarningKind> kWarningKinds[] = {{"unknown_type", WarningKind::unknown_type, 1},
                                               {"unread_field", WarningKind::unread_field, 2},
                                               {"not_planned", WarningKind::not_planned, 3},
                                               {"approximated", WarningKind::approximated, 4},
                                               {"ignored", WarningKind::ignored, 5}};

constexpr Word<ErrorKind> kErrorKinds[] = {
    {"invalid_request", ErrorKind::invalid_request, ATTNSMITH_CODE_INVALID_REQUEST},
    {"unsupported", ErrorKind::unsupported, ATTNSMITH_CODE_UNSUPPORTED},
    {"compile_error", ErrorKind::compile_error, ATTNSMITH_CODE_COMPILE_ERROR},
    {"driver_error", ErrorKind::driver_error, ATTNSMITH_CODE_DRIVER_ERROR},
    {"library_missing", ErrorKind::library_missing, ATTNSMITH_CODE_LIBRARY_MISSING},
    {"cache_error", ErrorKind::cache_error, ATTNSMITH_CODE_CACHE_ERROR},
    {"failed", ErrorKind::failed, ATTNSMITH_CODE_FAILED},
    {"kernel_missing", ErrorKind::kernel_missing, ATTNSMITH_CODE_KERNEL_MISSING}};

static_assert(has_numbers_of_c(kDTypes) && has_numbers_of_c(kMasks) && has_numbers_of_c(kKvStorages) &&
              has_numbers_of_c(kPageOrders) && has_numbers_of_c(kPrecisions) &&
              has_numbers_of_c(kConsistencies) && has_numbers_of_c(kKvScales) && has_numbers_of_c(kSlots) &&
              has_numbers_of_c(kRopes) && has_numbers_of_c(kRopeTables) && has_numbers_of_c(kLogLevels) &&
              has_numbers_of_c(kCacheTrusts) && has_numbers_of_c(kToolchains) &&
              has_numbers_of_c(kOnMisses) && has_numbers_of_c(kWarningKinds) &&
              has_numbers_of_c(kErrorKinds));

// A type that q, k and v could have, and that no kernel multiplies.
void check_multiplied(std::string_view field, DType dtype) {
    if (dtype != DType::fp32 && !is_fp8(dtype)) return;
    throw Unsupported(
        fmt::format("{} {} is not supported; supported are {}{}", field, to_string(dtype),
                    fmt::join(kFloatDTypeWords.names(), " and "),
                    is_fp8(dtype) ? fmt::format(" (for fp8 keys and values: kv_dtype {})", to_string(dtype))
                                  : std::string()),
        {});
}

}  // namespace

constinit const WordList<DType> kDTypeWords{kDTypes};
constinit const WordList<DType> kFloatDTypeWords{kDTypes, kFloatDTypes, check_multiplied};
constinit const WordList<DType> kOutputDTypeWords{kDTypes, kOutputDTypes};
constinit const WordList<DType> kKvDTypeWords{kDTypes, kKvDTypes};
constinit const WordList<DType> kIndexDTypeWords{kDTypes, kIndexDTypes};
constinit const WordList<Mask> kMaskWords{kMasks};
constinit const WordList<KvStorage> kKvStorageWords{kKvStorages};
constinit const WordList<PageOrder> kPageOrderWords{kPageOrders};
constinit const WordList<Precision> kPrecisionWords{kPrecisions};
constinit const WordList<Consistency> kConsistencyWords{kConsistencies};
constinit const WordList<KvScale> kKvScaleWords{kKvScales};
constinit const WordList<Slots> kSlotsWords{kSlots};
constinit const WordList<Rope> kRopeWords{kRopes};
constinit const WordList<RopeTable> kRopeTableWords{kRopeTables};
constinit const WordList<LogLevel> kLogLevelWords{kLogLevels};
constinit const WordList<CacheTrust> kCacheTrustWords{kCacheTrusts};
constinit const WordList<Toolchain> kToolchainWords{kToolchains};
constinit const WordList<OnMiss> kOnMissWords{kOnMisses};
constinit const WordList<WarningKind> kWarningKindWords{kWarningKinds};
constinit const WordList<ErrorKind> kErrorKindWords{kErrorKinds};

}  // namespace problem

std::string_view to_string(Op value) noexcept { return problem::kOpWords.name_of(value); }
std::string_view to_string(DType value) noexcept { return problem::kDTypeWords.name_of(value); }
std::string_view to_string(Mask value) noexcept { return problem::kMaskWords.name_of(value); }
std::string_view to_string(KvStorage value) noexcept { return problem::kKvStorageWords.name_of(value); }
std::string_view to_string(PageOrder value) noexcept { return problem::kPageOrderWords.name_of(value); }
std::string_view to_string(Precision value) noexcept { return problem::kPrecisionWords.name_of(value); }
std::string_view to_string(Consistency value) noexcept { return problem::kConsistencyWords.name_of(value); }
std::string_view to_string(KvScale value) noexcept { return problem::kKvScaleWords.name_of(value); }
std::string_view to_string(Slots value) noexcept { return problem::kSlotsWords.name_of(value); }
std::string_view to_string(Rope value) noexcept { return problem::kRopeWords.name_of(value); }
std::string_view to_string(RopeTable value) noexcept { return problem::kRopeTableWords.name_of(value); }
std::string_view to_string(LogLevel value) noexcept { return problem::kLogLevelWords.name_of(value); }
std::string_view to_string(CacheTrust value) noexcept { return problem::kCacheTrustWords.name_of(value); }
std::string_view to_string(Toolchain value) noexcept { return problem::kToolchainWords.name_of(value); }
std::string_view to_string(OnMiss value) noexcept { return problem::kOnMissWords.name_of(value); }
std::string_view to_string(WarningKind value) noexcept { return problem::kWarningKindWords.name_of(value); }
std::string_view to_string(ErrorKind value) noexcept { return problem::kErrorKindWords.name_of(value); }

template <>
std::optional<Op> from_string<Op>(std::string_view word) noexcept {
    return problem::kOpWords.value_of(word);
}
template <>
std::optional<DType> from_string<DType>(std::string_view word) noexcept {
    return problem::kDTypeWords.value_of(word);
}
template <>
std::optional<Mask> from_string<Mask>(std::string_view word) noexcept {
    return problem::kMaskWords.value_of(word);
}
template <>
std::optional<KvStorage> from_string<KvStorage>(std::string_view word) noexcept {
    return problem::kKvStorageWords.value_of(word);
}
template <>
std::optional<PageOrder> from_string<PageOrder>(std::string_view word) noexcept {
    return problem::kPageOrderWords.value_of(word);
}
template <>
std::optional<Precision> from_string<Precision>(std::string_view word) noexcept {
    return problem::kPrecisionWords.value_of(word);
}
template <>
std::optional<Consistency> from_string<Consistency>(std::string_view word) noexcept {
    return problem::kConsistencyWords.value_of(word);
}
template <>
std::optional<KvScale> from_string<KvScale>(std::string_view word) noexcept {
    return problem::kKvScaleWords.value_of(word);
}
template <>
std::optional<Slots> from_string<Slots>(std::string_view word) noexcept {
    return problem::kSlotsWords.value_of(word);
}
template <>
std::optional<Rope> from_string<Rope>(std::string_view word) noexcept {
    return problem::kRopeWords.value_of(word);
}
template <>
std::optional<RopeTable> from_string<RopeTable>(std::string_view word) noexcept {
    return problem::kRopeTableWords.value_of(word);
}
template <>
std::optional<LogLevel> from_string<LogLevel>(std::string_view word) noexcept {
    return problem::kLogLevelWords.value_of(word);
}
template <>
std::optional<CacheTrust> from_string<CacheTrust>(std::string_view word) noexcept {
    return problem::kCacheTrustWords.value_of(word);
}
template <>
std::optional<Toolchain> from_string<Toolchain>(std::string_view word) noexcept {
    return problem::kToolchainWords.value_of(word);
}
template <>
std::optional<OnMiss> from_string<OnMiss>(std::string_view word) noexcept {
    return problem::kOnMissWords.value_of(word);
}
template <>
std::optional<WarningKind> from_string<WarningKind>(std::string_view word) noexcept {
    return problem::kWarningKindWords.value_of(word);
}
template <>
std::optional<ErrorKind> from_string<ErrorKind>(std::string_view word) noexcept {
    return problem::kErrorKindWords.value_of(word);
}

}  // namespace attnsmith
