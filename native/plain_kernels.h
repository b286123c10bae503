/* Kernels of families whose vectors are shorter than TILE, behind plain.h and a family's exact sums. */

INLINE void multiply(const struct rows * w, const struct columns * x, int blocks, int first, int n, int zero,
                     enum kind kind, bool halves, bool minima, vec (*sums)[VECS]) {
    for (int b = 0; b < blocks; b++, w++, x++) {
        for (int h = 0; h < (halves ? 2 : 1); h++) {
            ints exact[PLAIN_STEP][VECS];
            for (int j = 0; j < n; j++) {
                int start = x->start[h][first + j] + (halves ? 0 : x->start[1][first + j]);
                for (int v = 0; v < VECS; v++) {
                    exact[j][v] = ints_of(minima || kind == SIGNED ? 0 : zero * start);
                }
            }
            exact_sums(w, x, halves ? 4 * h : 0, halves ? 4 * h + 4 : 8, first, n, kind, exact);
            for (int j = 0; j < n; j++) {
                vec scale = vec_of(x->scale[first + j]);
                vec sum = vec_of(minima ? -(x->sum[h][first + j] + (halves ? 0 : x->sum[1][first + j])) : 0);
                for (int v = 0; v < VECS; v++) {
                    vec part = mul_vec(vec_of_ints(exact[j][v]), scale);
                    sums[j][v] = fma_vec(part, load_vec(w->scale[h] + VEC * v), sums[j][v]);
                    if (minima) {
                        sums[j][v] = fma_vec(load_vec(w->minimum[h] + VEC * v), sum, sums[j][v]);
                    }
                }
            }
        }
    }
}

INLINE void multiply_n(const struct rows * w, const struct columns * x, int blocks, int first, int n, int zero,
                       enum kind kind, bool halves, bool minima, int rows, float * const * to, bool more) {
    float values[TILE];
    vec sums[PLAIN_STEP][VECS];
    for (int j = 0; j < n; j++) {
        memset(values, 0, sizeof(values));
        memcpy(values, to[j], more ? rows * sizeof(float) : 0);
        for (int v = 0; v < VECS; v++) {
            sums[j][v] = load_vec(values + VEC * v);
        }
    }
    multiply(w, x, blocks, first, n, zero, kind, halves, minima, sums);
    for (int j = 0; j < n; j++) {
        for (int v = 0; v < VECS; v++) {
            store_vec(values + VEC * v, sums[j][v]);
        }
        memcpy(to[j], values, rows * sizeof(float));
    }
}

/* Few columns: parts of a panel's depth, by part and row. */
struct parts {
    float scale[PARTS][TILE], minimum[PARTS][TILE];
    float part[FEW][PARTS][TILE];
};

/* The parts of a line and a stretch of each column, as those from `p` of row r. */
INLINE void parts_of_line(const struct line * line, const struct stretch * x, size_t stretches, int n, int count,
                          int r, int p, const struct type * type, enum kind kind, bool halves, struct parts * to) {
    int of_quad = halves ? 8 : 4;
    for (int i = 0; i < count; i++) {
        to->scale[p + i][r] = line->scale[i];
        to->minimum[p + i][r] = type->minima ? line->minimum[i] : 0;
    }
    for (int j = 0; j < n; j++, x += stretches) {
        for (int i = 0; i < count; i += of_quad) {
            int32_t exact[8];
            int at = i / of_quad * QUAD, left = count - i < of_quad ? count - i : of_quad;
            exact_parts(line->values + at, x->values + at, type->zero, kind, halves, exact);
            for (int l = 0; l < left; l++) {
                int sum = exact[l] + (kind == SIGNED ? 0 : x->start[i + l]);
                to->part[j][p + i + l][r] = (float) sum * x->scale[i + l];
            }
        }
    }
}

