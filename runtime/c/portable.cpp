// Files, memory and parallel loops with only the C library, for WebAssembly and other systems than Linux. Files are
// read, not mapped. Kernels run on the calling thread, or in a parallel loop of the caller. Models are linked into the
// program.
#ifndef __linux__
#include "model.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "scratch.h"

extern "C" void halide_free(void *, void *block);

namespace occ::runtime {

static std::atomic_flag idle_lock = ATOMIC_FLAG_INIT;

void lock_idle() {
    while (idle_lock.test_and_set(std::memory_order_acquire)) {
    }
}
void unlock_idle() { idle_lock.clear(std::memory_order_release); }

int default_threads() { return 1; }

int Mapping::open(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return errno;
    int code = 0;
    if (fseek(file, 0, SEEK_END) || ftell(file) < 0) code = errno;
    const size_t count = code ? 0 : size_t(ftell(file));
    rewind(file);
    base = code ? nullptr : aligned_memory(count);
    if (!code && !base) code = ENOMEM;
    if (!code && fread(base, 1, count, file) != count) code = EIO;
    fclose(file);
    data = static_cast<unsigned char *>(base);
    size = count;
    return code;
}

void Mapping::release() {
    free_memory(base);
    *this = Mapping();
}

namespace {

using Whole = int (*)(void **args);
using Ranged = int (*)(void *args, int begin, int end);

struct Run {
    int threads = 1, depth = 0;  // a loop inside a task runs on its own thread
    occ_lent lent = {};  // the caller's loop for runs, and its error
    char message[256] = "";
};
thread_local Run run;

struct Loop {
    halide_task_t task;
    int min;
    uint8_t *closure;
    std::atomic<int> done;
};

int task_of(void *loop, int k) {
    Loop *l = static_cast<Loop *>(loop);
    run.depth++;
    const int code = guarded([=] { return l->task(nullptr, l->min + k, l->closure); }, [](void *b) { halide_free(nullptr, b); });
    run.depth--;
    if (!code) l->done.fetch_add(1);
    return code;
}

// Artifacts cannot be opened: their code is a library for Linux.
int no_artifacts(occ_model **model) {
    if (model) *model = nullptr;
    return fail(nullptr, OCC_ERROR_UNSUPPORTED, "artifacts do not work on this system: link the model into the program (`--emit static`)");
}

}  // namespace

}  // namespace occ::runtime

using namespace occ::runtime;

extern "C" {

int halide_do_par_for(void *, halide_task_t task, int min, int size, uint8_t *closure) {
    Loop loop{task, min, closure, {0}};
    if (run.lent.loop && !run.depth && run.threads > 1 && size > 1) {
        int code = run.lent.loop(run.lent.context, task_of, &loop, size);
        if (!code && loop.done.load() != size) code = -1;
        if (code) run.lent.failed = code;
        if (code == kNoMemory) leave_kernel();
        return code;
    }
    int error = 0;
    for (int k = 0; k < size && error != kNoMemory; k++) {
        if (int code = task_of(&loop, k)) error = code;
    }
    if (error == kNoMemory) leave_kernel();
    return error;
}

void *halide_malloc(void *, size_t size) {
    void *memory = size > SIZE_MAX / 2 ? nullptr : aligned_memory(size + 2 * kHeader);
    if (memory) return hold(memory);
    leave_kernel();
    return nullptr;
}

void halide_free(void *, void *block) {
    if (block) free_memory(let_go(block));
}
void halide_error(void *, const char *message) { snprintf(run.message, sizeof run.message, "%s", message); }

int halide_error_out_of_memory(void *) {
    halide_error(nullptr, "out of memory");
    return -11;
}

const char *occ_message() { return run.message; }

int occ_enter(int threads) {
    const int before = run.threads;
    run.threads = threads;
    run.message[0] = 0;
    return before;
}

void occ_leave(int before) { run.threads = before; }

occ_lent occ_lend(occ_lent lent) {
    const occ_lent before = run.lent;
    run.lent = lent;
    return before;
}

int occ_run_kernel(Whole kernel, void **args) {
    const int code = guarded([=] { return kernel(args); }, [](void *b) { halide_free(nullptr, b); });
    return code == kNoMemory ? halide_error_out_of_memory(nullptr) : code;
}

int occ_run_kernel_alone(Whole kernel, void **args) {
    run.depth++;
    const int code = occ_run_kernel(kernel, args);
    run.depth--;
    return code;
}

int32_t occ_pool_tasks(void *kernel, void *args, int32_t tasks) {
    return reinterpret_cast<Ranged>(kernel)(args, 0, tasks);
}

int occ_open(const char *, occ_model **model) { return no_artifacts(model); }
int occ_open_memory(const void *, size_t, occ_model **model) { return no_artifacts(model); }
int occ_open_fd(int, occ_model **model) { return no_artifacts(model); }

}  // extern "C"
#endif
