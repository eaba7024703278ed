// What kernels need at run time: a thread pool behind halide_do_par_for, scratch memory, and the loop over kernels.
// Built into every model library and into libocc; the first of them in a process lends its pool to the others
// (occ_share_pool), so that several models and several threads of a host share one set of workers.
#ifdef __linux__
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <linux/futex.h>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "scratch.h"

extern "C" {
typedef int (*halide_task_t)(void *user_context, int task, uint8_t *closure);
typedef int (*occ_kernel_t)(void **args);
typedef int (*occ_ranged_kernel_t)(void *args, int begin, int end);
typedef int (*occ_par_for_t)(halide_task_t, int min, int size, uint8_t *closure, int threads);
// A parallel loop of the host, see occ.h.
typedef int (*occ_loop_t)(void *context, int (*task)(void *closure, int k), void *closure, int count);
struct occ_lent {
    occ_loop_t loop;
    void *context;
    int failed;  // an error code of the loop; kernels of Halide do not pass it on
};
void halide_free(void *, void *pointer);
}

#if defined(OCC_LIBOCC)  // programs may have set memory aside for libocc
namespace occ::runtime {
void *aligned_memory(size_t size);
void free_memory(void *memory);
bool has_reserve();
}  // namespace occ::runtime
#endif

namespace {

constexpr int kSlots = 32;        // parallel loops under way at once; more run on their caller alone
constexpr int kMaxWorkers = 255;
constexpr int kGrains = 16;       // that the part of a thread is taken in: taking a task costs as much as a small task
constexpr int64_t kIdle = 300000;  // ns that a worker looks for a loop before it sleeps: longer than most kernels that run alone
constexpr int64_t kWait = 50000;   // ns that the caller of a loop looks for its end before it sleeps: longer than most last tasks
constexpr int kLooks = 64;         // between two looks at the clock

thread_local int tls_threads = 1;   // threads that the current run may use
thread_local int tls_depth = 0;     // a loop inside a task runs on its own thread
thread_local int tls_worker = 0;    // number of a worker, from 1 on
thread_local char tls_message[256];
thread_local occ_lent tls_lent = {};  // the loop that the current run takes in the place of the pool

void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// What is left of the part of one thread.
struct alignas(64) Part {
    std::atomic<int> next;
    int end;
};

// A loop under way. Each thread has a part of the tasks, the same one in every loop over as many, so that it finds in its
// own cache what it wrote in the loop before; when it is through, it helps with the others' parts.
struct Job {
    halide_task_t task;
    uint8_t *closure;
    int min, size, threads, grain;
    Part *parts;
    std::atomic<int> finished{0}, error{0};

    void split() {
        for (int t = 0; t < threads; t++) {
            new (&parts[t]) Part{{int(int64_t(size) * t / threads)}, int(int64_t(size) * (t + 1) / threads)};
        }
    }

    // Takes tasks until none is left, `grain` at a time, first those of part `mine`.
    void work(int mine) {
        int done = 0;
        for (int t = 0; t < threads; t++) {
            Part &part = parts[(mine + t) % threads];
            while (part.next.load(std::memory_order_relaxed) < part.end) {
                const int first = part.next.fetch_add(grain, std::memory_order_relaxed);
                const int last = first + grain < part.end ? first + grain : part.end;
                for (int i = first; i < last; i++, done++) {
                    if (int code = task(nullptr, min + i, closure)) fail(code);
                }
            }
        }
        finished.fetch_add(done, std::memory_order_release);
    }

    // The error of the loop is one of its tasks', and lack of memory before all others.
    void fail(int code) {
        int none = 0;
        if (code == kNoMemory) {
            error.store(code, std::memory_order_relaxed);
        } else {
            error.compare_exchange_strong(none, code, std::memory_order_relaxed);
        }
    }
};

// A job lies on its caller's stack. `users` counts the workers that may look at it; the caller takes the pointer out
// and waits until there are none.
struct alignas(64) Slot {
    std::atomic<Job *> job{nullptr};
    std::atomic<uint32_t> users{0};
    std::atomic<int> taken{0};    // not a bool: RISC-V exchanges words
    std::atomic<int> waiting{0};  // the caller sleeps until there are no users
};

Slot slots[kSlots];
std::atomic<uint32_t> epoch{0};
std::atomic<int> sleepers{0}, workers{0};
alignas(64) std::atomic<int> callers{0};  // threads that are in a loop of several threads
pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;

void futex(std::atomic<uint32_t> &word, int op, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), op, value, nullptr, nullptr, 0);
}

int64_t now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}

