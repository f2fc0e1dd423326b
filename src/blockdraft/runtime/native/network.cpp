// A whole pass in one parallel region: norms, projections, rope, attention, MLP, head. Compiled once for each
// instruction set; `api.h` lists what the dispatcher takes from here.
#include <optional>

#include "api.h"
#include "attention.h"
#include "team.h"

namespace BLOCKDRAFT_ISA {

using blockdraft::Team;

namespace {

constexpr int kRowsNormedByAll = 4;  // so few rows are normed by every thread for itself: a meeting would cost more

// Gives out pieces of scratch memory; with no base it only counts.
class Arena {
public:
    explicit Arena(uint8_t* base) : base_(base) {}
    template <class T> T* take(int64_t count) {
        T* result = reinterpret_cast<T*>(base_ + used_);
        used_ += (count * int64_t(sizeof(T)) + 63) / 64 * 64;
        return result;
    }
    Activations activations(int64_t rows, int cols) {
        const int64_t groups = cols / kGroup;
        return {take<int8_t>(rows * cols), take<float>(rows * groups), take<int32_t>(rows * groups),
                take<float>(rows * groups), cols, rows};
    }
    bool has_memory() const { return base_; }
    int64_t used() const { return used_; }

private:
    uint8_t* base_;
    int64_t used_ = 0;
};

// Where packed rows belong.
struct Row {
    int segment;
    int position;
};

// Intermediate results of a pass.
struct Workspace {
    Row* rows;               // [T]
    float* hidden;           // [T, D]
    int16_t* queries;        // [T, N * H]
    float* query_scales;     // [T, N]
    float* largest;          // [T, N, chunks]
    float* total;            // [T, N, chunks]
    float* partial;          // [T, N, chunks, H]
    Activations attended;    // [T, N * H]
    Activations inner;       // [T, I]
    Activations shared;      // [T, D]
    Activations* own;        // [threads], of [min(T, kRowsNormedByAll), D]
    float* lines;            // [threads, widest row]
    float* heads;            // [threads, T, H]
    int16_t* words;          // [threads, kQueriesAtOnce, H]
};

// Rows of a network, for a pass or for the context of one. What all threads do comes after `place`.
class Runner {
public:
    Runner(Team& team, const Network& network, const Pass& pass)
        : Runner(team, network, pass.segments, pass.num_segments, pass.num_rows, pass.cosines, pass.sines) {
        num_chosen_ = pass.best ? pass.num_wanted : 0;
    }
    Runner(Team& team, const Network& network, const Context& context)
        : Runner(team, network, context.segments, context.num_segments, context.num_rows, context.cosines,
                 context.sines) {
        feature_width_ = context.fuse.cols;
    }

    void run(const Pass& pass, int thread) {
        team_.share(num_rows_, thread, [&](int row) {
            float* hidden = work_.hidden + int64_t(row) * net_.width;
            read_row(net_.embedding, pass.token_ids[row], net_.embedding_scale, hidden);
        });
        team_.meet();
        int tap = 0;
        for (int index = 0; index < net_.num_layers; ++index) {
            const bool tapped = tap < pass.num_taps && pass.tapped[tap] == index;
            float* taps = tapped ? pass.taps + int64_t(tap) * net_.width : nullptr;
            layer(index, thread, taps, int64_t(pass.num_taps) * net_.width);
            tap += tapped;
        }
        finish(pass, thread);
    }

    void extend(const Context& context, int thread) {
        const Activations& wide = features_;
        team_.share(num_rows_, thread, [&](int row) { quantize_row(context.features + int64_t(row) * wide.cols, wide, row); });
        team_.meet();
        team_.share(net_.width / kUnit, thread, [&](int unit) {
            multiply_all(context.fuse, unit, wide, num_rows_, [&](int row, const float* out) {
                std::memcpy(work_.hidden + int64_t(row) * net_.width + unit * kUnit, out, kUnit * sizeof(float));
            });
        });
        team_.meet();
        const Activations& fused = normed(context.hidden_norm, thread);
        const int per_layer = 2 * net_.num_kv_heads;
        team_.share(net_.num_layers * per_layer, thread, [&](int i) {
            project_head(i / per_layer, net_.num_heads + i % per_layer, fused, thread);
        });
        team_.meet();
    }

