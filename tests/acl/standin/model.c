/* acl_mdl.h: models, their descriptions, datasets and execution. */
#include "standin.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const GEAR_INPUT = "ascend_mbatch_shape_data";

size_t bytes_of(int dtype, int rank, const int64_t *dims) {
    static const int sizes[] = {[0] = 4, [1] = 2, [2] = 1, [3] = 4, [4] = 1, [6] = 2, [7] = 2, [8] = 4, [9] = 8, [10] = 8,
                                [11] = 8, [12] = 1, [16] = 8, [17] = 16, [27] = 2, [35] = 1, [36] = 1, [37] = 1};
    size_t n = dtype >= 0 && dtype <= 37 ? (size_t)sizes[dtype] : 0;
    for (int k = 0; k < rank; k++) n *= (size_t)dims[k];
    return n;
}

/* Reading a model: lines of text up to `payload N`, then N bytes. */

static const char *next_line(const char *p, const char *end, char *line, size_t room) {
    const char *stop = memchr(p, '\n', (size_t)(end - p));
    if (!stop || (size_t)(stop - p) >= room) return NULL;
    memcpy(line, p, (size_t)(stop - p));
    line[stop - p] = 0;
    return stop + 1;
}

static void read_port(const char *text, Port *p) {
    int at = 0;
    sscanf(text, "%d %d %d%n", &p->dtype, &p->format, &p->rank, &at);
    for (int k = 0; k < p->rank && k < MAX_RANK; k++) {
        int more = 0;
        sscanf(text + at, "%ld%n", &p->dims[k], &more);
        at += more;
    }
    snprintf(p->name, sizeof p->name, "%s", text[at] ? text + at + 1 : "");
}

static void read_gears(const char *text, Model *m) {
    int at = 0;
    sscanf(text, "%15s%n", m->gears, &at);
    for (int more; sscanf(text + at, " %n", &more) == 0 && text[at + more] && m->gear_count < MAX_GEARS; m->gear_count++) {
        at += more;
        m->gear_dims = 0;
        do {
            sscanf(text + at, "%ld%n", &m->gear[m->gear_count][m->gear_dims++], &more);
            at += more;
        } while (text[at] == ',' && at++);
    }
}

static char *read_file(const char *path, size_t *size);

/* A model from a file may have the rest of its payload in `weight` beside it. */
static Model *read_model(const char *data, size_t size, const char *call, const char *path) {
    static char line[1 << 16], outside[256], where[4096];
    const char *p = data, *end = data + size;
    Model found = {.inputs = 0};
    outside[0] = 0;
    p = next_line(p, end, line, sizeof line);
    if (!p || strcmp(line, "standin-om 1")) {
        fail(100012, "E19999: %s: this is no compiled model", call);
        return NULL;
    }
    while ((p = next_line(p, end, line, sizeof line)) && strncmp(line, "payload ", 8)) {
        if (!strncmp(line, "soc ", 4)) snprintf(found.soc, sizeof found.soc, "%.60s", line + 4);
        if (!strncmp(line, "memory ", 7)) sscanf(line + 7, "%zu %zu", &found.work, &found.weight);
        if (!strncmp(line, "outside ", 8)) snprintf(outside, sizeof outside, "%.200s", line + 8);
        if (!strncmp(line, "gears ", 6)) read_gears(line + 6, &found);
        if (!strncmp(line, "input ", 6)) read_port(line + 6, &found.input[found.inputs++]);
        if (!strncmp(line, "output ", 7)) read_port(line + 7, &found.output[found.outputs++]);
    }
    if (!p || (size_t)(end - p) != strtoul(line + 8, NULL, 10)) {
        fail(100012, "E19999: %s: the model is cut off", call);
        return NULL;
    }
    Model *m = make(MODEL, sizeof *m);
    const Thing thing = m->thing;
    *m = found;
    m->thing = thing;
    m->payload_size = (size_t)(end - p);
    m->payload = malloc(m->payload_size + 1);
    memcpy(m->payload, p, m->payload_size);
    if (outside[0]) {
        const char *slash = path ? strrchr(path, '/') : NULL;
        snprintf(where, sizeof where, "%.*s/weight/%s", path && slash ? (int)(slash - path) : 1, path && slash ? path : ".", outside);
        size_t more = 0;
        char *rest = path ? read_file(where, &more) : NULL;
        if (!rest) {
            fail(145000, "E19999: %s: no weights %s", call, path ? where : "of a model in memory");
            m->thing.alive = false;
            return NULL;
        }
        m->payload = realloc(m->payload, m->payload_size + more + 1);
        memcpy(m->payload + m->payload_size, rest, more);
        m->payload_size += more;
        free(rest);
    }
    return m;
}

static char *read_file(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*size + 1);
    if (fread(data, 1, *size, f) != *size) *size = 0;
    fclose(f);
    return data;
}

static aclError query(const char *data, size_t size, size_t *work, size_t *weight, const char *call, const char *path) {
    Model *m = read_model(data, size, call, path);
    if (!m) return 100012;
    *work = m->work;
    *weight = m->weight;
    m->thing.alive = false;
    return 0;
}

