// What kernels need at run time: threads for their parallel loops, scratch memory, and the loop over kernels. Every
// model library has it, and libocc. The first in a process shares its pool with the others (occ_share_pool), so that
// several models and several threads of a host use one set of workers.
#ifdef __linux__
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "blocks.h"
#include "halves.h"
#include "rate.h"
#include "workers.h"

extern "C" {
typedef int (*occ_kernel_t)(void **args);
typedef int (*occ_ranged_kernel_t)(void *args, int begin, int end);
}

namespace {

thread_local char tls_message[256];

// Tasks of a kernel of this library in groups, as threads take them; a pool of another library may run them.
struct Groups {
    halide_task_t task;
    uint8_t *closure;
    int min, size, count;

    int run(int k) const {
        const int first = min + int(int64_t(size) * k / count), end = min + int(int64_t(size) * (k + 1) / count);
        int error = 0;
        for (int i = first; i < end; i++) {
            if (int code = task(nullptr, i, closure)) error = code;
        }
        return error;
    }
};

// Some tasks of a kernel that leaves its parallel loop to its caller.
struct Ranges {
    occ_ranged_kernel_t kernel;
    void *args;
    int tasks, parts;
};

int run_range(void *, int part, uint8_t *ranges) {
    const Ranges *r = reinterpret_cast<Ranges *>(ranges);
    return r->kernel(r->args, int(int64_t(r->tasks) * part / r->parts), int(int64_t(r->tasks) * (part + 1) / r->parts));
}

// Calls with a stack that begins at the end of a page. Kernels keep vectors on it at any address, and those in
// two pages take long: a depthwise window took 310 us instead of 160 in one of 20 processes (Zen 4, AVX2), by where the
// system had put the stack.
template <typename F> __attribute__((noinline)) int from_page(F call) {
    void *rest = __builtin_alloca(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)) % 4096);
    asm volatile("" : : "r"(rest) : "memory");
    return call();
}

template <typename F> int left_whole(F call) {
    const int depth = tls_depth;
    const int code = guarded([=] { return from_page(call); }, [](void *block) { halide_free(nullptr, block); });
    tls_depth = depth;
    return code;
}

}  // namespace

extern "C" {

// The pool. It is visible: all libraries that a program is linked with use the first one's.
__attribute__((visibility("default"))) int occ_pool_1(halide_task_t task, int min, int size, uint8_t *closure, int threads) {
    return par_for(task, min, size, closure, threads);
}

static occ_par_for_t shared_par_for = occ_pool_1;

static int run_group(void *, int k, uint8_t *groups) {
    return left_whole([=] { return tls_depth++, reinterpret_cast<Groups *>(groups)->run(k); });
}

// Halide 21 runtime entry points that no_runtime kernels call.
int halide_do_par_for(void *, halide_task_t task, int min, int size, uint8_t *closure) {
    Groups groups{task, closure, min, size, 1};
    if (has_reserve() || tls_threads < 2 || tls_depth || size < 2) {  // on this thread
        tls_depth++;
        const int code = groups.run(0);
        tls_depth--;
        return code;
    }
    groups.count = tls_threads < size / kGrains ? tls_threads * kGrains : size;
    const int code = shared_par_for(run_group, 0, groups.count, reinterpret_cast<uint8_t *>(&groups), tls_threads);
    if (code == kNoMemory) leave_kernel();
    return code;
}

#if defined(OCC_THREAD_SANITIZER)  // kernels call these, and the libtsan of GCC 12 lacks them; it watches the functions that they call
__attribute__((weak)) void *__tsan_memcpy(void *to, const void *from, size_t size) { return memcpy(to, from, size); }
__attribute__((weak)) void *__tsan_memmove(void *to, const void *from, size_t size) { return memmove(to, from, size); }
__attribute__((weak)) void *__tsan_memset(void *to, int value, size_t size) { return memset(to, value, size); }
#endif

void halide_error(void *, const char *message) {
    snprintf(tls_message, sizeof tls_message, "%s", message);
}

int halide_error_out_of_memory(void *) {
    halide_error(nullptr, "out of memory");
    return -11;
}

// Get and replace the pool of this library.
occ_par_for_t occ_pool() { return shared_par_for; }
void occ_share_pool(occ_par_for_t pool) { shared_par_for = pool; }

// Text of the last error of this thread.
const char *occ_message() { return tls_message; }

// Enclose the kernels of one run and set the number of their threads. `occ_enter` returns the argument of `occ_leave`.
int occ_enter(int threads) {
    int before = tls_threads;
    tls_threads = threads;
    tls_message[0] = 0;
    return before;
}

void occ_leave(int before) { tls_threads = before; }

// Sets the loop that runs of this thread use instead of the pool; returns the previous one.
occ_lent occ_lend(occ_lent lent) {
    const occ_lent before = tls_lent;
    tls_lent = lent;
    return before;
}

// Runs a kernel that leaves its parallel loop to its caller; returns its error code.
int32_t occ_pool_tasks(void *kernel, void *args, int32_t tasks) {
    const int parts = tls_threads < tasks ? tls_threads : tasks;
    Ranges ranges{reinterpret_cast<occ_ranged_kernel_t>(kernel), args, tasks, parts};
    return shared_par_for(run_range, 0, parts, reinterpret_cast<uint8_t *>(&ranges), parts);
}

// Runs a kernel; returns its error code.
int occ_run_kernel(occ_kernel_t kernel, void **args) {
    const int code = left_whole([=] { return kernel(args); });
    return code == kNoMemory ? halide_error_out_of_memory(nullptr) : code;
}

// The same on this thread alone, for kernels that finish before a second thread would start.
int occ_run_kernel_alone(occ_kernel_t kernel, void **args) {
    tls_depth++;
    const int code = occ_run_kernel(kernel, args);
    tls_depth--;
    return code;
}

// Runs kernels in order; 0, or 1 + the index of the one that failed.
int occ_run_kernels(int count, const occ_kernel_t *kernels, void **const *args, int threads) {
    int before = occ_enter(threads);
    int failed = 0;
    for (int i = 0; i < count && !failed; i++) {
        if (occ_run_kernel(kernels[i], args[i])) failed = i + 1;
    }
    occ_leave(before);
    return failed;
}

}  // extern "C"
#endif