// Looks until `seen` holds, for so many nanoseconds by the clock: a thread that has lost its core to others meanwhile has
// looked long enough. What comes soon costs no look at the clock.
template <typename F>
bool looked(int64_t most, F seen) {
    for (int64_t end = 0;;) {
        for (int i = 0; i < kLooks; i++) {
            if (seen()) return true;
            pause_cpu();
        }
        const int64_t t = now();
        if (!end) end = t + most;
        if (t >= end) return false;
    }
}

// Where as many threads call loops as there are threads for one loop, workers would take the callers' cores.
bool crowded() { return callers.load(std::memory_order_relaxed) > workers.load(std::memory_order_relaxed); }

bool help_any() {
    bool helped = false;
    for (Slot &s : slots) {
        if (!s.job.load(std::memory_order_relaxed)) continue;
        const uint32_t users = s.users.fetch_add(1, std::memory_order_seq_cst);
        Job *job = s.job.load(std::memory_order_seq_cst);
        if (job && int(users) < job->threads - 1 && job->finished.load(std::memory_order_relaxed) < job->size) {
            job->work(1 + (tls_worker - 1) % (job->threads - 1));
            helped = true;
        }
        if (s.users.fetch_sub(1, std::memory_order_seq_cst) == 1 && s.waiting.load(std::memory_order_seq_cst)) {
            futex(s.users, FUTEX_WAKE_PRIVATE, 1);
        }
    }
    return helped;
}

void *worker(void *number) {
    tls_depth = 1;
    tls_worker = int(reinterpret_cast<intptr_t>(number));
    for (;;) {
        uint32_t seen = epoch.load(std::memory_order_acquire);
        const auto called = [&] { return epoch.load(std::memory_order_relaxed) != seen; };
        if (help_any() || (looked(kIdle, [&] { return called() || crowded(); }) && called())) continue;
        sleepers.fetch_add(1, std::memory_order_seq_cst);
        futex(epoch, FUTEX_WAIT_PRIVATE, seen);
        sleepers.fetch_sub(1, std::memory_order_relaxed);
    }
    return nullptr;
}

// With OCC_PIN_WORKERS=1 every worker stays on one processor of those that the process may use, the first of which is left to
// the caller, which is never pinned.
void pin(pthread_t thread, int number) {
    const char *asked = getenv("OCC_PIN_WORKERS");
    cpu_set_t allowed, one;
    if (!asked || strcmp(asked, "1") || sched_getaffinity(0, sizeof(allowed), &allowed)) return;
    const int usable = CPU_COUNT(&allowed);
    int skip = usable ? number % usable : 0;
    for (int cpu = 0; usable && cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed) || skip--) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        pthread_setaffinity_np(thread, sizeof(one), &one);
        return;
    }
}

void start_workers(int wanted) {
    if (wanted > kMaxWorkers) wanted = kMaxWorkers;
    if (workers.load(std::memory_order_acquire) >= wanted) return;
    pthread_mutex_lock(&start_lock);
    while (workers.load() < wanted) {
        pthread_t thread;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        void *number = reinterpret_cast<void *>(intptr_t(workers.load() + 1));
        bool ok = pthread_create(&thread, &attr, worker, number) == 0;
        pthread_attr_destroy(&attr);
        if (!ok) break;  // fewer workers are slower, not wrong
        pin(thread, workers.load() + 1);
        workers.fetch_add(1);
    }
    pthread_mutex_unlock(&start_lock);
}

struct Lending {
    halide_task_t task;
    int min;
    uint8_t *closure;
    std::atomic<int> done;
};

int lent_task(void *lending, int k) {
    Lending *l = static_cast<Lending *>(lending);
    const int depth = tls_depth++;
    const int code = l->task(nullptr, l->min + k, l->closure);
    tls_depth = depth;
    if (!code) l->done.fetch_add(1);
    return code;
}

// Takes the job out of its slot, and returns when no worker looks at it any more: then all tasks are done.
void finish(Slot &slot) {
    slot.job.store(nullptr, std::memory_order_seq_cst);
    const auto alone = [&] { return !slot.users.load(std::memory_order_acquire); };
    if (looked(kWait, alone)) return;
    slot.waiting.store(1, std::memory_order_seq_cst);  // a worker lost its core in the middle of a task: it may have this one
    while (const uint32_t users = slot.users.load(std::memory_order_seq_cst)) futex(slot.users, FUTEX_WAIT_PRIVATE, users);
    slot.waiting.store(0, std::memory_order_relaxed);
}

// The calling thread's part in `callers`. Callers at the same time share the threads: with as many as there are cores, each
// runs its loops alone, which takes the least time of all.
struct Caller {
    const int others = callers.fetch_add(1, std::memory_order_relaxed);
    ~Caller() { callers.fetch_sub(1, std::memory_order_relaxed); }
    int share(int threads) const { return others > 0 ? 1 + (threads - 1) / (1 + others) : threads; }
};

