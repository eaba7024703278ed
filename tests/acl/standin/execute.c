/* acl_mdl.h: the gears of a model, and its execution. */
#include "standin.h"
#include <string.h>

static int gears_of(const Model *m, const char *kind) { return m && !strcmp(m->gears, kind) ? m->gear_count : 0; }

aclError aclmdlGetDynamicBatch(const void *desc, Batches *batch) {
    CALL(aclmdlGetDynamicBatch);
    const Model *m = described(desc, "aclmdlGetDynamicBatch");
    batch->count = (size_t)gears_of(m, "batch");
    for (size_t k = 0; k < batch->count; k++) batch->batch[k] = (uint64_t)m->gear[k][0];
    return 0;
}

aclError aclmdlGetDynamicHW(const void *desc, size_t index, ImageSizes *hw) {
    CALL(aclmdlGetDynamicHW);
    (void)index;
    const Model *m = described(desc, "aclmdlGetDynamicHW");
    hw->count = (size_t)gears_of(m, "image");
    for (size_t k = 0; k < hw->count; k++)
        for (int n = 0; n < 2; n++) hw->hw[k][n] = (uint64_t)m->gear[k][n];
    return 0;
}

aclError aclmdlGetInputDynamicGearCount(const void *desc, size_t index, size_t *count) {
    CALL(aclmdlGetInputDynamicGearCount);
    if (index != (size_t)-1) return fail(100000, "EE1001: aclmdlGetInputDynamicGearCount: the index has to be -1");
    *count = (size_t)gears_of(described(desc, "aclmdlGetInputDynamicGearCount"), "dims");
    return 0;
}

aclError aclmdlGetInputDynamicDims(const void *desc, size_t index, IODims *dims, size_t count) {
    CALL(aclmdlGetInputDynamicDims);
    const Model *m = described(desc, "aclmdlGetInputDynamicDims");
    if (index != (size_t)-1 || count < (size_t)gears_of(m, "dims")) return fail(100000, "EE1001: invalid parameter");
    for (int k = 0; k < gears_of(m, "dims"); k++) {
        memset(&dims[k], 0, sizeof dims[k]);
        dims[k].count = (size_t)m->gear_dims;
        memcpy(dims[k].dims, m->gear[k], sizeof(int64_t) * (size_t)m->gear_dims);
    }
    return 0;
}

static aclError choose(uint32_t id, void *dataset, size_t index, const char *kind, const int64_t *want, int count, const char *call) {
    const Model *m = find_model(id, call);
    if (!m || !is_alive(dataset, DATASET, call)) return 145003;
    if (!gears_of(m, kind)) return fail(100019, "EE1001: %s: the model has no such gears", call);
    if (index != (size_t)m->inputs) return fail(100000, "EE1001: %s: this is not the input of the gears", call);
    for (int g = 0; g < m->gear_count && count == m->gear_dims; g++)
        if (!memcmp(m->gear[g], want, sizeof(int64_t) * (size_t)count)) {
            ((Dataset *)dataset)->gear = g;
            return 0;
        }
    return fail(145013, "E19014: %s: there is no such gear", call);
}

aclError aclmdlSetDynamicBatchSize(uint32_t id, void *dataset, size_t index, uint64_t batch) {
    CALL(aclmdlSetDynamicBatchSize);
    const int64_t want[] = {(int64_t)batch};
    return choose(id, dataset, index, "batch", want, 1, "aclmdlSetDynamicBatchSize");
}

aclError aclmdlSetDynamicHWSize(uint32_t id, void *dataset, size_t index, uint64_t height, uint64_t width) {
    CALL(aclmdlSetDynamicHWSize);
    const int64_t want[] = {(int64_t)height, (int64_t)width};
    return choose(id, dataset, index, "image", want, 2, "aclmdlSetDynamicHWSize");
}

aclError aclmdlSetInputDynamicDims(uint32_t id, void *dataset, size_t index, const IODims *dims) {
    CALL(aclmdlSetInputDynamicDims);
    return choose(id, dataset, index, "dims", dims->dims, (int)dims->count, "aclmdlSetInputDynamicDims");
}

/* Execution. */

