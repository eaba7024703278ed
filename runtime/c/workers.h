// The threads of a process, and parallel loops on them. Part of pool.cpp.
#include <atomic>
#include <cstdint>
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
typedef int (*occ_par_for_t)(halide_task_t, int min, int size, uint8_t *closure, int threads);
// A parallel loop of the host, see occ.h.
typedef int (*occ_loop_t)(void *context, int (*task)(void *closure, int k), void *closure, int count);
struct occ_lent {
    occ_loop_t loop;
    void *context;
    int failed;  // an error code of the loop; kernels of Halide do not pass it on
};
}

namespace {

constexpr int kSlots = 32;        // parallel loops in flight at once; others run on their caller alone
constexpr int kMaxWorkers = 255;
constexpr int kGrains = 16;       // parts that a thread's share is taken in: taking a task costs as much as a small task
constexpr int64_t kIdle = 300000;  // ns that a worker spins before it sleeps: longer than most kernels that run alone
constexpr int64_t kWait = 50000;   // ns that the caller of a loop spins before it sleeps: longer than most last tasks
constexpr int kLooks = 64;         // spins between two reads of the clock

thread_local int tls_threads = 1;   // threads that the current run may use
thread_local int tls_depth = 0;     // a loop inside a task runs on its own thread
thread_local int tls_worker = 0;    // number of a worker, from 1 on
thread_local occ_lent tls_lent = {};  // the loop that the current run uses instead of the pool

void pause_cpu() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// The rest of one thread's share.
struct alignas(64) Part {
    std::atomic<int> next;
    int end;
};

// A loop in flight. Each thread has a share of the tasks, the same in every loop with as many tasks, so that its own
// cache has what it wrote in the loop before. When it is done, it helps with the others' shares.
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

    // Runs tasks until none is left, `grain` at a time, starting with share `mine`.
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

    // The error of the loop is that of one of its tasks; lack of memory has priority.
    void fail(int code) {
        int none = 0;
        if (code == kNoMemory) {
            error.store(code, std::memory_order_relaxed);
        } else {
            error.compare_exchange_strong(none, code, std::memory_order_relaxed);
        }
    }
};

// A job is on its caller's stack. `users` counts the workers that may access it; the caller clears the pointer and
// waits until there are none.
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

// Spins until `seen` holds, at most this many nanoseconds of the clock: a thread that lost its core meanwhile has
// waited long enough. If it holds soon, the clock is not read.
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

// If as many threads call loops as one loop has threads, workers would take the callers' cores.
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

// With OCC_PIN_WORKERS=1 every worker stays on one of the process's processors. The first is left to the caller, which
// is never pinned.
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

// Clears the slot, and returns when no worker accesses the job any more: then all tasks are done.
void finish(Slot &slot) {
    slot.job.store(nullptr, std::memory_order_seq_cst);
    const auto alone = [&] { return !slot.users.load(std::memory_order_acquire); };
    if (looked(kWait, alone)) return;
    slot.waiting.store(1, std::memory_order_seq_cst);  // a worker lost its core in the middle of a task: it may have this job
    while (const uint32_t users = slot.users.load(std::memory_order_seq_cst)) futex(slot.users, FUTEX_WAIT_PRIVATE, users);
    slot.waiting.store(0, std::memory_order_relaxed);
}

// Counts the calling thread in `callers`. Concurrent callers divide the threads among them: with one per core, each
// runs its loops alone, which is the fastest of all.
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
        if (!code && lending.done.load() != size) code = -1;  // a task that is lost on its way through another language returns 0
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
    alignas(64) char parts[(kMaxWorkers + 1) * sizeof(Part)];  // no more workers than threads
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

// A forked child has none of its parent's workers; it starts its own when it needs them. Nor has it the thread that may
// be starting some, so the forking thread holds the lock meanwhile.
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

}  // namespace
