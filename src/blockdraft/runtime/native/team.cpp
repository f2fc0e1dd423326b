#include "team.h"

#include <chrono>

namespace blockdraft {
namespace {

constexpr int kSpinsBeforeYield = 4000;
// Between two passes a thread stays awake this long: drafting and verification follow each other closely.
constexpr auto kAwake = std::chrono::microseconds(500);

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

Team::Team(int num_threads) : size_(num_threads < 1 ? 1 : num_threads), next_(new Counter[size_]) {
    for (int thread = 1; thread < size_; ++thread) threads_.emplace_back([this, thread] { serve(thread); });
}

Team::~Team() {
    {
        std::lock_guard<std::mutex> lock(sleep_);
        stopping_.store(true);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& job) {
    std::lock_guard<std::mutex> lock(one_job_);
    job_ = &job;
    start_over();
    if (size_ > 1) {
        {
            std::lock_guard<std::mutex> guard(sleep_);
            posted_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
    }
    job(0);
    meet();
}

void Team::serve(int thread) {
    uint64_t served = 0;
    for (;;) {
        const auto until = std::chrono::steady_clock::now() + kAwake;
        while (posted_.load(std::memory_order_acquire) == served && !stopping_.load(std::memory_order_relaxed)) {
            for (int i = 0; i < 64; ++i) relax();
            if (std::chrono::steady_clock::now() < until) {
                std::this_thread::yield();
                continue;
            }
            std::unique_lock<std::mutex> lock(sleep_);
            wake_.wait(lock, [&] { return posted_.load() != served || stopping_.load(); });
        }
        if (stopping_.load()) return;
        ++served;
        (*job_)(thread);
        meet();
    }
}

void Team::wait_for(uint32_t round) const {
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
        relax();
        if (spins > kSpinsBeforeYield) std::this_thread::yield();
    }
}

uint8_t* Team::scratch(size_t bytes) {
    if (memory_bytes_ < bytes + 64) {
        memory_.reset(new uint8_t[bytes + 64]);
        memory_bytes_ = bytes + 64;
    }
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_.get());
    return memory_.get() + (64 - address % 64) % 64;
}

}  // namespace blockdraft
