/* Products of weights, as custom ops of ggml: see ml/ggml/products.py. Quantised ones are
   multiplied here, others in floats.h.

   A panel of weights becomes bytes with a scale for 16 or 32 values while it is in the core's own cache,
   and all columns use it; weights stay as they lie in the file. Activations are quantised once for all
   products that read them, as ggml does for one column. An element of a result is, block after block:

       sum = fma(float(exact sum of a block) * activation scale, weight scale, sum)
       sum = fma(-minimum, activation scale * sum of activations, sum)    where there are minima

   or, where WIDE blocks of activations share a scale, for all of them from a part of zero

       part = fma(float(exact sum of a block), weight scale, part)
       part = fma(-minimum, sum of activations, part)
       sum = fma(part, activation scale, sum)

   or, where 256 values share a scale, and 16 of them a whole number that it is times, by exact sums of all

       part = float(exact sum of values times numbers) * weight scale
       part = fma(-minimum, float(exact sum of sums of activations times numbers), part)
       sum = fma(part, activation scale, sum)

   so that it has the same bits whatever the number of columns and threads, and the instructions. */

#include "products.h"

#if defined(ON_X86) || defined(ON_ARM)

static int part_of(int n, int i, int of) {
    return (int) ((int64_t) n * i / of);
}

static const struct ending none = {NO_ACTIVATION, {NULL, NULL, NULL}, NULL};

/* The rows of all results that one thread computes, its memory, and the end of results. */
struct share {
    int ith, nth;
    struct line * lines;
    struct rows * panel;
    const struct ending * ending;
};

static struct share share_of(const struct ggml_tensor * memory, int ith, int nth, const struct ending * ending) {
    int threads = (int) memory->ne[1];
    char * own = (char *) memory->data + (ith < threads ? ith : 0) * memory->nb[1];
    own += -(uintptr_t) own % ALIGNMENT; /* ggml's tensors begin at multiples of 32 */
    struct share s = {ith, nth < threads ? nth : threads, (struct line *) own, NULL, ending};
    s.panel = (struct rows *) (s.lines + TILE);
    return s;
}