    void place(Arena& arena) {
        const int64_t T = num_rows_, N = net_.num_heads, H = net_.head_dim;
        const int D = net_.width, inner = net_.num_layers ? net_.layers[0].down.cols : 0;
        const int wider = D > inner ? D : inner, widest = wider > int(H) ? wider : int(H);
        work_.rows = arena.take<Row>(T);
        work_.hidden = arena.take<float>(T * D);
        work_.queries = arena.take<int16_t>(T * N * H);
        work_.query_scales = arena.take<float>(T * N);
        work_.largest = arena.take<float>(T * N * chunks_);
        work_.total = arena.take<float>(T * N * chunks_);
        work_.partial = arena.take<float>(T * N * chunks_ * H);
        work_.attended = arena.activations(T, int(N * H));
        work_.inner = arena.activations(T, inner);
        work_.shared = arena.activations(T, D);
        features_ = arena.activations(feature_width_ ? T : 0, feature_width_);
        work_.lines = arena.take<float>(int64_t(team_.size()) * widest);
        work_.heads = arena.take<float>(int64_t(team_.size()) * T * H);
        work_.words = arena.take<int16_t>(int64_t(team_.size()) * kQueriesAtOnce * H);
        widest_ = widest;
        best_ = arena.take<Best>(int64_t(team_.size()) * num_chosen_);
        Activations* own = arena.take<Activations>(team_.size());
        for (int thread = 0; thread < team_.size(); ++thread) {
            const Activations mine = arena.activations(T < kRowsNormedByAll ? T : kRowsNormedByAll, D);
            if (arena.has_memory()) own[thread] = mine;
        }
        work_.own = own;
        if (!arena.has_memory()) return;
        for (int s = 0, row = 0; s < num_segments_; ++s)
            for (int i = 0; i < segments_[s].num_rows; ++i) work_.rows[row++] = {s, segments_[s].num_past + i};
    }

private:
    Runner(Team& team, const Network& network, const Segment* segments, int num_segments, int num_rows,
           const float* cosines, const float* sines)
        : team_(team), net_(network), segments_(segments), num_segments_(num_segments), num_rows_(num_rows),
          cosines_(cosines), sines_(sines) {
        for (int s = 0; s < num_segments; ++s) {
            const int end = segments[s].num_past + segments[s].num_rows;
            longest_ = end > longest_ ? end : longest_;
        }
        chunks_ = (longest_ + kChunk - 1) / kChunk;
    }

    void layer(int index, int thread, float* taps, int64_t taps_stride) {
        const Layer& own = net_.layers[index];
        const int num_heads = net_.num_heads + 2 * net_.num_kv_heads;
        const Activations& rows = normed(own.attention_norm, thread);
        team_.share(num_heads, thread, [&](int head) { project_head(index, head, rows, thread); });
        team_.meet();
        attend(index, thread);
        team_.share(net_.width / kUnit, thread, [&](int unit) {
            multiply_all(own.output, unit, work_.attended, num_rows_,
                         [&](int row, const float* out) { add_to_hidden(row, unit, out, own.output_bias); });
        });
        team_.meet();
        const Activations& mlp_rows = normed(own.mlp_norm, thread);
        team_.share(own.down.cols / kUnit, thread, [&](int unit) { gate(own, unit, mlp_rows); });
        team_.meet();
        team_.share(net_.width / kUnit, thread, [&](int unit) {
            multiply_all(own.down, unit, work_.inner, num_rows_, [&](int row, const float* out) {
                float* hidden = add_to_hidden(row, unit, out, nullptr);
                if (taps) std::memcpy(taps + row * taps_stride + unit * kUnit, hidden, kUnit * sizeof(float));
            });
        });
        team_.meet();
    }

    // Returns all rows of `hidden`, normed and quantised.
    const Activations& normed(const float* weight, int thread) {
        float* line = work_.lines + int64_t(thread) * widest_;
        const auto norm_row = [&](const Activations& out, int row) {
            rms_norm(work_.hidden + int64_t(row) * net_.width, weight, net_.width, net_.norm_eps, line);
            quantize_row(line, out, row);
        };
        if (num_rows_ <= kRowsNormedByAll) {
            for (int row = 0; row < num_rows_; ++row) norm_row(work_.own[thread], row);
            return work_.own[thread];
        }
        team_.share(num_rows_, thread, [&](int row) { norm_row(work_.shared, row); });
        team_.meet();
        return work_.shared;
    }

