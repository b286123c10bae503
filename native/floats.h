/* Products of weights that are numbers: F32, F16 and BF16. They become F32, in panels, and so are activations.
   A family brings vectors of VEC floats, and FLOAT_COLUMNS whose sums stay in registers.

   An element is a sum of 16 lanes, of which lane l adds the products at l, l + 16, … of a span by fma, in order.
   Lanes of a panel's spans are added in order, then lanes by halves (l and l + 8, …), then panels in order: the
   same bits whatever the number of columns, threads, and lanes that the processor adds at once. */

#define SPAN          256 /* values that are added by fma alone */
#define LANES          16
#define FLOAT_TILE      4 /* rows whose sums stay in registers */
#define FLOAT_ROWS     24 /* of a panel */
#define FLOAT_DEPTH  2048 /* values of a panel's row */

typedef float float_panel[FLOAT_ROWS][SPAN]; /* of one span */
typedef float lane_sums[FLOAT_COLUMNS][LANES] __attribute__((aligned(64)));

_Static_assert(FLOAT_DEPTH / SPAN * sizeof(float_panel) <= PANEL, "a panel fits");

/* Rows of a depth, in a panel or where they lie: bytes from one row to the next, and from a span to the next. */
struct float_rows {
    int type, rows, depth;
    const uint8_t * data;
    size_t row, span;
    const uint8_t * next; /* the rows behind them, or NULL */
};

/* n values of a span as F32. */
TARGET static void convert_span(int type, const uint8_t * from, int n, float * to) {
    if (type == GGML_TYPE_F32) {
        memcpy(to, from, n * sizeof(float));
        return;
    }
    for (int i = 0; i < n; i += VEC) {
        store_vec(to + i, type == GGML_TYPE_F16 ? vec_of_f16(from + 2 * i) : vec_of_bf16(from + 2 * i));
    }
}

INLINE vec floats_at(int type, const uint8_t * from, int i) {
    return type == GGML_TYPE_F32 ? load_vec((const float *) from + i) :
        type == GGML_TYPE_F16 ? vec_of_f16(from + 2 * i) : vec_of_bf16(from + 2 * i);
}

/* Adds the products of `width` values of a span to the sums of FLOAT_TILE rows and n columns. */
INLINE void add_span(int type, const uint8_t * const * w, int width, const float * const * x, int n,
                     lane_sums * to) {
    for (int lane = 0; lane < LANES; lane += VEC) {
        vec sums[FLOAT_TILE][FLOAT_COLUMNS];
        for (int r = 0; r < FLOAT_TILE; r++) {
            for (int j = 0; j < n; j++) {
                sums[r][j] = vec_of(0);
            }
        }
        for (int i = lane; i < width; i += LANES) {
            vec weights[FLOAT_TILE];
            for (int r = 0; r < FLOAT_TILE; r++) {
                weights[r] = floats_at(type, w[r], i);
            }
            for (int j = 0; j < n; j++) {
                vec column = load_vec(x[j] + i);
                for (int r = 0; r < FLOAT_TILE; r++) {
                    sums[r][j] = fma_vec(weights[r], column, sums[r][j]);
                }
            }
        }
        for (int r = 0; r < FLOAT_TILE; r++) {
            for (int j = 0; j < n; j++) {
                store_vec(to[r][j] + lane, add_vec(load_vec(to[r][j] + lane), sums[r][j]));
            }
        }
    }
}

INLINE void add_span_of(int type, const uint8_t * const * w, int width, const float * const * x, int n,
                        lane_sums * to) {
    switch (n) {
        case 1: add_span(type, w, width, x, 1, to); break;
        case 2: add_span(type, w, width, x, 2, to); break;
        case 3: add_span(type, w, width, x, 3, to); break;
#if FLOAT_COLUMNS > 3
        case 4: add_span(type, w, width, x, 4, to); break;
        case 5: add_span(type, w, width, x, 5, to); break;
        default: add_span(type, w, width, x, FLOAT_COLUMNS, to);
#endif
    }
}

/* Adds the products of one span of rows and n columns. */
TARGET static void add_spans(const struct float_rows * w, int span, const float * const * x, int n, lane_sums * to) {
    int left = w->depth - span * SPAN, width = left < SPAN ? left : SPAN;
    for (int row = 0; row < w->rows; row += FLOAT_TILE) {
        const uint8_t * at[FLOAT_TILE];
        for (int r = 0; r < FLOAT_TILE; r++) { /* those behind the last are not kept */
            at[r] = w->data + (row + r < w->rows ? row + r : row) * w->row + span * w->span;
        }
        switch (w->type) {
            case GGML_TYPE_F32: add_span_of(GGML_TYPE_F32, at, width, x, n, to + row); break;
            case GGML_TYPE_F16: add_span_of(GGML_TYPE_F16, at, width, x, n, to + row); break;
            default: add_span_of(GGML_TYPE_BF16, at, width, x, n, to + row);
        }
    }
}

typedef float floats8 __attribute__((vector_size(32)));

#define PICKED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)

