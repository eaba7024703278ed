/* What tests say to the stand-in and ask of it, and the bookkeeping behind every call. */
#include "standin.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

State state = {.devices = 1, .soc = "Ascend310P3"};
__thread Context *current;
static __thread char message[1024];
static __thread char given_message[1024];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const char *const kind_names[KINDS] = {"context", "stream", "event",  "memory", "model",  "description",
                                              "dataset", "buffer", "tensor", "attr",   "profile"};

enum { CALLS = 256 };
static struct {
    char name[64];
    long count;
} calls[CALLS];
static char fail_call[64];
static long fail_at;
static aclError fail_code;
static char violations[16384];

void lock_calls(void) { pthread_mutex_lock(&mutex); }
void unlock_calls(const int *unused) { (void)unused; pthread_mutex_unlock(&mutex); }

static long count_call(const char *call) {
    int k = 0;
    while (k < CALLS - 1 && calls[k].name[0] && strcmp(calls[k].name, call)) k++;
    snprintf(calls[k].name, sizeof calls[k].name, "%s", call);
    return ++calls[k].count;
}

aclError begin(const char *call, bool needs_init) {
    const long n = count_call(call);
    if (fail_at == n && !strcmp(call, fail_call)) {
        fail_at = 0;
        return fail(fail_code, "E99999: %s was told to fail", call);
    }
    if (needs_init && !state.initialised) {
        violation("%s while AscendCL is not initialised", call);
        return fail(100001, "E99999: AscendCL is not initialised");
    }
    return 0;
}

aclError fail(aclError code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return code;
}

void violation(const char *format, ...) {
    const size_t used = strlen(violations);
    va_list args;
    va_start(args, format);
    vsnprintf(violations + used, sizeof violations - used, format, args);
    va_end(args);
    strncat(violations, "\n", sizeof violations - strlen(violations) - 1);
}

void *make(Kind kind, size_t size) {
    Thing *t = calloc(1, size);
    t->kind = kind;
    t->alive = true;
    t->device = current && current->thing.alive ? current->thing.device : -1;
    t->next = state.things;
    state.things = t;
    return t;
}

bool is_alive(const void *thing, Kind kind, const char *call) {
    for (const Thing *t = state.things; t; t = t->next) {
        if (t != thing) continue;
        if (t->kind == kind && t->alive) return true;
        violation("%s on a %s that is %s", call, kind_names[t->kind], t->alive ? "of the wrong kind" : "released");
        fail(107017, "EE1001: %s: the handle is released", call);
        return false;
    }
    violation("%s on something that is no %s", call, kind_names[kind]);
    fail(107017, "EE1001: %s: not a handle", call);
    return false;
}

const char *aclGetRecentErrMsg(void) {
    if (!message[0]) return NULL;
    memcpy(given_message, message, sizeof message);
    message[0] = 0;
    return given_message;
}

/* What is still there, and what went wrong, a line each; empty if all is well. */
const char *standin_report(void) {
    static char text[20000];
    LOCKED;
    int live[KINDS] = {0};
    for (const Thing *t = state.things; t; t = t->next)
        live[t->kind] += t->alive && !(t->kind == CONTEXT && ((const Context *)t)->is_default);
    size_t used = 0;
    text[0] = 0;
    for (int k = 0; k < KINDS; k++)
        if (live[k]) used += snprintf(text + used, sizeof text - used, "leak: %d of kind %s\n", live[k], kind_names[k]);
    for (int d = 0; d < 16; d++)
        if (state.refs[d]) used += snprintf(text + used, sizeof text - used, "leak: device %d is still set\n", d);
    if (state.initialised) used += snprintf(text + used, sizeof text - used, "leak: AscendCL is still initialised\n");
    snprintf(text + used, sizeof text - used, "%s", violations);
    return text;
}

void standin_reset(void) {
    LOCKED;
    const State fresh = {.devices = 1, .soc = "Ascend310P3"};
    for (Thing *t = state.things; t; t = t->next) { /* the records stay: threads may still hold one as their context */
        if (t->kind == MEMORY && t->alive) free(((Memory *)t)->bytes);
        if (t->kind == MODEL) free(((Model *)t)->payload);
        t->alive = false;
    }
    forget_operators();
    state = fresh;
    current = NULL;
    memset(calls, 0, sizeof calls);
    violations[0] = message[0] = 0;
    fail_at = 0;
}

void standin_fail(const char *call, long at, int code) {
    LOCKED;
    snprintf(fail_call, sizeof fail_call, "%s", call);
    fail_at = at;
    fail_code = code;
}

long standin_count(const char *call) {
    LOCKED;
    for (int k = 0; k < CALLS; k++)
        if (!strcmp(calls[k].name, call)) return calls[k].count;
    return 0;
}

/* Names of all calls made so far with their counts, separated by blanks. */
const char *standin_calls(void) {
    static char text[16384];
    LOCKED;
    size_t used = 0;
    text[0] = 0;
    for (int k = 0; k < CALLS && calls[k].name[0]; k++)
        used += snprintf(text + used, sizeof text - used, "%s %ld ", calls[k].name, calls[k].count);
    return text;
}

void standin_machine(const char *soc, int devices, size_t memory, bool once) {
    LOCKED;
    snprintf(state.soc, sizeof state.soc, "%s", soc);
    state.devices = devices;
    state.memory_limit = memory;
    state.once = once;
}

void standin_executors(Executor model, OpExecutor op) {
    LOCKED;
    state.executor = model;
    state.op_executor = op;
}

long standin_copies(int kind) { LOCKED; return state.copies[kind]; }
size_t standin_copied(int kind) { LOCKED; return state.copied[kind]; }
int standin_peak_streams(void) { LOCKED; return state.peak_streams; }
size_t standin_memory_used(void) { LOCKED; return state.memory_used; }
size_t standin_memory_peak(void) { LOCKED; return state.memory_peak; }

/* For programs that the tests start: STANDIN_REPORT is a file for the report at the end of the process. */
__attribute__((destructor)) static void report_at_exit(void) {
    const char *path = getenv("STANDIN_REPORT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f) return;
    fprintf(f, "%scalls: %s\n", standin_report(), standin_calls());
    fclose(f);
}
