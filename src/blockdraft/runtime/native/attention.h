// Attention of a few query rows over one head's cached keys and values, in chunks that begin at fixed positions.
//
// Each chunk gives a partial result (largest score, sum of weights, weighted sum of values); `combine` adds a row's
// chunks in the order of their positions. So neither the other rows nor the length of the cache changes a row's bits.
#pragma once
#include "kernels.h"

namespace BLOCKDRAFT_ISA {

constexpr int kChunk = 256;  // positions

// Keys [capacity / 16, H, 16] and values [capacity, H] of one key/value head, in half precision.
struct Head {
    const uint16_t* keys;
    const uint16_t* values;
    int head_dim;
};

// One query: where it is, what it sees (positions first <= p < end), where its partial result goes.
struct Query {
    const float* row;   // [H]
    int first, end;
    float* largest;
    float* total;
    float* values;      // [H]
};

// Scores of Q queries with the keys of B blocks of sixteen positions. Shapes: scores [Q, kChunk].
template <int Q, int B>
inline void score_blocks(const Head& head, const Query* queries, int block, int start, float scale, float* scores) {
    const int H = head.head_dim;
    const uint16_t* keys = head.keys + int64_t(block) * H * kLanes;
    Floats s[Q][B];
    for (int q = 0; q < Q; ++q)
        for (int b = 0; b < B; ++b) s[q][b] = zero();
    for (int d = 0; d < H; ++d) {
        Floats k[B];
        __builtin_prefetch(keys + kPrefetch / 2 + d * kLanes * B);
        for (int b = 0; b < B; ++b) k[b] = load_half(keys + (int64_t(b) * H + d) * kLanes);
        for (int q = 0; q < Q; ++q) {
            const Floats x = all(queries[q].row[d]);
            for (int b = 0; b < B; ++b) s[q][b] = fma(x, k[b], s[q][b]);
        }
    }
    for (int q = 0; q < Q; ++q)
        for (int b = 0; b < B; ++b) {
            const int position = (block + b) * kLanes;
            store(scores + q * kChunk + position - start,
                  keep_lanes(mul(s[q][b], all(scale)), queries[q].first - position, queries[q].end - position));
        }
}

// Sums of values weighted by `weights` [Q, kChunk] for V vectors of channels.
template <int Q, int V>
inline void add_values(const Head& head, const Query* queries, const float* weights, int start, int end, int channel) {
    Floats sums[Q][V];
    for (int q = 0; q < Q; ++q)
        for (int v = 0; v < V; ++v) sums[q][v] = zero();
    const uint16_t* values = head.values + int64_t(start) * head.head_dim + channel;
    for (int position = start; position < end; ++position, values += head.head_dim) {
        Floats x[V];
        if (channel == 0)
            for (int c = 0; c < head.head_dim; c += 32) __builtin_prefetch(values + kPrefetch / 2 + c);
        for (int v = 0; v < V; ++v) x[v] = load_half(values + v * kLanes);
        for (int q = 0; q < Q; ++q) {
            const Floats weight = all(weights[q * kChunk + position - start]);
            for (int v = 0; v < V; ++v) sums[q][v] = fma(weight, x[v], sums[q][v]);
        }
    }
    for (int q = 0; q < Q; ++q)
        for (int v = 0; v < V; ++v) store(queries[q].values + channel + v * kLanes, sums[q][v]);
}

// How many registers of channels, or of positions, Q queries can be multiplied with at once.
constexpr int vectors_at_once(int queries) {
    return queries * 4 <= kSumsAtOnce ? 4 : queries * 2 <= kSumsAtOnce ? 2 : 1;
}

// Partial results of Q queries over the positions start <= p < end of one chunk; `start` is where the chunk begins.
template <int Q> void attend_queries(const Head& head, const Query* queries, int start, int end, float scale) {
    alignas(64) float scores[Q * kChunk];
    constexpr int kBlocks = vectors_at_once(Q);
    const int last_block = (end + kLanes - 1) / kLanes;
    int block = start / kLanes;
    for (; block + kBlocks <= last_block; block += kBlocks)
        score_blocks<Q, kBlocks>(head, queries, block, start, scale, scores);
    for (; block < last_block; ++block) score_blocks<Q, 1>(head, queries, block, start, scale, scores);
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
            store(row + i, weight);
        }
        *queries[q].total = sum(total);
    }
    constexpr int kVectors = vectors_at_once(Q);
    int channel = 0;
    for (; channel + kVectors * kLanes <= head.head_dim; channel += kVectors * kLanes)
        add_values<Q, kVectors>(head, queries, scores, start, end, channel);
    for (; channel < head.head_dim; channel += kLanes) add_values<Q, 1>(head, queries, scores, start, end, channel);
}

template <int Q>
inline void attend_some(const Head& head, const Query* queries, int count, int start, int end, float scale) {
    if (count == Q) return attend_queries<Q>(head, queries, start, end, scale);
    if constexpr (Q > 1) attend_some<Q - 1>(head, queries, count, start, end, scale);
}

// Partial results of `count` queries of one head over one chunk.
inline void attend_chunk(const Head& head, const Query* queries, int count, int start, int end, float scale) {
    for (int q = 0; q < count; q += kQueriesAtOnce) {
        const int some = count - q < kQueriesAtOnce ? count - q : kQueriesAtOnce;
        int last = start;
        for (int i = q; i < q + some; ++i) last = queries[i].end > last ? queries[i].end : last;
        attend_some<kQueriesAtOnce>(head, queries + q, some, start, last < end ? last : end, scale);
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