static int output_of(Dataset *out, Model *m, int k, const ExecutorTensor *got) {
    const Port *p = &m->output[k];
    int wrong = got->rank != p->rank;
    for (int n = 0; n < p->rank && !wrong; n++) wrong = p->dims[n] >= 0 && p->dims[n] != got->dims[n];
    if (wrong) return 1;
    m->last[k] = *p;
    memcpy(m->last[k].dims, got->dims, sizeof got->dims);
    if (!out->tensors[k]) out->tensors[k] = make(TENSOR, sizeof(Tensor));
    out->owns |= (uint64_t)1 << k;
    out->tensors[k]->rank = got->rank;
    memcpy(out->tensors[k]->dims, got->dims, sizeof got->dims);
    return 0;
}

static aclError gather(const Model *m, const Dataset *d, bool input, ExecutorTensor *list) {
    for (int k = 0; k < (input ? m->inputs : m->outputs); k++) {
        const Port *p = input ? &m->input[k] : &m->output[k];
        ExecutorTensor *t = &list[k];
        *t = (ExecutorTensor){.dtype = p->dtype, .rank = p->rank, .size = d->buffers[k]->size};
        memcpy(t->dims, p->dims, sizeof p->dims);
        if (input && d->gear >= 0) geared(m, k, d->gear, t->dims);
        if (input && d->gear < 0 && d->tensors[k]) memcpy(t->dims, d->tensors[k]->dims, sizeof t->dims);
        if (!is_alive(d->buffers[k], BUFFER, "aclmdlExecute")) return 107017;
        t->data = on_device(d->buffers[k]->data, t->size, "aclmdlExecute");
        if (!t->data) return 107000;
        bool open = false;
        for (int n = 0; n < t->rank; n++) open |= t->dims[n] < 0;
        if (input && open) return fail(145021, "E19999: input %d has no shape", k);
        if (!open && bytes_of(p->dtype, p->rank, t->dims) > t->size) return fail(input ? 100017 : 100018, "E19999: tensor %d is too small", k);
    }
    return 0;
}

aclError run_model(Model *m, Dataset *in, Dataset *out) {
    ExecutorTensor inputs[MAX_TENSORS], outputs[MAX_TENSORS];
    if (in->count != m->inputs + has_gears(m) || out->count != m->outputs) return fail(100017, "E19999: wrong number of buffers");
    if (has_gears(m) && in->gear < 0) return fail(145013, "E19999: no gear was chosen");
    aclError e = gather(m, in, true, inputs);
    if (!e) e = gather(m, out, false, outputs);
    if (e) return e;
    if (m->busy) violation("model %u runs twice at once", m->id);
    m->busy = true;
    const Executor run = state.executor;
    const int none = 0;
    unlock_calls(&none); /* the executor may call back, and takes its time */
    const int failed = run ? run(m->payload, m->payload_size, m->inputs, inputs, m->outputs, outputs) : 1;
    lock_calls();
    m->busy = false;
    if (failed) return fail(507011, "EZ9999: the model failed to execute");
    for (int k = 0; k < m->outputs; k++)
        if (output_of(out, m, k, &outputs[k])) return fail(500002, "EZ9999: output %d has a wrong shape", k);
    return 0;
}

static aclError check_execution(const Model *m, const void *in, const void *out, const char *call) {
    if (!has_context(call)) return 107002;
    if (!m || !is_alive(in, DATASET, call) || !is_alive(out, DATASET, call)) return 145003;
    if (m->context != current) violation("%s in another context than the load", call);
    return 0;
}

aclError aclmdlExecute(uint32_t id, void *in, void *out) {
    CALL(aclmdlExecute);
    Model *m = find_model(id, "aclmdlExecute");
    const aclError e = check_execution(m, in, out, "aclmdlExecute");
    return e ? e : run_model(m, in, out);
}

aclError aclmdlExecuteAsync(uint32_t id, void *in, void *out, void *stream) {
    CALL(aclmdlExecuteAsync);
    Model *m = find_model(id, "aclmdlExecuteAsync");
    const aclError e = check_execution(m, in, out, "aclmdlExecuteAsync");
    if (e || !is_alive(stream, STREAM, "aclmdlExecuteAsync")) return e ? e : 107017;
    if (m->queued && m->queued_on != stream) violation("model %u is queued on two streams", m->id);
    m->queued++;
    m->queued_on = stream;
    ((Dataset *)in)->queued++;
    ((Dataset *)out)->queued++;
    enqueue(stream, (Task){.kind = EXECUTE, .model = m, .in = in, .out = out});
    count_streams();
    return 0;
}