    // Queries, keys and values of one head: product, bias, norm, rope. Queries stay here, the others go to the caches.
    void project_head(int index, int head, const Activations& rows, int thread) {
        const Layer& own = net_.layers[index];
        const int H = net_.head_dim, units = H / kUnit;
        float* lines = work_.heads + int64_t(thread) * num_rows_ * H;
        int16_t* words = work_.words + int64_t(thread) * kQueriesAtOnce * H;
        for (int unit = 0; unit < units; ++unit)
            multiply_all(own.qkv, head * units + unit, rows, num_rows_, [&](int row, const float* out) {
                std::memcpy(lines + int64_t(row) * H + unit * kUnit, out, kUnit * sizeof(float));
            });
        const bool is_query = head < net_.num_heads, is_key = !is_query && head < net_.num_heads + net_.num_kv_heads;
        const float* norm = is_query ? own.q_norm : is_key ? own.k_norm : nullptr;
        for (int row = 0; row < num_rows_; ++row) {
            float* line = lines + int64_t(row) * H;
            if (own.qkv_bias)
                for (int d = 0; d < H; ++d) line[d] += own.qkv_bias[head * H + d];
            if (norm) rms_norm(line, norm, H, net_.norm_eps, line);
            const int position = work_.rows[row].position;
            if (is_query || is_key) {
                const int64_t angle = int64_t(position) * (net_.rotary_dim / 2);
                rotate(line, cosines_ + angle, sines_ + angle, net_.rotary_dim);
            }
            if (is_query) {
                const int64_t query = int64_t(row) * net_.num_heads + head;
                work_.query_scales[query] =
                    net_.score_scale * round_line(line, H, most_query(H), work_.queries + query * H);
            } else {
                const int kv_head = (head - net_.num_heads) % net_.num_kv_heads;
                head_of(segments_[work_.rows[row].segment], index, kv_head).remember(position, line, is_key, words);
            }
        }
    }

    Head head_of(const Segment& segment, int index, int kv_head) const {
        const int64_t heads = int64_t(net_.num_layers) * net_.num_kv_heads, number = int64_t(index) * net_.num_kv_heads + kv_head;
        const int64_t size = segment.capacity * net_.head_dim;
        auto* keys = reinterpret_cast<int16_t*>(segment.cache);
        auto* values = reinterpret_cast<int8_t*>(keys + heads * size);
        auto* scales = reinterpret_cast<float*>(values + heads * size) + number * segment.capacity;
        return {keys + number * size, values + number * size, scales, scales + heads * segment.capacity, net_.head_dim};
    }

    // One piece of attention: some rows of a segment, one key/value head, one chunk.
    struct Piece {
        int segment, first_row, num_rows, kv_head, chunk;
    };

    // How a segment is cut into pieces.
    struct Cut {
        int blocks, chunks;
        int pieces(int num_kv_heads) const { return blocks * chunks * num_kv_heads; }
    };
    Cut cut(const Segment& segment, int rows_at_once) const {
        return {(segment.num_rows + rows_at_once - 1) / rows_at_once,
                (segment.num_past + segment.num_rows + kChunk - 1) / kChunk};
    }

    void attend(int index, int thread) {
        const int group = net_.num_heads / net_.num_kv_heads, G = net_.num_kv_heads;
        const int rows_at_once = group >= kQueriesAtOnce ? 1 : kQueriesAtOnce / group;
        int num_pieces = 0;
        for (int s = 0; s < num_segments_; ++s) num_pieces += cut(segments_[s], rows_at_once).pieces(G);
        team_.share(num_pieces, thread, [&](int i) {
            int s = 0, first_row = 0;
            Cut own = cut(segments_[0], rows_at_once);
            for (; i >= own.pieces(G); own = cut(segments_[++s], rows_at_once)) {
                i -= own.pieces(G);
                first_row += segments_[s].num_rows;
            }
            const int start = i % own.blocks * rows_at_once, left = segments_[s].num_rows - start;
            attend_piece(index, {s, first_row + start, left < rows_at_once ? left : rows_at_once,
                                 i / own.blocks % G, i / own.blocks / G}, thread);
        });
        team_.meet();
        float* line = work_.lines + int64_t(thread) * widest_;
        const int N = net_.num_heads, H = net_.head_dim;
        team_.share(num_rows_, thread, [&](int row) {
            const int last = last_seen(index, work_.rows[row]) / kChunk;
            for (int head = 0; head < N; ++head) {
                const int64_t partial = (int64_t(row) * N + head) * chunks_;
                const int first = first_seen(index, work_.rows[row]) / kChunk;
                combine(work_.largest + partial + first, work_.total + partial + first,
                        work_.partial + (partial + first) * H, last - first + 1, H, line);
                for (int d = 0; d < H; d += kGroup)
                    quantize_group(line + d, work_.attended, row, (head * H + d) / kGroup);
            }
        });
        team_.meet();
    }

