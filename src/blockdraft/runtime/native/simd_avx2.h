// Sixteen lanes in two registers: AVX2 with FMA and F16C; with AVX-VNNI where the compiler is told so.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace BLOCKDRAFT_ISA {

struct Floats { __m256 low, high; };
struct Ints { __m256i low, high; };
using Bytes = Ints;
using Words = Ints;  // 32 of sixteen bits

constexpr int kRowsAtOnce = 4;
constexpr int kTilesAtOnce = 1;
constexpr int kQueriesAtOnce = 6;
constexpr int kSumsAtOnce = 6;

inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) { _mm256_storeu_ps(p, x.low), _mm256_storeu_ps(p + 8, x.high); }
inline Floats load_half(const uint16_t* p) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
inline Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats abs(Floats a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
// The sum of the lanes: i and i + 8 first, then i and i + 4, and so on, with every instruction set.
inline float sum(Floats a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(Floats a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline Ints to_nearest(Floats a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
inline Floats to_floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Floats power_of_two(Ints n) {
    const __m256i bias = _mm256_set1_epi32(127);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.low, bias), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n.high, bias), 23))};
}
inline Floats where_below(Floats a, Floats limit, Floats b, Floats c) {
    return {_mm256_blendv_ps(c.low, b.low, _mm256_cmp_ps(a.low, limit.low, _CMP_LT_OQ)),
            _mm256_blendv_ps(c.high, b.high, _mm256_cmp_ps(a.high, limit.high, _CMP_LT_OQ))};
}
inline __m256 keep_half(__m256 a, __m256i lane, int first, int end) {
    const __m256i kept = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(first), lane),
                                             _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
    return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), a, _mm256_castsi256_ps(kept));
}
inline Floats keep_lanes(Floats a, int first, int end) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return {keep_half(a.low, lane, first, end), keep_half(a.high, lane, first - 8, end - 8)};
}

inline Ints all_ints(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline int32_t sum(Ints a) {
    const __m256i eight = _mm256_add_epi32(a.low, a.high);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(two) + _mm_extract_epi32(two, 1);
}
inline void store_bytes(int8_t* p, Ints a) {
    const __m256i pairs = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
}
inline void store_words(int16_t* p, Ints a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xd8));
}

inline Words load_words(const int16_t* p) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline Words widen_bytes(const int8_t* p) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(halves)), _mm256_cvtepi8_epi16(_mm_loadu_si128(halves + 1))};
}

inline Bytes load_bytes(const uint8_t* p) {
    const __m256i* halves = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline Bytes low_nibbles(Bytes a) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
inline Bytes high_nibbles(Bytes a) {
    return low_nibbles({_mm256_srli_epi16(a.low, 4), _mm256_srli_epi16(a.high, 4)});
}
inline __m256i all_four(const int8_t* four) {
    int32_t packed;
    __builtin_memcpy(&packed, four, 4);
    return _mm256_set1_epi32(packed);
}

#ifdef __AVXVNNI__
inline __m256i dot_two(__m256i sums, __m256i words, __m256i two) { return _mm256_dpwssd_avx_epi32(sums, words, two); }

constexpr int kByteOffset = 128;
using ByteWeights = Bytes;
inline ByteWeights byte_weights(Bytes a) { return a; }
inline Ints dot_bytes(Ints sums, ByteWeights weights, const int8_t* four) {
    const __m256i x = all_four(four);
    return {_mm256_dpbusd_avx_epi32(sums.low, weights.low, x), _mm256_dpbusd_avx_epi32(sums.high, weights.high, x)};
}

using NibbleSums = Ints;
inline NibbleSums begin_nibbles(int32_t correction) { return all_ints(correction); }
inline NibbleSums dot_nibbles(NibbleSums sums, Bytes weights, const int8_t* four) { return dot_bytes(sums, weights, four); }
inline Ints end_nibbles(NibbleSums sums, int32_t) { return sums; }
#else
constexpr int kByteOffset = 0;
// The instruction multiplies unsigned by signed bytes and adds pairs in sixteen bits: sizes of weights by activations
// with the weights' signs, of which two products of at most 128 * 127 fit.
struct ByteWeights { Bytes size, sign; };
inline ByteWeights byte_weights(Bytes a) {
    const __m256i offset = _mm256_set1_epi8(-128);
    const Bytes sign = {_mm256_xor_si256(a.low, offset), _mm256_xor_si256(a.high, offset)};
    return {{_mm256_abs_epi8(sign.low), _mm256_abs_epi8(sign.high)}, sign};
}
// Has a sum made here: compilers would put all additions behind all products, for which there are too few registers.
inline __m256i made(__m256i sum) {
    asm("" : "+x"(sum));
    return sum;
}
inline __m256i dot_two(__m256i sums, __m256i words, __m256i two) {
    return made(_mm256_add_epi32(sums, _mm256_madd_epi16(words, two)));
}
inline __m256i dot_pairs(__m256i sums, __m256i size, __m256i x) {
    return made(_mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(size, x), _mm256_set1_epi16(1))));
}
inline Ints dot_bytes(Ints sums, const ByteWeights& weights, const int8_t* four) {
    const __m256i x = all_four(four);
    return {dot_pairs(sums.low, weights.size.low, _mm256_sign_epi8(x, weights.sign.low)),
            dot_pairs(sums.high, weights.size.high, _mm256_sign_epi8(x, weights.sign.high))};
}

// A lane of sixteen bits adds up sixteen products of a group, of at most 15 * 127 each: together they fit, too.
struct NibbleSums { __m256i low, high; };
inline NibbleSums begin_nibbles(int32_t) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline NibbleSums dot_nibbles(NibbleSums sums, Bytes weights, const int8_t* four) {
    const __m256i x = all_four(four);
    return {made(_mm256_add_epi16(sums.low, _mm256_maddubs_epi16(weights.low, x))),
            made(_mm256_add_epi16(sums.high, _mm256_maddubs_epi16(weights.high, x)))};
}
inline Ints end_nibbles(NibbleSums sums, int32_t correction) {
    const __m256i one = _mm256_set1_epi16(1), more = _mm256_set1_epi32(correction);
    return {_mm256_add_epi32(_mm256_madd_epi16(sums.low, one), more),
            _mm256_add_epi32(_mm256_madd_epi16(sums.high, one), more)};
}
#endif

inline Ints dot_words(Ints sums, Words words, const int16_t* two) {
    int32_t packed;
    __builtin_memcpy(&packed, two, 4);
    const __m256i x = _mm256_set1_epi32(packed);
    return {dot_two(sums.low, words.low, x), dot_two(sums.high, words.high, x)};
}

}  // namespace BLOCKDRAFT_ISA
