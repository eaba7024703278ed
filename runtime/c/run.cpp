// Runs: checks, memory, one call of the native entry, and texts of errors.
#include "model.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace occ::runtime;

namespace {

constexpr int kNoMemory = -11;  // of a kernel, see scratch.h
constexpr int32_t kOutput = 3;  // the request for memory for an output, see docs/native.md
constexpr int64_t kOpen = -2;   // instead of the bytes of an output whose extents are unbounded before a run

Block *new_block(const occ_model *m) {
    const size_t n = m->facts->inputs.count, o = m->facts->outputs.count;
    const size_t numbers = m->input_extents + m->output_results + o;
    Block *b = static_cast<Block *>(zeroed_memory(sizeof(Block) + 8 * numbers + sizeof(void *) * (n + o)));
    if (!b) return nullptr;
    b->extents = reinterpret_cast<int64_t *>(b + 1);
    b->results = b->extents + m->input_extents;
    b->room = b->results + m->output_results;
    b->inputs = reinterpret_cast<const void **>(b->room + o);
    b->outputs = const_cast<void **>(b->inputs + n);
    b->call.abi = OCC_ABI;
    b->call.weights = m->weights;
    b->call.extents = b->extents;
    b->call.results = b->results;
    b->call.room = b->room;
    b->call.inputs = b->inputs;
    b->call.outputs = b->outputs;
    return b;
}

bool is_of(const Block *b, const occ_tensor *inputs, size_t n) {
    const int64_t *at = b->extents;
    for (size_t k = 0; k < n; at += inputs[k++].rank) {
        if (memcmp(at, inputs[k].extents, size_t(inputs[k].rank) * 8)) return false;
    }
    return b->known;
}

// An idle block, of the same extents if there is one; it belongs to the caller until `put_back`.
Block *take_block(occ_model *m, const occ_tensor *inputs, size_t n) {
    lock_idle();
    Block **found = &m->idle;
    for (Block **at = &m->idle; *at; at = &(*at)->next) {
        if (is_of(*at, inputs, n)) {
            found = at;
            break;
        }
    }
    Block *b = *found;
    if (b) *found = b->next;
    unlock_idle();
    return b ? b : new_block(m);
}

void put_back(occ_model *m, Block *b) {
    lock_idle();
    b->next = m->idle;
    m->idle = b;
    unlock_idle();
}

// Elements of a tensor; -1 for invalid extents.
int64_t elements(int32_t rank, const int64_t *extents) {
    int64_t n = 1;
    bool empty = false;
    for (int32_t a = 0; a < rank; a++) {
        if (extents[a] < 0) return -1;
        empty |= extents[a] == 0;
        if (!empty && __builtin_mul_overflow(n, extents[a], &n)) return -1;
    }
    return empty ? 0 : n;
}

const char *name_of(int32_t dtype) {
    static const char *const names[] = {"any", "f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32",
                                        "u64", "bool", "c64", "c128", "f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz",
                                        "f8e8m0", "f6e2m3fn", "f6e3m2fn", "f4e2m1", "i4", "u4", "i2", "u2"};
    return dtype >= 0 && dtype <= OCC_U2 ? names[dtype] : "no element type";
}

int check_counts(const occ_model *m, const void *inputs, size_t n, const void *outputs, size_t o) {
    if (!m) return fail(nullptr, OCC_ERROR_ARGUMENT, "the model is null");
    if (n != occ_inputs(m) || o != occ_outputs(m)) {
        return fail(m, OCC_ERROR_ARGUMENT, "`%s` has %zu inputs and %zu outputs, not %zu and %zu", occ_name(m), occ_inputs(m),
                    occ_outputs(m), n, o);
    }
    if ((n && !inputs) || (o && !outputs)) return fail(m, OCC_ERROR_ARGUMENT, "the tensors are null");
    return OCC_OK;
}

int check_input(const occ_model *m, const occ_port &p, const occ_tensor &t, bool with_data) {
    if (t.rank != p.rank) {
        return fail(m, OCC_ERROR_INPUT, "the input `%s` has rank %d, the model takes %d", p.name, t.rank, p.rank);
    }
    if (t.dtype != OCC_ANY && t.dtype != int32_t(p.dtype)) {
        return fail(m, OCC_ERROR_INPUT, "the input `%s` is %s, the model takes %s", p.name, name_of(t.dtype), name_of(p.dtype));
    }
    const int64_t n = elements(t.rank, t.extents), size = int64_t(occ_element_size(p.dtype));
    if (n < 0 || n > INT64_MAX / size) return fail(m, OCC_ERROR_INPUT, "the input `%s` has impossible extents", p.name);
    if (with_data && n && !t.data) return fail(m, OCC_ERROR_ARGUMENT, "the data of the input `%s` are null", p.name);
    if (with_data && t.bytes && t.bytes < size_t(n * size)) {
        return fail(m, OCC_ERROR_INPUT, "the input `%s` has %zu bytes, its extents need %lld", p.name, t.bytes,
                    (long long)(n * size));
    }
    return OCC_OK;
}

// Names the axis that gave a symbol its value: the first that has it.
void tell_origin(const occ_model *m, const Block *b, const ConditionFacts &c, char *text, size_t size) {
    const char *symbol = m->ports[c.input].symbols[c.axis];
    const int64_t *at = b->extents;
    for (int k = 0; symbol && k <= c.input; at += m->ports[k++].rank) {
        const occ_port &p = m->ports[k];
        for (int a = 0; a < p.rank && (k < c.input || a < c.axis); a++) {
            if (!p.symbols[a] || strcmp(p.symbols[a], symbol)) continue;
            snprintf(text, size, ", which is %lld by axis %d of `%s`", (long long)at[a], a, p.name);
            return;
        }
    }
}

// The condition on the extents that failed.
int unfit(const occ_model *m, const Block *b) {
    const uint32_t number = uint32_t(b->call.detail) - 1;
    if (number >= m->facts->conditions.count) return fail(m, OCC_ERROR_INPUT, "the extents of the inputs do not fit the model");
    const ConditionFacts &c = m->facts->rows<ConditionFacts>(m->facts->conditions)[number];
    const char *text = m->facts->text(c.text);
    if (c.input < 0) return fail(m, OCC_ERROR_INPUT, "%s", text);
    const int64_t *at = b->extents;
    for (int k = 0; k < c.input; k++) at += m->ports[k].rank;
    char origin[256] = "";
    tell_origin(m, b, c, origin, sizeof origin);
    return fail(m, OCC_ERROR_INPUT, "axis %d of the input `%s` is %lld, %s%s", c.axis, m->ports[c.input].name,
                (long long)at[c.axis], text, origin);
}

// Describes what failed in a run.
int explain(const occ_model *m, int32_t code, const Block *b) {
    if (code == OCC_INPUTS) return unfit(m, b);
    if (code == OCC_VERSION) return fail(m, OCC_ERROR_UNSUPPORTED, "`%s` has another native entry: build it again", occ_name(m));
    const Facts *f = m->facts;
    const char *nodes = "?";
    if (uint32_t(b->call.plan) < f->plans.count) {
        const Rows steps = f->rows<Rows>(f->plans)[b->call.plan];
        if (uint32_t(b->call.step) < steps.count) {
            const StepFacts &s = f->rows<StepFacts>(steps)[b->call.step];
            nodes = f->text(s.nodes);
            const uint32_t check = uint32_t(b->call.detail) - 1;
            if (code == OCC_CHECK && check < s.checks.count) {
                return fail(m, OCC_ERROR_RUN, "%s", f->text(f->rows<uint32_t>(s.checks)[check]));
            }
        }
    }
    if (code == OCC_HOST) return fail(m, OCC_ERROR_UNSUPPORTED, "node `%s` needs Python", nodes);
    if (code == OCC_NO_MEMORY) return fail(m, OCC_ERROR_MEMORY, "there is no memory for a size computed by the run");
    if (code == OCC_MISFIT && b->call.detail == 1) {
        const long long found = b->call.got, most = b->call.wanted;
        const char *limit = found < 0 ? "least" : "most";
        return fail(m, OCC_ERROR_RUN, "the operands of node `%s` require an extent of %lld, but the %s is %lld", nodes,
                    found, limit, found < 0 ? 0 : most);
    }
    if (code == OCC_MISFIT) return fail(m, OCC_ERROR_RUN, "node `%s` returned other sizes than the model declares", nodes);
    if (b->call.detail == kNoMemory) {
        return fail(m, OCC_ERROR_MEMORY, "there is no scratch memory for the kernel of node `%s`", nodes);
    }
    const char *said = m->message ? m->message() : "";
    if (*said) return fail(m, OCC_ERROR_RUN, "the kernel of node `%s` failed: %s", nodes, said);
    return fail(m, OCC_ERROR_RUN, "the kernel of node `%s` failed: code %d", nodes, b->call.detail);
}

// Compute the sizes of outputs and of scratch memory from the extents of the inputs.
int learn(occ_model *m, Block *b, const occ_tensor *inputs, size_t n) {
    if (is_of(b, inputs, n)) return OCC_OK;
    int64_t *at = b->extents;
    for (size_t k = 0; k < n; at += inputs[k++].rank) memcpy(at, inputs[k].extents, size_t(inputs[k].rank) * 8);
    b->known = false;
    b->call.capacity = 0;
    b->call.threads = 1;
    const int32_t code = m->entry(&b->call);
    if (code != OCC_MEMORY) return explain(m, code, b);
    if (b->call.needed < 0) return fail(m, OCC_ERROR_MEMORY, "a run on these inputs needs more memory than can be addressed");
    b->known = true;
    return OCC_OK;
}

size_t rounded(size_t n) { return (n + kAlignment - 1) / kAlignment * kAlignment; }

bool is_aligned(const void *p) { return reinterpret_cast<uintptr_t>(p) % kAlignment == 0; }

// Bytes of a tensor; -1 if that overflows.
int64_t bytes_of(int32_t dtype, int32_t rank, const int64_t *extents) {
    const int64_t n = elements(rank, extents), size = int64_t(occ_element_size(dtype));
    return n < 0 || n > INT64_MAX / 2 / size ? -1 : n * size;
}

// Describe an output, and advance to the entry's report on the next one; returns its bytes, -1 on overflow, or kOpen.
int64_t describe(const occ_port &p, const int64_t *&results, occ_tensor &t) {
    const int64_t *extents = p.rank < 0 ? results + 1 : results;
    t.dtype = p.dtype;
    t.rank = p.rank < 0 ? int32_t(*results) : p.rank;
    memcpy(t.extents, extents, size_t(t.rank) * 8);
    results = p.rank < 0 ? extents + OCC_MAX_RANK : extents + p.rank;
    bool open = false;
    for (int32_t a = 0; a < t.rank; a++) {
        if (t.extents[a] != INT64_MIN) continue;
        t.extents[a] = -1;
        open = true;
    }
    return open ? kOpen : bytes_of(p.dtype, t.rank, t.extents);
}

int room_for(const occ_model *m, const occ_port &p, size_t size, occ_tensor &t) {
    if (!t.data && t.bytes == SIZE_MAX) {  // of NAME_run, if the library does not allocate
        if (!size) return OCC_OK;
        return fail(m, OCC_ERROR_ARGUMENT, "there is no memory for the output `%s`", p.name);
    }
    if (t.data && t.bytes >= size) return OCC_OK;
    if (t.data && !t.owned) {
        return fail(m, OCC_ERROR_CAPACITY, "the output `%s` needs %zu bytes, there are %zu", p.name, size, t.bytes);
    }
    if (t.owned) free_memory(t.data);
    t.bytes = rounded(size ? size : 1);
    t.data = aligned_memory(t.bytes + kAlignment);
    t.owned = t.data != nullptr;
    if (t.data) return OCC_OK;
    t.bytes = 0;
    return fail(m, OCC_ERROR_MEMORY, "there is no memory for the %zu bytes of the output `%s`", size, p.name);
}

// Point the call at the memory of outputs; misaligned ones get a staging buffer in scratch memory.
int place(occ_model *m, Block *b, occ_tensor *outputs, size_t o) {
    size_t needed = rounded(size_t(b->call.needed)) + kAlignment;
    const int64_t *results = b->results;
    for (size_t k = 0; k < o; k++) {
        const occ_port &p = m->ports[m->facts->inputs.count + k];
        const int64_t size = describe(p, results, outputs[k]);
        b->room[k] = -1;
        if (size == kOpen) {
            const bool usable = outputs[k].data && is_aligned(outputs[k].data);
            b->room[k] = usable ? int64_t(outputs[k].bytes) : 0;
            b->outputs[k] = usable ? outputs[k].data : nullptr;
            continue;
        }
        if (size < 0) return fail(m, OCC_ERROR_MEMORY, "the output `%s` would be too large", p.name);
        if (int status = room_for(m, p, size_t(size), outputs[k])) return status;
        if (!is_aligned(outputs[k].data)) needed += rounded(size_t(size)) + kAlignment;
    }
    if (b->capacity < needed) {
        free_memory(b->scratch);
        b->capacity = 0;
        b->scratch = aligned_memory(needed);
        if (!b->scratch) return fail(m, OCC_ERROR_MEMORY, "there is no memory for the %zu bytes of a run", needed);
        b->capacity = needed;
    }
    b->call.memory = b->scratch;
    b->call.capacity = b->call.needed;
    char *apart = static_cast<char *>(b->scratch) + rounded(size_t(b->call.needed)) + kAlignment;
    for (size_t k = 0; k < o; k++) {
        occ_tensor &t = outputs[k];
        if (b->room[k] >= 0) continue;
        b->outputs[k] = is_aligned(t.data) ? t.data : apart;
        if (b->outputs[k] == apart) {
            apart += rounded(size_t(elements(t.rank, t.extents)) * occ_element_size(t.dtype)) + kAlignment;
        }
    }
    return OCC_OK;
}

// `occ_call.context` during a run.
struct Run {
    occ_model *model;
    Block *block;
    occ_tensor *outputs;
    int status;  // of the last request
};

// Allocates an output whose extents are unbounded before the run; one at a misaligned address is copied at the end.
int make_room(const Run &run, size_t k, const int64_t *extents) {
    const occ_port &p = run.model->ports[run.model->facts->inputs.count + k];
    const int64_t size = bytes_of(p.dtype, p.rank, extents);
    if (size < 0) return fail(run.model, OCC_ERROR_MEMORY, "the output `%s` would be too large", p.name);
    occ_tensor &t = run.outputs[k];
    if (run.block->outputs[k] != t.data) free_memory(run.block->outputs[k]);
    run.block->outputs[k] = nullptr;  // memory of an earlier run, which room_for may free
    if (int status = room_for(run.model, p, size_t(size), t)) return status;
    run.block->outputs[k] = is_aligned(t.data) ? t.data : aligned_memory(rounded(size_t(size)) + kAlignment);
    if (run.block->outputs[k] || !size) return OCC_OK;
    return fail(run.model, OCC_ERROR_MEMORY, "there is no memory for the %lld bytes of the output `%s`", (long long)size, p.name);
}

// `occ_call.host`: the other requests are for Python, and a model that needs them is not opened.
int32_t answer(occ_call *call) {
    Run &run = *static_cast<Run *>(call->context);
    if (call->request != kOutput) return 0;
    run.status = make_room(run, size_t(call->step), call->sizes);
    call->detail -= 1;
    return run.status == OCC_OK;
}

// Copy the staged outputs to the caller's misaligned memory.
void give_back(Block *b, const occ_tensor *outputs, size_t o) {
    for (size_t k = 0; k < o; k++) {
        if (b->room[k] >= 0 && b->outputs[k] != outputs[k].data) free_memory(b->outputs[k]);
    }
}

// `occ_call.parallel`.
int32_t run_tasks(occ_call *call) { return 1 + occ_pool_tasks(call->kernel, call->arguments, call->tasks); }

int call_entry(occ_model *m, Block *b, occ_tensor *outputs) {
    Run run = {m, b, outputs, OCC_OK};
    b->call.context = &run;
    b->call.host = answer;
    const int threads = has_reserve() ? 1 : m->threads;  // stacks of threads are not part of reserved memory
    b->call.threads = threads;
    b->call.parallel = m->facts->ranged ? run_tasks : nullptr;
    const occ_lent lent = occ_lend({m->parallel, m->context, 0});
    const int before = occ_enter(threads);
    const int32_t code = m->entry(&b->call);
    occ_leave(before);
    const int failed = occ_lend(lent).failed;
    if (run.status) return run.status;
    if (code == OCC_KERNEL && b->call.detail == kNoMemory) return explain(m, code, b);
    if (failed == -1) return fail(m, OCC_ERROR_RUN, "the parallel loop of the caller ended before all its tasks had run");
    if (failed) return fail(m, OCC_ERROR_RUN, "the parallel loop of the caller returned %d", failed);
    return code ? explain(m, code, b) : OCC_OK;
}

int run_in(occ_model *m, Block *b, const occ_tensor *inputs, size_t n, occ_tensor *outputs, size_t o) {
    if (int status = learn(m, b, inputs, n)) return status;
    if (int status = place(m, b, outputs, o)) return status;
    for (size_t k = 0; k < n; k++) b->inputs[k] = inputs[k].data ? inputs[k].data : b->scratch;  // empty ones may be null
    if (m->data_dependent_extents) b->known = false;  // the entry's report before a run means something else
    if (int status = call_entry(m, b, outputs)) return give_back(b, outputs, o), status;
    if (m->data_dependent_extents) {
        const int64_t *results = b->results;
        for (size_t k = 0; k < o; k++) describe(m->ports[n + k], results, outputs[k]);
    }
    for (size_t k = 0; k < o; k++) {
        occ_tensor &t = outputs[k];
        if (b->outputs[k] != t.data) memcpy(t.data, b->outputs[k], size_t(elements(t.rank, t.extents)) * occ_element_size(t.dtype));
    }
    give_back(b, outputs, o);
    return OCC_OK;
}

int sizes_in(occ_model *m, Block *b, const occ_tensor *inputs, size_t n, occ_tensor *outputs, size_t o) {
    if (int status = learn(m, b, inputs, n)) return status;
    const int64_t *results = b->results;
    for (size_t k = 0; k < o; k++) {
        const occ_port &p = m->ports[n + k];
        const int64_t size = describe(p, results, outputs[k]);
        if (size < 0 && size != kOpen) return fail(m, OCC_ERROR_MEMORY, "the output `%s` would be too large", p.name);
        if (!outputs[k].data) outputs[k].bytes = size == kOpen ? 0 : size_t(size);
        outputs[k].by_data = (m->facts->rows<PortFacts>(m->facts->outputs)[k].dtype & kExtentsOfARun) != 0;
    }
    return OCC_OK;
}

// A run that fails has no results: no tensor shows those of an earlier run, or extents that are not known yet.
int or_clear(int status, const occ_model *m, occ_tensor *outputs, size_t o) {
    if (!status || !m || !outputs || o != m->facts->outputs.count) return status;
    for (size_t k = 0; k < o; k++) {
        const occ_port &p = m->ports[m->facts->inputs.count + k];
        outputs[k].dtype = p.dtype;
        outputs[k].rank = p.rank < 0 ? 1 : p.rank;
        memset(outputs[k].extents, 0, sizeof outputs[k].extents);
    }
    return status;
}

using Work = int(occ_model *, Block *, const occ_tensor *, size_t, occ_tensor *, size_t);

int with_block(Work *work, occ_model *m, const occ_tensor *inputs, size_t n, occ_tensor *outputs, size_t o, bool with_data) {
    if (int status = check_counts(m, inputs, n, outputs, o)) return status;
    for (size_t k = 0; k < n; k++) {
        if (int status = check_input(m, m->ports[k], inputs[k], with_data)) return status;
    }
    Block *b = take_block(m, inputs, n);
    if (!b) return fail(m, OCC_ERROR_MEMORY, "there is no memory for a run");
    const int status = work(m, b, inputs, n, outputs, o);
    put_back(m, b);
    return status;
}

}  // namespace

extern "C" int occ_run(occ_model *m, const occ_tensor *inputs, size_t n, occ_tensor *outputs, size_t o) {
    return or_clear(with_block(run_in, m, inputs, n, outputs, o, true), m, outputs, o);
}

extern "C" int occ_output_extents(occ_model *m, const occ_tensor *inputs, size_t n, occ_tensor *outputs, size_t o) {
    return with_block(sizes_in, m, inputs, n, outputs, o, false);
}