aclError aclmdlQuerySizeFromMem(const void *model, size_t size, size_t *work, size_t *weight) {
    CALL(aclmdlQuerySizeFromMem);
    return query(model, size, work, weight, "aclmdlQuerySizeFromMem", NULL);
}

aclError aclmdlQuerySize(const char *path, size_t *work, size_t *weight) {
    CALL(aclmdlQuerySize);
    size_t size = 0;
    char *data = read_file(path, &size);
    const aclError e = data ? query(data, size, work, weight, "aclmdlQuerySize", path) : fail(100003, "E10000: no file %s", path);
    free(data);
    return e;
}

static aclError load(const char *data, size_t size, uint32_t *id, void *work, size_t work_size, void *weight,
                     size_t weight_size, const char *call, const char *path) {
    if (!has_context(call)) return 107002;
    Model *m = read_model(data, size, call, path);
    if (!m) return 100012;
    m->thing.alive = false;
    if (m->soc[0] && strcmp(m->soc, state.soc))
        return fail(500002, "E40021: supported socVersion=%s, but the model socVersion=%s", state.soc, m->soc);
    if (work_size < m->work || weight_size < m->weight) return fail(145006, "E19999: too little memory for the model");
    if ((m->work && !on_device(work, work_size, call)) || (m->weight && !on_device(weight, weight_size, call))) return 145007;
    m->thing.alive = true;
    m->context = current;
    *id = m->id = ++state.models;
    return 0;
}

aclError aclmdlLoadFromMemWithMem(const void *model, size_t size, uint32_t *id, void *work, size_t work_size, void *weight,
                                  size_t weight_size) {
    CALL(aclmdlLoadFromMemWithMem);
    return load(model, size, id, work, work_size, weight, weight_size, "aclmdlLoadFromMemWithMem", NULL);
}

aclError aclmdlLoadFromFileWithMem(const char *path, uint32_t *id, void *work, size_t work_size, void *weight,
                                   size_t weight_size) {
    CALL(aclmdlLoadFromFileWithMem);
    size_t size = 0;
    char *data = read_file(path, &size);
    if (!data) return fail(100003, "E10000: no file %s", path);
    const aclError e = load(data, size, id, work, work_size, weight, weight_size, "aclmdlLoadFromFileWithMem", path);
    free(data);
    return e;
}

Model *find_model(uint32_t id, const char *call) {
    for (Thing *t = state.things; t; t = t->next)
        if (t->kind == MODEL && t->alive && ((Model *)t)->id == id) return (Model *)t;
    violation("%s: there is no model %u", call, id);
    fail(145003, "E19999: %s: no model %u", call, id);
    return NULL;
}

aclError aclmdlUnload(uint32_t id) {
    RELEASES(aclmdlUnload);
    Model *m = find_model(id, "aclmdlUnload");
    if (!m) return 145003;
    if (m->queued || m->busy) violation("aclmdlUnload of a model that is queued");
    if (m->context != current) violation("aclmdlUnload in another context than the load");
    m->thing.alive = false;
    return told_;
}

/* Descriptions. */

typedef struct {
    Thing thing;
    Model *model;
} Desc;

void *aclmdlCreateDesc(void) {
    MAKES(aclmdlCreateDesc, NULL);
    return make(DESC, sizeof(Desc));
}

aclError aclmdlDestroyDesc(void *desc) {
    RELEASES(aclmdlDestroyDesc);
    if (!is_alive(desc, DESC, "aclmdlDestroyDesc")) return 107017;
    ((Desc *)desc)->thing.alive = false;
    return told_;
}

aclError aclmdlGetDesc(void *desc, uint32_t id) {
    CALL(aclmdlGetDesc);
    Model *m = find_model(id, "aclmdlGetDesc");
    if (!m || !is_alive(desc, DESC, "aclmdlGetDesc")) return 145003;
    ((Desc *)desc)->model = m;
    return 0;
}

const Model *described(const void *desc, const char *call) {
    if (!is_alive(desc, DESC, call)) return NULL;
    const Model *m = ((const Desc *)desc)->model;
    if (!m) violation("%s before aclmdlGetDesc", call);
    return m;
}

bool has_gears(const Model *m) { return m->gear_count > 0; }

size_t aclmdlGetNumInputs(void *desc) {
    MAKES(aclmdlGetNumInputs, 0);
    const Model *m = described(desc, "aclmdlGetNumInputs");
    return m ? (size_t)(m->inputs + has_gears(m)) : 0;
}

size_t aclmdlGetNumOutputs(void *desc) {
    MAKES(aclmdlGetNumOutputs, 0);
    const Model *m = described(desc, "aclmdlGetNumOutputs");
    return m ? (size_t)m->outputs : 0;
}

/* Extents of an input in a gear; for `dims` a gear has all extents of all inputs in a row. */
void geared(const Model *m, int input, int gear, int64_t *dims) {
    const Port *p = &m->input[input];
    int at = 0;
    for (int k = 0; k < input && !strcmp(m->gears, "dims"); k++) at += m->input[k].rank;
    for (int k = 0, free_dim = 0; k < p->rank; k++) {
        const bool all = !strcmp(m->gears, "dims");
        dims[k] = all ? m->gear[gear][at + k] : p->dims[k] < 0 ? m->gear[gear][free_dim++] : p->dims[k];
    }
}

