/* acl_op.h: single operators. A model of one is its signature, a line of text; an execution looks for its own. */
#include "standin.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT = 1 << 15, LOADED = 512 };

typedef struct {
    Thing thing;
    char text[TEXT]; /* name=value; in the order in which they were set */
} Attr;

typedef struct {
    char type[64], attrs[TEXT];
    int inputs, outputs;
    Tensor in[MAX_TENSORS], out[MAX_TENSORS];
    Buffer *input[MAX_TENSORS], *output[MAX_TENSORS];
} Single;

static char *loaded[LOADED];
static int loaded_count;

aclError aclopLoad(const void *model, size_t size) {
    CALL(aclopLoad);
    const char *head = "standin-op 1\n";
    if (!has_context("aclopLoad")) return 107002;
    if (size <= strlen(head) || memcmp(model, head, strlen(head))) return fail(100012, "E19999: aclopLoad: this is no operator");
    if (loaded_count == LOADED) return fail(500000, "E19999: aclopLoad: too many operators");
    char *text = calloc(1, size);
    memcpy(text, (const char *)model + strlen(head), size - strlen(head));
    loaded[loaded_count++] = text;
    return 0;
}

void forget_operators(void) {
    while (loaded_count) free(loaded[--loaded_count]);
}

void *aclopCreateAttr(void) {
    MAKES(aclopCreateAttr, NULL);
    return make(ATTR, sizeof(Attr));
}

void aclopDestroyAttr(void *attr) {
    LOCKED;
    begin("aclopDestroyAttr", true);
    if (is_alive(attr, ATTR, "aclopDestroyAttr")) ((Attr *)attr)->thing.alive = false;
}

static aclError put(void *attr, const char *call, const char *name, const char *value) {
    if (!is_alive(attr, ATTR, call)) return 107017;
    Attr *a = attr;
    const size_t used = strlen(a->text);
    snprintf(a->text + used, TEXT - used, "%s=%s;", name, value);
    return 0;
}

