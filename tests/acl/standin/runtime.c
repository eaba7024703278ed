/* acl.h and acl_rt.h: process, devices, contexts, streams, events, memory; and the profiler's acl_prof.h. */
#include "standin.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const uintptr_t DEVICE_BIT = (uintptr_t)1 << 62; /* makes addresses of device memory useless to the host */

aclError aclInit(const char *config) {
    LOCKED;
    (void)config;
    const aclError e = begin("aclInit", false);
    if (e) return e;
    if (state.initialised || (state.once && state.finalised)) return fail(100002, "EE1001: aclInit was called before");
    state.initialised = true;
    return 0;
}

aclError aclFinalize(void) {
    RELEASES(aclFinalize);
    for (const Thing *t = state.things; t; t = t->next)
        if (t->alive && !(t->kind == CONTEXT && ((const Context *)t)->is_default)) {
            violation("aclFinalize with live resources");
            break;
        }
    forget_operators();
    state.initialised = false;
    state.finalised = true;
    return told_;
}

const char *aclrtGetSocName(void) {
    MAKES(aclrtGetSocName, NULL);
    return state.soc;
}

aclError aclrtGetDeviceCount(uint32_t *count) {
    CALL(aclrtGetDeviceCount);
    *count = (uint32_t)state.devices;
    return 0;
}

aclError aclrtGetRunMode(int *mode) {
    CALL(aclrtGetRunMode);
    *mode = 1;
    return 0;
}

static aclError check_device(int32_t device) {
    return device < 0 || device >= state.devices ? fail(107001, "EE1001: device %d does not exist", device) : 0;
}

aclError aclrtSetDevice(int32_t device) {
    CALL(aclrtSetDevice);
    const aclError e = check_device(device);
    if (e) return e;
    state.refs[device]++;
    current = make(CONTEXT, sizeof *current);
    current->thing.device = device;
    current->is_default = true;
    return 0;
}

aclError aclrtResetDevice(int32_t device) {
    RELEASES(aclrtResetDevice);
    if (check_device(device) || !state.refs[device]) {
        violation("aclrtResetDevice of a device that is not set");
        return 107001;
    }
    if (--state.refs[device]) return told_;
    for (Thing *t = state.things; t; t = t->next) {
        if (t->device != device || !t->alive || t->kind > MODEL) continue;
        if (t->kind == CONTEXT && ((Context *)t)->is_default) {
            t->alive = false;
        } else {
            violation("aclrtResetDevice while something of the device is in use (kind %d)", t->kind);
            break;
        }
    }
    return told_;
}

aclError aclrtCreateContext(void **context, int32_t device) {
    CALL(aclrtCreateContext);
    const aclError e = check_device(device);
    if (e) return e;
    if (!state.refs[device]) violation("aclrtCreateContext on a device that is not set");
    current = make(CONTEXT, sizeof *current);
    current->thing.device = device;
    *context = current;
    return 0;
}

aclError aclrtDestroyContext(void *context) {
    RELEASES(aclrtDestroyContext);
    if (!is_alive(context, CONTEXT, "aclrtDestroyContext")) return 107017;
    ((Context *)context)->thing.alive = false;
    if (current == context) current = NULL;
    return told_;
}

aclError aclrtSetCurrentContext(void *context) {
    CALL(aclrtSetCurrentContext);
    if (!is_alive(context, CONTEXT, "aclrtSetCurrentContext")) return 107017;
    current = context;
    return 0;
}

aclError aclrtGetCurrentContext(void **context) {
    CALL(aclrtGetCurrentContext);
    if (!current || !current->thing.alive) return fail(107002, "EE1001: this thread has no context");
    *context = current;
    return 0;
}

bool has_context(const char *call) {
    if (current && current->thing.alive) return true;
    violation("%s in a thread without a context", call);
    fail(107002, "EE1001: %s: this thread has no context", call);
    return false;
}

/* Streams and events: work is queued, and done when somebody waits. */

aclError aclrtCreateStream(void **stream) {
    CALL(aclrtCreateStream);
    if (!has_context("aclrtCreateStream")) return 107002;
    *stream = make(STREAM, sizeof(Stream));
    return 0;
}

aclError aclrtDestroyStream(void *stream) {
    RELEASES(aclrtDestroyStream);
    if (!is_alive(stream, STREAM, "aclrtDestroyStream")) return 107017;
    if (((Stream *)stream)->first) violation("aclrtDestroyStream with work on it");
    ((Stream *)stream)->thing.alive = false;
    return told_;
}

Task *enqueue(Stream *s, Task task) {
    Task *t = malloc(sizeof *t);
    *t = task;
    t->next = NULL;
    if (s->last) s->last->next = t; else s->first = t;
    s->last = t;
    s->queued++;
    return t;
}

