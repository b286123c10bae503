/* Products with few columns, row by row: a panel would cost more than the few products with it, and
   weights that are read once come as fast as memory gives them in one stream. The sums are those of
   all kernels: parts are added in order, and a part is an exact sum times its activations' scale. */

#define PARTS (2 * BLOCKS)

/* Of a panel's depth of rows and columns. */
struct parts {
    float scale[TILE][PARTS], minimum[TILE][PARTS];
    float part[FEW][TILE][PARTS];
};

/* The sums of the four lanes of each of four vectors: of vector i's lane l as number 4 * l + i. */
INLINE __m512i sums_of_lanes(const __m512i * z) {
    __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(z[0], z[1]), _mm512_unpackhi_epi32(z[0], z[1]));
    __m512i c = _mm512_add_epi32(_mm512_unpacklo_epi32(z[2], z[3]), _mm512_unpackhi_epi32(z[2], z[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c));
}

/* The exact sums of a line's parts, in their order, without the starts. */
INLINE void exact_parts(const uint8_t * weights, const int8_t * values, enum order order, bool halves,
                        __m512i * exact) {
    const __m512i by_vectors = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i second = _mm512_set1_epi32(4);
    const __m512i first = order == IN_ORDER ?
        _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27) :
        _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 16, 17, 24, 25, 18, 19, 26, 27);
    __m512i z[8];
    for (int i = 0; i < 8; i++) {
        __m512i before = order == BY_HALVES && i % 2 ? z[i / 2] : _mm512_setzero_si512();
        __m512i sums = _mm512_dpbusd_epi32(before, _mm512_loadu_si512(weights + 64 * i),
                                           _mm512_loadu_si512(values + 64 * i));
        z[order == BY_HALVES ? i / 2 : i] = sums;
    }
    exact[0] = sums_of_lanes(z);
    if (order == BY_HALVES) {
        exact[0] = _mm512_permutexvar_epi32(by_vectors, exact[0]);
        return;
    }
    exact[1] = sums_of_lanes(z + 4);
    if (halves) {
        exact[0] = _mm512_permutexvar_epi32(by_vectors, exact[0]);
        exact[1] = _mm512_permutexvar_epi32(by_vectors, exact[1]);
    } else {
        __m512i a = _mm512_permutex2var_epi32(exact[0], first, exact[1]);
        exact[0] = _mm512_add_epi32(
            a, _mm512_permutex2var_epi32(exact[0], _mm512_add_epi32(first, second), exact[1]));
    }
}

/* The parts of one line of weights and a stretch of each column, as those from `p` of row r. */
INLINE void parts_of_line(const struct line * line, const struct stretch * x, int stretches, int n, int r, int p,
                          enum order order, bool halves, bool minima, struct parts * to) {
    for (int i = 0; i < (halves ? 2 : 1); i++) {
        _mm512_storeu_ps(to->scale[r] + p + 16 * i, _mm512_loadu_ps(line->scale + 16 * i));
        if (minima) {
            _mm512_storeu_ps(to->minimum[r] + p + 16 * i, _mm512_loadu_ps(line->minimum + 16 * i));
        }
    }
    for (int j = 0; j < n; j++, x += stretches) {
        __m512i exact[2];
        exact_parts(line->values, x->values, order, halves, exact);
        for (int i = 0; i < (halves ? 2 : 1); i++) {
            if (!minima) {
                exact[i] = _mm512_add_epi32(exact[i], _mm512_loadu_si512(x->start + 16 * i));
            }
            __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(exact[i]), _mm512_loadu_ps(x->scale + 16 * i));
            _mm512_storeu_ps(to->part[j][r] + p + 16 * i, part);
        }
    }
}

