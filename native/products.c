/* Products of quantised weights and several columns, as custom ops of ggml: see ml/ggml/products.py.

   A panel of weights becomes bytes with a scale for 16 or 32 values while it is in the core's own cache,
   and all columns use it; weights stay as they lie in the file. Activations are quantised once for all
   products that read them, as ggml does for one column. An element of a result is, block after block:

       sum = fma(float(exact sum of a block) * activation scale, weight scale, sum)
       sum = fma(-minimum, activation scale * sum of activations, sum)    where there are minima

   so that it has the same bits whatever the number of columns and threads, and the instructions. */

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ggml.h"

#define HIDDEN __attribute__((visibility("hidden")))

#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 12)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VNNI   __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")))
#define INLINE static inline __attribute__((always_inline)) VNNI

#define BLOCK   32  /* values that are added exactly */
#define GROUP   16  /* columns that lie side by side */
#define TILE    16  /* rows that lie side by side */
#define ROWS    96  /* of a panel */
#define DEPTH 2048  /* values of a panel's row */
#define BLOCKS (DEPTH / BLOCK)
#define LINE   512 /* values that are unpacked at once, of TILE rows */

/* GROUP columns of one block of activations. */
struct columns {
    int8_t  values[GROUP][BLOCK];
    float   scale[GROUP];
    int32_t start[2][GROUP]; /* minus the sum of each half: exact sums begin at a type's zero times this */
    float   sum[2][GROUP];   /* of each half, scaled */
};

/* TILE rows of one block of weights. */
struct rows {
    uint8_t values[BLOCK / 4][TILE][4]; /* with a sign for tiles */
    float   scale[2][TILE]; /* of each half */
    float   minimum[2][TILE];
};

#include "unpackers.h"
#include "kernels.h"
#include "row_by_row.h"

static int part_of(int n, int i, int of) {
    return (int) ((int64_t) n * i / of);
}

/* The rows of all results that one thread computes, and its memory. */
struct share {
    int ith, nth;
    struct line * lines;
    struct rows * panel;
};

static struct share share_of(const struct ggml_tensor * memory, int ith, int nth) {
    int threads = (int) memory->ne[1];
    char * own = (char *) memory->data + (ith < threads ? ith : 0) * memory->nb[1];
    struct share s = {ith, nth < threads ? nth : threads, (struct line *) own, NULL};
    s.panel = (struct rows *) (s.lines + TILE);
    return s;
}

/* The columns of a group: numbers, from the first; or those that `order` has, up to a negative one. */
static int columns_of(const int32_t * order, int group, int n, int32_t * numbers) {
    int count = 0;
    for (int j = group * GROUP; j < n && count < GROUP && (!order || order[j] >= 0); j++) {
        numbers[count++] = order ? order[j] : j;
    }
    return count;
}

/* TILE rows from `row`, those behind the last as zeros, of blocks from `begin`. */
VNNI static void unpack_rows(const struct ggml_tensor * w, const struct type * type, const uint8_t * data, int row,
                             int begin, int blocks, bool tiled, struct line * lines, struct rows * to) {
    size_t bytes = ggml_type_size(w->type), values = ggml_blck_size(w->type), step = LINE / values * bytes;
    for (int at = 0; at < blocks; at += LINE / BLOCK) {
        int some = blocks - at < LINE / BLOCK ? blocks - at : LINE / BLOCK;
        for (int r = 0; r < TILE; r++) {
            if (row + r < w->ne[1]) {
                const uint8_t * from = data + (row + r) * w->nb[1] + (begin + at) / (LINE / BLOCK) * step;
                for (size_t ahead = 0; ahead < step; ahead += 64) {
                    __builtin_prefetch(from + step + ahead);
                }
                unpack_line(type, from, some * BLOCK / values * bytes, some * BLOCK, lines + r);
            } else {
                memset(lines + r, 0, sizeof(*lines));
            }
        }
        interleave(lines, some, tiled, type, to + at);
    }
}

