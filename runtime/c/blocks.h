// The scratch memory of kernels: Halide's `halide_malloc` and `halide_free`. Part of pool.cpp.
#include <atomic>
#include <cstdint>
#include <cstdlib>

#include "scratch.h"

#if defined(OCC_LIBOCC)  // programs may have set memory aside for libocc
namespace occ::runtime {
void *aligned_memory(size_t size);
void free_memory(void *memory);
bool has_reserve();
}  // namespace occ::runtime
using occ::runtime::aligned_memory;
using occ::runtime::free_memory;
using occ::runtime::has_reserve;
#else
static void *aligned_memory(size_t size) {
    void *made;
    return posix_memalign(&made, 64, size) ? nullptr : made;
}
static void free_memory(void *memory) { free(memory); }
static bool has_reserve() { return false; }
#endif

namespace {

// Scratch blocks are kept: a fresh large block costs a page fault every 4 KiB. Each thread keeps its own, as long as there
// are shelves: a line of memory that several threads write to costs more than a small kernel.
struct alignas(64) Shelf {
    std::atomic<void *> blocks[8]{};
};
constexpr int kShelves = 64;
Shelf shelves[kShelves];
std::atomic<int> shelved{0};
thread_local Shelf *tls_shelf = nullptr;

Shelf &shelf() {
    if (!tls_shelf) tls_shelf = &shelves[shelved.fetch_add(1, std::memory_order_relaxed) % kShelves];
    return *tls_shelf;
}

__attribute__((destructor)) void free_shelves() {  // the library may be unloaded long before the process ends
    for (Shelf &s : shelves) {
        for (std::atomic<void *> &kept : s.blocks) free(kept.exchange(nullptr));
    }
}

}  // namespace

extern "C" {

#if defined(OCC_ADDRESS_SANITIZER)  // blocks of just the size that kernels ask for, so that it sees what lies beyond them
void *halide_malloc(void *, size_t size) {
    void *memory;
    if (!posix_memalign(&memory, 64, size)) return memory;
    leave_kernel();
    return nullptr;
}

void halide_free(void *, void *pointer) { free(pointer); }
#else
static void *kept_block(size_t size) {
    for (std::atomic<void *> &kept : shelf().blocks) {
        void *memory = kept.load(std::memory_order_relaxed) ? kept.exchange(nullptr) : nullptr;
        if (!memory) continue;
        const size_t capacity = static_cast<Held *>(memory)->capacity;
        if (capacity >= size && capacity / 4 <= size) return memory;
        free(memory);
    }
    return nullptr;
}

static void *new_block(size_t size) {
    if (size > SIZE_MAX / 2) return nullptr;
    void *memory = aligned_memory(size + 2 * kHeader);
    if (!memory && !has_reserve()) {
        free_shelves();
        memory = aligned_memory(size + 2 * kHeader);
    }
    if (memory) static_cast<Held *>(memory)->capacity = size;
    return memory;
}

void *halide_malloc(void *, size_t size) {
    void *memory = has_reserve() ? nullptr : kept_block(size);  // there nothing is kept from one kernel to the next
    if (!memory) memory = new_block(size);
    if (memory) return hold(memory);
    leave_kernel();
    return nullptr;
}

void halide_free(void *, void *pointer) {
    if (!pointer) return;
    void *memory = let_go(pointer);
    if (has_reserve()) return free_memory(memory);
    for (std::atomic<void *> &kept : shelf().blocks) {
        void *empty = nullptr;
        if (kept.compare_exchange_strong(empty, memory)) return;
    }
    free(memory);
}
#endif

}  // extern "C"
