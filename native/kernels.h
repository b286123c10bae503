/* Kernels of all families: rows times a few columns of a group. A family brings vectors of VEC floats, `ints`,
   start_of, dot and dot_shorts; one that multiplies in pairs, too, add_in_pairs and IN_PAIRS.

   STEP columns times the rows of TILES at once: vectors of weights and words of activations are used several times
   once they are loaded, and the sums stay in registers. */

/* What blocks of weights and activations have, known when a kernel is compiled: see struct type. */
struct shape {
    bool wide, halves, minima, whole;
};

/* Adds the products of groups of four values, from `begin` to `end`, by an instruction that adds four each. */
INLINE void add_dots(const struct rows * w, const struct columns * x, int begin, int end, int first, int n, int vecs,
                     ints (*to)[MOST_VECS]) {
    const int8_t * values = x->values[first];
    __asm__("" : "+r"(values)); /* compilers would keep a pointer for each column */
    for (int g = begin; g < end; g++) {
        ints weights[MOST_VECS];
        for (int v = 0; v < vecs; v++) {
            weights[v] = load_ints(w[v / VECS * BLOCKS].values[g][v % VECS * VEC]);
            IN_REGISTER(weights[v]);
        }
        for (int j = 0; j < n; j++) {
            ints four = ints_of((int) word_of((const uint8_t *) values + BLOCK * j + 4 * g));
            for (int v = 0; v < vecs; v++) {
                to[j][v] = dot(to[j][v], weights[v], four);
            }
        }
    }
}

/* The same for a kind of products. */
INLINE void add_products(const struct rows * w, const struct columns * x, int begin, int end, int first, int n,
                         int vecs, enum kind kind, ints (*to)[MOST_VECS]) {
#ifdef IN_PAIRS
    if (kind != DOT) {
        add_in_pairs(w, x, begin, end, first, n, kind, to);
        return;
    }
#endif
    (void) kind;
    add_dots(w, x, begin, end, first, n, vecs, to);
}

/* The sums of rows and column j so far, and those of a block or its half h: the order of all kernels. */
INLINE vec add_exact(vec sums, ints exact, const struct rows * w, int row, const struct columns * x, int j, int h,
                     struct shape is) {
    vec part = vec_of_ints(exact);
    if (!is.wide) {
        part = mul_vec(part, vec_of(x->scale[j]));
    }
    sums = fma_vec(part, load_vec(w->scale[h] + row), sums);
    return is.minima ? fma_vec(load_vec(w->minimum + row), vec_of(-x->sum[j]), sums) : sums;
}

/* The same of WIDE blocks that share a scale: `less` are sums of activations times numbers of minima. */
INLINE vec add_whole(vec sums, ints exact, ints less, const struct rows * w, int row, const struct columns * x, int j,
                     struct shape is) {
    vec part = mul_vec(vec_of_ints(exact), load_vec(w->scale[0] + row));
    part = is.minima ? fma_vec(load_vec(w->minimum + row), vec_of_ints(less), part) : part;
    return fma_vec(part, vec_of(x->scale[j]), sums);
}

INLINE void multiply_whole(const struct rows * w, const struct columns * x, int first, int n, int vecs,
                           const struct type * type, enum kind kind, struct shape is, vec (*sums)[MOST_VECS]) {
    ints exact[STEP][MOST_VECS], less[STEP][MOST_VECS];
    for (int j = 0; j < n; j++) {
        int start = 0;
        for (int i = 0; i < WIDE && !is.minima && kind != SIGNED; i++) {
            start += x[i].start[0][first + j];
        }
        for (int v = 0; v < vecs; v++) {
            exact[j][v] = start_of(start, type->zero);
            less[j][v] = ints_of(0);
        }
    }
    for (int i = 0; i < WIDE; i++) {
        add_products(w + i, x + i, 0, 8, first, n, vecs, kind, exact);
    }
    for (int i = 0; i < WIDE && is.minima; i++) {
        for (int v = 0; v < vecs; v++) {
            ints numbers = load_ints(w[v / VECS * BLOCKS + i].numbers[v % VECS * VEC]);
            for (int j = 0; j < n; j++) {
                less[j][v] = dot_shorts(less[j][v], numbers, ints_of(x[i].halves[first + j]));
            }
        }
    }
    for (int j = 0; j < n; j++) {
        for (int v = 0; v < vecs; v++) {
            const struct rows * of = w + v / VECS * BLOCKS;
            sums[j][v] = add_whole(sums[j][v], exact[j][v], less[j][v], of, v % VECS * VEC, x, first + j, is);
        }
    }
}

/* Adds a block of rows and n columns, or its half h. */
INLINE void multiply_part(const struct rows * w, const struct columns * x, int h, int first, int n, int vecs,
                          const struct type * type, enum kind kind, struct shape is, vec (*sums)[MOST_VECS]) {
    ints exact[STEP][MOST_VECS];
    for (int j = 0; j < n; j++) {
        int start = x->start[h][first + j] - (is.halves && !h ? x->start[1][first + j] : 0);
        for (int v = 0; v < vecs; v++) {
            exact[j][v] = is.minima || kind == SIGNED ? ints_of(0) : start_of(start, type->zero);
        }
    }
    add_products(w, x, is.halves ? 4 * h : 0, is.halves ? 4 * h + 4 : 8, first, n, vecs, kind, exact);
    for (int j = 0; j < n; j++) {
        for (int v = 0; v < vecs; v++) {
            const struct rows * of = w + v / VECS * BLOCKS;
            sums[j][v] = add_exact(sums[j][v], exact[j][v], of, v % VECS * VEC, x, first + j, h, is);
        }
    }
}