/* The ending of `dst`, whose operands from number `first` on are a bias, a factor and a residual, each or NULL. */
static struct ending ending_of(const struct ggml_tensor * dst, int first, void * activation) {
    const float * data[3];
    for (int i = 0; i < 3; i++) {
        data[i] = dst->src[first + i] ? dst->src[first + i]->data : NULL;
    }
    enum activation does = (enum activation) (intptr_t) activation;
    return (struct ending) {does, {data[0], data[1], data[2]}, dst->data};
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
static void unpack_rows(const struct ggml_tensor * w, const struct type * type, const uint8_t * data, int row,
                        int begin, int blocks, bool signs, struct line * lines, struct rows * to) {
    size_t bytes = ggml_type_size(w->type), values = ggml_blck_size(w->type), step = LINE / values * bytes;
    unpacker * unpack = ggmodel_family->unpackers[type->number];
    for (int at = 0; at < blocks; at += LINE / BLOCK) {
        int some = blocks - at < LINE / BLOCK ? blocks - at : LINE / BLOCK;
        for (int r = 0; r < TILE; r++) {
            if (row + r < w->ne[1]) {
                const uint8_t * from = data + (row + r) * w->nb[1] + (begin + at) / (LINE / BLOCK) * step;
                fetch(from + TILE * w->nb[1], step);
                unpack_line(unpack, from, some * BLOCK / values * bytes, some * BLOCK, lines + r);
            } else {
                memset(lines + r, 0, sizeof(*lines));
            }
        }
        ggmodel_family->interleave(lines, some, signs, type, to + at);
    }
}

/* `count` columns of a group, block by block. */
static void pack_columns(const struct columns * x, int blocks, int count, const struct type * type,
                         struct activations * to) {
    int zero = type->whole ? 1 : ggmodel_family->signed_bytes && type->most > 127 ? 0 : type->zero;
    bool halves = type->halves || type->whole;
    for (int b = 0; b < blocks; b++, x++) {
        for (int j = 0; j < count; j++, to++) {
            memcpy(to->values, x->values[j], BLOCK);
            to->scale = x->scale[j];
            to->minus_sum = -x->sum[j];
            to->start[0] = zero * (x->start[0][j] - (halves ? x->start[1][j] : 0));
            to->start[1] = zero * x->start[1][j];
        }
    }
}

/* As multiply_matrix, with the one group of columns `first`; false if no kernel is for so few rows or many columns. */
static bool multiply_few(const struct ggml_tensor * w, const uint8_t * data, const struct columns * x,
                         const int32_t * order, int first, int n, float * to, struct share s) {
    const struct type * type = ggmodel_type_of(w->type);
    few_kernel * run = ggmodel_family->few_kernel_of ? ggmodel_family->few_kernel_of(type) : NULL;
    int m = (int) w->ne[1], blocks = (int) w->ne[0] / BLOCK;
    struct activations * columns = (struct activations *) s.panel;
    int32_t numbers[GROUP];
    int count = columns_of(order, first, n, numbers);
    size_t most = PANEL / sizeof(*columns);
    if (!run || m < TILE || count > FEW || (size_t) count * blocks > most) {
        return false;
    }
    pack_columns(x + (size_t) first * blocks, blocks, count, type, columns);
    int tiles = (m + TILE - 1) / TILE, end = part_of(tiles, s.ith + 1, s.nth);
    for (int tile = part_of(tiles, s.ith, s.nth); tile < end; tile++) {
        int row = tile * TILE, before = row + TILE > m ? row + TILE - m : 0; /* the last tile has rows before it */
        float sums[FEW][TILE], * at[FEW];
        for (int j = 0; j < count; j++) {
            at[j] = before ? sums[j] : to + (size_t) numbers[j] * m + row;
        }
        run(w, data + (row - before) * w->nb[1], columns, count, at);
        for (int j = 0; j < count && before; j++) {
            memcpy(to + (size_t) numbers[j] * m + row, sums[j] + before, (TILE - before) * sizeof(float));
        }
        for (int j = 0; j < count; j++) {
            end_rows(s.ending, to + (size_t) numbers[j] * m + row, row, TILE - before);
        }
    }
    return true;
}

/* `to` F32 [m, …], of one matrix of weights and the groups of columns from `first` to `last`. */
static void multiply_matrix(const struct ggml_tensor * w, const uint8_t * data, const struct columns * x,
                            const int32_t * order, int first, int last, int n, float * to, struct share s) {
    if (last - first == 1 && multiply_few(w, data, x, order, first, n, to, s)) {
        return;
    }
    const struct type * type = ggmodel_type_of(w->type);
    bool tiled = ggmodel_family->begin_tiles && (last - first > 1 || n - first * GROUP > 8);
    bool signs = tiled || ggmodel_family->signs(type);
    kernel * run = ggmodel_family->kernel_of(type, tiled);
    int step = tiled ? GROUP : ggmodel_family->step, m = (int) w->ne[1], all = (int) w->ne[0] / BLOCK;
    int tiles = (m + TILE - 1) / TILE, end = part_of(tiles, s.ith + 1, s.nth), most = ggmodel_panel.rows / TILE;
    for (int tile = part_of(tiles, s.ith, s.nth); tile < end; tile += most) {
        int row = tile * TILE, some = end - tile < most ? end - tile : most;
        int rows = m - row < some * TILE ? m - row : some * TILE;
        for (int begin = 0; begin < all; begin += ggmodel_panel.blocks) {
            int blocks = all - begin < ggmodel_panel.blocks ? all - begin : ggmodel_panel.blocks;
            for (int t = 0; t < some; t++) {
                unpack_rows(w, type, data, row + t * TILE, begin, blocks, signs, s.lines, s.panel + t * BLOCKS);
            }
            for (int group = first; group < last; group++) {
                int32_t numbers[GROUP];
                int count = columns_of(order, group, n, numbers);
                float * at[GROUP];
                for (int j = 0; j < count; j++) {
                    at[j] = to + (size_t) numbers[j] * m + row;
                }
                const struct columns * these = x + (size_t) group * all + begin;
                for (int j = 0; j < count; j += step) {
                    int few = count - j < step ? count - j : step;
                    run(s.panel, these, blocks, j, few, type, rows, at + j, begin > 0);
                }
                for (int j = 0; j < count && begin + blocks == all; j++) {
                    end_rows(s.ending, at[j], row, rows);
                }
            }
        }
    }
}

/* As multiply_matrix, of floats and their activations. */
static void multiply_floats(const struct ggml_tensor * dst, const uint8_t * data, const int32_t * order, int begin,
                            int end, struct share s) {
    const struct ggml_tensor * w = dst->src[0];
    int m = (int) w->ne[1], tiles = (m + TILE - 1) / TILE, last = part_of(tiles, s.ith + 1, s.nth) * TILE;
    struct floats of = {
        s.ending, w, dst->src[1], data, order, order ? (int) dst->ne[1] : 1, begin, end,
        part_of(tiles, s.ith, s.nth) * TILE, last < m ? last : m, (float *) dst->data, s.panel,
    };
    if (dst->src[1]->type == GGML_TYPE_F32) {
        ggmodel_family->multiply_floats(&of);
    } else {
        ggmodel_family->multiply_rounded(&of);
    }
}

/* dst F32 [m, n], of weights [width, m], columns (of floats F32 [width, n]), a row of memory for each thread, a bias
   F32 [m], a factor and a residual F32 [m, n], each NULL for none. */
HIDDEN void ggmodel_multiply(struct ggml_tensor * dst, int ith, int nth, void * activation) {
    const struct ggml_tensor * w = dst->src[0];
    struct ending ending = ending_of(dst, 3, activation);
    struct share s = share_of(dst->src[2], ith, nth, &ending);
    if (ith < s.nth) {
        int n = (int) ggml_nrows(dst);
        if (is_float(w->type)) {
            multiply_floats(dst, w->data, NULL, 0, n, s);
            return;
        }
        struct tile_shapes before = {0};
        if (ggmodel_family->begin_tiles) {
            ggmodel_family->begin_tiles(&before);
        }
        multiply_matrix(w, w->data, dst->src[1]->data, NULL, 0, (n + GROUP - 1) / GROUP, n, dst->data, s);
        if (ggmodel_family->end_tiles) {
            ggmodel_family->end_tiles(&before);
        }
    }
}

/* dst F32 [m, used, tokens], of weights [width, m, experts], and further an order. */
HIDDEN void ggmodel_multiply_experts(struct ggml_tensor * dst, int ith, int nth, void * unused) {
    (void) unused;
    const struct ggml_tensor * w = dst->src[0];
    const int32_t * groups = dst->src[3]->data, * order = groups + w->ne[2] + 1;
    struct share s = share_of(dst->src[2], ith, nth, &none);
    if (ith < s.nth) {
        struct tile_shapes before = {0};
        if (ggmodel_family->begin_tiles) {
            ggmodel_family->begin_tiles(&before);
        }
        for (int e = 0; e < w->ne[2]; e++) {
            if (groups[e] < groups[e + 1]) {
                int n = groups[e + 1] * GROUP;
                while (order[n - 1] < 0) {
                    n--;
                }
                const uint8_t * data = (const uint8_t *) w->data + e * w->nb[2];
                if (is_float(w->type)) {
                    multiply_floats(dst, data, order, groups[e] * GROUP, n, s);
                    continue;
                }
                multiply_matrix(w, data, dst->src[1]->data, order, groups[e], groups[e + 1], n, dst->data, s);
            }
        }
        if (ggmodel_family->end_tiles) {
            ggmodel_family->end_tiles(&before);
        }
    }
}

/* dst F32 [m, n], of x F32 [m, n], a bias F32 [m], a factor and a residual F32 [m, n], each NULL for none. */
HIDDEN void ggmodel_finish(struct ggml_tensor * dst, int ith, int nth, void * activation) {
    struct ending of = ending_of(dst, 1, activation);
    int m = (int) dst->ne[0];
    int64_t n = ggml_nrows(dst);
    for (int64_t j = n * ith / nth; j < n * (ith + 1) / nth; j++) {
        const float * factor = of.of.factor ? of.of.factor + j * m : NULL;
        const float * residual = of.of.residual ? of.of.residual + j * m : NULL;
        const float * x = (const float *) dst->src[0]->data + j * m;
        struct operands these = {of.of.bias, factor, residual};
        ggmodel_family->finish(x, &these, of.activation, m, (float *) dst->data + j * m);
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

/* Activations F32 [width, n] as columns; with experts and an order [width, 1 or more, tokens].
   `count`: the number of blocks with one scale. */
HIDDEN void ggmodel_quantize(struct ggml_tensor * dst, int ith, int nth, void * count) {
    const struct ggml_tensor * x = dst->src[0], * ids = dst->src[2];
    int experts = ids ? (int) dst->src[3]->ne[2] : 0, used = ids ? (int) ids->ne[0] : 1;
    const int32_t * groups = ids ? dst->src[1]->data : NULL, * order = ids ? groups + experts + 1 : NULL;
    int together = (int) (intptr_t) count, blocks = (int) x->ne[0] / BLOCK / together;
    int n = ids ? groups[experts] * GROUP : (int) ggml_nrows(x), parts = (n + GROUP - 1) / GROUP * blocks;
    for (int part = part_of(parts, ith, nth); part < part_of(parts, ith + 1, nth); part++) {
        int group = part / blocks, b = part % blocks * together;
        struct columns * to = (struct columns *) dst->data + (size_t) part * together;
        const float * from[GROUP];
        int32_t numbers[GROUP];
        int some = columns_of(order, group, n, numbers);
        for (int j = 0; j < some; j++) {
            int64_t column = numbers[j];
            if (ids) {
                column = column / used * x->ne[1] + column % used % x->ne[1];
            }
            from[j] = (const float *) x->data + column * x->ne[0] + b * BLOCK;
        }
        ggmodel_family->quantize_columns(from, some, together, to);
        for (int i = 0; i < together && ggmodel_family->begin_tiles; i++) { /* only tiles read the others, too */
            for (int j = some; j < GROUP; j++) {
                memset(to[i].values[j], 0, BLOCK);
                to[i].scale[j] = to[i].sum[j] = 0;
                to[i].start[0][j] = to[i].start[1][j] = to[i].halves[j] = 0;
            }
        }
    }
}

/* Activations F32 [width, n] as columns of products by multiply_rounded, each as bytes [ggmodel_rounded_bytes]. */
HIDDEN void ggmodel_round(struct ggml_tensor * dst, int ith, int nth, void * unused) {
    (void) unused;
    const struct ggml_tensor * x = dst->src[0];
    int n = (int) ggml_nrows(x), blocks = (int) x->ne[0] / BLOCK;
    for (int j = part_of(n, ith, nth); j < part_of(n, ith + 1, nth); j++) {
        const float * from = (const float *) x->data + (size_t) j * x->ne[0];
        ggmodel_family->round_column(from, blocks, (char *) dst->data + j * dst->nb[1]);
    }
}

/* The bytes of a rounded column for weights of a type: 0 where activations are not rounded. */
HIDDEN size_t ggmodel_rounded_bytes(int type, int64_t width) {
    bool rounds = ggmodel_family->round_column && is_float(type) && type != GGML_TYPE_F32;
    return rounds ? (size_t) (width / BLOCK) * (BLOCK * sizeof(int16_t) + 2 * sizeof(float)) : 0;
}

HIDDEN bool ggmodel_multiplies(int type) {
    return ggmodel_family && type < GGML_TYPE_COUNT && (ggmodel_type_of(type) || is_float(type));
}

/* The number of blocks of activations with one scale for products with weights of a type: none of floats. */
HIDDEN int ggmodel_blocks_of_a_scale(int type) {
    return is_float(type) ? 0 : ggml_blck_size(type) == 8 * BLOCK ? 8 : 1;
}

HIDDEN size_t ggmodel_columns_bytes(int64_t width, int64_t n) {
    return (size_t) (width / BLOCK) * ((n + GROUP - 1) / GROUP) * sizeof(struct columns);
}

HIDDEN size_t ggmodel_order_values(int64_t columns, int64_t experts) {
    return (size_t) (experts + 1 + (columns / GROUP + experts) * GROUP);
}

HIDDEN size_t ggmodel_panel_bytes(void) {
    return TILE * sizeof(struct line) + PANEL + ALIGNMENT;
}

#else

HIDDEN void ggmodel_multiply(struct ggml_tensor * dst, int ith, int nth, void * unused) {}
HIDDEN void ggmodel_multiply_experts(struct ggml_tensor * dst, int ith, int nth, void * unused) {}
HIDDEN void ggmodel_finish(struct ggml_tensor * dst, int ith, int nth, void * unused) {}
HIDDEN void ggmodel_sort_experts(struct ggml_tensor * dst, int ith, int nth, void * unused) {}
HIDDEN void ggmodel_quantize(struct ggml_tensor * dst, int ith, int nth, void * unused) {}
HIDDEN void ggmodel_round(struct ggml_tensor * dst, int ith, int nth, void * unused) {}
HIDDEN size_t ggmodel_rounded_bytes(int type, int64_t width) {
    return 0;
}
HIDDEN size_t ggmodel_order_values(int64_t columns, int64_t experts) {
    return 0;
}
HIDDEN int ggmodel_use_products(int most) {
    return 0;
}
HIDDEN bool ggmodel_multiplies(int type) {
    return false;
}
HIDDEN int ggmodel_blocks_of_a_scale(int type) {
    return 0;
}
HIDDEN size_t ggmodel_columns_bytes(int64_t width, int64_t n) {
    return 0;
}
HIDDEN size_t ggmodel_panel_bytes(void) {
    return 0;
}

#endif