void count_streams(void) {
    int busy = 0;
    for (const Thing *t = state.things; t; t = t->next)
        if (t->kind == STREAM) {
            const Task *k = ((const Stream *)t)->first;
            while (k && k->kind != EXECUTE) k = k->next;
            busy += k != NULL;
        }
    if (busy > state.peak_streams) state.peak_streams = busy;
}

static aclError copy_now(void *target, const void *source, size_t n, int direction, const char *call) {
    const bool to = direction == 1 || direction == 3, from = direction == 2 || direction == 3;
    void *t = to ? on_device(target, n, call) : target;
    const void *s = from ? on_device(source, n, call) : source;
    if (!t || !s) return 107000;
    memcpy(t, s, n);
    state.copies[direction]++;
    state.copied[direction] += n;
    return 0;
}

static aclError run_task(Task *t) {
    struct timespec now;
    switch (t->kind) {
        case COPY: return copy_now(t->target, t->source, t->size, t->direction, "aclrtMemcpyAsync");
        case EXECUTE: return run_model(t->model, t->in, t->out);
        case SINGLE: return run_single(t->single);
        case RECORD:
            clock_gettime(CLOCK_MONOTONIC, &now);
            t->event->seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
            return 0;
        case WAIT: return t->other ? drain(t->other, t->mark) : 0;
    }
    return 500000;
}

aclError drain(Stream *s, long mark) {
    while (s->first && s->done < mark) {
        Task *t = s->first;
        const aclError e = s->error ? s->error : run_task(t);
        if (t->kind == EXECUTE) {
            t->model->queued--;
            t->in->queued--;
            t->out->queued--;
            if (!t->model->queued) t->model->queued_on = NULL;
        }
        s->first = t->next;
        if (!s->first) s->last = NULL;
        s->done++;
        if (e) s->error = e;
        free(t);
    }
    return s->error;
}

aclError aclrtSynchronizeStream(void *stream) {
    CALL(aclrtSynchronizeStream);
    if (!has_context("aclrtSynchronizeStream")) return 107002;
    if (!is_alive(stream, STREAM, "aclrtSynchronizeStream")) return 107017;
    Stream *s = stream;
    const aclError e = drain(s, s->queued);
    s->error = 0;
    return e;
}

aclError aclrtCreateEvent(void **event) {
    CALL(aclrtCreateEvent);
    if (!has_context("aclrtCreateEvent")) return 107002;
    *event = make(EVENT, sizeof(Event));
    return 0;
}

aclError aclrtDestroyEvent(void *event) {
    RELEASES(aclrtDestroyEvent);
    if (!is_alive(event, EVENT, "aclrtDestroyEvent")) return 107017;
    ((Event *)event)->thing.alive = false;
    return told_;
}

aclError aclrtRecordEvent(void *event, void *stream) {
    CALL(aclrtRecordEvent);
    if (!is_alive(event, EVENT, "aclrtRecordEvent") || !is_alive(stream, STREAM, "aclrtRecordEvent")) return 107017;
    Stream *s = stream;
    enqueue(s, (Task){.kind = RECORD, .event = event});
    ((Event *)event)->stream = s;
    ((Event *)event)->mark = s->queued;
    return 0;
}

aclError aclrtStreamWaitEvent(void *stream, void *event) {
    CALL(aclrtStreamWaitEvent);
    if (!is_alive(event, EVENT, "aclrtStreamWaitEvent") || !is_alive(stream, STREAM, "aclrtStreamWaitEvent")) return 107017;
    const Event *e = event;
    if (!e->stream) violation("aclrtStreamWaitEvent for an event that was not recorded");
    enqueue(stream, (Task){.kind = WAIT, .other = e->stream, .mark = e->mark});
    return 0;
}

/* Memory. */

aclError aclrtMalloc(void **address, size_t size, int policy) {
    CALL(aclrtMalloc);
    (void)policy;
    if (!has_context("aclrtMalloc")) return 107002;
    if (!size) return fail(107000, "EE1001: aclrtMalloc of 0 bytes");
    if (state.memory_limit && state.memory_used + size > state.memory_limit)
        return fail(207001, "EL0004: device memory: %zu bytes wanted, %zu of %zu used", size, state.memory_used, state.memory_limit);
    Memory *m = make(MEMORY, sizeof *m);
    m->bytes = aligned_alloc(512, (size + 511) / 512 * 512);
    m->size = size;
    memset(m->bytes, 0xA5, size);
    state.memory_used += size;
    if (state.memory_used > state.memory_peak) state.memory_peak = state.memory_used;
    *address = (void *)((uintptr_t)m->bytes | DEVICE_BIT);
    return 0;
}

