// Events: signalled once, by the caller or by a run that ends.
#pragma once
#include "failure.h"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

namespace occ::onnxifi {

class Event {
public:
    // `of_run`: a run signals it, not a caller.
    explicit Event(bool of_run = false) : of_run_(of_run) {}

    // `outcome` is what waiting for the event returns. False if the event is no longer open.
    bool signal(onnxStatus outcome = ONNXIFI_STATUS_SUCCESS) { return settle(State::signalled, outcome); }
    // Its handle is released: if a caller was to signal it, nobody will.
    void abandon() {
        if (!of_run_) settle(State::abandoned, ONNXIFI_STATUS_INVALID_EVENT);
    }

    onnxStatus wait() {
        std::unique_lock hold(lock_);
        settled_.wait(hold, [this] { return state_ != State::open; });
        return outcome_;
    }

    bool is_open() { return is(State::open); }
    bool is_signalled() { return is(State::signalled); }

    // Calls `told` once the event is no longer open; at once if it is not.
    void watch(std::function<void()> told) {
        {
            std::lock_guard hold(lock_);
            if (state_ == State::open) {
                watchers_.push_back(std::move(told));
                return;
            }
        }
        told();
    }

private:
    enum class State { open, signalled, abandoned };

    bool is(State state) {
        std::lock_guard hold(lock_);
        return state_ == state;
    }

    bool settle(State state, onnxStatus outcome) {
        std::vector<std::function<void()>> watchers;
        {
            std::lock_guard hold(lock_);
            if (state_ != State::open) return false;
            state_ = state;
            outcome_ = outcome;
            watchers.swap(watchers_);
            settled_.notify_all();
        }
        for (auto &told : watchers) told();
        return true;
    }

    const bool of_run_;
    std::mutex lock_;
    std::condition_variable settled_;
    State state_ = State::open;
    onnxStatus outcome_ = ONNXIFI_STATUS_SUCCESS;
    std::vector<std::function<void()>> watchers_;
};

}  // namespace occ::onnxifi