/* Adds parts of TILE rows and n columns to their sums; those behind the last, up to a multiple of 8, are zeros. */
INLINE void add_parts(const struct parts * of, const struct stretch * x, int stretches, int parts, int each, int n,
                      bool minima, __m512 * sums) {
    for (int p = 0; p < parts; p += 8) {
        __m512i scale[8], minimum[8], part[8];
        transpose(of->scale[0] + p, of->scale[0] + p + 4, sizeof(of->scale[0]), scale);
        if (minima) {
            transpose(of->minimum[0] + p, of->minimum[0] + p + 4, sizeof(of->minimum[0]), minimum);
        }
        for (int j = 0; j < n; j++) {
            const float * sum = x[(size_t) j * stretches + p / each].sum + p % each;
            __m512 s = sums[j];
            transpose(of->part[j][0] + p, of->part[j][0] + p + 4, sizeof(of->part[j][0]), part);
            for (int i = 0; i < 8; i++) {
                s = _mm512_fmadd_ps(_mm512_castsi512_ps(part[i]), _mm512_castsi512_ps(scale[i]), s);
                if (minima) {
                    s = _mm512_fnmadd_ps(_mm512_castsi512_ps(minimum[i]), _mm512_set1_ps(sum[i]), s);
                }
            }
            sums[j] = s;
        }
    }
}

/* `rows` of at most TILE rows times n columns; `to` has where each column's begin. */
INLINE void multiply_rows(const struct ggml_tensor * w, const struct type * type, const uint8_t * data, int rows,
                          const struct stretch * x, int n, enum order order, bool halves, bool minima,
                          float * const * to) {
    int all = (int) w->ne[0], stretches = (all + LINE - 1) / LINE, each = LINE / (halves ? 16 : 32);
    size_t bytes = ggml_type_size(w->type), values = ggml_blck_size(w->type), of_line = LINE / values * bytes;
    unpacker * unpack = unpackers[type->number];
    struct parts of;
    struct line lines[DEPTH / LINE];
    __m512 sums[FEW];
    memset(lines, 0, sizeof(lines)); /* scales behind the last value are numbers, too */
    for (int j = 0; j < n; j++) {
        sums[j] = _mm512_setzero_ps();
    }
    for (int begin = 0; begin < all; begin += DEPTH) {
        int depth = all - begin < DEPTH ? all - begin : DEPTH;
        for (int r = 0; r < rows; r++) {
            const uint8_t * from = data + r * w->nb[1] + begin / LINE * of_line;
            for (int i = 0; i * LINE < depth; i++, from += of_line) {
                int left = depth - i * LINE, some = left < LINE ? left : LINE;
                for (size_t ahead = 0; ahead < of_line; ahead += 64) {
                    __builtin_prefetch(from + STREAM + ahead);
                }
                unpack_line(unpack, from, some / values * bytes, some, lines + i);
            }
            for (int i = 0; i * LINE < depth; i++) {
                parts_of_line(lines + i, x + begin / LINE + i, stretches, n, r, i * each, order, halves, minima, &of);
            }
        }
        int parts = depth / LINE * each + depth % LINE / (halves ? 16 : 32);
        add_parts(&of, x + begin / LINE, stretches, parts, each, n, minima, sums);
    }
    for (int j = 0; j < n; j++) {
        _mm512_mask_storeu_ps(to[j], (__mmask16) ((1 << rows) - 1), sums[j]);
    }
}

#define ROW_BY_ROW(name, order, halves, minima)                                                                   \
    TARGET static void name(const struct ggml_tensor * w, const struct type * type, const uint8_t * data, int rows, \
                          const struct stretch * x, int n, float * const * to) {                                  \
        if (n == 1) {                                                                                             \
            multiply_rows(w, type, data, rows, x, 1, order, halves, minima, to);                                  \
        } else {                                                                                                  \
            multiply_rows(w, type, data, rows, x, n, order, halves, minima, to);                                  \
        }                                                                                                         \
    }

ROW_BY_ROW(rows_32, IN_ORDER, false, false)
ROW_BY_ROW(rows_16, IN_ORDER, true, false)
ROW_BY_ROW(rows_16_minima, IN_ORDER, true, true)
ROW_BY_ROW(rows_by_halves, BY_HALVES, false, false)
ROW_BY_ROW(rows_by_halves_minima, BY_HALVES, false, true)
ROW_BY_ROW(rows_by_alternates_minima, BY_ALTERNATES, false, true)

static few_kernel * few_kernel_of(const struct type * type) {
    if (type->halves) {
        return type->minima ? rows_16_minima : rows_16;
    }
    if (type->order == BY_HALVES) {
        return type->minima ? rows_by_halves_minima : rows_by_halves;
    }
    return type->order == BY_ALTERNATES ? rows_by_alternates_minima : rows_32;
}
