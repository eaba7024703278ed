// A model without its runs: its ports and weights, built from the facts in its library.
#include "machine.h"
#include "model.h"

#include <cstring>

namespace occ::runtime {

occ_model *empty_model() {
    return static_cast<occ_model *>(zeroed_memory(sizeof(occ_model)));
}

// The ports of some rows, followed by their extents and symbols in one piece of memory.
static void fill_ports(const Facts *facts, Rows rows, occ_port *ports, int64_t *&extents, const char **&symbols) {
    for (uint32_t k = 0; k < rows.count; k++) {
        const PortFacts &p = facts->rows<PortFacts>(rows)[k];
        const int32_t rank = p.dtype & kRankOfARun ? -1 : int32_t(p.extents.count);
        ports[k] = {facts->text(p.name), occ_dtype(p.dtype & ~(kRankOfARun | kExtentsOfARun)), rank, extents, symbols};
        for (uint32_t a = 0; a < p.extents.count; a++) {
            const ExtentFacts &e = facts->rows<ExtentFacts>(p.extents)[a];
            *extents++ = e.value;
            *symbols++ = e.symbol ? facts->text(e.symbol) : nullptr;
        }
    }
}

static size_t extents_of(const Facts *facts, Rows rows) {
    size_t n = 0;
    for (uint32_t k = 0; k < rows.count; k++) n += facts->rows<PortFacts>(rows)[k].extents.count;
    return n;
}

int check_features(const occ_model *m) {
    const char *name = missing_feature(m->facts->text(m->facts->machine));
    if (!name) return OCC_OK;
    return fail(nullptr, OCC_ERROR_UNSUPPORTED, "`%s` was built for a processor with %s, which this one lacks%s",
                m->facts->text(m->facts->name), name, refused(name));
}

int prepare_model(occ_model *m) {
    const Facts *f = m->facts;
    if (f->magic != kFactsMagic || f->version != kFactsVersion) {
        return fail(nullptr, OCC_ERROR_UNSUPPORTED, "the model was built for another version of libocc: build it again");
    }
    if (f->refusal) return fail(nullptr, OCC_ERROR_UNSUPPORTED, "%s", f->text(f->refusal));
    m->input_extents = extents_of(f, f->inputs);
    m->output_extents = extents_of(f, f->outputs);
    m->output_results = m->output_extents;
    for (uint32_t k = 0; k < f->outputs.count; k++) {
        const uint32_t kind = f->rows<PortFacts>(f->outputs)[k].dtype;
        if (kind & kRankOfARun) m->output_results += 1 + OCC_MAX_RANK;
        if (kind & kExtentsOfARun) m->data_dependent_extents = true;
    }
    const size_t count = f->inputs.count + f->outputs.count, all = m->input_extents + m->output_extents;
    const size_t ports = (count * sizeof(occ_port) + 7) / 8 * 8;  // extents follow them, aligned
    m->ports = static_cast<occ_port *>(aligned_memory(ports + all * (sizeof(int64_t) + sizeof(char *)) + 1));
    m->weights = static_cast<const void **>(aligned_memory((f->weights.count + 1) * sizeof(void *)));
    if (!m->ports || !m->weights) return fail(nullptr, OCC_ERROR_MEMORY, "there is no memory for a model");
    int64_t *extents = reinterpret_cast<int64_t *>(reinterpret_cast<char *>(m->ports) + ports);
    const char **symbols = reinterpret_cast<const char **>(extents + all);
    fill_ports(f, f->inputs, m->ports, extents, symbols);
    fill_ports(f, f->outputs, m->ports + f->inputs.count, extents, symbols);
    for (size_t k = 0; k < count; k++) {
        if (m->ports[k].rank > OCC_MAX_RANK) {
            return fail(nullptr, OCC_ERROR_UNSUPPORTED, "`%s` has rank %d, occ_tensor holds %d extents", m->ports[k].name,
                        m->ports[k].rank, OCC_MAX_RANK);
        }
    }
    m->threads = has_reserve() ? 1 : default_threads();  // it reads files
    return OCC_OK;
}

int use_weights(occ_model *m, Bytes bytes) {
    const WeightFacts *rows = m->facts->rows<WeightFacts>(m->facts->weights);
    const uint32_t count = m->facts->weights.count;
    size_t end = 0;
    for (uint32_t k = 0; k < count; k++) end = rows[k].offset + rows[k].bytes > end ? rows[k].offset + rows[k].bytes : end;
    if (bytes.size < end) {
        return fail(nullptr, OCC_ERROR_DAMAGED, "the weights of `%s` have %zu bytes, the model takes %zu: build it again",
                    occ_name(m), bytes.size, end);
    }
    m->weights_bytes = bytes;
    const unsigned char *base = bytes.data;
    if (end && reinterpret_cast<uintptr_t>(base) % kAlignment) {
        m->weights_copy = aligned_memory(end);
        if (!m->weights_copy) return fail(nullptr, OCC_ERROR_MEMORY, "there is no memory for %zu bytes of weights", end);
        base = static_cast<unsigned char *>(memcpy(m->weights_copy, base, end));
    }
    for (uint32_t k = 0; k < count; k++) m->weights[k] = base + rows[k].offset;
    return OCC_OK;
}

}  // namespace occ::runtime

