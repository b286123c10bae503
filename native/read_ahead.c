/* Experts that lie in a mapped file, read ahead of the products that use them: a page that is missing
 * stops a thread, so that one disk access follows another; told early, the system has many under way. */
#include "ggml.h"

#include <stdint.h>
#include <string.h>

#define HIDDEN __attribute__((visibility("hidden")))

#if defined(_WIN32)
static void read_ahead(const struct ggml_tensor * weight, int64_t expert) {}
#else
#include <sys/mman.h>
#include <unistd.h>

static void read_ahead(const struct ggml_tensor * weight, int64_t expert) {
    uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t) weight->data + (size_t) expert * weight->nb[2];
    uintptr_t end = begin + weight->nb[2];
    begin &= ~(page - 1);
    madvise((void *) begin, end - begin, MADV_WILLNEED); /* advice: its failure changes nothing */
}
#endif

struct ggmodel_layer_experts { /* of one layer */
    uint8_t * chosen;         /* by expert: whether the last run chose it */
    const uint8_t * expected; /* the same of the layer that comes next */
    int weights;              /* of this layer; the further sources of a node are the next one's */
};

/* Whether at most half of a layer's experts were chosen: by a prompt all are, of which the next token needs few. */
static int are_few(const uint8_t * chosen, int64_t experts) {
    int64_t count = 0;
    for (int64_t e = 0; e < experts; e++) {
        count += chosen[e];
    }
    return 2 * count <= experts;
}

/* dst I32 [used, n], a copy of the ids that are src[0]; src[1…] weights [k, m, experts], as many of a layer. */
HIDDEN void ggmodel_read_ahead(struct ggml_tensor * dst, int ith, int nth, void * of_layer) {
    (void) nth;
    if (ith) {
        return;
    }
    const struct ggmodel_layer_experts * layer = of_layer;
    const struct ggml_tensor * ids = dst->src[0];
    int64_t experts = dst->src[1]->ne[2];
    memset(layer->chosen, 0, (size_t) experts);
    for (int64_t i = 0; i < ids->ne[1]; i++) {
        const char * row = (const char *) ids->data + i * ids->nb[1];
        int32_t * copy = (int32_t *) ((char *) dst->data + i * dst->nb[1]);
        for (int64_t j = 0; j < ids->ne[0]; j++) {
            copy[j] = *(const int32_t *) (row + j * ids->nb[0]);
            if (copy[j] >= 0 && copy[j] < experts) {
                layer->chosen[copy[j]] = 1;
            }
        }
    }
    for (int i = 1; i < GGML_MAX_SRC && dst->src[i]; i++) {
        int own = i <= layer->weights;
        const uint8_t * needed = own ? layer->chosen : layer->expected;
        experts = own || are_few(needed, dst->src[i]->ne[2]) ? dst->src[i]->ne[2] : 0;
        for (int64_t e = 0; e < experts; e++) {
            if (needed[e]) {
                read_ahead(dst->src[i], e);
            }
        }
    }
}