/* As multiply_matrix, with the one group of columns `first`; false if there is no room for them. */
VNNI static bool multiply_few(const struct ggml_tensor * w, const uint8_t * data, const struct columns * x,
                              const int32_t * order, int first, int n, float * to, struct share s) {
    const struct type * type = type_of(w->type);
    int m = (int) w->ne[1], blocks = (int) w->ne[0] / BLOCK, stretches = (w->ne[0] + LINE - 1) / LINE;
    struct stretch * columns = (struct stretch *) s.panel;
    int32_t numbers[GROUP];
    int count = columns_of(order, first, n, numbers);
    if (count > FEW || count * stretches * sizeof(*columns) > ROWS / TILE * BLOCKS * sizeof(struct rows)) {
        return false;
    }
    for (int j = 0; j < count; j++) {
        stretch_column(x + (size_t) first * blocks, blocks, j, type, columns + j * stretches);
    }
    few_kernel * run = few_kernel_of(type);
    int tiles = (m + TILE - 1) / TILE, end = part_of(tiles, s.ith + 1, s.nth);
    for (int tile = part_of(tiles, s.ith, s.nth); tile < end; tile++) {
        int row = tile * TILE, rows = m - row < TILE ? m - row : TILE;
        float * at[FEW];
        for (int j = 0; j < count; j++) {
            at[j] = to + (size_t) numbers[j] * m + row;
        }
        run(w, type, data + row * w->nb[1], rows, columns, count, at);
    }
    return true;
}

/* `to` F32 [m, …], of one matrix of weights and the groups of columns from `first` to `last`. */
VNNI static void multiply_matrix(const struct ggml_tensor * w, const uint8_t * data, const struct columns * x,
                                 const int32_t * order, int first, int last, int n, float * to, struct share s) {
    if (last - first == 1 && multiply_few(w, data, x, order, first, n, to, s)) {
        return;
    }
    const struct type * type = type_of(w->type);
    bool tiled = instructions > 1 && (last - first > 1 || n - first * GROUP > 8);
    kernel * run = kernels[tiled][type->halves][type->minima];
    int step = tiled ? GROUP : 8, m = (int) w->ne[1], all = (int) w->ne[0] / BLOCK;
    int tiles = (m + TILE - 1) / TILE, end = part_of(tiles, s.ith + 1, s.nth);
    for (int tile = part_of(tiles, s.ith, s.nth); tile < end; tile += ROWS / TILE) {
        int some = end - tile < ROWS / TILE ? end - tile : ROWS / TILE;
        for (int begin = 0; begin < all; begin += BLOCKS) {
            int blocks = all - begin < BLOCKS ? all - begin : BLOCKS;
            for (int t = 0; t < some; t++) {
                unpack_rows(w, type, data, (tile + t) * TILE, begin, blocks, tiled, s.lines,
                            s.panel + t * BLOCKS);
            }
            for (int group = first; group < last; group++) {
                int32_t numbers[GROUP];
                int count = columns_of(order, group, n, numbers);
                for (int j = 0; j < count; j += step) {
                    for (int t = 0; t < some; t++) {
                        int row = (tile + t) * TILE, left = m - row, few = count - j < step ? count - j : step;
                        float * at[GROUP];
                        for (int i = 0; i < few; i++) {
                            at[i] = to + (size_t) numbers[j + i] * m + row;
                        }
                        __mmask16 rows = left < TILE ? (__mmask16) ((1 << left) - 1) : 0xffff;
                        const struct columns * these = x + (size_t) group * all + begin;
                        run(s.panel + t * BLOCKS, these, blocks, j, few, type->zero, rows, at, begin > 0);
                    }
                }
            }
        }
    }
}

static struct tile_shapes begin_tiles(void) {
    struct tile_shapes before = {0};
    if (instructions > 1) {
        __asm__ volatile("sttilecfg %0" : "=m"(before));
        __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
    }
    return before;
}

/* ggml's own kernels set the shapes once a thread. */
static void end_tiles(const struct tile_shapes * before) {
    if (instructions > 1 && before->palette) {
        __asm__ volatile("ldtilecfg %0" ::"m"(*before));
    } else if (instructions > 1) {
        __asm__ volatile("tilerelease");
    }
}

