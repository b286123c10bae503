/* Common to the instruction sets of attention: see attention.c. */

#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ggml.h"

#define HIDDEN __attribute__((visibility("hidden")))

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 9)
#define ATTENTION_X86
#elif defined(__aarch64__)
#define ATTENTION_ARM
#endif

#define CELLS   64 /* positions of a block */
#define LANES   16 /* sums of weights, and what a row's floats are a multiple of */
#define QUERIES 32 /* of a tile, which share what a block's cells become */
#define TOGETHER 4 /* queries that are computed at once */
#define AHEAD   12 /* cells from the one that is read to one that is fetched */

/* An operand in rows [d] by cell: keys or values. */
struct rows_of {
    const char * data;
    size_t cell, bytes; /* between cells, and of one row */
    enum ggml_type type;
    int width;
};

struct attention {
    struct rows_of key, value; /* of one head */
    int key_width, key_stride, value_stride; /* floats: strides are multiples of LANES */
    const int32_t * cells; /* by position from `base` on; NULL: a position is its cell's number */
    int64_t base, length;
    float scale, softcap;
    bool ordered; /* the sums of a query have one order, whatever is computed beside it */
};

/* One row of a batch for one head. */
struct query {
    const float * data;
    float * to;
    int64_t from, end; /* the positions that it sees */
    int64_t position; /* its own */
    float slope; /* of ALiBi: what a score loses by distance; 0 is none */
    const float * sink; /* or NULL */
    const void * mask; /* by cell, F16 or F32, added; or NULL */
    bool half; /* the mask is F16 */
    const float * bias; /* by cell, for the first `biased` cells: others are not seen; or NULL */
    int64_t biased;
    const struct attention * of;
};

/* The memory of one thread. */
struct tile_memory {
    float * rows, * keys, * scores, * results, * maximum, * sums;
};

/* Attention of `n` queries of a tile, which read the same keys and values of positions from `from` to `to`. */
typedef void attend_function(const struct attention * of, struct query * queries, int n, int64_t from, int64_t to,
                             struct tile_memory m);

extern HIDDEN attend_function ggmodel_attend_plain, ggmodel_attend_avx2, ggmodel_attend_avx512, ggmodel_attend_neon;

static inline int64_t cell_of(const struct attention * of, int64_t position) {
    if (!of->cells) {
        return position;
    }
    int64_t i = position - of->base;
    return i >= 0 && i < of->length ? of->cells[i] : -1;
}

/* The range of a block, beginning at position `first`, that a query sees. */
static inline int seen_from(const struct query * q, int64_t first) {
    return q->from <= first ? 0 : q->from - first < CELLS ? (int) (q->from - first) : CELLS;
}

static inline int seen_to(const struct query * q, int64_t first) {
    return q->end >= first + CELLS ? CELLS : q->end > first ? (int) (q->end - first) : 0;
}