int alone(halide_task_t task, int min, int size, uint8_t *closure) {
    int error = 0;
    tls_depth++;
    for (int i = min; i < min + size; i++) {
        const int code = task(nullptr, i, closure);
        if (code && error != kNoMemory) error = code;
    }
    tls_depth--;
    return error;
}

int par_for(halide_task_t task, int min, int size, uint8_t *closure, int threads) {
    if (tls_lent.loop && tls_depth == 0 && threads > 1 && size > 1) {
        Lending lending{task, min, closure, {0}};
        int code = tls_lent.loop(tls_lent.context, lent_task, &lending, size);
        if (!code && lending.done.load() != size) code = -1;  // one that is lost on its way to another language returns 0
        if (code) tls_lent.failed = code;
        return code;
    }
    if (threads > size) threads = size;
    if (threads > kMaxWorkers + 1) threads = kMaxWorkers + 1;
    if (threads < 2 || tls_depth) return alone(task, min, size, closure);
    const Caller caller;
    threads = caller.share(threads);
    Slot *slot = nullptr;
    if (threads > 1) {
        start_workers(threads - 1);
        for (Slot &s : slots) {
            if (!s.taken.load(std::memory_order_relaxed) && !s.taken.exchange(1, std::memory_order_acquire)) {
                slot = &s;
                break;
            }
        }
    }
    if (!slot) return alone(task, min, size, closure);
    alignas(64) char parts[(kMaxWorkers + 1) * sizeof(Part)];  // only as many as there are threads are made
    const int grains = threads * kGrains;
    Job job{task, closure, min, size, threads, size > grains ? size / grains : 1,
            reinterpret_cast<Part *>(parts)};
    job.split();
    tls_depth++;
    slot->job.store(&job, std::memory_order_seq_cst);
    epoch.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst)) futex(epoch, FUTEX_WAKE_PRIVATE, threads - 1);
    job.work(0);
    tls_depth--;
    finish(*slot);
    slot->taken.store(0, std::memory_order_release);
    return job.error;
}

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

// A forked child has none of its parent's workers; it starts its own when it needs them. Nor has it the thread that may just
// start some, so the lock is the forking thread's meanwhile.
void before_fork() { pthread_mutex_lock(&start_lock); }
void after_fork() { pthread_mutex_unlock(&start_lock); }

void in_child() {
    after_fork();
    workers = 0;
    sleepers = 0;
    callers = 0;
    for (Slot &s : slots) {
        s.job = nullptr;
        s.users = 0;
        s.taken = 0;
        s.waiting = 0;
    }
}

__attribute__((constructor)) void register_fork_handler() { pthread_atfork(before_fork, after_fork, in_child); }

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

// Tasks of a kernel of this library in groups, as threads take them; a pool of another library may run those.
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

template <typename F> int left_whole(F call) {
    const int depth = tls_depth;
    const int code = guarded(call, [](void *block) { halide_free(nullptr, block); });
    tls_depth = depth;
    return code;
}

#if defined(__x86_64__)
// Independent multiply-adds in as many registers as hide their latency; gives operations.
#define OCC_FMA_LOOP(V, LANES)                                                                                  \
    V x, y;                                                                                                      \
    for (int k = 0; k < LANES; k++) x[k] = 0.999f, y[k] = 0.001f;                                                \
    V a = y, b = y, c = y, d = y, e = y, f = y, g = y, h = y, i = y, j = y, k = y, l = y;                        \
    for (int n = 0; n < rounds; n++) {                                                                           \
        a = a * x + y, b = b * x + y, c = c * x + y, d = d * x + y, e = e * x + y, f = f * x + y;                \
        g = g * x + y, h = h * x + y, i = i * x + y, j = j * x + y, k = k * x + y, l = l * x + y;                \
        asm volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f));                                 \
        asm volatile("" : "+v"(g), "+v"(h), "+v"(i), "+v"(j), "+v"(k), "+v"(l));                                 \
    }                                                                                                            \
    return 2.0 * LANES * 12 * rounds;

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
__attribute__((target("avx2,fma"), optimize("O3", "unroll-loops", "fp-contract=fast"))) double fma_8(int rounds) { OCC_FMA_LOOP(f32x8, 8) }
__attribute__((target("avx512f"), optimize("O3", "unroll-loops", "fp-contract=fast"))) double fma_16(int rounds) { OCC_FMA_LOOP(f32x16, 16) }
#endif

}  // namespace

