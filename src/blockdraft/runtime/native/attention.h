// Attention of a few query rows over one head's cached keys and values, in chunks that begin at fixed positions.
//
// Queries, keys, weights and values are whole numbers with a scale each, of so many bits that their products can be added
// up in 32: that is exact, and twice as fast as floating point. Values take eight bits, which costs a fiftieth of the
// divergence that eight bits for activations cost; keys need more.
//
// Each chunk gives a partial result (largest score, sum of weights, weighted sum of values); `combine` adds a row's
// chunks in the order of their positions. So neither the other rows nor the length of the cache changes a row's bits.
#pragma once
#include "kernels.h"

namespace BLOCKDRAFT_ISA {

constexpr int kChunk = 256;  // positions

constexpr int kMostKey = 8191, kMostValue = 127, kMostWeight = 32767;
static_assert(int64_t(kChunk) * kMostWeight * kMostValue <= INT32_MAX, "weighted values of a chunk must fit");

// The largest size of a query's numbers: its products with a key must fit.
inline int most_query(int head_dim) {
    const int most = INT32_MAX / (head_dim * kMostKey);
    return most < 2047 ? most : 2047;
}

// Rounds `size` floats to whole numbers of at most `most`, and returns what one of them stands for.
inline float round_line(const float* x, int size, int most, int16_t* out) {
    Floats sizes = zero();
    for (int i = 0; i < size; i += kLanes) sizes = max(sizes, abs(load(x + i)));
    const float top = largest(sizes);
    const Floats inverse = all(top > 0 ? float(most) / top : 0);
    for (int i = 0; i < size; i += kLanes) store_words(out + i, to_nearest(mul(load(x + i), inverse)));
    return top / float(most);
}

// Keys [capacity / 16, H / 2, 16, 2] and values [capacity / 2, H, 2] of one key/value head, with a scale per position.
struct Head {
    int16_t* keys;
    int8_t* values;
    float* key_scales;
    float* value_scales;
    int head_dim;

