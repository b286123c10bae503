/* Attention as a custom op of ggml: see ml/ggml/attention.py.

   A query sees a range of positions, whose keys and values lie in any cells. Positions are taken in
   blocks of CELLS that begin at multiples of it. A score is a sum by ascending dimension; in a block
   all scores are known before weights e^(score − the highest so far) are added up by position, each of
   LANES sums taking every LANES-th position. Results so far are scaled when the highest score grows.
   Each step is rounded once, as written here, so that all instruction sets give the same bits, whatever
   else is computed beside a query. Where that is not asked for, a query that is alone reads keys as they
   lie: its scores are added up in another order. A score that is NaN makes its query's result NaN. */

#include "attention.h"

#define TARGET
#define INLINE  static inline
#define VECTORS 1
#define ATTEND  ggmodel_attend_plain

#include "vectors.h"
#include "attention_tiles.h"

static attend_function * attend = ggmodel_attend_plain;

/* Chooses instructions, at most those asked for: 0 for every machine, 1 AVX2 or NEON, 2 AVX-512. */
HIDDEN int ggmodel_use_attention(int most) {
    int have = 0;
    attend = ggmodel_attend_plain;
#if defined(ATTENTION_ARM)
    if (most > 0) {
        have = 1;
        attend = ggmodel_attend_neon;
    }
#elif defined(ATTENTION_X86)
    if (most > 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        have = 1;
        attend = ggmodel_attend_avx2;
    }
    if (most > 1 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
        have = 2;
        attend = ggmodel_attend_avx512;
    }
#endif
    return have;
}

static int padded(int64_t n) {
    return (int) ((n + LANES - 1) / LANES * LANES);
}

HIDDEN size_t ggmodel_attention_bytes(int64_t key_width, int64_t value_width) {
    int wider = padded(key_width > value_width ? key_width : value_width);
    size_t floats = (size_t) CELLS * wider + (size_t) CELLS * padded(key_width) + QUERIES * CELLS +
                    (size_t) QUERIES * padded(value_width) + QUERIES + QUERIES * LANES;
    return floats * sizeof(float) + 64;
}

/* 2^(−max_bias · i / h) for i = 1 … h, as in ggml: heads beyond the largest power of two take the odd
   ones of twice as many. */
static float slope_of(float max_bias, int head, int heads) {
    int power = 1;
    while (2 * power <= heads) {
        power *= 2;
    }
    if (max_bias <= 0) {
        return 0;
    }
    float first = powf(2.0f, -max_bias / power), second = powf(2.0f, -max_bias / 2.0f / power);
    return head < power ? powf(first, head + 1) : powf(second, 2 * (head - power) + 1);
}

#define ROW 5 /* numbers of a row in `order`: where its list begins and ends, its first position, … */

/* The operands of one op. */
struct attention_operands {
    const struct ggml_tensor * q, * k, * v, * sinks, * bias, * mask;
    const int32_t * order, * lists;
    struct ggml_tensor * dst;
    float max_bias;
};

/* Query `row` of head h, of batch b. */
static struct query query_of(const struct attention_operands * x, const struct attention * of, int row, int h,
                             int64_t b) {
    const struct ggml_tensor * q = x->q, * bias = x->bias, * mask = x->mask;
    struct query one = {.of = of};
    one.data = (const float *) ((const char *) q->data + row * q->nb[1] + h * q->nb[2] + b * q->nb[3]);
    one.to = (float *) ((char *) x->dst->data + h * x->dst->nb[1] + row * x->dst->nb[2] + b * x->dst->nb[3]);
    one.from = x->order ? x->order[(size_t) ROW * row + 3] : 0;
    one.end = x->order ? x->order[(size_t) ROW * row + 4] : x->k->ne[1];
    one.position = one.end - 1;
    one.slope = slope_of(x->max_bias, h, (int) q->ne[2]);
    one.sink = x->sinks ? (const float *) x->sinks->data + h : NULL;
    if (bias) {
        one.bias = (const float *) ((const char *) bias->data + row * bias->nb[1] + h % bias->ne[2] * bias->nb[2]);
        one.biased = bias->ne[0];
    }
    if (mask && !x->order) {
        one.half = mask->type == GGML_TYPE_F16;
        one.mask = (const char *) mask->data + row * mask->nb[1] + h % mask->ne[2] * mask->nb[2] +
                   b % mask->ne[3] * mask->nb[3];
    }
    return one;
}

static struct rows_of rows_in(const struct ggml_tensor * x) {
    return (struct rows_of) {
        .cell = x->nb[1], .bytes = ggml_row_size(x->type, x->ne[0]), .type = x->type, .width = (int) x->ne[0]};
}