static Memory *find_memory(const void *address, size_t size) {
    const uintptr_t a = (uintptr_t)address;
    if (!(a & DEVICE_BIT)) return NULL;
    for (Thing *t = state.things; t; t = t->next)
        if (t->kind == MEMORY && t->alive) {
            const uintptr_t base = (uintptr_t)((Memory *)t)->bytes | DEVICE_BIT;
            if (a >= base && a + size <= base + ((Memory *)t)->size) return (Memory *)t;
        }
    return NULL;
}

char *on_device(const void *address, size_t size, const char *call) {
    if (find_memory(address, size)) return (char *)((uintptr_t)address & ~DEVICE_BIT);
    violation("%s: %zu bytes at %p are no device memory in use", call, size, address);
    fail(107000, "EE1001: %s: not an address of device memory", call);
    return NULL;
}

static bool in_use(const Memory *m) {
    for (const Thing *t = state.things; t; t = t->next)
        for (const Task *k = t->kind == STREAM ? ((const Stream *)t)->first : NULL; k; k = k->next) {
            if (k->kind == COPY && (find_memory(k->target, 1) == m || find_memory(k->source, 1) == m)) return true;
            for (int n = 0; k->kind == EXECUTE && n < k->in->count; n++)
                if (find_memory(k->in->buffers[n]->data, 1) == m) return true;
            for (int n = 0; k->kind == EXECUTE && n < k->out->count; n++)
                if (find_memory(k->out->buffers[n]->data, 1) == m) return true;
        }
    return false;
}

aclError aclrtFree(void *address) {
    RELEASES(aclrtFree);
    if (!has_context("aclrtFree")) return 107002;
    Memory *m = find_memory(address, 1);
    if (!m || ((uintptr_t)m->bytes | DEVICE_BIT) != (uintptr_t)address) {
        violation("aclrtFree of what is no allocation in use");
        return 107000;
    }
    if (in_use(m)) violation("aclrtFree of memory that queued work uses");
    m->thing.alive = false;
    state.memory_used -= m->size;
    free(m->bytes);
    return told_;
}

aclError aclrtMemcpy(void *target, size_t room, const void *source, size_t n, int direction) {
    CALL(aclrtMemcpy);
    if (!has_context("aclrtMemcpy")) return 107002;
    if (n > room || direction < 0 || direction > 4) return fail(107000, "EE1001: aclrtMemcpy: invalid parameter");
    return copy_now(target, source, n, direction, "aclrtMemcpy");
}

aclError aclrtMemcpyAsync(void *target, size_t room, const void *source, size_t n, int direction, void *stream) {
    CALL(aclrtMemcpyAsync);
    if (!is_alive(stream, STREAM, "aclrtMemcpyAsync")) return 107017;
    if (n > room || direction < 0 || direction > 4) return fail(107000, "EE1001: aclrtMemcpyAsync: invalid parameter");
    enqueue(stream, (Task){.kind = COPY, .target = target, .source = source, .size = n, .direction = direction});
    return 0;
}

aclError aclrtGetMemInfo(int kind, size_t *free_bytes, size_t *total) {
    CALL(aclrtGetMemInfo);
    *total = kind == 0 ? 0 : state.memory_limit ? state.memory_limit : (size_t)1 << 35;
    *free_bytes = *total ? *total - state.memory_used : 0;
    return 0;
}

/* The profiler. */

aclError aclprofInit(const char *folder, size_t length) {
    CALL(aclprofInit);
    if (!folder || !length) return fail(100010, "EE1001: aclprofInit: no folder");
    state.profiling = true;
    return 0;
}

aclError aclprofFinalize(void) {
    RELEASES(aclprofFinalize);
    if (!state.profiling) violation("aclprofFinalize without aclprofInit");
    for (const Thing *t = state.things; t; t = t->next)
        if (t->kind == PROFILE && t->alive) violation("aclprofFinalize before aclprofDestroyConfig");
    state.profiling = false;
    return told_;
}

void *aclprofCreateConfig(uint32_t *devices, uint32_t count, int metrics, const void *events, uint64_t what) {
    MAKES(aclprofCreateConfig, NULL);
    (void)metrics;
    (void)events;
    return count && devices && what ? make(PROFILE, sizeof(Thing)) : NULL;
}

aclError aclprofDestroyConfig(void *config) {
    RELEASES(aclprofDestroyConfig);
    if (!is_alive(config, PROFILE, "aclprofDestroyConfig")) return 107017;
    ((Thing *)config)->alive = false;
    return told_;
}

aclError aclprofStart(void *config) {
    CALL(aclprofStart);
    return is_alive(config, PROFILE, "aclprofStart") ? 0 : 107017;
}

aclError aclprofStop(void *config) {
    RELEASES(aclprofStop);
    return is_alive(config, PROFILE, "aclprofStop") ? told_ : 107017;
}