    // Keeps the key or the value [H] of one position; `words` [H] is for intermediate results.
    void remember(int position, const float* line, bool is_key, int16_t* words) const {
        const float scale = round_line(line, head_dim, is_key ? kMostKey : kMostValue, words);
        (is_key ? key_scales : value_scales)[position] = scale;
        int16_t* key = keys + int64_t(position / kLanes) * head_dim * kLanes + position % kLanes * 2;
        int8_t* value = values + int64_t(position / 2) * head_dim * 2 + position % 2;
        if (is_key)
            for (int d = 0; d < head_dim; d += 2) std::memcpy(key + d * kLanes, words + d, 4);
        else
            for (int d = 0; d < head_dim; ++d) value[2 * d] = int8_t(words[d]);
    }
};

// One query: where it is, what it sees (positions first <= p < end), where its partial result goes.
struct Query {
    const int16_t* row;  // [H]
    float scale;         // of its numbers, and of scores
    int first, end;
    float* largest;
    float* total;
    float* values;       // [H]
};

// Scores of Q queries with the keys of B blocks of sixteen positions. `pairs` [H / 2, Q, 2] are the queries' numbers: read
// with one pointer, of which there are too few for Q. Shapes: scores [Q, kChunk].
template <int Q, int B>
inline void score_blocks(const Head& head, const Query* queries, const int16_t* pairs, int block, int start, float* scores) {
    const int H = head.head_dim;
    const int16_t* keys = head.keys + int64_t(block) * H * kLanes;
    Ints s[Q][B];
    repeat<Q, B>([&](auto q, auto b) BLOCKDRAFT_INLINE { s[q][b] = all_ints(0); });
    for (int d = 0; d < H; d += 2, pairs += 2 * Q) {
        Words k[B];
        repeat<B>([&](auto b) BLOCKDRAFT_INLINE {
            __builtin_prefetch(keys + kPrefetch / 2 + (d * B / 2 + b) * 2 * kLanes);
            k[b] = load_words(keys + (int64_t(b) * H + d) * kLanes);
        });
        repeat<Q, B>([&](auto q, auto b) BLOCKDRAFT_INLINE { s[q][b] = dot_words(s[q][b], k[b], pairs + 2 * q); });
    }
    repeat<Q, B>([&](auto q, auto b) BLOCKDRAFT_INLINE {
        const int position = (block + b) * kLanes;
        const Floats scale = mul(load(head.key_scales + position), all(queries[q].scale));
        const Floats score = mul(to_floats(s[q][b]), scale);
        const int first = queries[q].first - position, end = queries[q].end - position;
        store(scores + q * kChunk + position - start,
              first <= 0 && end >= kLanes ? score : keep_lanes(score, first, end));
    });
}

// Sums of values weighted by `weights` [Q, kChunk], of which one is worth `units` [Q], for V vectors of channels.
template <int Q, int V>
inline void add_values(const Head& head, const Query* queries, const int16_t* weights, const float* units, int start,
                       int end, int channel) {
    Ints sums[Q][V];
    repeat<Q, V>([&](auto q, auto v) BLOCKDRAFT_INLINE { sums[q][v] = all_ints(0); });
    const int8_t* values = head.values + int64_t(start) * head.head_dim + 2 * channel;
    for (int i = 0; i < end - start; i += 2, values += 2 * head.head_dim) {
        Words x[V];
        if (channel == 0)
            for (int c = 0; c < 2 * head.head_dim; c += 64) __builtin_prefetch(values + kPrefetch / 2 + c);
        repeat<V>([&](auto v) BLOCKDRAFT_INLINE { x[v] = widen_bytes(values + v * 2 * kLanes); });
        repeat<Q, V>([&](auto q, auto v) BLOCKDRAFT_INLINE {
            sums[q][v] = dot_words(sums[q][v], x[v], weights + q * kChunk + i);
        });
    }
    repeat<Q, V>([&](auto q, auto v) BLOCKDRAFT_INLINE {
        store(queries[q].values + channel + v * kLanes, mul(to_floats(sums[q][v]), all(units[q])));
    });
}

// How many registers of channels, or of positions, Q queries can be multiplied with at once.
constexpr int vectors_at_once(int queries) {
    return queries * 4 <= kSumsAtOnce ? 4 : queries * 2 <= kSumsAtOnce ? 2 : 1;
}

// Partial results of Q queries over the positions start <= p < end of one chunk; `start` is where the chunk begins, `pairs`
// [H, Q] is for intermediate results.
template <int Q> void attend_queries(const Head& head, const Query* queries, int16_t* pairs, int start, int end) {
    for (int d = 0; d < head.head_dim; d += 2)
        for (int q = 0; q < Q; ++q) std::memcpy(pairs + d * Q + 2 * q, queries[q].row + d, 4);
    alignas(64) float scores[Q * kChunk];
    alignas(64) int16_t weights[Q * kChunk];
    float units[Q];
    constexpr int kBlocks = vectors_at_once(Q);
    const int last_block = (end + kLanes - 1) / kLanes;
    int block = start / kLanes;
    for (int byte = 0; byte < kPrefetch; byte += 64)
        __builtin_prefetch(head.values + int64_t(start) * head.head_dim + byte);
    for (; block + kBlocks <= last_block; block += kBlocks) 
        score_blocks<Q, kBlocks>(head, queries, pairs, block, start, scores);
    for (; block < last_block; ++block) score_blocks<Q, 1>(head, queries, pairs, block, start, scores);
    const int num_scores = last_block * kLanes - start;
    for (int q = 0; q < Q; ++q) {
        float* row = scores + q * kChunk;
        Floats highest = all(-INFINITY);
        for (int i = 0; i < num_scores; i += kLanes) highest = max(highest, load(row + i));
        const float top = largest(highest);
        *queries[q].largest = top;
        const Floats base = all(top == -INFINITY ? 0 : top);
        Floats total = zero();
        for (int i = 0; i < num_scores; i += kLanes) {
            const Floats weight = exponential(sub(load(row + i), base));
            total = add(total, weight);
            store(row + i, mul(weight, load(head.value_scales + start + i)));
        }
        *queries[q].total = sum(total);
        units[q] = round_line(row, num_scores, kMostWeight, weights + q * kChunk);
    }
    constexpr int kVectors = vectors_at_once(Q);
    int channel = 0;
    for (; channel + kVectors * kLanes <= head.head_dim; channel += kVectors * kLanes)
        add_values<Q, kVectors>(head, queries, weights, units, start, end, channel);
    for (; channel < head.head_dim; channel += kLanes)
        add_values<Q, 1>(head, queries, weights, units, start, end, channel);
}

template <int Q>
inline void attend_some(const Head& head, const Query* queries, int count, int16_t* pairs, int start, int end) {
    if (count == Q) return attend_queries<Q>(head, queries, pairs, start, end);
    if constexpr (Q > 1) attend_some<Q - 1>(head, queries, count, pairs, start, end);
}

// Partial results of `count` queries of one head over one chunk; `pairs` [H, kQueriesAtOnce] is for intermediate ones.
inline void attend_chunk(const Head& head, const Query* queries, int count, int16_t* pairs, int start, int end) {
    for (int q = 0; q < count; q += kQueriesAtOnce) {
        const int some = count - q < kQueriesAtOnce ? count - q : kQueriesAtOnce;
        int last = start;
        for (int i = q; i < q + some; ++i) last = queries[i].end > last ? queries[i].end : last;
        attend_some<kQueriesAtOnce>(head, queries + q, some, pairs, start, last < end ? last : end);
    }
}

// Adds up a query's partial results. Shapes: largest and total [chunks], values [chunks, H]; out [H].
inline void combine(const float* largest, const float* total, const float* values, int chunks, int head_dim, float* out) {
    float top = -INFINITY;
    for (int c = 0; c < chunks; ++c) top = largest[c] > top ? largest[c] : top;
    float weight_sum = 0;
    for (int d = 0; d < head_dim; ++d) out[d] = 0;
    for (int c = 0; c < chunks; ++c) {
        if (largest[c] == -INFINITY) continue;
        const float weight = chunks == 1 ? 1.0f : std::exp(largest[c] - top);
        weight_sum += weight * total[c];
        for (int d = 0; d < head_dim; d += kLanes)
            store(out + d, fma(all(weight), load(values + int64_t(c) * head_dim + d), load(out + d)));
    }
    const Floats inverse = all(1.0f / weight_sum);
    for (int d = 0; d < head_dim; d += kLanes) store(out + d, mul(load(out + d), inverse));
}

}  // namespace BLOCKDRAFT_ISA