    int first_seen(int index, const Row& row) const {
        const int window = net_.layers[index].window;
        return window && row.position >= window ? row.position - window + 1 : 0;
    }
    int last_seen(int index, const Row& row) const {
        const Segment& segment = segments_[row.segment];
        return net_.layers[index].causal ? row.position : segment.num_past + segment.num_rows - 1;
    }

    void attend_piece(int index, const Piece& piece, int thread) {
        const int N = net_.num_heads, H = net_.head_dim, group = N / net_.num_kv_heads;
        const Segment& segment = segments_[piece.segment];
        const Head head = head_of(segment, index, piece.kv_head);
        const int start = piece.chunk * kChunk;
        Query queries[kMostQueries];
        int count = 0;
        for (int row = piece.first_row; row < piece.first_row + piece.num_rows; ++row) {
            const int first = first_seen(index, work_.rows[row]), end = last_seen(index, work_.rows[row]) + 1;
            if (first >= start + kChunk || end <= start) continue;
            for (int i = 0; i < group; ++i) {
                const int64_t query = int64_t(row) * N + piece.kv_head * group + i, partial = query * chunks_ + piece.chunk;
                queries[count++] = {work_.queries + query * H, work_.query_scales[query], first, end,
                                    work_.largest + partial, work_.total + partial, work_.partial + partial * H};
            }
        }
        attend_chunk(head, queries, count, work_.words + int64_t(thread) * kQueriesAtOnce * H, start, start + kChunk);
    }

    float* add_to_hidden(int row, int unit, const float* out, const float* bias) {
        float* hidden = work_.hidden + int64_t(row) * net_.width + unit * kUnit;
        for (int i = 0; i < kUnit; i += kLanes) {
            Floats value = load(out + i);
            if (bias) value = add(value, load(bias + unit * kUnit + i));
            store(hidden + i, add(load(hidden + i), value));
        }
        return hidden;
    }

    void gate(const Layer& own, int unit, const Activations& rows) {
        float gates[kRowsAtOnce * kUnit], ups[kRowsAtOnce * kUnit];
        for (int row = 0; row < num_rows_; row += kRowsAtOnce) {
            const int count = num_rows_ - row < kRowsAtOnce ? num_rows_ - row : kRowsAtOnce;
            multiply(own.gate_up, 2 * unit, rows, row, count, gates);
            multiply(own.gate_up, 2 * unit + 1, rows, row, count, ups);
            for (int r = 0; r < count; ++r) {
                for (int i = r * kUnit; i < (r + 1) * kUnit; i += kLanes)
                    store(gates + i, mul(silu(load(gates + i)), load(ups + i)));
                quantize_group(gates + r * kUnit, work_.inner, row + r, unit);
            }
        }
    }

    void finish(const Pass& pass, int thread) {
        if (!pass.num_wanted) return;
        const int D = net_.width;
        float* line = work_.lines + int64_t(thread) * widest_;
        team_.share(pass.num_wanted, thread, [&](int i) {
            rms_norm(work_.hidden + int64_t(pass.wanted[i]) * D, net_.final_norm, D, net_.norm_eps, line);
            if (pass.hidden) std::memcpy(pass.hidden + int64_t(i) * D, line, D * sizeof(float));
            quantize_row(line, work_.shared, i);
        });
        team_.meet();
        if (!pass.logits && !pass.best) return;
        Best* best = best_ + int64_t(thread) * num_chosen_;
        for (int row = 0; row < num_chosen_; ++row) best[row] = Best();
        team_.share(net_.head.rows / kUnit, thread, [&](int unit) {
            multiply_all(net_.head, unit, work_.shared, pass.num_wanted, [&](int row, const float* out) {
                const int first = unit * kUnit;
                if (pass.logits)
                    std::memcpy(pass.logits + int64_t(row) * net_.head.rows + first, out, kUnit * sizeof(float));
                if (row < num_chosen_) best[row].take(out, first, pass.num_choices - first);
            });
        });
        team_.meet([&] {
            for (int row = 0; row < num_chosen_; ++row) {
                Best top;
                for (int other = 0; other < team_.size(); ++other) top.take(best_[int64_t(other) * num_chosen_ + row]);
                pass.best[row] = top.place();
            }
        });
    }