/* The sizes of attention, and one thread's memory. */
static struct attention attention_of(const struct attention_operands * x, const float * numbers) {
    struct attention of = {.scale = numbers[0], .softcap = numbers[1], .ordered = numbers[3] != 0};
    of.key_width = (int) x->q->ne[0];
    of.key_stride = padded(x->q->ne[0]);
    of.value_stride = padded(x->v->ne[0]);
    of.key = rows_in(x->k);
    of.value = rows_in(x->v);
    return of;
}

static struct tile_memory memory_of(const struct attention * of, const struct ggml_tensor * memory, int ith) {
    struct tile_memory m;
    int wider = of->key_stride > of->value_stride ? of->key_stride : of->value_stride;
    m.rows = (float *) (((uintptr_t) memory->data + ith * memory->nb[1] + 63) / 64 * 64);
    m.keys = m.rows + (size_t) CELLS * wider;
    m.scores = m.keys + (size_t) CELLS * of->key_stride;
    m.results = m.scores + QUERIES * CELLS;
    m.sums = m.results + (size_t) QUERIES * of->value_stride;
    m.maximum = m.sums + QUERIES * LANES;
    return m;
}

/* `some` queries of rows from `row` on, of one list, counted from the first head's; the number of keys'
   heads and batches is `kv`. */
static void attend_tile(const struct attention_operands * x, struct attention of, int row, int at, int some,
                        int64_t kv, struct tile_memory m) {
    struct query queries[QUERIES];
    int group = (int) (x->q->ne[2] / x->k->ne[2]);
    int64_t head = kv % x->k->ne[2], b = kv / x->k->ne[2], kb = b / (x->q->ne[3] / x->k->ne[3]);
    int64_t from = INT64_MAX, to = 0;
    of.key.data = (const char *) x->k->data + head * x->k->nb[2] + kb * x->k->nb[3];
    of.value.data = (const char *) x->v->data + head * x->v->nb[2] + kb * x->v->nb[3];
    if (x->order) {
        const int32_t * of_row = x->order + (size_t) ROW * row;
        of.cells = x->lists + of_row[0];
        of.length = of_row[1];
        of.base = of_row[2];
    }
    for (int i = 0; i < some; i++) {
        queries[i] = query_of(x, &of, row + (at + i) / group, (int) head * group + (at + i) % group, b);
        from = queries[i].from < from ? queries[i].from : from;
        to = queries[i].end > to ? queries[i].end : to;
    }
    attend(&of, queries, some, from, to, m);
}

/* The rows from `row` on that read one list. */
static int rows_alike(const struct attention_operands * x, int row) {
    int n = (int) x->q->ne[1], alike = 1;
    if (!x->order) {
        return n - row;
    }
    const int32_t * first = x->order + (size_t) ROW * row;
    while (row + alike < n && !memcmp(first, first + (size_t) ROW * alike, 3 * sizeof(*first))) {
        alike++;
    }
    return alike;
}

/* dst F32 [dv, heads, n, b], of q [d, n, heads, b], k [d, m, kv heads, b'], v [dv, m, kv heads, b'],
   memory, and optionally sinks [heads], a bias [m', n, heads], and either an order I32 or a mask.

   The order has five numbers a row: the beginning of the list of its sequence's cells, the list's length,
   the position of its first cell, and the range of positions that the row sees; then the lists. A row's
   own position is the last that it sees, unless ALiBi needs it: there nothing sees ahead. */
HIDDEN void ggmodel_attend(struct ggml_tensor * dst, int ith, int nth, void * unused) {
    (void) unused;
    struct ggml_tensor ** src = dst->src;
    const struct ggml_tensor * memory = src[3];
    const float * numbers = (const float *) dst->op_params + 8;
    struct attention_operands x = {src[0], src[1], src[2], src[4], src[5], src[6], NULL, NULL, dst, numbers[2]};
    int n = (int) x.q->ne[1], threads = (int) memory->ne[1], item = 0, most = QUERIES;
    int64_t group = x.q->ne[2] / x.k->ne[2], kvs = x.k->ne[2] * x.q->ne[3];
    nth = nth < threads ? nth : threads;
    if (ith >= nth) {
        return;
    }
    if (x.mask && x.mask->type == GGML_TYPE_I32) {
        x.order = x.mask->data;
        x.lists = x.order + (size_t) ROW * n;
    }
    struct attention of = attention_of(&x, numbers);
    struct tile_memory m = memory_of(&of, memory, ith);
    /* Few queries are spread over threads, which then read the same keys. */
    while (most > 1 && kvs * ((n * group + most - 1) / most) < (most > TOGETHER ? 2 : 1) * nth) {
        most /= 2;
    }
    for (int row = 0, alike; row < n; row += alike) {
        alike = rows_alike(&x, row);
        for (int at = 0; at < alike * group; at += most) {
            int some = (int) (alike * group - at < most ? alike * group - at : most);
            for (int64_t kv = 0; kv < kvs; kv++) {
                if (item++ % nth == ith) {
                    attend_tile(&x, of, row, at, some, kv, m);
                }
            }
        }
    }
}
