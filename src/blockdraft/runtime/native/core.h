// What Python hands over: plain structures of pointers and sizes, mirrored in native_structures.py. Nothing here owns memory.
//
// Shape legend: T packed rows of a pass, D width, N query heads, G key/value heads, H head size, I intermediate
// width, V vocabulary, M tapped layers, R rows with logits, P positions.
#pragma once
#include <cstdint>

extern "C" {

// How the weights of a matrix are stored: groups of 32 along a row, sixteen rows (a tile) side by side, two tiles (a
// unit) in turns.
enum Format : int32_t {
    kNibblesWithMin = 0,  // w = d * q + m, q in 0..15: GGUF's Q4_1
    kNibbles = 1,         // w = d * (q - 8): Q4_0
    kBytes = 2,           // w = d * (q - 128), q in 0..255: Q8_0
};

struct Matrix {
    const uint8_t* data;
    int32_t format;
    int32_t rows;  // outputs, a multiple of 32
    int32_t cols;  // inputs, a multiple of 32
};

struct Layer {
    const float* attention_norm;  // [D]
    const float* mlp_norm;        // [D]
    const float* q_norm;          // [H] or null
    const float* k_norm;          // [H] or null
    const float* qkv_bias;        // [(N + 2G) * H] or null
    const float* output_bias;     // [D] or null
    Matrix qkv;                   // [(N + 2G) * H, D]
    Matrix output;                // [D, N * H]
    Matrix gate_up;               // [2I, D]: 32 rows of gate, 32 of up, in turns
    Matrix down;                  // [D, I]
    int32_t window;               // a row sees this many positions, itself included; 0 for all
    int32_t causal;               // 0: rows of a segment see one another in both directions
};

struct Network {
    const Layer* layers;
    const float* final_norm;  // [D]
    Matrix head;              // [V, D]
    Matrix embedding;         // [V, D]
    int32_t num_layers;
    int32_t width;
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t rotary_dim;
    float norm_eps;
    float score_scale;
    float embedding_scale;
};

// The rows of one sequence. Its cache holds keys [L, G, capacity / 16, H / 2, 16, 2] in sixteen bits, behind them values
// [L, G, capacity / 2, H, 2] in eight, and the scales of keys and of values [L, G, capacity] in float32; rows past
// `num_past` are written by the pass.
struct Segment {
    uint8_t* cache;
    int64_t capacity;
    int32_t num_past;
    int32_t num_rows;
};

struct Pass {
    const Segment* segments;
    const int32_t* token_ids;  // [T]
    const float* cosines;     // [P, rotary_dim / 2]
    const float* sines;       // [P, rotary_dim / 2]
    const int32_t* tapped;    // [M], ascending
    float* taps;              // [T, M * D]
    const int32_t* wanted;    // [R], packed rows
    float* hidden;            // [R, D], after the final norm; or null
    float* logits;            // [R, V]; or null
    int32_t* best;            // [R], where each row of logits is largest, the lowest id among equals; or null
    int32_t num_segments;
    int32_t num_rows;
    int32_t num_taps;
    int32_t num_wanted;
    int32_t num_choices;      // V without padding
};

// Fuses tapped states of the target into context of a draft network, and appends that to its caches.
struct Context {
    const Segment* segments;
    const float* features;     // [T, fuse.cols]
    const float* cosines;
    const float* sines;
    const float* hidden_norm;  // [D]
    Matrix fuse;               // [D, M * D]
    int32_t num_segments;
    int32_t num_rows;
};

// Chooses the tokens of draft blocks from left to right: the logits of a slot get W2 . W1[token before], and the largest
// is taken, the lowest id among equals.
struct Walk {
    Matrix w2;                  // [U, rank]
    const float* w1;            // [V, rank]
    const float* logits;        // [T, stride]
    const int32_t* starts;      // [A]: first row of each sequence
    const int32_t* counts;      // [A]: its slots
    const int32_t* target_ids;  // [U]: target's id of each draft id
    int32_t* previous;          // [A]: target's id of the token before the block; overwritten
    int32_t* chosen;            // [A, most slots]: target's ids
    int64_t stride;
    int32_t num_sequences;
    int32_t num_slots;          // the largest count
    int32_t num_choices;        // U without padding
};

}  // extern "C"
