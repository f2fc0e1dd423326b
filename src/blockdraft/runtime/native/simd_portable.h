// Sixteen lanes in plain C++, for any processor; the compiler makes of it what it can.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>

namespace BLOCKDRAFT_ISA {

struct Floats { float lane[16]; };
struct Ints { int32_t lane[16]; };
struct Bytes { uint8_t byte[64]; };
struct Words { int16_t word[32]; };

constexpr int kRowsAtOnce = 2;
constexpr int kTilesAtOnce = 1;
constexpr int kQueriesAtOnce = 2;
constexpr int kSumsAtOnce = 2;
constexpr int kByteOffset = 128;

template <class Result, class F> inline Result each(F&& of) {
    Result result;
    for (int i = 0; i < 16; ++i) result.lane[i] = of(i);
    return result;
}
inline float half_to_float(uint16_t half) {
    const uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest < 0x0400) {  // zero or subnormal
        const float value = float(rest) * 0x1p-24f;
        return sign ? -value : value;
    }
    const uint32_t bits = sign | (rest >= 0x7c00 ? 0x7f800000 | (rest << 13) : (rest + (112 << 10)) << 13);
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}
inline Floats load(const float* p) { return each<Floats>([&](int i) { return p[i]; }); }
inline void store(float* p, const Floats& x) { __builtin_memcpy(p, x.lane, sizeof x.lane); }
inline Floats load_half(const uint16_t* p) { return each<Floats>([&](int i) { return half_to_float(p[i]); }); }
inline Floats all(float x) { return each<Floats>([&](int) { return x; }); }
inline Floats zero() { return all(0); }
inline Floats add(const Floats& a, const Floats& b) { return each<Floats>([&](int i) { return a.lane[i] + b.lane[i]; }); }
inline Floats sub(const Floats& a, const Floats& b) { return each<Floats>([&](int i) { return a.lane[i] - b.lane[i]; }); }
inline Floats mul(const Floats& a, const Floats& b) { return each<Floats>([&](int i) { return a.lane[i] * b.lane[i]; }); }
inline Floats div(const Floats& a, const Floats& b) { return each<Floats>([&](int i) { return a.lane[i] / b.lane[i]; }); }
// Rounded twice, as not every processor can do otherwise.
inline Floats fma(const Floats& a, const Floats& b, const Floats& c) { return add(mul(a, b), c); }
inline Floats max(const Floats& a, const Floats& b) {
    return each<Floats>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats min(const Floats& a, const Floats& b) {
    return each<Floats>([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Floats abs(const Floats& a) { return each<Floats>([&](int i) { return std::fabs(a.lane[i]); }); }
// The sum of the lanes: i and i + 8 first, then i and i + 4, and so on, with every instruction set.
inline float sum(Floats a) {
    for (int step = 8; step; step /= 2)
        for (int i = 0; i < step; ++i) a.lane[i] += a.lane[i + step];
    return a.lane[0];
}
inline float largest(const Floats& a) {
    float result = a.lane[0];
    for (float lane : a.lane) result = lane > result ? lane : result;
    return result;
}
inline Ints to_nearest(const Floats& a) {
    return each<Ints>([&](int i) { return static_cast<int32_t>(std::nearbyint(a.lane[i])); });
}
inline Floats to_floats(const Ints& a) { return each<Floats>([&](int i) { return static_cast<float>(a.lane[i]); }); }
inline Floats power_of_two(const Ints& n) {
    return each<Floats>([&](int i) {
        const int32_t bits = (n.lane[i] + 127) << 23;
        float value;
        __builtin_memcpy(&value, &bits, 4);
        return value;
    });
}
inline Floats where_below(const Floats& a, const Floats& limit, const Floats& b, const Floats& c) {
    return each<Floats>([&](int i) { return a.lane[i] < limit.lane[i] ? b.lane[i] : c.lane[i]; });
}
inline Floats keep_lanes(const Floats& a, int first, int end) {
    return each<Floats>(
        [&](int i) { return first <= i && i < end ? a.lane[i] : -std::numeric_limits<float>::infinity(); });
}

inline Ints all_ints(int32_t x) { return each<Ints>([&](int) { return x; }); }
inline int32_t sum(const Ints& a) {
    int32_t total = 0;
    for (int32_t lane : a.lane) total += lane;
    return total;
}
inline void store_bytes(int8_t* p, const Ints& a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.lane[i]);
}
inline void store_words(int16_t* p, const Ints& a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int16_t>(a.lane[i]);
}

inline Words load_words(const int16_t* p) {
    Words result;
    __builtin_memcpy(result.word, p, 64);
    return result;
}
inline Words widen_bytes(const int8_t* p) {
    Words result;
    for (int i = 0; i < 32; ++i) result.word[i] = p[i];
    return result;
}
inline Ints dot_words(Ints sums, const Words& words, const int16_t* two) {
    for (int i = 0; i < 16; ++i) sums.lane[i] += words.word[2 * i] * two[0] + words.word[2 * i + 1] * two[1];
    return sums;
}

inline Bytes load_bytes(const uint8_t* p) {
    Bytes result;
    __builtin_memcpy(result.byte, p, 64);
    return result;
}
inline Bytes low_nibbles(Bytes a) {
    for (uint8_t& byte : a.byte) byte &= 15;
    return a;
}
inline Bytes high_nibbles(Bytes a) {
    for (uint8_t& byte : a.byte) byte >>= 4;
    return a;
}
inline Ints dot_bytes(Ints sums, const Bytes& weights, const int8_t* four) {
    for (int i = 0; i < 16; ++i)
        for (int k = 0; k < 4; ++k) sums.lane[i] += weights.byte[4 * i + k] * four[k];
    return sums;
}
using ByteWeights = Bytes;
inline ByteWeights byte_weights(const Bytes& a) { return a; }

using NibbleSums = Ints;
inline NibbleSums begin_nibbles(int32_t correction) { return all_ints(correction); }
inline NibbleSums dot_nibbles(const NibbleSums& sums, const Bytes& weights, const int8_t* four) {
    return dot_bytes(sums, weights, four);
}
inline Ints end_nibbles(const NibbleSums& sums, int32_t) { return sums; }

}  // namespace BLOCKDRAFT_ISA
