// The C interface: picks the instruction set once, and passes calls on.
#include <cstring>

#include "api.h"
#include "team.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

using blockdraft::Team;

namespace {

#if defined(BLOCKDRAFT_HAS_AVXVNNI)
bool has_avx_vnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

#if defined(BLOCKDRAFT_HAS_NEON)
bool has_dot_product() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
    return true;  // Apple's processors of this architecture all have it
#endif
}
#endif

struct Kernels {
    const char* name;
    bool (*is_available)();
    void (*run)(Team&, const Network*, const Context*, const Pass*, const Walk*);
    void (*product)(Team&, const Matrix&, const float*, int, float*);
};

#define BLOCKDRAFT_KERNELS(isa, check) {#isa, [] { return bool(check); }, isa::run, isa::product}

// Best first.
const Kernels kKernels[] = {
#if defined(BLOCKDRAFT_HAS_AVX512)
    BLOCKDRAFT_KERNELS(avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                                   __builtin_cpu_supports("avx512vnni")),
#endif
#if defined(BLOCKDRAFT_HAS_AVXVNNI)
    BLOCKDRAFT_KERNELS(avxvnni, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_avx_vnni()),
#endif
#if defined(BLOCKDRAFT_HAS_AVX2)
    BLOCKDRAFT_KERNELS(avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")),
#endif
#if defined(BLOCKDRAFT_HAS_NEON)
    BLOCKDRAFT_KERNELS(neon, has_dot_product()),
#endif
    BLOCKDRAFT_KERNELS(portable, true),
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// The name of the n-th set of kernels that this processor can run, best first; null past the last.
const char* blockdraft_kernels(int n) {
    for (const Kernels& kernels : kKernels)
        if (kernels.is_available() && n-- == 0) return kernels.name;
    return nullptr;
}

// The sizes of the structures of core.h, in their order, by which a caller notices that it was made for others.
int blockdraft_size(int n) {
    const size_t sizes[] = {sizeof(Matrix), sizeof(Layer),   sizeof(Network), sizeof(Segment),
                            sizeof(Pass),   sizeof(Context), sizeof(Walk)};
    return n < int(sizeof sizes / sizeof *sizes) ? int(sizes[n]) : 0;
}

// A team of threads with the named kernels, or null if this processor has none of that name.
void* blockdraft_open(const char* name, int num_threads);
void blockdraft_close(void* handle);
void blockdraft_run(void* handle, const Network* network, const Context* context, const Pass* pass, const Walk* walk);
void blockdraft_product(void* handle, const Matrix* matrix, const float* inputs, int num_rows, float* outputs);

}  // extern "C"
#pragma GCC visibility pop

namespace {

struct Handle {
    const Kernels& kernels;
    Team team;
};

Handle& open(void* handle) { return *static_cast<Handle*>(handle); }

}  // namespace

void* blockdraft_open(const char* name, int num_threads) {
    for (const Kernels& kernels : kKernels)
        if (kernels.is_available() && std::strcmp(kernels.name, name) == 0) return new Handle{kernels, Team(num_threads)};
    return nullptr;
}

void blockdraft_close(void* handle) { delete static_cast<Handle*>(handle); }

void blockdraft_run(void* handle, const Network* network, const Context* context, const Pass* pass, const Walk* walk) {
    open(handle).kernels.run(open(handle).team, network, context, pass, walk);
}

void blockdraft_product(void* handle, const Matrix* matrix, const float* inputs, int num_rows, float* outputs) {
    open(handle).kernels.product(open(handle).team, *matrix, inputs, num_rows, outputs);
}
