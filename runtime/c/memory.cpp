// Allocates memory: from the heap, or from what the program has set aside.
#include "model.h"

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace occ::runtime {

namespace {

// Blocks fill the reserved memory one after the other, each with its header in front.
struct Piece {
    size_t size;  // with the header, a multiple of kAlignment
    bool taken;
};

struct Reserve {
    char *base = nullptr;
    size_t size = 0, peak = 0, pieces = 0;  // pieces in use
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
};
Reserve reserve;

class Hold {
public:
    Hold() {
        while (reserve.busy.test_and_set(std::memory_order_acquire)) {
        }
    }
    ~Hold() { reserve.busy.clear(std::memory_order_release); }
};

Piece *at(size_t offset) { return reinterpret_cast<Piece *>(reserve.base + offset); }

// The first free piece that is large enough; merges free neighbours on the way.
void *first_fit(size_t size) {
    for (size_t k = 0; k < reserve.size; k += at(k)->size) {
        Piece *p = at(k);
        if (p->taken) continue;
        while (k + p->size < reserve.size && !at(k + p->size)->taken) p->size += at(k + p->size)->size;
        if (p->size < size) continue;
        if (p->size > size) *at(k + size) = {p->size - size, false};
        *p = {size, true};
        reserve.pieces++;
        if (k + size > reserve.peak) reserve.peak = k + size;
        return reserve.base + k + kAlignment;
    }
    return nullptr;
}

bool is_reserved(const void *memory) {
    const char *p = static_cast<const char *>(memory);
    return reserve.base && p > reserve.base && p < reserve.base + reserve.size;
}

void *reserved(size_t size) {
    const Hold hold;
    return first_fit((size + kAlignment - 1) / kAlignment * kAlignment + kAlignment);
}

}  // namespace

bool has_reserve() { return reserve.base != nullptr; }

void *aligned_memory(size_t size) {
    if (size > SIZE_MAX - 2 * kAlignment) return nullptr;
    if (has_reserve()) return reserved(size);
    void *made = nullptr;
    return posix_memalign(&made, kAlignment, size ? size : 1) ? nullptr : made;
}

void *zeroed_memory(size_t size) {
    void *made = aligned_memory(size);
    return made ? memset(made, 0, size) : nullptr;
}

void free_memory(void *memory) {
    if (!memory) return;
    if (!is_reserved(memory)) return free(memory);
    const Hold hold;
    reinterpret_cast<Piece *>(static_cast<char *>(memory) - kAlignment)->taken = false;
    reserve.pieces--;
}

}  // namespace occ::runtime

using namespace occ::runtime;

extern "C" int occ_use_memory(void *memory, size_t bytes) {
    const Hold hold;
    if (reserve.pieces) return fail(nullptr, OCC_ERROR_ARGUMENT, "memory of an earlier call is in use");
    const size_t skipped = (kAlignment - reinterpret_cast<uintptr_t>(memory) % kAlignment) % kAlignment;
    const size_t usable = memory && bytes > skipped ? (bytes - skipped) / kAlignment * kAlignment : 0;
    if (memory && usable < 2 * kAlignment) return fail(nullptr, OCC_ERROR_ARGUMENT, "%zu bytes are too few", bytes);
    reserve.base = memory ? static_cast<char *>(memory) + skipped : nullptr;
    reserve.size = usable;
    reserve.peak = 0;
    if (memory) *at(0) = {usable, false};
    return OCC_OK;
}

extern "C" size_t occ_memory_peak(void) { return reserve.peak ? reserve.peak + kAlignment : 0; }