/* Bytes of a port at the largest gear; for outputs the model says what each -1 is at most, by the first gear value. */
static size_t largest(const Model *m, const Port *p, int input) {
    int64_t dims[MAX_RANK];
    size_t best = 0;
    bool open = false;
    for (int k = 0; k < p->rank; k++) open |= p->dims[k] < 0;
    if (!open) return bytes_of(p->dtype, p->rank, p->dims);
    for (int g = 0; g < m->gear_count; g++) {
        if (input >= 0)
            geared(m, input, g, dims);
        else
            for (int k = 0, f = 0; k < p->rank; k++) dims[k] = p->dims[k] < 0 ? m->gear[g][f++] : p->dims[k];
        const size_t n = bytes_of(p->dtype, p->rank, dims);
        if (n > best) best = n;
    }
    return best;
}

static const Port *port(const void *desc, size_t index, bool input, const char *call) {
    const Model *m = described(desc, call);
    if (!m || index >= (size_t)(input ? m->inputs : m->outputs)) return NULL;
    return input ? &m->input[index] : &m->output[index];
}

static bool is_gear_input(const void *desc, size_t index, const char *call) {
    const Model *m = described(desc, call);
    return m && has_gears(m) && index == (size_t)m->inputs;
}

size_t aclmdlGetInputSizeByIndex(void *desc, size_t index) {
    MAKES(aclmdlGetInputSizeByIndex, 0);
    if (is_gear_input(desc, index, "aclmdlGetInputSizeByIndex")) return 8 * MAX_GEAR_DIMS;
    const Port *p = port(desc, index, true, "aclmdlGetInputSizeByIndex");
    return p ? largest(((Desc *)desc)->model, p, (int)index) : 0;
}

size_t aclmdlGetOutputSizeByIndex(void *desc, size_t index) {
    MAKES(aclmdlGetOutputSizeByIndex, 0);
    const Port *p = port(desc, index, false, "aclmdlGetOutputSizeByIndex");
    return p ? largest(((Desc *)desc)->model, p, -1) : 0;
}

aclError give_dims(const Port *p, IODims *dims) {
    if (!p) return fail(100000, "EE1001: no such tensor");
    memset(dims, 0, sizeof *dims);
    snprintf(dims->name, sizeof dims->name, "%s", p->name);
    dims->count = (size_t)p->rank;
    memcpy(dims->dims, p->dims, sizeof p->dims);
    return 0;
}

aclError aclmdlGetInputDims(const void *desc, size_t index, IODims *dims) {
    CALL(aclmdlGetInputDims);
    const Port hidden = {.rank = 1, .dims = {MAX_GEAR_DIMS}};
    if (is_gear_input(desc, index, "aclmdlGetInputDims")) return give_dims(&hidden, dims);
    return give_dims(port(desc, index, true, "aclmdlGetInputDims"), dims);
}

aclError aclmdlGetOutputDims(const void *desc, size_t index, IODims *dims) {
    CALL(aclmdlGetOutputDims);
    return give_dims(port(desc, index, false, "aclmdlGetOutputDims"), dims);
}

aclError aclmdlGetCurOutputDims(const void *desc, size_t index, IODims *dims) {
    CALL(aclmdlGetCurOutputDims);
    const Port *p = port(desc, index, false, "aclmdlGetCurOutputDims");
    return give_dims(p ? &((const Desc *)desc)->model->last[index] : NULL, dims);
}

const char *aclmdlGetInputNameByIndex(const void *desc, size_t index) {
    MAKES(aclmdlGetInputNameByIndex, NULL);
    if (is_gear_input(desc, index, "aclmdlGetInputNameByIndex")) return GEAR_INPUT;
    const Port *p = port(desc, index, true, "aclmdlGetInputNameByIndex");
    return p ? p->name : NULL;
}

const char *aclmdlGetOutputNameByIndex(const void *desc, size_t index) {
    MAKES(aclmdlGetOutputNameByIndex, NULL);
    const Port *p = port(desc, index, false, "aclmdlGetOutputNameByIndex");
    return p ? p->name : NULL;
}

int aclmdlGetInputDataType(const void *desc, size_t index) {
    MAKES(aclmdlGetInputDataType, -1);
    const Port *p = port(desc, index, true, "aclmdlGetInputDataType");
    return p ? p->dtype : is_gear_input(desc, index, "aclmdlGetInputDataType") ? 9 : -1;
}

int aclmdlGetOutputDataType(const void *desc, size_t index) {
    MAKES(aclmdlGetOutputDataType, -1);
    const Port *p = port(desc, index, false, "aclmdlGetOutputDataType");
    return p ? p->dtype : -1;
}

int aclmdlGetInputFormat(const void *desc, size_t index) {
    MAKES(aclmdlGetInputFormat, -1);
    const Port *p = port(desc, index, true, "aclmdlGetInputFormat");
    return p ? p->format : 2;
}