    static constexpr int kMostQueries = 64;

    Team& team_;
    const Network& net_;
    const Segment* segments_;
    const int num_segments_, num_rows_;
    const float *cosines_, *sines_;
    int longest_ = 0, chunks_ = 1, widest_ = 0, num_chosen_ = 0;
    int feature_width_ = 0;  // of a draft network's inputs; 0 for a pass, which has none
    Best* best_ = nullptr;
    Workspace work_{};
    Activations features_{};
};

// Chooses the tokens of draft blocks, slot after slot.
class Walker {
public:
    Walker(Team& team, const Walk& walk) : team_(team), walk_(walk) {}

    void place(Arena& arena) {
        rows_ = arena.activations(walk_.num_sequences, walk_.w2.cols);
        best_ = arena.take<Best>(int64_t(team_.size()) * walk_.num_sequences);
    }

    void run(int thread) {
        const int A = walk_.num_sequences, rank = walk_.w2.cols;
        Best* own = best_ + int64_t(thread) * A;
        for (int slot = 0; slot < walk_.num_slots; ++slot) {
            team_.share(A, thread, [&](int a) { quantize_row(walk_.w1 + int64_t(walk_.previous[a]) * rank, rows_, a); });
            for (int a = 0; a < A; ++a) own[a] = Best();
            team_.meet();
            team_.share(walk_.w2.rows / kUnit, thread, [&](int unit) {
                multiply_all(walk_.w2, unit, rows_, A, [&](int a, const float* bias) {
                    if (slot >= walk_.counts[a]) return;
                    const int first = unit * kUnit;
                    const float* logits = walk_.logits + (walk_.starts[a] + slot) * walk_.stride + first;
                    float biased[kUnit];
                    // The last unit may reach beyond the logits.
                    const int count = walk_.num_choices - first < kUnit ? walk_.num_choices - first : kUnit;
                    for (int i = 0; i < count; ++i) biased[i] = logits[i] + bias[i];
                    own[a].take(biased, first, count);
                });
            });
            team_.meet([&] { choose(slot); });
        }
    }

private:
    void choose(int slot) {
        for (int a = 0; a < walk_.num_sequences; ++a) {
            if (slot >= walk_.counts[a]) continue;
            Best top;
            for (int other = 0; other < team_.size(); ++other) top.take(best_[int64_t(other) * walk_.num_sequences + a]);
            walk_.previous[a] = walk_.target_ids[top.place()];
            walk_.chosen[int64_t(a) * walk_.num_slots + slot] = walk_.previous[a];
        }
    }

    Team& team_;
    const Walk& walk_;
    Activations rows_{};
    Best* best_ = nullptr;
};

}  // namespace

void run(Team& team, const Network* network, const Context* context, const Pass* pass, const Walk* walk) {
    std::optional<Runner> extending, running;
    std::optional<Walker> walking;
    if (context) extending.emplace(team, *network, *context);
    if (pass) running.emplace(team, *network, *pass);
    if (walk) walking.emplace(team, *walk);
    const auto place = [&](uint8_t* base) {
        Arena arena(base);
        if (extending) extending->place(arena);
        if (running) running->place(arena);
        if (walking) walking->place(arena);
        return arena.used();
    };
    place(team.scratch(place(nullptr)));
    team.run([&](int thread) {
        if (extending) extending->extend(*context, thread);
        if (running) running->run(*pass, thread);
        if (walking) walking->run(thread);
    });
}

void product(Team& team, const Matrix& matrix, const float* inputs, int num_rows, float* outputs) {
    const int64_t groups = matrix.cols / kGroup;
    Arena counter(nullptr);
    counter.activations(num_rows, matrix.cols);
    Arena arena(team.scratch(counter.used()));
    const Activations rows = arena.activations(num_rows, int(groups) * kGroup);
    team.run([&](int thread) {
        team.share(num_rows, thread, [&](int row) { quantize_row(inputs + int64_t(row) * matrix.cols, rows, row); });
        team.meet();
        team.share(matrix.rows / kUnit, thread, [&](int unit) {
            multiply_all(matrix, unit, rows, num_rows, [&](int row, const float* out) {
                std::memcpy(outputs + int64_t(row) * matrix.rows + unit * kUnit, out, kUnit * sizeof(float));
            });
        });
        team.meet();
    });
}

}  // namespace BLOCKDRAFT_ISA
