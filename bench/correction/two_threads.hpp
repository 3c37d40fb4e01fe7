// SPDX-License-Identifier: Apache-2.0
/// @file A caller's threads, as small as they get: the calling one and one more, for the library's host loops.
#pragma once

#include <asyncrl/correction/workspace.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

/// Runs tasks on two threads, each of which takes the next one until none is left.
class two_threads {
  public:
    two_threads() : helper_([this](std::stop_token stop) { serve(stop); }) {}

    void operator()(std::int64_t count, asyncrl::task_ref task) const {
        {
            std::lock_guard const lock(mutex_);
            task_ = task;
            count_ = count;
            next_ = 0;
            busy_ = true;
        }
        wake_.notify_one();
        work(count, task);
        std::unique_lock lock(mutex_);
        done_.wait(lock, [this] { return !busy_; });
    }

  private:
    void work(std::int64_t count, asyncrl::task_ref task) const {
        for (std::int64_t i = next_++; i < count; i = next_++) {
            task(i);
        }
    }
    void serve(std::stop_token stop) {
        std::unique_lock lock(mutex_);
        while (wake_.wait(lock, stop, [this] { return busy_; })) {
            lock.unlock();
            work(count_, *task_);
            lock.lock();
            busy_ = false;
            done_.notify_one();
        }
    }

    mutable std::mutex mutex_;
    mutable std::condition_variable_any wake_;
    mutable std::condition_variable done_;
    mutable std::optional<asyncrl::task_ref> task_;
    mutable std::int64_t count_ = 0;
    mutable std::atomic<std::int64_t> next_ = 0;
    mutable bool busy_ = false;
    std::jthread helper_;
};