/* dst F32 [m, n], of weights [width, m], columns, and a row of memory for each thread. */
HIDDEN void ggmodel_multiply(struct ggml_tensor * dst, int ith, int nth, void * unused) {
    (void) unused;
    const struct ggml_tensor * w = dst->src[0];
    struct share s = share_of(dst->src[2], ith, nth);
    if (ith < s.nth) {
        int n = (int) ggml_nrows(dst);
        struct tile_shapes before = begin_tiles();
        multiply_matrix(w, w->data, dst->src[1]->data, NULL, 0, (n + GROUP - 1) / GROUP, n, dst->data, s);
        end_tiles(&before);
    }
}

/* dst F32 [m, used, tokens], of weights [width, m, experts], and further an order. */
HIDDEN void ggmodel_multiply_experts(struct ggml_tensor * dst, int ith, int nth, void * unused) {
    (void) unused;
    const struct ggml_tensor * w = dst->src[0];
    const int32_t * groups = dst->src[3]->data, * order = groups + w->ne[2] + 1;
    struct share s = share_of(dst->src[2], ith, nth);
    if (ith < s.nth) {
        struct tile_shapes before = begin_tiles();
        for (int e = 0; e < w->ne[2]; e++) {
            if (groups[e] < groups[e + 1]) {
                int n = groups[e + 1] * GROUP;
                while (order[n - 1] < 0) {
                    n--;
                }
                const uint8_t * data = (const uint8_t *) w->data + e * w->nb[2];
                multiply_matrix(w, data, dst->src[1]->data, order, groups[e], groups[e + 1], n, dst->data, s);
            }
        }
        end_tiles(&before);
    }
}

/* dst I32, of ids I32 [used, tokens]: for each of src[1]->ne[2] experts its first group of columns, and
   behind the last one the end; then the columns of each group, slot + used * token, -1 for none. */
HIDDEN void ggmodel_sort_experts(struct ggml_tensor * dst, int ith, int nth, void * unused) {
    (void) nth, (void) unused;
    const struct ggml_tensor * ids = dst->src[0];
    int experts = (int) dst->src[1]->ne[2], used = (int) ids->ne[0], columns = used * (int) ids->ne[1];
    int32_t * groups = dst->data, * order = groups + experts + 1;
    if (ith) {
        return;
    }
#define EXPERT(column) \
    (*(const int32_t *) ((const char *) ids->data + (column) % used * ids->nb[0] + (column) / used * ids->nb[1]))
    memset(groups, 0, dst->nb[1]);
    memset(order, 0xff, dst->nb[1] - (size_t) (experts + 1) * sizeof(*order));
    for (int c = 0; c < columns; c++) {
        groups[EXPERT(c) + 1]++;
    }
    for (int e = 0; e < experts; e++) {
        groups[e + 1] = groups[e] + (groups[e + 1] + GROUP - 1) / GROUP;
    }
    for (int c = 0; c < columns; c++) {
        int32_t * at = order + (size_t) groups[EXPERT(c)] * GROUP;
        while (at[GROUP - 1] >= 0) { /* the group is full */
            at += GROUP;
        }
        while (*at >= 0) {
            at++;
        }
        *at = c;
    }
#undef EXPERT
}

/* `count` blocks of column j, with one scale: as ggml quantises them for dot products with weights of
   blocks of 32 values (Q8_0 and Q8_1, whose scales and sums are F16) and of 256 (Q8_K). */
INLINE void quantize_column(const float * from, int count, int j, struct columns * to) {
    __m512 most = _mm512_setzero_ps();
    for (int i = 0; i < 2 * count; i++) {
        most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_loadu_ps(from + 16 * i)));
    }
    bool wide = count > 1;
    float largest = _mm512_reduce_max_ps(most), inverse = largest > 0 ? 127 / largest : 0;
    float scale = !wide ? largest / 127 : largest > 0 ? 1 / inverse : 0;
    for (int i = 0; i < count; i++, from += BLOCK, to++) {
        __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from), _mm512_set1_ps(inverse)));
        __m512i c = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from + 16), _mm512_set1_ps(inverse)));
        _mm_storeu_si128((__m128i *) to->values[j], _mm512_cvtsepi32_epi8(a));
        _mm_storeu_si128((__m128i *) (to->values[j] + 16), _mm512_cvtsepi32_epi8(c));
        int sums[2] = {_mm512_reduce_add_epi32(a), _mm512_reduce_add_epi32(c)};
        to->start[0][j] = -sums[0];
        to->start[1][j] = -sums[1];
        if (wide) {
            to->scale[j] = scale;
            to->sum[0][j] = scale * sums[0];
            to->sum[1][j] = scale * sums[1];
        } else {
            to->scale[j] = _cvtsh_ss(_cvtss_sh(scale, 0));
            to->sum[0][j] = _cvtsh_ss(_cvtss_sh(scale * (sums[0] + sums[1]), 0));
            to->sum[1][j] = 0;
        }
    }
}