#define SCALAR(call, type, format)                                    \
    aclError call(void *attr, const char *name, type value) {         \
        CALL(call);                                                   \
        char text[TEXT];                                              \
        snprintf(text, sizeof text, format, value);                   \
        return put(attr, #call, name, text);                          \
    }
SCALAR(aclopSetAttrBool, uint8_t, "%d")
SCALAR(aclopSetAttrInt, int64_t, "%ld")
SCALAR(aclopSetAttrFloat, float, "%.9g")
SCALAR(aclopSetAttrString, const char *, "\"%s\"")
SCALAR(aclopSetAttrDataType, int, "%d")

#define LIST(call, type, format)                                                     \
    aclError call(void *attr, const char *name, int count, const type *values) {     \
        CALL(call);                                                                  \
        char text[TEXT] = "[";                                                       \
        for (int k = 0; k < count; k++) {                                            \
            const size_t used = strlen(text);                                        \
            snprintf(text + used, sizeof text - used, format ",", values[k]);        \
        }                                                                            \
        strncat(text, "]", sizeof text - strlen(text) - 1);                          \
        return put(attr, #call, name, text);                                         \
    }
LIST(aclopSetAttrListBool, uint8_t, "%d")
LIST(aclopSetAttrListInt, int64_t, "%ld")
LIST(aclopSetAttrListFloat, float, "%.9g")
LIST(aclopSetAttrListString, char *const, "\"%s\"")

aclError aclopSetAttrListListInt(void *attr, const char *name, int count, const int *sizes, const int64_t *const rows[]) {
    CALL(aclopSetAttrListListInt);
    char text[TEXT] = "[";
    for (int k = 0; k < count; k++) {
        strncat(text, "[", sizeof text - strlen(text) - 1);
        for (int n = 0; n < sizes[k]; n++) {
            const size_t used = strlen(text);
            snprintf(text + used, sizeof text - used, "%ld,", rows[k][n]);
        }
        strncat(text, "],", sizeof text - strlen(text) - 1);
    }
    strncat(text, "]", sizeof text - strlen(text) - 1);
    return put(attr, "aclopSetAttrListListInt", name, text);
}

aclError aclSetTensorDynamicInput(void *desc, const char *name) {
    CALL(aclSetTensorDynamicInput);
    if (!is_alive(desc, TENSOR, "aclSetTensorDynamicInput")) return 107017;
    snprintf(((Tensor *)desc)->dynamic_input, 128, "%s", name);
    return 0;
}

aclError aclSetTensorConst(void *desc, void *data, size_t length) {
    CALL(aclSetTensorConst);
    if (!is_alive(desc, TENSOR, "aclSetTensorConst")) return 107017;
    if (!data || !length) return fail(100000, "EE1001: aclSetTensorConst: no data");
    ((Tensor *)desc)->is_const = true;
    return 0;
}

static void describe(const Tensor *t, char *text, size_t room) {
    const size_t used = strlen(text);
    int n = snprintf(text + used, room - used, " %d:%d:", t->dtype, t->format);
    for (int k = 0; k < t->rank; k++) n += snprintf(text + used + n, room - used - (size_t)n, "%ld,", t->dims[k]);
    snprintf(text + used + n, room - used - (size_t)n, "%s%s", t->dynamic_input, t->is_const ? "!" : "");
}

static aclError collect(Tensor *to, Buffer **buffers, int count, void *const *descs, void *const *given) {
    for (int k = 0; k < count; k++) {
        if (!is_alive(descs[k], TENSOR, "aclopExecuteV2") || !is_alive(given[k], BUFFER, "aclopExecuteV2")) return 107017;
        to[k] = *(const Tensor *)descs[k];
        buffers[k] = given[k];
    }
    return 0;
}

aclError aclopExecuteV2(const char *type, int inputs, void *in_desc[], void *in[], int outputs, void *out_desc[], void *out[],
                        void *attr, void *stream) {
    CALL(aclopExecuteV2);
    if (!has_context("aclopExecuteV2")) return 107002;
    if (!is_alive(attr, ATTR, "aclopExecuteV2") || !is_alive(stream, STREAM, "aclopExecuteV2")) return 107017;
    Single *s = calloc(1, sizeof *s);
    snprintf(s->type, sizeof s->type, "%s", type);
    snprintf(s->attrs, sizeof s->attrs, "%s", ((const Attr *)attr)->text);
    s->inputs = inputs;
    s->outputs = outputs;
    aclError e = collect(s->in, s->input, inputs, in_desc, in);
    if (!e) e = collect(s->out, s->output, outputs, out_desc, out);
    char *text = calloc(1, 2 * TEXT);
    snprintf(text, TEXT, "%s |", type);
    for (int k = 0; k < inputs; k++) describe(&s->in[k], text, 2 * TEXT);
    strcat(text, " |");
    for (int k = 0; k < outputs; k++) describe(&s->out[k], text, 2 * TEXT);
    snprintf(text + strlen(text), 2 * TEXT - strlen(text), " | %s", s->attrs);
    int k = 0;
    while (k < loaded_count && strcmp(loaded[k], text)) k++;
    if (!e && k == loaded_count) e = fail(100024, "EZ3003: no operator is loaded for: %.700s", text);
    free(text);
    if (e) {
        free(s);
        return e;
    }
    enqueue(stream, (Task){.kind = SINGLE, .single = s});
    return 0;
}

static aclError fill(ExecutorTensor *to, const Tensor *t, const Buffer *b) {
    *to = (ExecutorTensor){.dtype = t->dtype, .rank = t->rank, .format = t->format};
    memcpy(to->dims, t->dims, sizeof t->dims);
    if (t->dtype < 0) return 0; /* an optional input that is absent */
    to->size = bytes_of(t->dtype, t->rank, t->dims);
    if (!is_alive(b, BUFFER, "aclopExecuteV2") || b->size < to->size) return fail(100021, "E19999: a buffer is too small");
    to->data = on_device(b->data, to->size ? to->size : 1, "aclopExecuteV2");
    return to->data ? 0 : 107000;
}

aclError run_single(void *single) {
    Single *s = single;
    ExecutorTensor in[MAX_TENSORS], out[MAX_TENSORS];
    aclError e = 0;
    for (int k = 0; k < s->inputs && !e; k++) e = fill(&in[k], &s->in[k], s->input[k]);
    for (int k = 0; k < s->outputs && !e; k++) e = fill(&out[k], &s->out[k], s->output[k]);
    if (!e) {
        const OpExecutor run = state.op_executor;
        const int none = 0;
        unlock_calls(&none);
        const int failed = run ? run(s->type, s->attrs, s->inputs, in, s->outputs, out) : 1;
        lock_calls();
        if (failed) e = fail(507015, "EZ9999: operator %s failed", s->type);
    }
    free(s);
    return e;
}
