// The scratch memory of kernels: Halide's `halide_malloc` and `halide_free`. Part of pool.cpp.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <utility>

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

// Scratch blocks are reused: a fresh large block costs a page fault every 4 KiB. Each thread has its own shelf while
// there are enough: a cache line that several threads write to costs more than a small kernel.
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

#if defined(OCC_ADDRESS_SANITIZER)  // blocks of exactly the requested size, so that the sanitizer sees accesses beyond them
void *halide_malloc(void *, size_t size) {
    void *memory;
    if (!posix_memalign(&memory, 64, size)) return memory;
    leave_kernel();
    return nullptr;
}

void halide_free(void *, void *pointer) { free(pointer); }
#else
constexpr size_t kLarge = size_t(16) << 20;  // bytes: a larger block serves only requests of at least a quarter of it

static size_t capacity_of(void *block) { return static_cast<Held *>(block)->capacity; }

static void keep(void *block) {
    for (std::atomic<void *> &kept : shelf().blocks) {
        void *empty = nullptr;
        if (kept.compare_exchange_strong(empty, block)) return;
    }
    free(block);
}

// The smallest kept block that is large enough. If none is, the largest of the others is freed, and the caller
// allocates a new one. So a thread ends up with as many blocks as its kernels use at a time, each as large as they need
// in any order. For sizes that grow from run to run it keeps one block, not two. Freeing blocks that are too large
// would let kernels of different sizes free each other's blocks: 0.1 ms of page faults in a run of 2.6 ms.
static void *kept_block(size_t size) {
    void *found = nullptr, *other = nullptr;
    const auto small = [size](void *block) { return capacity_of(block) < size ? capacity_of(block) : 0; };
    for (std::atomic<void *> &kept : shelf().blocks) {
        void *memory = kept.load(std::memory_order_relaxed) ? kept.exchange(nullptr) : nullptr;
        if (!memory) continue;
        const size_t capacity = capacity_of(memory);
        const bool fits = capacity >= size && (capacity <= kLarge || capacity / 4 <= size);
        void *&best = fits ? found : other;
        if (!best || (fits ? capacity < capacity_of(best) : small(memory) > small(best))) std::swap(best, memory);
        if (memory) keep(memory);
    }
    if (other) found ? keep(other) : free(other);
    return found;
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
    void *memory = has_reserve() ? nullptr : kept_block(size);  // reserved memory is not kept between kernels
    if (!memory) memory = new_block(size);
    if (memory) return hold(memory);
    leave_kernel();
    return nullptr;
}

void halide_free(void *, void *pointer) {
    if (!pointer) return;
    void *memory = let_go(pointer);
    if (has_reserve()) return free_memory(memory);
    keep(memory);
}
#endif

}  // extern "C"
