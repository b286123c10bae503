/* Kernels of families whose vectors are shorter than TILE, behind plain.h and a family's exact sums. */

/* What blocks of weights and activations have, known when a kernel is compiled: see struct type. */
struct shape {
    bool wide, halves, minima;
};

/* Adds a block of TILE rows and n columns, or its half h. */
INLINE void multiply_part(const struct rows * w, const struct columns * x, int h, int first, int n,
                          const struct type * type, enum kind kind, struct shape is, vec (*sums)[VECS]) {
    ints exact[PLAIN_STEP][VECS];
    bool less = is.halves && !h; /* the first half's numbers are the whole's less the second's */
    for (int j = 0; j < n; j++) {
        int start = x->start[h][first + j] - (less ? x->start[1][first + j] : 0);
        for (int v = 0; v < VECS; v++) {
            exact[j][v] = ints_of(is.minima || kind == SIGNED ? 0 : type->zero * start);
        }
    }
    exact_sums(w, x, is.halves ? 4 * h : 0, is.halves ? 4 * h + 4 : 8, first, n, type, kind, exact);
    for (int j = 0; j < n; j++) {
        vec scale = vec_of(x->scale[first + j]);
        vec sum = vec_of((less ? x->sum[1][first + j] : 0) - x->sum[h][first + j]);
        for (int v = 0; v < VECS; v++) {
            vec part = vec_of_ints(exact[j][v]);
            part = is.wide ? part : mul_vec(part, scale);
            sums[j][v] = fma_vec(part, load_vec(w->scale[h] + VEC * v), sums[j][v]);
            if (is.minima) {
                sums[j][v] = fma_vec(load_vec(w->minimum[h] + VEC * v), sum, sums[j][v]);
            }
        }
    }
}

INLINE void multiply_block(const struct rows * w, const struct columns * x, int first, int n, const struct type * type,
                           enum kind kind, struct shape is, vec (*sums)[VECS]) {
    multiply_part(w, x, 0, first, n, type, kind, is, sums);
    if (is.halves) {
        multiply_part(w, x, 1, first, n, type, kind, is, sums);
    }
}

INLINE void multiply(const struct rows * w, const struct columns * x, int blocks, int first, int n,
                     const struct type * type, enum kind kind, struct shape is, vec (*sums)[VECS]) {
    for (int b = 0; b < blocks; b += is.wide ? WIDE : 1) {
        if (!is.wide) {
            multiply_block(w + b, x + b, first, n, type, kind, is, sums);
            continue;
        }
        vec parts[PLAIN_STEP][VECS];
        for (int j = 0; j < n; j++) {
            for (int v = 0; v < VECS; v++) {
                parts[j][v] = vec_of(0);
            }
        }
        for (int i = 0; i < WIDE; i++) {
            multiply_block(w + b + i, x + b + i, first, n, type, kind, is, parts);
        }
        for (int j = 0; j < n; j++) {
            for (int v = 0; v < VECS; v++) {
                sums[j][v] = fma_vec(parts[j][v], vec_of(x[b].scale[first + j]), sums[j][v]);
            }
        }
    }
}

INLINE void multiply_n(const struct rows * w, const struct columns * x, int blocks, int first, int n,
                       const struct type * type, enum kind kind, struct shape is, int rows, float * const * to,
                       bool more) {
    vec sums[PLAIN_STEP][VECS];
    for (int j = 0; j < n; j++) {
        float values[TILE] = {0};
        const float * from = rows < TILE || !more ? memcpy(values, to[j], more ? rows * sizeof(float) : 0) : to[j];
        for (int v = 0; v < VECS; v++) {
            sums[j][v] = load_vec(from + VEC * v);
        }
    }
    multiply(w, x, blocks, first, n, type, kind, is, sums);
    for (int j = 0; j < n; j++) {
        float values[TILE], * at = rows < TILE ? values : to[j];
        for (int v = 0; v < VECS; v++) {
            store_vec(at + VEC * v, sums[j][v]);
        }
        if (rows < TILE) {
            memcpy(to[j], values, rows * sizeof(float));
        }
    }
}

TARGET static void quantize_column(const float * from, int count, int j, struct columns * to) {
    bool wide = count > 1;
    float lanes[VEC], largest = 0;
    vec most = vec_of(0);
    for (int i = 0; i < count * BLOCK; i += VEC) {
        most = max_vec(most, abs_vec(load_vec(from + i)));
    }
    store_vec(lanes, most);
    for (int i = 0; i < VEC; i++) {
        largest = lanes[i] > largest ? lanes[i] : largest;
    }
    float inverse = largest > 0 ? 127 / largest : 0;
    float scale = !wide ? largest / 127 : largest > 0 ? 1 / inverse : 0;
    for (int b = 0; b < count; b++, from += BLOCK, to++) {
        int32_t sums[2];
        store_rounded(from, vec_of(inverse), to->values[j], sums);
        to->start[0][j] = -sums[0] - sums[1];
        to->start[1][j] = -sums[1];
        to->scale[j] = wide ? scale : to_f16(scale);
        to->sum[0][j] = wide ? sums[0] + sums[1] : to_f16(scale * (sums[0] + sums[1]));
        to->sum[1][j] = wide ? sums[1] : 0;
    }
}

TARGET static void quantize_columns(const float * const * from, int n, int count, struct columns * to) {
    for (int j = 0; j < n; j++) {
        quantize_column(from[j], count, j, to);
    }
}

/* The kernels of one kind. */
#define PLAIN_KERNEL(name, kind, ...)                                                                           \
    TARGET static void name(const struct rows * w, const struct columns * x, int blocks, int first, int n,      \
                            const struct type * type, int rows, float * const * to, bool more) {                \
        const struct shape is = {__VA_ARGS__};                                                                  \
        switch (n) {                                                                                            \
            case 1: multiply_n(w, x, blocks, first, 1, type, kind, is, rows, to, more); break;                  \
            case 2: multiply_n(w, x, blocks, first, 2, type, kind, is, rows, to, more); break;                  \
            case 3: multiply_n(w, x, blocks, first, 3, type, kind, is, rows, to, more); break;                  \
            default: multiply_n(w, x, blocks, first, PLAIN_STEP, type, kind, is, rows, to, more);               \
        }                                                                                                       \
    }

#define PLAIN_KERNELS(name, kind)                                           \
    PLAIN_KERNEL(name##_32, kind, false, false, false)                      \
    PLAIN_KERNEL(name##_32_minima, kind, false, false, true)                \
    PLAIN_KERNEL(name##_16, kind, false, true, false)                       \
    PLAIN_KERNEL(name##_wide_32, kind, true, false, false)                  \
    PLAIN_KERNEL(name##_wide_32_minima, kind, true, false, true)            \
    PLAIN_KERNEL(name##_wide_16, kind, true, true, false)                   \
    PLAIN_KERNEL(name##_wide_16_minima, kind, true, true, true)
