#include "cache/digest/sha256_blocks.hpp"

#include <atomic>
#include <bit>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_neon.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace attnsmith::cache::sha256 {
namespace {

std::uint32_t get_big_endian(const std::byte* at) {
    std::uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word = word << 8 | std::to_integer<std::uint32_t>(at[i]);
    return word;
}

// The six functions of FIPS 180-4, 4.1.2, by their names there.
std::uint32_t choose(std::uint32_t x, std::uint32_t y, std::uint32_t z) { return (x & y) ^ (~x & z); }
std::uint32_t majority(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
    return (x & y) ^ (x & z) ^ (y & z);
}
std::uint32_t big_sigma_0(std::uint32_t x) { return std::rotr(x, 2) ^ std::rotr(x, 13) ^ std::rotr(x, 22); }
std::uint32_t big_sigma_1(std::uint32_t x) { return std::rotr(x, 6) ^ std::rotr(x, 11) ^ std::rotr(x, 25); }
std::uint32_t small_sigma_0(std::uint32_t x) { return std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3); }
std::uint32_t small_sigma_1(std::uint32_t x) { return std::rotr(x, 17) ^ std::rotr(x, 19) ^ (x >> 10); }

#if defined(__x86_64__)

// Names are those of Intel's and AMD's manuals: SHA256RNDS2 does two rounds on a state that is kept as ABEF
// and CDGH, SHA256MSG1 and SHA256MSG2 extend the message schedule by four words.
__attribute__((target("sha,sse4.1"))) void add_blocks_by_sha_extensions(State& state, const std::byte* blocks,
                                                                        std::size_t count) {
    const auto load = [](const void* at) __attribute__((target("sha,sse4.1"))) {
        return _mm_loadu_si128(static_cast<const __m128i*>(at));
    };
    const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);

    // From the order a, b, c, d and e, f, g, h, the first word lowest, to F E B A and H G D C.
    const __m128i cdab = _mm_shuffle_epi32(load(state.data()), 0xb1);
    const __m128i efgh = _mm_shuffle_epi32(load(state.data() + 4), 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8);
    __m128i cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);

    for (; count > 0; --count, blocks += kBlockBytes) {
        const __m128i abef_before = abef, cdgh_before = cdgh;
        __m128i w[4];  // the last 16 words of the schedule; group g of four is w[g % 4]
        for (int g = 0; g < 4; ++g) w[g] = _mm_shuffle_epi8(load(blocks + 16 * g), big_endian);
#pragma GCC unroll 16
        for (int g = 0; g < 16; ++g) {
            __m128i& words = w[g % 4];
            const __m128i before = w[(g + 3) % 4];  // the four words right before these
            if (g >= 4) {
                const __m128i seven_back = _mm_alignr_epi8(before, w[(g + 2) % 4], 4);
                words = _mm_sha256msg1_epu32(words, w[(g + 1) % 4]);
                words = _mm_sha256msg2_epu32(_mm_add_epi32(words, seven_back), before);
            }
            const __m128i input = _mm_add_epi32(words, load(kRoundConstants.data() + 4 * g));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, input);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(input, 0x0e));
        }
        abef = _mm_add_epi32(abef, abef_before);
        cdgh = _mm_add_epi32(cdgh, cdgh_before);
    }

    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b);
    const __m128i dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data()), _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(state.data() + 4), _mm_alignr_epi8(dchg, feba, 8));
}

bool has_sha_extensions() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kSse41 = 1u << 19, kSsse3 = 1u << 9, kSha = 1u << 29;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kSse41) == 0 || (c & kSsse3) == 0) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0;
}

#elif defined(__aarch64__) && defined(__linux__)

// SHA256H and SHA256H2 do four rounds, SHA256SU0 and SHA256SU1 extend the message schedule by four words.
#if defined(__clang__)
__attribute__((target("sha2")))
#else
__attribute__((target("+crypto")))
#endif
void add_blocks_by_sha_2(State& state, const std::byte* blocks, std::size_t count) {
    uint32x4_t abcd = vld1q_u32(state.data()), efgh = vld1q_u32(state.data() + 4);
    for (; count > 0; --count, blocks += kBlockBytes) {
        const uint32x4_t abcd_before = abcd, efgh_before = efgh;
        uint32x4_t w[4];  // the last 16 words of the schedule; group g of four is w[g % 4]
        for (int g = 0; g < 4; ++g) {
            const auto* const at = reinterpret_cast<const std::uint8_t*>(blocks + 16 * g);
            w[g] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(at)));
        }
        for (int g = 0; g < 16; ++g) {
            uint32x4_t& words = w[g % 4];
            if (g >= 4) {
                words =
                    vsha256su1q_u32(vsha256su0q_u32(words, w[(g + 1) % 4]), w[(g + 2) % 4], w[(g + 3) % 4]);
            }
            const uint32x4_t input = vaddq_u32(words, vld1q_u32(kRoundConstants.data() + 4 * g));
            const uint32x4_t abcd_now = abcd;
            abcd = vsha256hq_u32(abcd, efgh, input);
            efgh = vsha256h2q_u32(efgh, abcd_now, input);
        }
        abcd = vaddq_u32(abcd, abcd_before);
        efgh = vaddq_u32(efgh, efgh_before);
    }
    vst1q_u32(state.data(), abcd);
    vst1q_u32(state.data() + 4, efgh);
}

#endif

}  // namespace

void add_blocks_portably(State& state, const std::byte* blocks, std::size_t count) {
    for (; count > 0; --count, blocks += kBlockBytes) {
        std::array<std::uint32_t, 64> w;
        for (std::size_t t = 0; t < 16; ++t) w[t] = get_big_endian(blocks + 4 * t);
        for (std::size_t t = 16; t < 64; ++t) {
            w[t] = small_sigma_1(w[t - 2]) + w[t - 7] + small_sigma_0(w[t - 15]) + w[t - 16];
        }
        auto [a, b, c, d, e, f, g, h] = state;
        for (std::size_t t = 0; t < 64; ++t) {
            const std::uint32_t t1 = h + big_sigma_1(e) + choose(e, f, g) + kRoundConstants[t] + w[t];
            const std::uint32_t t2 = big_sigma_0(a) + majority(a, b, c);
            h = g, g = f, f = e, e = d + t1;
            d = c, c = b, b = a, a = t1 + t2;
        }
        const State added = {a, b, c, d, e, f, g, h};
        for (std::size_t i = 0; i < state.size(); ++i) state[i] += added[i];
    }
}

AddBlocks by_instructions() {
#if defined(__x86_64__)
    return has_sha_extensions() ? add_blocks_by_sha_extensions : nullptr;
#elif defined(__aarch64__) && defined(__linux__)
    return (::getauxval(AT_HWCAP) & HWCAP_SHA2) != 0 ? add_blocks_by_sha_2 : nullptr;
#else
    return nullptr;
#endif
}

// Not a static object of the function: a child forked while another thread made it would wait for it for
// ever.
AddBlocks fastest() {
    static constinit std::atomic<AddBlocks> chosen = nullptr;
    AddBlocks add = chosen.load(std::memory_order_relaxed);
    if (add == nullptr) {
        add = by_instructions();
        if (add == nullptr) add = add_blocks_portably;
        chosen.store(add, std::memory_order_relaxed);
    }
    return add;
}

}  // namespace attnsmith::cache::sha256
