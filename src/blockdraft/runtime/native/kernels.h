// Arithmetic on rows: activations in groups of 32 signed bytes, products with tiles of weights, norms, softmax.
//
// A row's results never depend on the rows beside it: integer sums are exact, and the order of floating point sums is
// fixed by the columns alone. Nothing may be added here for which that does not hold.
#pragma once
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "core.h"
#include BLOCKDRAFT_SIMD

namespace BLOCKDRAFT_ISA {

constexpr int kLanes = 16;
constexpr int kGroup = 32;  // columns that share a scale
constexpr int kUnit = 32;   // outputs computed together: two tiles

// Rows of activations. Shapes: values [T, cols]; scales, sums and weighted [cols / 32, T].
struct Activations {
    int8_t* values;
    float* scales;
    int32_t* sums;    // of the values of a group
    float* weighted;  // scale * sum
    int cols;
    int64_t rows;

    int groups() const { return cols / kGroup; }
    int64_t place(int row, int group) const { return group * rows + row; }
};

#define BLOCKDRAFT_INLINE __attribute__((always_inline))

// Calls f(0) to f(N - 1) with constants. Arrays indexed by them live in registers; by the counter of a loop they may not.
template <class F, int... I> BLOCKDRAFT_INLINE inline void repeat(std::integer_sequence<int, I...>, const F& f) {
    (f(std::integral_constant<int, I>()), ...);
}
template <int N, class F> BLOCKDRAFT_INLINE inline void repeat(const F& f) { repeat(std::make_integer_sequence<int, N>(), f); }
// Calls f(i, j) for all i below N and j below M.
template <int N, int M, class F> BLOCKDRAFT_INLINE inline void repeat(const F& f) {
    repeat<N>([&](auto i) BLOCKDRAFT_INLINE { repeat<M>([&](auto j) BLOCKDRAFT_INLINE { f(i, j); }); });
}

// e^x to within two units in the last place; 0 below -87, no overflow handled as no caller goes above 88.
inline Floats exponential(Floats x) {
    const Floats limit = all(-87.0f);
    const Floats clamped = min(max(x, limit), all(88.0f));
    const Ints whole = to_nearest(mul(clamped, all(1.44269504f)));
    const Floats n = to_floats(whole);
    Floats r = fma(n, all(-0.693359375f), clamped);
    r = fma(n, all(2.12194440e-4f), r);
    Floats p = all(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        p = fma(p, r, all(c));
    p = add(fma(p, mul(r, r), r), all(1.0f));
    return where_below(x, limit, zero(), mul(p, power_of_two(whole)));
}

inline Floats silu(Floats x) { return div(x, add(all(1.0f), exponential(sub(zero(), x)))); }

// Quantises group `group` of row `row` from 32 floats.
inline void quantize_group(const float* x, const Activations& out, int row, int group) {
    const Floats a = load(x), b = load(x + kLanes);
    const float size = largest(max(abs(a), abs(b)));
    const float inverse = size > 0 ? 127.0f / size : 0;
    const Ints low = to_nearest(mul(a, all(inverse))), high = to_nearest(mul(b, all(inverse)));
    int8_t* values = out.values + int64_t(row) * out.cols + group * kGroup;
    store_bytes(values, low);
    store_bytes(values + kLanes, high);
    const int64_t place = out.place(row, group);
    out.scales[place] = size / 127.0f;
    out.sums[place] = sum(low) + sum(high);
    out.weighted[place] = out.scales[place] * float(out.sums[place]);
}

inline void quantize_row(const float* x, const Activations& out, int row) {
    for (int group = 0; group < out.groups(); ++group) quantize_group(x + group * kGroup, out, row, group);
}

// out = x / rms(x) * weight. `size` is a multiple of 16; out may be x.
inline void rms_norm(const float* x, const float* weight, int size, float eps, float* out) {
    Floats squares = zero();
    for (int i = 0; i < size; i += kLanes) squares = fma(load(x + i), load(x + i), squares);
    const Floats factor = all(1.0f / std::sqrt(sum(squares) / float(size) + eps));
    for (int i = 0; i < size; i += kLanes) store(out + i, mul(mul(load(x + i), factor), load(weight + i)));
}

// Rotates the first rotary_dim channels of a head, pairs (i, i + rotary_dim / 2).
inline void rotate(float* head, const float* cosine, const float* sine, int rotary_dim) {
    const int half = rotary_dim / 2;
    for (int i = 0; i < half; ++i) {
        const float first = head[i], second = head[half + i];
        head[i] = first * cosine[i] - second * sine[i];
        head[half + i] = second * cosine[i] + first * sine[i];
    }
}

constexpr int kPrefetch = 4096;  // bytes ahead of where a unit is read

// Of sixteen rows; a group of a unit has twice as many.
constexpr int tile_group_bytes(int format) {
    return format == kBytes ? 512 + 32 : format == kNibbles ? 256 + 32 : 256 + 64;
}

// Sums of R rows with the two tiles of a unit.
template <int R> struct Sums { Floats of[2][R]; };

// Adds one group of T tiles, beginning with tile `first`: sums += scale * d * dot (+ weighted * m).
template <int F, int R, int T>
BLOCKDRAFT_INLINE inline void multiply_group(const uint8_t* weights, const Activations& x, int row, int group, int first, Sums<R>& sums) {
    constexpr int kTile = tile_group_bytes(F), kWeights = F == kBytes ? 512 : 256;
    const int64_t place = x.place(row, group);
    const int8_t* values = x.values + int64_t(row) * x.cols + group * kGroup;
    // Hides from the compiler that the next tile takes the same activations: to keep them, registers would not suffice.
    if constexpr (T == 1) asm("" : "+r"(values));
    Ints dots[T][R];
    if constexpr (F == kBytes) {
        repeat<R, T>([&](auto r, auto t) BLOCKDRAFT_INLINE {
            dots[t][r] = all_ints(kByteOffset ? -kByteOffset * x.sums[place + r] : 0);
        });
        repeat<8>([&](auto k) BLOCKDRAFT_INLINE {
            ByteWeights p[T];
            repeat<T>([&](auto t) BLOCKDRAFT_INLINE { p[t] = byte_weights(load_bytes(weights + t * kTile + 64 * k)); });
            repeat<R, T>([&](auto r, auto t) BLOCKDRAFT_INLINE {
                dots[t][r] = dot_bytes(dots[t][r], p[t], values + int64_t(r) * x.cols + 4 * k);
            });
        });
    } else {
        constexpr int kOffset = F == kNibbles ? 8 : 0;
        NibbleSums sum[T][R];
        repeat<R, T>([&](auto r, auto t) BLOCKDRAFT_INLINE {
            sum[t][r] = begin_nibbles(kOffset ? -kOffset * x.sums[place + r] : 0);
        });
        repeat<4>([&](auto k) BLOCKDRAFT_INLINE {
            Bytes low[T], high[T];
            repeat<T>([&](auto t) BLOCKDRAFT_INLINE {
                const Bytes p = load_bytes(weights + t * kTile + 64 * k);
                low[t] = low_nibbles(p);
                high[t] = high_nibbles(p);
            });
            repeat<R, T>([&](auto r, auto t) BLOCKDRAFT_INLINE {
                const int8_t* four = values + int64_t(r) * x.cols + 4 * k;
                sum[t][r] = dot_nibbles(dot_nibbles(sum[t][r], low[t], four), high[t], four + kLanes);
            });
        });
        repeat<R, T>([&](auto r, auto t) BLOCKDRAFT_INLINE {
            dots[t][r] = end_nibbles(sum[t][r], kOffset ? -kOffset * x.sums[place + r] : 0);
        });
    }
    repeat<T>([&](auto t) BLOCKDRAFT_INLINE {
        const auto* d = reinterpret_cast<const uint16_t*>(weights + t * kTile + kWeights);
        Floats* out = sums.of[first + t];
        const Floats scale = load_half(d);
        repeat<R>([&](auto r) BLOCKDRAFT_INLINE {
            out[r] = fma(mul(to_floats(dots[t][r]), all(x.scales[place + r])), scale, out[r]);
        });
        if constexpr (F == kNibblesWithMin) {
            const Floats least = load_half(d + kLanes);
            repeat<R>([&](auto r) BLOCKDRAFT_INLINE { out[r] = fma(all(x.weighted[place + r]), least, out[r]); });
        }
    });
}

// Computes one unit of outputs for R rows. Shapes: out [R, 32].
template <int F, int R>
void multiply_rows(const Matrix& matrix, int unit, const Activations& x, int row, float* out) {
    constexpr int kTile = tile_group_bytes(F);
    const int groups = x.groups();
    const uint8_t* weights = matrix.data + int64_t(unit) * groups * 2 * kTile;
    Sums<R> sums;
    for (int r = 0; r < R; ++r) sums.of[0][r] = sums.of[1][r] = zero();
    for (int group = 0; group < groups; ++group, weights += 2 * kTile) {
        for (int line = 0; line < 2 * kTile; line += 64) __builtin_prefetch(weights + kPrefetch + line);
        for (int tile = 0; tile < 2; tile += kTilesAtOnce)
            multiply_group<F, R, kTilesAtOnce>(weights + tile * kTile, x, row, group, tile, sums);
    }
    for (int r = 0; r < R; ++r) {
        store(out + r * kUnit, sums.of[0][r]);
        store(out + r * kUnit + kLanes, sums.of[1][r]);
    }
}

template <int F, int R>
inline void multiply_some(const Matrix& matrix, int unit, const Activations& x, int row, int count, float* out) {
    if (count == R) return multiply_rows<F, R>(matrix, unit, x, row, out);
    if constexpr (R > 1) multiply_some<F, R - 1>(matrix, unit, x, row, count, out);
}

// Computes one unit of outputs for `count` <= kRowsAtOnce rows from `row` on. Shapes: out [count, 32].
inline void multiply(const Matrix& matrix, int unit, const Activations& x, int row, int count, float* out) {
    switch (matrix.format) {
        case kNibblesWithMin: return multiply_some<kNibblesWithMin, kRowsAtOnce>(matrix, unit, x, row, count, out);
        case kNibbles: return multiply_some<kNibbles, kRowsAtOnce>(matrix, unit, x, row, count, out);
        default: return multiply_some<kBytes, kRowsAtOnce>(matrix, unit, x, row, count, out);
    }
}

// Reads one row of weights back as floats. Shapes: out [cols].
inline void read_row(const Matrix& matrix, int row, float factor, float* out) {
    const int groups = matrix.cols / kGroup, tile_bytes = tile_group_bytes(matrix.format), lane = row % kLanes;
    const uint8_t* tile = matrix.data + (int64_t(row / kUnit) * groups * 2 + row % kUnit / kLanes) * tile_bytes;
    const int num_values = matrix.format == kBytes ? 512 : 256;
    const int offset = matrix.format == kBytes ? 128 : matrix.format == kNibbles ? 8 : 0;
    for (int group = 0; group < groups; ++group, tile += 2 * tile_bytes, out += kGroup) {
        float d[kLanes], m[kLanes] = {};
        store(d, load_half(reinterpret_cast<const uint16_t*>(tile + num_values)));
        if (matrix.format == kNibblesWithMin)
            store(m, load_half(reinterpret_cast<const uint16_t*>(tile + num_values) + kLanes));
        for (int i = 0; i < kGroup; ++i) {
            const int column = matrix.format == kBytes ? i : i % kLanes;
            const int byte = tile[column / 4 * 64 + lane * 4 + column % 4];
            const int q = matrix.format == kBytes ? byte : i < kLanes ? byte & 15 : byte >> 4;
            out[i] = (d[lane] * float(q - offset) + m[lane]) * factor;
        }
    }
}

// The largest of some numbers, and the lowest place where it is.
struct Best {
    float value = -INFINITY;
    int32_t id = INT32_MAX;

    void take(const Best& other) {
        if (other.value > value || (other.value == value && other.id < id)) *this = other;
    }
    // The first `count` numbers of a unit, whose places begin at `first`.
    void take(const float* x, int first, int count) {
        if (count >= kUnit && largest(max(load(x), load(x + kLanes))) < value) return;
        for (int i = 0; i < count && i < kUnit; ++i) take(Best{x[i], first + i});
    }
    // Where nothing is a number, the first place, as elsewhere.
    int32_t place() const { return id == INT32_MAX ? 0 : id; }
};

// Calls done(row, outputs of the unit [32]) for all rows of x.
template <class F> inline void multiply_all(const Matrix& matrix, int unit, const Activations& x, int num_rows, F&& done) {
    float out[kRowsAtOnce * kUnit];
    for (int row = 0; row < num_rows; row += kRowsAtOnce) {
        const int count = num_rows - row < kRowsAtOnce ? num_rows - row : kRowsAtOnce;
        multiply(matrix, unit, x, row, count, out);
        for (int r = 0; r < count; ++r) done(row + r, out + r * kUnit);
    }
}

}  // namespace BLOCKDRAFT_ISA
