/* Products of F16 and BF16 weights with many columns, where bits may depend on what is computed beside an element.

   Activations become whole numbers of 15 bits, with a scale for HALF values, weights of 14 bits, with a scale for
   BLOCK: off by 2^-15 and 2^-14 of a block's largest value at most, where F16 activations are by 2^-11 of each. An
   element is, half of a block after half,

       sum = fma(float(exact sum of a half), activation scale * weight scale, sum)

   in which one instruction adds two products: the same bits in each family, however many columns and threads. The
   scale of values of which one is not finite is NaN, and so is each element that reads them.

   A family brings dot_shorts, and SHORT_COLUMNS whose sums with 2 * VEC rows stay in registers. */

#define HALF             (BLOCK / 2)
#define MOST_X           16383 /* the largest numbers: 32 bits hold the sum of HALF products */
#define MOST_W           8191
#define SMALLEST_LARGEST 1e-30f /* the smallest largest value: a scale's inverse is finite */
#define SHORT_ROWS       32 /* of a panel */
#define SHORT_BLOCKS     64

/* SHORT_ROWS rows of one block. */
struct short_rows {
    int16_t values[BLOCK / 2][SHORT_ROWS][2];
    float   scale[SHORT_ROWS];
};

_Static_assert(SHORT_BLOCKS * sizeof(struct short_rows) <= PANEL, "a panel fits");
_Static_assert((int64_t) HALF * MOST_X * MOST_W <= INT32_MAX, "sums are exact");

/* The scale of whole numbers up to 1 / part: NaN if the largest value is not finite. */
INLINE vec scale_of(vec largest, float part) {
    return fma_vec(largest, vec_of(0), mul_vec(largest, vec_of(part)));
}

/* A column of `blocks`: all values, then their scales. */
TARGET static void round_column(const float * from, int blocks, void * to) {
    int16_t * values = to;
    float * scales = (float *) (values + blocks * BLOCK);
    for (int h = 0; h < blocks * (BLOCK / HALF); h++, from += HALF, values += HALF) {
        vec most = vec_of(SMALLEST_LARGEST);
        for (int i = 0; i < HALF; i += VEC) {
            most = larger_vec(most, abs_vec(load_vec(from + i)));
        }
        vec largest = (vec) ints_of(largest_int((ints) most)), inverse = vec_of(MOST_X / largest[0]);
        scales[h] = scale_of(largest, 1.0f / MOST_X)[0];
        for (int i = 0; i < HALF; i += VEC) {
            store_shorts(values + i, rounded(mul_vec(load_vec(from + i), inverse)));
        }
    }
}

/* VEC rows of a block from row `first` of a panel on. */
INLINE void fill_block(int type, const uint8_t * from, size_t stride, int first, struct short_rows * to) {
    words pairs[BLOCK / 2];
    vec values[BLOCK], most = vec_of(SMALLEST_LARGEST);
    for (int i = 0; i < 4; i++) {
        words_at(from + 16 * i, stride, pairs + 4 * i);
    }
    for (int i = 0; i < BLOCK; i++) {
        words pair = pairs[i / 2], bits = i % 2 ? pair & 0xffff0000 : pair << 16;
        values[i] = type == GGML_TYPE_BF16 ? (vec) bits : low_halves(i % 2 ? pair >> 16 : pair);
        most = larger_vec(most, abs_vec(values[i]));
    }
    vec inverse = div_vec(vec_of(MOST_W), most);
    store_vec(to->scale + first, scale_of(most, 1.0f / MOST_W));
    for (int i = 0; i < BLOCK / 2; i++) {
        words low = (words) rounded(mul_vec(values[2 * i], inverse));
        words high = (words) rounded(mul_vec(values[2 * i + 1], inverse));
        words both = (low & 0xffff) | high << 16;
        memcpy(to->values[i][first], &both, sizeof(both));
    }
}

/* `rows` of at most SHORT_ROWS; those behind the last as zeros. */
TARGET static void fill_short_rows(const struct ggml_tensor * w, const uint8_t * from, int rows, int blocks,
                                   struct short_rows * to) {
    uint8_t padded[VEC][2 * BLOCK];
    for (int first = 0; first < SHORT_ROWS; first += VEC, from += VEC * w->nb[1]) {
        for (int b = 0; b < blocks; b++) {
            const uint8_t * at = from + 2 * BLOCK * b;
            if (first + VEC <= rows) {
                fill_block(w->type, at, w->nb[1], first, to + b);
                continue;
            }
            memset(padded, 0, sizeof(padded));
            for (int r = 0; r < rows - first; r++) {
                memcpy(padded[r], at + r * w->nb[1], 2 * BLOCK);
            }
            fill_block(w->type, padded[0], 2 * BLOCK, first, to + b);
        }
    }
}

