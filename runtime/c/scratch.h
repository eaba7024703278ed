// Leaves kernels that get no scratch memory. Generated code does not check for null, so the allocator jumps back to the
// caller of the kernel, or of the task of a parallel loop, on whatever thread that runs.
#ifndef OCC_SCRATCH_H
#define OCC_SCRATCH_H
#include <cstddef>
#if !defined(__wasm__)
#include <csetjmp>
#endif

namespace {

constexpr int kNoMemory = -11;  // halide_error_code_out_of_memory

// In front of each block of scratch memory that a kernel holds.
struct alignas(64) Held {
    Held *next, *previous;
    size_t capacity;
};
constexpr size_t kHeader = sizeof(Held);

thread_local Held *tls_held = nullptr;  // blocks of the kernels and tasks that this thread is in, the latest first

void *hold(void *memory) {
    Held *h = static_cast<Held *>(memory);
    h->previous = nullptr;
    h->next = tls_held;
    if (h->next) h->next->previous = h;
    tls_held = h;
    return h + 1;
}

Held *let_go(void *block) {
    Held *h = static_cast<Held *>(block) - 1;
    (h->previous ? h->previous->next : tls_held) = h->next;
    if (h->next) h->next->previous = h->previous;
    return h;
}

#if defined(__wasm__)  // no jumps in C here: the instance traps, which its host sees as an error
void leave_kernel() { __builtin_trap(); }

template <typename F, typename G> int guarded(F call, G) { return call(); }
#else
thread_local jmp_buf *tls_way = nullptr;  // out of the innermost kernel or task

// Returns only if nothing waits for it: a program called the kernel itself.
void leave_kernel() {
    if (tls_way) longjmp(*tls_way, 1);
}

// The code of a kernel or of a task; kNoMemory if it was left: `free_block` has then freed all that it held.
template <typename F, typename G> int guarded(F call, G free_block) {
    Held *const held = tls_held;
    jmp_buf *const outer = tls_way;
    jmp_buf way;
    if (setjmp(way)) {
        while (tls_held != held) free_block(tls_held + 1);
        tls_way = outer;
        return kNoMemory;
    }
    tls_way = &way;
    const int code = call();
    tls_way = outer;
    return code;
}
#endif

}  // namespace
#endif