/* Activations F32 [width, n] as columns; with experts and an order [width, 1 or more, tokens].
   `count`: the number of blocks with one scale. */
VNNI HIDDEN void ggmodel_quantize(struct ggml_tensor * dst, int ith, int nth, void * count) {
    const struct ggml_tensor * x = dst->src[0], * ids = dst->src[2];
    int experts = ids ? (int) dst->src[3]->ne[2] : 0, used = ids ? (int) ids->ne[0] : 1;
    const int32_t * groups = ids ? dst->src[1]->data : NULL, * order = ids ? groups + experts + 1 : NULL;
    int together = (int) (intptr_t) count, blocks = (int) x->ne[0] / BLOCK / together;
    int n = ids ? groups[experts] * GROUP : (int) ggml_nrows(x), parts = (n + GROUP - 1) / GROUP * blocks;
    for (int part = part_of(parts, ith, nth); part < part_of(parts, ith + 1, nth); part++) {
        int group = part / blocks, b = part % blocks * together;
        struct columns * to = (struct columns *) dst->data + (size_t) part * together;
        for (int j = 0; j < GROUP; j++) {
            int64_t column = group * GROUP + j;
            column = column < n && order ? order[column] : column < n ? column : -1;
            if (column < 0) { /* only tiles read it, too */
                for (int i = 0; i < together && instructions > 1; i++) {
                    memset(to[i].values[j], 0, BLOCK);
                    to[i].scale[j] = to[i].sum[0][j] = to[i].sum[1][j] = 0;
                    to[i].start[0][j] = to[i].start[1][j] = 0;
                }
                continue;
            }
            if (ids) {
                column = column / used * x->ne[1] + column % used % x->ne[1];
            }
            quantize_column((const float *) x->data + column * x->ne[0] + b * BLOCK, together, j, to);
        }
    }
}

/* Chooses instructions: at most those asked for, and those that the processor has. */
HIDDEN int ggmodel_use_products(int most) {
    unsigned a, b, c, d;
    bool tiles = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 3) == 3;
    int have = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
    /* ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA */
    if (have && most > 1 && tiles && !syscall(SYS_arch_prctl, 0x1023, 18)) {
        have = 2;
    }
    return instructions = have < most ? have : most;
}

HIDDEN bool ggmodel_multiplies(int type) {
    return instructions && type_of(type);
}

HIDDEN size_t ggmodel_columns_bytes(int64_t width, int64_t n) {
    return (size_t) (width / BLOCK) * ((n + GROUP - 1) / GROUP) * sizeof(struct columns);
}

HIDDEN size_t ggmodel_order_values(int64_t columns, int64_t experts) {
    return (size_t) (experts + 1 + (columns / GROUP + experts) * GROUP);
}

HIDDEN size_t ggmodel_panel_bytes(void) {
    return TILE * sizeof(struct line) + ROWS / TILE * BLOCKS * sizeof(struct rows);
}

#else

HIDDEN void ggmodel_multiply(struct ggml_tensor * dst, int ith, int nth, void * unused) {}
HIDDEN void ggmodel_multiply_experts(struct ggml_tensor * dst, int ith, int nth, void * unused) {}
HIDDEN void ggmodel_sort_experts(struct ggml_tensor * dst, int ith, int nth, void * unused) {}
HIDDEN void ggmodel_quantize(struct ggml_tensor * dst, int ith, int nth, void * unused) {}
HIDDEN size_t ggmodel_order_values(int64_t columns, int64_t experts) {
    return 0;
}
HIDDEN int ggmodel_use_products(int most) {
    return 0;
}
HIDDEN bool ggmodel_multiplies(int type) {
    return false;
}
HIDDEN size_t ggmodel_columns_bytes(int64_t width, int64_t n) {
    return 0;
}
HIDDEN size_t ggmodel_panel_bytes(void) {
    return 0;
}

#endif