using namespace occ::runtime;

extern "C" {

void occ_close(occ_model *m) {
    if (!m) return;
    while (Block *b = m->idle) {
        m->idle = b->next;
        free_memory(b->scratch);
        free_memory(b);
    }
    m->weights_file.release();
    m->file.release();
    free_memory(m->weights_copy);
    free_memory(m->weights);
    free_memory(m->ports);
    if (m->unload) m->unload(m);
    free_memory(m);
}

const char *occ_name(const occ_model *m) { return m ? m->facts->text(m->facts->name) : ""; }
size_t occ_inputs(const occ_model *m) { return m ? m->facts->inputs.count : 0; }
size_t occ_outputs(const occ_model *m) { return m ? m->facts->outputs.count : 0; }

const occ_port *occ_input(const occ_model *m, size_t index) { return index < occ_inputs(m) ? m->ports + index : nullptr; }

const occ_port *occ_output(const occ_model *m, size_t index) {
    return index < occ_outputs(m) ? m->ports + occ_inputs(m) + index : nullptr;
}

size_t occ_element_size(int32_t dtype) {
    static const unsigned char sizes[] = {0, 4, 8, 2, 2, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16};
    if (dtype <= OCC_ANY || dtype > OCC_U2) return 0;
    return size_t(dtype) < sizeof sizes ? sizes[dtype] : 1;
}

int occ_set_threads(occ_model *m, int threads) {
    if (!m) return fail(nullptr, OCC_ERROR_ARGUMENT, "the model is null");
    if (threads < 1) return fail(m, OCC_ERROR_ARGUMENT, "threads is %d: use at least 1", threads);
    m->threads = threads;
    return OCC_OK;
}

int occ_set_parallel(occ_model *m, occ_parallel_for loop, void *context) {
    if (!m) return fail(nullptr, OCC_ERROR_ARGUMENT, "the model is null");
    m->parallel = loop;
    m->context = context;
    return OCC_OK;
}

int occ_verify(const occ_model *m) {
    if (!m) return fail(nullptr, OCC_ERROR_ARGUMENT, "the model is null");
    if (!m->facts->weights.count) return OCC_OK;
    char found[65];
    sha256_hex(m->weights_bytes.data, m->weights_bytes.size, found);
    if (!strcmp(found, m->weights_digest)) return OCC_OK;
    return fail(m, OCC_ERROR_DAMAGED, "the weights of `%s` do not match their digest: build it again", occ_name(m));
}

}  // extern "C"