/* The sums of lanes of eight rows, which begin `step` floats after one another. */
INLINE void sum_lanes(const float * rows, int step, float * to) {
    floats8 a[8], b[4], c[2];
    for (int r = 0; r < 8; r++) {
        floats8 low, high;
        memcpy(&low, rows + r * step, sizeof(low));
        memcpy(&high, rows + r * step + LANES / 2, sizeof(high));
        a[r] = low + high;
    }
    for (int r = 0; r < 4; r++) { /* of rows r and r + 4 */
        b[r] = PICKED(a[r], a[r + 4], 0, 1, 2, 3, 8, 9, 10, 11) + PICKED(a[r], a[r + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    for (int r = 0; r < 2; r++) { /* of rows r and r + 2, r + 4 and r + 6 */
        c[r] = PICKED(b[r], b[r + 2], 0, 1, 8, 9, 4, 5, 12, 13) + PICKED(b[r], b[r + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    floats8 sums = PICKED(c[0], c[1], 0, 8, 2, 10, 4, 12, 6, 14) + PICKED(c[0], c[1], 1, 9, 3, 11, 5, 13, 7, 15);
    memcpy(to, &sums, sizeof(sums));
}

/* `rows` of a depth of weights as spans of a panel. */
TARGET static void fill_panel(const struct ggml_tensor * w, const uint8_t * from, int rows, int depth,
                              float_panel * to) {
    size_t each = ggml_type_size(w->type);
    for (int r = 0; r < rows; r++, from += w->nb[1]) {
        for (int i = 0; i * SPAN < depth; i++) {
            const uint8_t * at = from + i * SPAN * each;
            for (size_t ahead = 0; ahead < SPAN * each; ahead += 64) {
                __builtin_prefetch(at + STREAM + ahead);
            }
            convert_span(w->type, at, depth - i * SPAN < SPAN ? depth - i * SPAN : SPAN, to[i][r]);
        }
    }
}

/* Rows times n columns; `to` has where each column's begin. */
TARGET static void multiply_float_rows(const struct float_rows * w, const float * const * x, int n, float * const * to,
                                       bool more) {
    lane_sums sums[FLOAT_ROWS];
    memset(sums, 0, (w->rows + 7) / 8 * 8 * sizeof(*sums));
    for (int i = 0; i * SPAN < w->depth; i++) {
        const float * columns[FLOAT_COLUMNS];
        for (int j = 0; j < n; j++) {
            columns[j] = x[j] + i * SPAN;
        }
        if (w->next) {
            fetch(w->next + i * FLOAT_TILE * w->span, FLOAT_TILE * w->span);
        }
        add_spans(w, i, columns, n, sums);
    }
    for (int j = 0; j < n; j++) {
        float all[FLOAT_ROWS];
        for (int r = 0; r < w->rows; r += 8) {
            sum_lanes(sums[r][j], FLOAT_COLUMNS * LANES, all + r);
        }
        for (int r = 0; r < w->rows; r++) {
            to[j][r] = more ? to[j][r] + all[r] : all[r];
        }
    }
}

TARGET static void multiply_floats(const struct floats * of) {
    const struct ggml_tensor * w = of->w;
    float_panel * panel = (float_panel *) of->panel;
    int m = (int) w->ne[1], k = (int) w->ne[0], inputs = of->order ? (int) of->x->ne[1] : 1;
    bool few = of->end - of->begin <= FEW;
    size_t each = ggml_type_size(w->type);
    for (int row = of->row, most = few ? FLOAT_TILE : FLOAT_ROWS; row < of->last; row += most) {
        int rows = of->last - row < most ? of->last - row : most;
        for (int at = 0; at < k; at += FLOAT_DEPTH) {
            int depth = k - at < FLOAT_DEPTH ? k - at : FLOAT_DEPTH;
            const uint8_t * from = of->data + row * w->nb[1] + at * each;
            struct float_rows these = {
                w->type, rows, depth, from, w->nb[1], SPAN * each,
                of->data + (row + most) * w->nb[1] + most * at * each,
            };
            if (!few) {
                fill_panel(w, from, rows, depth, panel);
                these = (struct float_rows) {
                    GGML_TYPE_F32, rows, depth, (const uint8_t *) panel, sizeof(**panel), sizeof(*panel), NULL,
                };
            }
            for (int first = of->begin; first < of->end; first += FLOAT_COLUMNS) {
                int n = of->end - first < FLOAT_COLUMNS ? of->end - first : FLOAT_COLUMNS;
                const float * columns[FLOAT_COLUMNS];
                float * results[FLOAT_COLUMNS];
                for (int j = 0; j < n; j++) {
                    int number = of->order ? of->order[first + j] : first + j;
                    int64_t read = (int64_t) number / of->used * inputs + number % of->used % inputs;
                    columns[j] = (const float *) of->x->data + read * k + at;
                    results[j] = of->to + (size_t) number * m + row;
                }
                multiply_float_rows(&these, columns, n, results, at > 0);
                for (int j = 0; j < n && at + depth == k; j++) {
                    end_rows(of->ending, results[j], row, rows);
                }
            }
        }
    }
}
