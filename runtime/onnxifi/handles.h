// Handles: numbers that are never given twice, so one that was released, or never was one, is not found. Nothing looks
// through a handle into memory.
#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace occ::onnxifi {

template<typename T, unsigned kind> class Handles {
public:
    void *add(std::shared_ptr<T> object) {
        std::lock_guard hold(lock_);
        const uintptr_t number = ++last_ << 3 | kind;
        objects_.emplace(number, std::move(object));
        return reinterpret_cast<void *>(number);
    }

    std::shared_ptr<T> find(const void *handle) {
        std::lock_guard hold(lock_);
        const auto at = objects_.find(reinterpret_cast<uintptr_t>(handle));
        return at == objects_.end() ? nullptr : at->second;
    }

    // The object of a handle that is no longer valid afterwards.
    std::shared_ptr<T> take(const void *handle) {
        std::lock_guard hold(lock_);
        const auto at = objects_.find(reinterpret_cast<uintptr_t>(handle));
        if (at == objects_.end()) return nullptr;
        std::shared_ptr<T> object = std::move(at->second);
        objects_.erase(at);
        return object;
    }

private:
    std::mutex lock_;
    uintptr_t last_ = 0;
    std::unordered_map<uintptr_t, std::shared_ptr<T>> objects_;
};

}  // namespace occ::onnxifi
