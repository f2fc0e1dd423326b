// Compares two sets of kernels on a random network: prints what went wrong, and returns how much that was.
// Built and run for processors that the tests do not run on, see test_foreign_kernels.py.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "core.h"

extern "C" {
void* blockdraft_open(const char* name, int num_threads);
void blockdraft_close(void* handle);
void blockdraft_run(void* handle, const Network* network, const Pass* pass);
void blockdraft_product(void* handle, const Matrix* matrix, const float* inputs, int num_rows, float* outputs);
}

namespace {

constexpr int kWidth = 64, kInner = 96, kHeads = 3, kKvHeads = 1, kHeadDim = 32, kVocabulary = 64, kRows = 9;
constexpr int kCapacity = 640, kPast = 300;  // two chunks of attention

std::mt19937 random_bits(7);
std::vector<std::vector<uint8_t>> kept;

float random_float() { return std::uniform_real_distribution<float>(-1, 1)(random_bits); }

std::vector<float> random_floats(int count) {
    std::vector<float> result(count);
    std::generate(result.begin(), result.end(), random_float);
    return result;
}

Matrix random_matrix(Format format, int rows, int cols) {
    const int tile = format == kBytes ? 512 + 32 : format == kNibbles ? 256 + 32 : 256 + 64, values = format == kBytes ? 512 : 256;
    std::vector<uint8_t> data(int64_t(rows) / 16 * (cols / 32) * tile + 8192);
    for (uint8_t& byte : data) byte = uint8_t(random_bits());
    // Scales and least values: half precision between 0.004 and 0.008.
    for (int64_t start = 0; start + tile <= int64_t(data.size()); start += tile)
        for (int i = values; i < tile; i += 2) data[start + i + 1] = uint8_t(0x1c);
    kept.push_back(std::move(data));
    return {kept.back().data(), format, rows, cols};
}

struct Result {
    std::vector<float> logits = std::vector<float>(kRows * kVocabulary);
    std::vector<int32_t> best = std::vector<int32_t>(kRows);
};

// Passes of `rows_at_once` rows each, behind the same past.
Result pass(void* handle, const Network& network, std::vector<uint16_t> cache, int rows_at_once) {
    static const std::vector<float> angles = random_floats(kCapacity * kHeadDim / 2);
    Result result;
    for (int row = 0; row < kRows; row += rows_at_once) {
        const int count = std::min(rows_at_once, kRows - row);
        const Segment segment = {cache.data(), kCapacity, kPast + row, count};
        std::vector<int32_t> ids, wanted;
        for (int i = 0; i < count; ++i) ids.push_back((row + i) * 5 % kVocabulary), wanted.push_back(i);
        const Pass one = {&segment, ids.data(), angles.data(), angles.data(), nullptr, nullptr, wanted.data(), nullptr,
                          result.logits.data() + row * kVocabulary, result.best.data() + row, 1, count, 0, count, kVocabulary};
        blockdraft_run(handle, &network, &one);
    }
    return result;
}

int check(bool is_good, const char* what, const char* format) {
    if (!is_good) std::printf("%s: %s\n", format, what);
    return !is_good;
}

bool near(const std::vector<float>& a, const std::vector<float>& b) {
    float largest = 0, apart = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        if (!(std::fabs(a[i] - b[i]) < INFINITY)) return false;
        largest = std::max(largest, std::fabs(b[i])), apart = std::max(apart, std::fabs(a[i] - b[i]));
    }
    return apart <= 1e-3f * largest;
}

int compare(Format format, const char* name, void* first, void* second) {
    int errors = 0;
    const Matrix matrix = random_matrix(format, 96, kWidth);
    const std::vector<float> inputs = random_floats(kRows * kWidth);
    std::vector<float> found(kRows * 96), expected(kRows * 96);
    blockdraft_product(first, &matrix, inputs.data(), kRows, found.data());
    blockdraft_product(second, &matrix, inputs.data(), kRows, expected.data());
    errors += check(near(found, expected), "products differ", name);

    const std::vector<float> norm = random_floats(kWidth);
    const Layer layer = {norm.data(), norm.data(), nullptr, nullptr, nullptr, nullptr,
                         random_matrix(format, (kHeads + 2 * kKvHeads) * kHeadDim, kWidth),
                         random_matrix(format, kWidth, kHeads * kHeadDim), random_matrix(format, 2 * kInner, kWidth),
                         random_matrix(format, kWidth, kInner), 0, 1};
    const Network network = {&layer, norm.data(), random_matrix(format, kVocabulary, kWidth),
                             random_matrix(format, kVocabulary, kWidth), 1, kWidth, kHeads, kKvHeads, kHeadDim, kHeadDim,
                             1e-5f, 0.17f, 1.0f};
    std::vector<uint16_t> cache(2 * kKvHeads * kCapacity * kHeadDim);
    for (uint16_t& half : cache) half = uint16_t(random_bits() % 2 << 15 | (0x3000 + random_bits() % 0x800));
    const Result together = pass(first, network, cache, kRows), other = pass(second, network, cache, kRows);
    errors += check(near(together.logits, other.logits), "logits differ", name);
    for (int rows_at_once : {1, 2, 4}) {
        const Result apart = pass(first, network, cache, rows_at_once);
        errors += check(apart.logits == together.logits && apart.best == together.best, "rows depend on others", name);
    }
    return errors;
}

}  // namespace

int main(int, char** arguments) {
    void* first = blockdraft_open(arguments[1], 2);
    void* second = blockdraft_open(arguments[2], 2);
    if (!first || !second) return std::puts("these kernels cannot run here"), 1;
    int errors = compare(kNibblesWithMin, "nibbles with a least value", first, second);
    errors += compare(kNibbles, "nibbles", first, second) + compare(kBytes, "bytes", first, second);
    blockdraft_close(first);
    blockdraft_close(second);
    return errors;
}
