// Sixteen lanes in one register: AVX-512 with VNNI (Ice Lake, Sapphire Rapids, Zen 4 and later).
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace BLOCKDRAFT_ISA {

using Floats = __m512;
using Ints = __m512i;
using Bytes = __m512i;
using Words = __m512i;  // 32 of sixteen bits

constexpr int kRowsAtOnce = 6;      // rows whose sums stay in registers while tiles are read
constexpr int kTilesAtOnce = 2;     // how many tiles those are
constexpr int kQueriesAtOnce = 12;  // queries whose sums stay in registers while keys or values are read
constexpr int kSumsAtOnce = 24;     // how many sums those are
constexpr int kByteOffset = 128;    // what `dot_bytes` counts too much, per activation

inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats load_half(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats abs(Floats a) { return _mm512_abs_ps(a); }
// The sum of the lanes: i and i + 8 first, then i and i + 4, and so on, with every instruction set.
inline float sum(Floats a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Floats a) { return _mm512_reduce_max_ps(a); }
inline Ints to_nearest(Floats a) { return _mm512_cvtps_epi32(a); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
// 2^n for whole n in [-126, 127].
inline Floats power_of_two(Ints n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(127)), 23));
}
// Lanes of `b` where a < limit, else of `c`.
inline Floats where_below(Floats a, Floats limit, Floats b, Floats c) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, limit, _CMP_LT_OQ), c, b);
}
// Lanes first <= i < end of `a`, the others minus infinity.
inline Floats keep_lanes(Floats a, int first, int end) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __mmask16 kept = _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(first)) &
                           _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end));
    return _mm512_mask_blend_ps(kept, _mm512_set1_ps(-__builtin_inff()), a);
}

inline Ints all_ints(int32_t x) { return _mm512_set1_epi32(x); }
inline int32_t sum(Ints a) { return _mm512_reduce_add_epi32(a); }
inline void store_bytes(int8_t* p, Ints a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}
inline void store_words(int16_t* p, Ints a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a));
}

inline Words load_words(const int16_t* p) { return _mm512_loadu_si512(p); }
inline Words widen_bytes(const int8_t* p) {
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// sums + two products in each lane; `two` are the other factors of the two.
inline Ints dot_words(Ints sums, Words words, const int16_t* two) {
    int32_t packed;
    __builtin_memcpy(&packed, two, 4);
    sums = _mm512_dpwssd_epi32(sums, words, _mm512_set1_epi32(packed));
    // Has one form of the sum in a loop and behind it: GCC keeps two otherwise, one of them in memory.
    asm("" : "+v"(sums));
    return sums;
}

inline Bytes load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Bytes low_nibbles(Bytes a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
inline Bytes high_nibbles(Bytes a) { return _mm512_and_si512(_mm512_srli_epi16(a, 4), _mm512_set1_epi8(15)); }
// sums + four products in each lane; `four` are the activations of the four.
inline Ints dot_bytes(Ints sums, Bytes weights, const int8_t* four) {
    int32_t packed;
    __builtin_memcpy(&packed, four, 4);
    return _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(packed));
}
using ByteWeights = Bytes;
inline ByteWeights byte_weights(Bytes a) { return a; }

// The same for weights below 16, whose sums over a group may be kept in another form.
using NibbleSums = Ints;
inline NibbleSums begin_nibbles(int32_t correction) { return all_ints(correction); }
inline NibbleSums dot_nibbles(NibbleSums sums, Bytes weights, const int8_t* four) { return dot_bytes(sums, weights, four); }
inline Ints end_nibbles(NibbleSums sums, int32_t) { return sums; }

}  // namespace BLOCKDRAFT_ISA
