// Sixteen lanes in four registers: 64-bit ARM with the dot product instructions (ARMv8.2 and later, Apple M1).
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace BLOCKDRAFT_ISA {

struct Floats { float32x4_t part[4]; };
struct Ints { int32x4_t part[4]; };
struct Bytes { uint8x16_t part[4]; };
struct Words { int16x8_t part[4]; };

constexpr int kRowsAtOnce = 2;
constexpr int kTilesAtOnce = 2;
constexpr int kQueriesAtOnce = 6;
constexpr int kSumsAtOnce = 6;
constexpr int kByteOffset = 0;  // bytes are read as signed

template <class Result, class F> inline Result each(F&& of) {
    Result result;
    for (int i = 0; i < 4; ++i) result.part[i] = of(i);
    return result;
}
inline Floats load(const float* p) { return each<Floats>([&](int i) { return vld1q_f32(p + 4 * i); }); }
inline void store(float* p, const Floats& x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.part[i]);
}
inline Floats load_half(const uint16_t* p) {
    return each<Floats>([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline Floats all(float x) { return each<Floats>([&](int) { return vdupq_n_f32(x); }); }
inline Floats zero() { return all(0); }
inline Floats add(const Floats& a, const Floats& b) { return each<Floats>([&](int i) { return vaddq_f32(a.part[i], b.part[i]); }); }
inline Floats sub(const Floats& a, const Floats& b) { return each<Floats>([&](int i) { return vsubq_f32(a.part[i], b.part[i]); }); }
inline Floats mul(const Floats& a, const Floats& b) { return each<Floats>([&](int i) { return vmulq_f32(a.part[i], b.part[i]); }); }
inline Floats div(const Floats& a, const Floats& b) { return each<Floats>([&](int i) { return vdivq_f32(a.part[i], b.part[i]); }); }
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    return each<Floats>([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
}
inline Floats max(const Floats& a, const Floats& b) { return each<Floats>([&](int i) { return vmaxq_f32(a.part[i], b.part[i]); }); }
inline Floats min(const Floats& a, const Floats& b) { return each<Floats>([&](int i) { return vminq_f32(a.part[i], b.part[i]); }); }
inline Floats abs(const Floats& a) { return each<Floats>([&](int i) { return vabsq_f32(a.part[i]); }); }
// The sum of the lanes: i and i + 8 first, then i and i + 4, and so on, with every instruction set.
inline float sum(const Floats& a) {
    const float32x4_t four = vaddq_f32(vaddq_f32(a.part[0], a.part[2]), vaddq_f32(a.part[1], a.part[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float largest(const Floats& a) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.part[0], a.part[1]), vmaxq_f32(a.part[2], a.part[3])));
}
inline Ints to_nearest(const Floats& a) { return each<Ints>([&](int i) { return vcvtnq_s32_f32(a.part[i]); }); }
inline Floats to_floats(const Ints& a) { return each<Floats>([&](int i) { return vcvtq_f32_s32(a.part[i]); }); }
inline Floats power_of_two(const Ints& n) {
    return each<Floats>(
        [&](int i) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n.part[i], vdupq_n_s32(127)), 23)); });
}
inline Floats where_below(const Floats& a, const Floats& limit, const Floats& b, const Floats& c) {
    return each<Floats>([&](int i) { return vbslq_f32(vcltq_f32(a.part[i], limit.part[i]), b.part[i], c.part[i]); });
}
inline Floats keep_lanes(const Floats& a, int first, int end) {
    const int32_t numbers[4] = {0, 1, 2, 3};
    return each<Floats>([&](int i) {
        const int32x4_t lane = vaddq_s32(vld1q_s32(numbers), vdupq_n_s32(4 * i));
        const uint32x4_t kept = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(first)), vcltq_s32(lane, vdupq_n_s32(end)));
        return vbslq_f32(kept, a.part[i], vdupq_n_f32(-__builtin_inff()));
    });
}

inline Ints all_ints(int32_t x) { return each<Ints>([&](int) { return vdupq_n_s32(x); }); }
inline int32_t sum(const Ints& a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.part[0], a.part[1]), vaddq_s32(a.part[2], a.part[3])));
}
inline void store_bytes(int8_t* p, const Ints& a) {
    const int16x8_t low = vcombine_s16(vmovn_s32(a.part[0]), vmovn_s32(a.part[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(a.part[2]), vmovn_s32(a.part[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
inline void store_words(int16_t* p, const Ints& a) {
    for (int i = 0; i < 4; ++i) vst1_s16(p + 4 * i, vmovn_s32(a.part[i]));
}

inline Words load_words(const int16_t* p) { return each<Words>([&](int i) { return vld1q_s16(p + 8 * i); }); }
inline Words widen_bytes(const int8_t* p) {
    return each<Words>([&](int i) { return vmovl_s8(vld1_s8(p + 8 * i)); });
}
inline Ints dot_words(const Ints& sums, const Words& words, const int16_t* two) {
    int32_t packed;
    __builtin_memcpy(&packed, two, 4);
    const int16x8_t x = vreinterpretq_s16_s32(vdupq_n_s32(packed));
    return each<Ints>([&](int i) {
        const int32x4_t low = vmull_s16(vget_low_s16(words.part[i]), vget_low_s16(x));
        return vaddq_s32(sums.part[i], vpaddq_s32(low, vmull_high_s16(words.part[i], x)));
    });
}

inline Bytes load_bytes(const uint8_t* p) { return each<Bytes>([&](int i) { return vld1q_u8(p + 16 * i); }); }
inline Bytes low_nibbles(const Bytes& a) {
    return each<Bytes>([&](int i) { return vandq_u8(a.part[i], vdupq_n_u8(15)); });
}
inline Bytes high_nibbles(const Bytes& a) {
    return each<Bytes>([&](int i) { return vshrq_n_u8(a.part[i], 4); });
}
inline Ints dot_signed(const Ints& sums, const Bytes& weights, const int8_t* four) {
    int32_t packed;
    __builtin_memcpy(&packed, four, 4);
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(packed));
    return each<Ints>([&](int i) { return vdotq_s32(sums.part[i], vreinterpretq_s8_u8(weights.part[i]), x); });
}
using ByteWeights = Bytes;
inline ByteWeights byte_weights(const Bytes& a) {
    return each<Bytes>([&](int i) { return veorq_u8(a.part[i], vdupq_n_u8(128)); });
}
inline Ints dot_bytes(const Ints& sums, const ByteWeights& weights, const int8_t* four) {
    return dot_signed(sums, weights, four);
}

using NibbleSums = Ints;
inline NibbleSums begin_nibbles(int32_t correction) { return all_ints(correction); }
inline NibbleSums dot_nibbles(const NibbleSums& sums, const Bytes& weights, const int8_t* four) {
    return dot_signed(sums, weights, four);
}
inline Ints end_nibbles(const NibbleSums& sums, int32_t) { return sums; }

}  // namespace BLOCKDRAFT_ISA
