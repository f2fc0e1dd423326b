// Threads that live as long as their team, and meet at barriers that give the processor away when it is wanted.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace blockdraft {

class Team {
public:
    explicit Team(int num_threads);
    ~Team();

    int size() const { return size_; }

    // Runs `job(thread)` on all threads, the caller's included, and returns when all are done. One job at a time.
    void run(const std::function<void(int)>& job);

    // Returns when all threads of the running job are here. The last to arrive runs `last` before the others go on.
    template <class F> void meet(F&& last) {
        const uint32_t round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            last();
            arrived_.store(0, std::memory_order_relaxed);
            start_over();
            round_.store(round + 1, std::memory_order_release);
        } else {
            wait_for(round);
        }
    }
    void meet() { meet([] {}); }

    // Hands out the numbers below `count`: to each thread its own stretch, in order, as neighbours in memory are read
    // faster; then what is left of the others', for a thread may have been held up. `meet` must follow.
    template <class F> void share(int count, int thread, F&& work) {
        for (int k = 0; k < size_; ++k) {
            const int owner = thread + k < size_ ? thread + k : thread + k - size_;
            const int start = int(int64_t(count) * owner / size_), end = int(int64_t(count) * (owner + 1) / size_);
            for (int i; (i = start + next_[owner].value.fetch_add(1, std::memory_order_relaxed)) < end;) work(i);
        }
    }

    // Memory for intermediate results, at least `bytes` of it, aligned to a cache line; what was there is lost.
    uint8_t* scratch(size_t bytes);

private:
    void start_over() {
        for (int thread = 0; thread < size_; ++thread) next_[thread].value.store(0, std::memory_order_relaxed);
    }
    void wait_for(uint32_t round) const;
    void serve(int thread);

    const int size_;
    alignas(64) std::atomic<int> arrived_{0};
    struct alignas(64) Counter { std::atomic<int> value{0}; };
    std::unique_ptr<Counter[]> next_;  // of each thread's stretch
    alignas(64) std::atomic<uint32_t> round_{0};
    alignas(64) std::atomic<uint64_t> posted_{0};
    std::atomic<bool> stopping_{false};
    const std::function<void(int)>* job_ = nullptr;
    std::mutex one_job_, sleep_;
    std::condition_variable wake_;
    std::vector<std::thread> threads_;
    std::unique_ptr<uint8_t[]> memory_;
    size_t memory_bytes_ = 0;
};

}  // namespace blockdraft
