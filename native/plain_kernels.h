/* Kernels of families whose vectors are shorter than TILE, behind plain.h and a family's exact sums. */

INLINE void multiply(const struct rows * w, const struct columns * x, int blocks, int first, int n,
                     const struct type * type, enum kind kind, bool halves, bool minima, vec (*sums)[VECS]) {
    for (int b = 0; b < blocks; b++, w++, x++) {
        for (int h = 0; h < (halves ? 2 : 1); h++) {
            ints exact[PLAIN_STEP][VECS];
            for (int j = 0; j < n; j++) {
                int start = x->start[h][first + j] + (halves ? 0 : x->start[1][first + j]);
                for (int v = 0; v < VECS; v++) {
                    exact[j][v] = ints_of(minima || kind == SIGNED ? 0 : type->zero * start);
                }
            }
            exact_sums(w, x, halves ? 4 * h : 0, halves ? 4 * h + 4 : 8, first, n, type, kind, exact);
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

INLINE void multiply_n(const struct rows * w, const struct columns * x, int blocks, int first, int n,
                       const struct type * type, enum kind kind, bool halves, bool minima, int rows,
                       float * const * to, bool more) {
    vec sums[PLAIN_STEP][VECS];
    for (int j = 0; j < n; j++) {
        float values[TILE] = {0};
        const float * from = rows < TILE || !more ? memcpy(values, to[j], more ? rows * sizeof(float) : 0) : to[j];
        for (int v = 0; v < VECS; v++) {
            sums[j][v] = load_vec(from + VEC * v);
        }
    }
    multiply(w, x, blocks, first, n, type, kind, halves, minima, sums);
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
                            const struct type * type, int rows, float * const * to, bool more) {                \
        switch (n) {                                                                                            \
            case 1: multiply_n(w, x, blocks, first, 1, type, kind, halves, minima, rows, to, more); break;      \
            case 2: multiply_n(w, x, blocks, first, 2, type, kind, halves, minima, rows, to, more); break;      \
            case 3: multiply_n(w, x, blocks, first, 3, type, kind, halves, minima, rows, to, more); break;      \
            default: multiply_n(w, x, blocks, first, PLAIN_STEP, type, kind, halves, minima, rows, to, more);   \
        }                                                                                                       \
    }

#define PLAIN_KERNELS(name, kind)                          \
    PLAIN_KERNEL(name##_32, kind, false, false)            \
    PLAIN_KERNEL(name##_32_minima, kind, false, true)      \
    PLAIN_KERNEL(name##_16, kind, true, false)             \
    PLAIN_KERNEL(name##_16_minima, kind, true, true)

#define KERNELS_OF(name) {{name##_32, name##_32_minima}, {name##_16, name##_16_minima}}