INLINE void multiply_rows(const struct ggml_tensor * w, const struct type * type, const uint8_t * data, int rows,
                          const struct stretch * x, int n, enum kind kind, bool halves, float * const * to) {
    int all = (int) w->ne[0], stretches = (all + LINE - 1) / LINE, each = LINE / (halves ? 16 : 32);
    size_t bytes = ggml_type_size(w->type), values = ggml_blck_size(w->type), of_line = LINE / values * bytes;
    struct parts of;
    struct line line;
    vec sums[FEW][VECS];
    if (rows < TILE) {
        memset(&of, 0, sizeof(of));
    }
    for (int j = 0; j < n; j++) {
        for (int v = 0; v < VECS; v++) {
            sums[j][v] = vec_of(0);
        }
    }
    for (int begin = 0; begin < all; begin += DEPTH) {
        int depth = all - begin < DEPTH ? all - begin : DEPTH, parts = depth / (halves ? 16 : 32);
        const struct stretch * columns = x + begin / LINE;
        for (int r = 0; r < rows; r++) {
            const uint8_t * from = data + r * w->nb[1] + begin / LINE * of_line;
            for (int i = 0; i * LINE < depth; i++, from += of_line) {
                int left = depth - i * LINE, some = left < LINE ? left : LINE;
                for (size_t ahead = 0; ahead < of_line; ahead += 64) {
                    __builtin_prefetch(from + STREAM + ahead);
                }
                unpack_line(unpackers[type->number], from, some / values * bytes, some, &line);
                parts_of_line(&line, columns + i, stretches, n, some / (halves ? 16 : 32), r, i * each, type, kind,
                              halves, &of);
            }
        }
        for (int p = 0; p < parts; p++) {
            for (int j = 0; j < n; j++) {
                float sum = -columns[(size_t) j * stretches + p / each].sum[p % each];
                for (int v = 0; v < VECS; v++) {
                    vec part = load_vec(of.part[j][p] + VEC * v);
                    sums[j][v] = fma_vec(part, load_vec(of.scale[p] + VEC * v), sums[j][v]);
                    if (type->minima) {
                        sums[j][v] = fma_vec(load_vec(of.minimum[p] + VEC * v), vec_of(sum), sums[j][v]);
                    }
                }
            }
        }
    }
    for (int j = 0; j < n; j++) {
        float lanes[TILE];
        for (int v = 0; v < VECS; v++) {
            store_vec(lanes + VEC * v, sums[j][v]);
        }
        memcpy(to[j], lanes, rows * sizeof(float));
    }
}

TARGET static void quantize_column(const float * from, int count, int j, struct columns * to) {
    bool wide = count > 1;
    float lanes[VEC], largest = 0;
    vec most = vec_of(0);
    for (int i = 0; i < count * BLOCK; i += VEC) {
        most = max_abs_vec(most, load_vec(from + i));
    }
    store_vec(lanes, most);
    for (int i = 0; i < VEC; i++) {
        largest = lanes[i] > largest ? lanes[i] : largest;
    }
    float inverse = largest > 0 ? 127 / largest : 0;
    float scale = !wide ? largest / 127 : largest > 0 ? 1 / inverse : 0;
    for (int b = 0; b < count; b++, to++) {
        int32_t rounded[BLOCK], sums[2] = {0, 0};
        for (int i = 0; i < BLOCK; i += VEC, from += VEC) {
            store_rounded(rounded + i, mul_vec(load_vec(from), vec_of(inverse)));
        }
        for (int i = 0; i < BLOCK; i++) {
            to->values[j][i] = (int8_t) (rounded[i] > 127 ? 127 : rounded[i] < -128 ? -128 : rounded[i]);
            sums[i / 16] += rounded[i];
        }
        to->start[0][j] = -sums[0];
        to->start[1][j] = -sums[1];
        to->scale[j] = wide ? scale : to_f16(scale);
        to->sum[0][j] = wide ? scale * sums[0] : to_f16(scale * (sums[0] + sums[1]));
        to->sum[1][j] = wide ? scale * sums[1] : 0;
    }
}

/* The kernels of one kind. */
#define PLAIN_KERNEL(name, kind, halves, minima)                                                                \
    TARGET static void name(const struct rows * w, const struct columns * x, int blocks, int first, int n,      \
                            int zero, int rows, float * const * to, bool more) {                                \
        switch (n) {                                                                                            \
            case 1: multiply_n(w, x, blocks, first, 1, zero, kind, halves, minima, rows, to, more); break;      \
            case 2: multiply_n(w, x, blocks, first, 2, zero, kind, halves, minima, rows, to, more); break;      \
            case 3: multiply_n(w, x, blocks, first, 3, zero, kind, halves, minima, rows, to, more); break;      \
            default: multiply_n(w, x, blocks, first, PLAIN_STEP, zero, kind, halves, minima, rows, to, more);   \
        }                                                                                                       \
    }

#define PLAIN_ROWS(name, kind, halves)                                                                          \
    TARGET static void name(const struct ggml_tensor * w, const struct type * type, const uint8_t * data,       \
                            int rows, const struct stretch * x, int n, float * const * to) {                    \
        multiply_rows(w, type, data, rows, x, n, kind, halves, to);                                             \
    }

#define PLAIN_KERNELS(name, kind)                          \
    PLAIN_KERNEL(name##_32, kind, false, false)            \
    PLAIN_KERNEL(name##_32_minima, kind, false, true)      \
    PLAIN_KERNEL(name##_16, kind, true, false)             \
    PLAIN_KERNEL(name##_16_minima, kind, true, true)       \
    PLAIN_ROWS(rows_##name##_32, kind, false)              \
    PLAIN_ROWS(rows_##name##_16, kind, true)

#define KERNELS_OF(name) {{name##_32, name##_32_minima}, {name##_16, name##_16_minima}}
#define ROWS_OF(name)    {rows_##name##_32, rows_##name##_16}