extern "C" {

// The pool. Visible, so that of several libraries that a program is linked with all take that of the first.
__attribute__((visibility("default"))) int occ_pool_1(halide_task_t task, int min, int size, uint8_t *closure, int threads) {
    return par_for(task, min, size, closure, threads);
}

static occ_par_for_t shared_par_for = occ_pool_1;

// f32 operations per second that multiply-adds reach on one core, measured for about a millisecond; 0 if not known.
double occ_fma_rate() {
#if defined(__x86_64__)
    double (*loop)(int) = __builtin_cpu_supports("avx512f") ? fma_16 : __builtin_cpu_supports("fma") ? fma_8 : nullptr;
    if (!loop) return 0;
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    double done = loop(200000);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return done / ((b.tv_sec - a.tv_sec) + 1e-9 * (b.tv_nsec - a.tv_nsec));
#else
    return 0;
#endif
}

#if defined(OCC_LIBOCC)
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

#if defined(OCC_THREAD_SANITIZER)  // kernels call these, and the libtsan of GCC 12 lacks them; what they call is watched
__attribute__((weak)) void *__tsan_memcpy(void *to, const void *from, size_t size) { return memcpy(to, from, size); }
__attribute__((weak)) void *__tsan_memmove(void *to, const void *from, size_t size) { return memmove(to, from, size); }
__attribute__((weak)) void *__tsan_memset(void *to, int value, size_t size) { return memset(to, value, size); }
#endif

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

// LLVM calls these where a processor has no half floats. Halves are passed as their bits; libgcc has them for other processors.
#if defined(__powerpc64__)
__attribute__((weak)) uint16_t __truncsfhf2(float value) {
    uint32_t x;
    memcpy(&x, &value, sizeof x);
    const uint32_t sign = x >> 16 & 0x8000;
    x &= 0x7fffffff;
    if (x > 0x7f800000) return uint16_t(sign | 0x7e00 | (x >> 13 & 0x3ff));  // NaN
    if (x >= 0x47800000) return uint16_t(sign | 0x7c00);  // from 2^16 on
    if (x < 0x38800000) {  // below 2^-14 halves are multiples of 2^-24, as floats from 0.5 on are
        float sum;
        memcpy(&sum, &x, sizeof sum);
        sum += 0.5f;
        memcpy(&x, &sum, sizeof x);
        return uint16_t(sign | (x - 0x3f000000));
    }
    x += (0u - (112u << 23)) + 0xfff + (x >> 13 & 1);  // the bias of the exponent; to nearest, ties to even
    return uint16_t(sign | x >> 13);
}

__attribute__((weak)) float __extendhfsf2(uint16_t half) {
    const uint32_t exponent = half & 0x7c00u, sign = uint32_t(half & 0x8000) << 16;
    uint32_t x = (uint32_t(half & 0x7fff) << 13) + (exponent == 0x7c00 ? 224u << 23 : exponent ? 112u << 23 : 113u << 23);
    float value;
    memcpy(&value, &x, sizeof value);
    if (!exponent) value -= 0x1p-14f;  // subnormal: what stands after the point has no 1 before it
    memcpy(&x, &value, sizeof x);
    x |= sign;
    memcpy(&value, &x, sizeof value);
    return value;
}
#endif

void halide_error(void *, const char *message) {
    snprintf(tls_message, sizeof tls_message, "%s", message);
}

int halide_error_out_of_memory(void *) {
    halide_error(nullptr, "out of memory");
    return -11;
}

// The pool of this library, and its replacement by that of another one.
occ_par_for_t occ_pool() { return shared_par_for; }
void occ_share_pool(occ_par_for_t pool) { shared_par_for = pool; }

// Text of the last error of this thread.
const char *occ_message() { return tls_message; }

// Around the kernels of one run: how many threads they may use. `occ_enter` gives what `occ_leave` takes.
int occ_enter(int threads) {
    int before = tls_threads;
    tls_threads = threads;
    tls_message[0] = 0;
    return before;
}

void occ_leave(int before) { tls_threads = before; }

// The loop that the runs of this thread take in the place of the pool, from now on; gives the one before.
occ_lent occ_lend(occ_lent lent) {
    const occ_lent before = tls_lent;
    tls_lent = lent;
    return before;
}

// Runs a kernel that leaves its parallel loop to its caller; its error code.
int32_t occ_pool_tasks(void *kernel, void *args, int32_t tasks) {
    const int parts = tls_threads < tasks ? tls_threads : tasks;
    Ranges ranges{reinterpret_cast<occ_ranged_kernel_t>(kernel), args, tasks, parts};
    return shared_par_for(run_range, 0, parts, reinterpret_cast<uint8_t *>(&ranges), parts);
}

// Runs a kernel; its error code.
int occ_run_kernel(occ_kernel_t kernel, void **args) {
    const int code = left_whole([=] { return kernel(args); });
    return code == kNoMemory ? halide_error_out_of_memory(nullptr) : code;
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