/* Exact sums of HALF products of 2 * VEC rows and n columns, from pair `first` of a block and from x + at on. */
INLINE void dots_of_half(const struct short_rows * w, int first, int row, const int16_t * const * x, int at, int n,
                         ints (*to)[2]) {
    for (int j = 0; j < n; j++) {
        to[j][0] = to[j][1] = ints_of(0);
    }
    for (int i = 0; i < HALF / 2; i++) {
        ints low = load_ints(w->values[first + i][row]), high = load_ints(w->values[first + i][row + VEC]);
        for (int j = 0; j < n; j++) {
            ints two = ints_of((int) word_of((const uint8_t *) (x[j] + at + 2 * i)));
            to[j][0] = dot_shorts(to[j][0], low, two);
            to[j][1] = dot_shorts(to[j][1], high, two);
        }
    }
}

/* SHORT_ROWS rows times n columns, added to what `to` has if `more`. */
INLINE void add_shorts(const struct short_rows * w, int blocks, const int16_t * const * x,
                       const float * const * scales, int n, bool more, float * const * to) {
    for (int row = 0; row < SHORT_ROWS; row += 2 * VEC) {
        vec sums[SHORT_COLUMNS][2];
        for (int j = 0; j < n; j++) {
            sums[j][0] = more ? load_vec(to[j] + row) : vec_of(0);
            sums[j][1] = more ? load_vec(to[j] + row + VEC) : vec_of(0);
        }
        for (int h = 0; h < 2 * blocks; h++) {
            ints exact[SHORT_COLUMNS][2];
            const float * of_rows = w[h / 2].scale + row;
            vec low = load_vec(of_rows), high = load_vec(of_rows + VEC);
            dots_of_half(w + h / 2, h % 2 * (HALF / 2), row, x, h * HALF, n, exact);
            for (int j = 0; j < n; j++) {
                vec scale = vec_of(scales[j][h]);
                sums[j][0] = fma_vec(vec_of_ints(exact[j][0]), mul_vec(scale, low), sums[j][0]);
                sums[j][1] = fma_vec(vec_of_ints(exact[j][1]), mul_vec(scale, high), sums[j][1]);
            }
        }
        for (int j = 0; j < n; j++) {
            store_vec(to[j] + row, sums[j][0]);
            store_vec(to[j] + row + VEC, sums[j][1]);
        }
    }
}

TARGET static void add_shorts_of(const struct short_rows * w, int blocks, const int16_t * const * x,
                                 const float * const * scales, int n, bool more, float * const * to) {
    switch (n) {
        case 1: add_shorts(w, blocks, x, scales, 1, more, to); break;
        case 2: add_shorts(w, blocks, x, scales, 2, more, to); break;
        case 3: add_shorts(w, blocks, x, scales, 3, more, to); break;
#if SHORT_COLUMNS > 4
        case 4: add_shorts(w, blocks, x, scales, 4, more, to); break;
        case 5: add_shorts(w, blocks, x, scales, 5, more, to); break;
#endif
        default: add_shorts(w, blocks, x, scales, SHORT_COLUMNS, more, to);
    }
}

/* `rows` of a panel, from `begin` blocks on, times n columns from column `first`. */
TARGET static void multiply_short_rows(const struct floats * of, const struct short_rows * panel, int row, int rows,
                                       int begin, int blocks, int first, int n) {
    int m = (int) of->w->ne[1], k = (int) of->w->ne[0];
    const int16_t * x[SHORT_COLUMNS];
    const float * scales[SHORT_COLUMNS];
    float part[SHORT_COLUMNS][SHORT_ROWS], * results[SHORT_COLUMNS], * at[SHORT_COLUMNS];
    for (int j = 0; j < n; j++) {
        const int16_t * column = (const int16_t *) ((const char *) of->x->data + (first + j) * of->x->nb[1]);
        x[j] = column + begin * BLOCK;
        scales[j] = (const float *) (column + k) + begin * (BLOCK / HALF);
        results[j] = of->to + (size_t) (first + j) * m + row;
        at[j] = rows < SHORT_ROWS ? memcpy(part[j], results[j], rows * sizeof(float)) : results[j];
    }
    add_shorts_of(panel, blocks, x, scales, n, begin > 0, at);
    for (int j = 0; j < n; j++) {
        if (rows < SHORT_ROWS) {
            memcpy(results[j], part[j], rows * sizeof(float));
        }
        if ((begin + blocks) * BLOCK == k) {
            end_rows(of->ending, results[j], row, rows);
        }
    }
}

TARGET static void multiply_rounded(const struct floats * of) {
    struct short_rows * panel = of->panel;
    int all = (int) of->w->ne[0] / BLOCK;
    for (int row = of->row; row < of->last; row += SHORT_ROWS) {
        int rows = of->last - row < SHORT_ROWS ? of->last - row : SHORT_ROWS;
        for (int begin = 0; begin < all; begin += SHORT_BLOCKS) {
            int blocks = all - begin < SHORT_BLOCKS ? all - begin : SHORT_BLOCKS;
            const uint8_t * from = of->data + row * of->w->nb[1] + begin * BLOCK * sizeof(int16_t);
            fill_short_rows(of->w, from, rows, blocks, panel);
            for (int first = of->begin; first < of->end; first += SHORT_COLUMNS) {
                int n = of->end - first < SHORT_COLUMNS ? of->end - first : SHORT_COLUMNS;
                multiply_short_rows(of, panel, row, rows, begin, blocks, first, n);
            }
        }
    }
}