INLINE void multiply_block(const struct rows * w, const struct columns * x, int first, int n, int vecs,
                           const struct type * type, enum kind kind, struct shape is, vec (*sums)[MOST_VECS]) {
    multiply_part(w, x, 0, first, n, vecs, type, kind, is, sums);
    if (is.halves) {
        multiply_part(w, x, 1, first, n, vecs, type, kind, is, sums);
    }
}

INLINE void multiply(const struct rows * w, const struct columns * x, int blocks, int first, int n, int vecs,
                     const struct type * type, enum kind kind, struct shape is, vec (*sums)[MOST_VECS]) {
    for (int b = 0; b < blocks; b += is.wide ? WIDE : 1) {
        if (is.whole) {
            multiply_whole(w + b, x + b, first, n, vecs, type, kind, is, sums);
            continue;
        }
        if (!is.wide) {
            multiply_block(w + b, x + b, first, n, vecs, type, kind, is, sums);
            continue;
        }
        vec parts[STEP][MOST_VECS];
        for (int j = 0; j < n; j++) {
            for (int v = 0; v < vecs; v++) {
                parts[j][v] = vec_of(0);
            }
        }
        for (int i = 0; i < WIDE; i++) {
            multiply_block(w + b + i, x + b + i, first, n, vecs, type, kind, is, parts);
        }
        for (int j = 0; j < n; j++) {
            for (int v = 0; v < vecs; v++) {
                sums[j][v] = fma_vec(parts[j][v], vec_of(x[b].scale[first + j]), sums[j][v]);
            }
        }
    }
}

/* `rows` of those that `vecs` vectors hold, times n columns whose results begin at `to` and `row` of each. */
INLINE void multiply_n(const struct rows * w, const struct columns * x, int blocks, int first, int n, int vecs,
                       const struct type * type, enum kind kind, struct shape is, int row, int rows,
                       float * const * to, bool more) {
    vec sums[STEP][MOST_VECS];
    bool all = rows >= vecs * VEC;
    for (int j = 0; j < n; j++) {
        float values[MOST_VECS * VEC] = {0};
        const float * from = to[j] + row;
        from = all && more ? from : memcpy(values, from, more ? rows * sizeof(float) : 0);
        for (int v = 0; v < vecs; v++) {
            sums[j][v] = load_vec(from + VEC * v);
        }
    }
    multiply(w, x, blocks, first, n, vecs, type, kind, is, sums);
    for (int j = 0; j < n; j++) {
        float values[MOST_VECS * VEC], * at = all ? to[j] + row : values;
        for (int v = 0; v < vecs; v++) {
            store_vec(at + VEC * v, sums[j][v]);
        }
        if (!all) {
            memcpy(to[j] + row, values, rows * sizeof(float));
        }
    }
}

#define MULTIPLY(n, vecs) multiply_n(w, x, blocks, first, n, vecs, type, kind, is, row, rows - row, to, more)

INLINE void multiply_rows(const struct rows * w, const struct columns * x, int blocks, int first, int n,
                          const struct type * type, enum kind kind, struct shape is, int rows, float * const * to,
                          bool more) {
    int row = 0;
    for (; n == STEP && row + (TILES - 1) * TILE < rows; row += TILES * TILE, w += TILES * BLOCKS) {
        MULTIPLY(STEP, MOST_VECS);
    }
    for (; row < rows; row += TILE, w += BLOCKS) {
        switch (n) {
            case 1: MULTIPLY(1, VECS); break;
            case 2: MULTIPLY(2, VECS); break;
            case 3: MULTIPLY(3, VECS); break;
            default: MULTIPLY(STEP, VECS);
        }
    }
}

/* The kernels of one kind. */
#define KERNEL(name, kind, ...)                                                                                 \
    TARGET static void name(const struct rows * w, const struct columns * x, int blocks, int first, int n,      \
                            const struct type * type, int rows, float * const * to, bool more) {                \
        multiply_rows(w, x, blocks, first, n, type, kind, (struct shape) {__VA_ARGS__}, rows, to, more);        \
    }

#define KERNELS(name, kind)                                  \
    KERNEL(name##_32, kind, false, false, false)             \
    KERNEL(name##_32_minima, kind, false, false, true)       \
    KERNEL(name##_16, kind, false, true, false)              \
    KERNEL(name##_wide_32, kind, true, false, false)         \
    KERNEL(name##_wide_32_minima, kind, true, false, true)   \
    KERNEL(name##_wide_16, kind, true, true, false)          \
    KERNEL(name##_whole, kind, true, false, false, true)     \
    KERNEL(name##_whole_minima, kind, true, false, true, true)
