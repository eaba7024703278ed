/* acl_base.h and acl_op.h: buffers, datasets, tensor descriptions and single operators. */
#include "standin.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *aclCreateDataBuffer(void *data, size_t size) {
    MAKES(aclCreateDataBuffer, NULL);
    Buffer *b = make(BUFFER, sizeof *b);
    b->data = data;
    b->size = size;
    return b;
}

aclError aclDestroyDataBuffer(void *buffer) {
    RELEASES(aclDestroyDataBuffer);
    if (!is_alive(buffer, BUFFER, "aclDestroyDataBuffer")) return 107017;
    ((Buffer *)buffer)->thing.alive = false;
    return told_;
}

void *aclmdlCreateDataset(void) {
    MAKES(aclmdlCreateDataset, NULL);
    Dataset *d = make(DATASET, sizeof *d);
    d->gear = -1;
    return d;
}

aclError aclmdlDestroyDataset(void *dataset) {
    RELEASES(aclmdlDestroyDataset);
    if (!is_alive(dataset, DATASET, "aclmdlDestroyDataset")) return 107017;
    if (((Dataset *)dataset)->queued) violation("aclmdlDestroyDataset while it is queued");
    Dataset *d = dataset;
    for (int k = 0; k < MAX_TENSORS; k++)
        if (d->owns >> k & 1) d->tensors[k]->thing.alive = false;
    d->thing.alive = false;
    return told_;
}

aclError aclmdlAddDatasetBuffer(void *dataset, void *buffer) {
    CALL(aclmdlAddDatasetBuffer);
    if (!is_alive(dataset, DATASET, "aclmdlAddDatasetBuffer") || !is_alive(buffer, BUFFER, "aclmdlAddDatasetBuffer")) return 107017;
    Dataset *d = dataset;
    d->buffers[d->count++] = buffer;
    return 0;
}

void *aclCreateTensorDesc(int dtype, int rank, const int64_t *dims, int format) {
    MAKES(aclCreateTensorDesc, NULL);
    Tensor *t = make(TENSOR, sizeof *t);
    t->dtype = dtype;
    t->rank = rank;
    t->format = format;
    if (rank) memcpy(t->dims, dims, sizeof(int64_t) * (size_t)rank);
    return t;
}

void aclDestroyTensorDesc(void *desc) {
    LOCKED;
    begin("aclDestroyTensorDesc", true);
    if (is_alive(desc, TENSOR, "aclDestroyTensorDesc")) ((Tensor *)desc)->thing.alive = false;
}

aclError aclmdlSetDatasetTensorDesc(void *dataset, void *desc, size_t index) {
    CALL(aclmdlSetDatasetTensorDesc);
    if (!is_alive(dataset, DATASET, "aclmdlSetDatasetTensorDesc") || !is_alive(desc, TENSOR, "aclmdlSetDatasetTensorDesc")) return 107017;
    ((Dataset *)dataset)->tensors[index] = desc;
    return 0;
}

void *aclmdlGetDatasetTensorDesc(const void *dataset, size_t index) {
    MAKES(aclmdlGetDatasetTensorDesc, NULL);
    if (!is_alive(dataset, DATASET, "aclmdlGetDatasetTensorDesc")) return NULL;
    return ((const Dataset *)dataset)->tensors[index];
}

size_t aclGetTensorDescNumDims(const void *desc) {
    MAKES(aclGetTensorDescNumDims, 0);
    return is_alive(desc, TENSOR, "aclGetTensorDescNumDims") ? (size_t)((const Tensor *)desc)->rank : 0;
}

aclError aclGetTensorDescDimV2(const void *desc, size_t index, int64_t *extent) {
    CALL(aclGetTensorDescDimV2);
    if (!is_alive(desc, TENSOR, "aclGetTensorDescDimV2")) return 107017;
    *extent = ((const Tensor *)desc)->dims[index];
    return 0;
}
