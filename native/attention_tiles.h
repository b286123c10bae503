/* Attention of a tile of queries, once for each instruction set: attention.c defines NAME, TARGET,
   VECTORS and the operations on vectors of LANES floats. The bits are those of every other set. */

/* e to the x, for x of at most 0: 0 below −87. */
TARGET static inline vec NAME(exponential)(vec x) {
    const vec magic = SET(0x1.8p23f);
    vec clamped = MAX(SET(-88.0f), x); /* NaN stays NaN */
    vec z = FMA(clamped, SET(0x1.715476p+0f), magic), n = SUB(z, magic);
    vec r = FMA(n, SET(-0x1.62e400p-1f), clamped);
    r = FMA(n, SET(-0x1.7f7d1cp-20f), r);
    vec p = SET(1.9875691500e-4f);
    p = FMA(p, r, SET(1.3981999507e-3f));
    p = FMA(p, r, SET(8.3334519073e-3f));
    p = FMA(p, r, SET(4.1665795894e-2f));
    p = FMA(p, r, SET(1.6666665459e-1f));
    p = FMA(p, r, SET(5.0000001201e-1f));
    vec y = ADD(FMA(p, MUL(r, r), r), SET(1.0f));
    return ZERO_BELOW(x, -87.0f, MUL(y, POWER(z)));
}

/* softcap · tanh(x / softcap), of the exponential: 1 − 2 / (e^2y + 1) for positive y. */
TARGET static inline vec NAME(capped)(vec x, float softcap) {
    vec y = ABSOLUTE(MUL(x, SET(1 / softcap)));
    vec e = NAME(exponential)(MUL(y, SET(-2.0f)));
    vec t = DIV(SUB(SET(1.0f), e), ADD(SET(1.0f), e));
    return MUL(SET(softcap), SIGN_OF(x, t));
}

/* Rows [CELLS][stride] of the cells of a block that some query of a tile may see; zeros for others. */
TARGET static void NAME(gather)(const struct attention * of, const struct rows_of * x, int64_t first, int64_t from,
                                int64_t to, int stride, float * rows) {
    for (int j = 0; j < CELLS; j++, rows += stride) {
        int64_t position = first + j, cell = position >= from && position < to ? cell_of(of, position) : -1;
        int64_t later = cell_of(of, position + AHEAD);
        for (size_t ahead = 0; ahead < x->bytes && later >= 0; ahead += 64) {
            __builtin_prefetch(x->data + later * x->cell + ahead);
        }
        if (cell < 0) {
            memset(rows, 0, stride * sizeof(float));
            continue;
        }
        NAME(read_row)(x, cell, rows);
        if (x->width < stride) {
            memset(rows + x->width, 0, (stride - x->width) * sizeof(float));
        }
    }
}

/* Keys of CELLS cells as [d][CELLS], from rows [CELLS][stride]. */
TARGET static void NAME(turn)(const float * rows, int d, int stride, float * to) {
    for (int j = 0; j < CELLS; j += LANES) {
        for (int i = 0; i < d; i += LANES) {
            TRANSPOSE(rows + (size_t) j * stride + i, stride, to + (size_t) i * CELLS + j);
        }
    }
}

/* The scores of `n` queries with all cells of a block: products added by ascending dimension. */
TARGET ALWAYS static inline void NAME(score)(const float * const * q, int n, const float * keys, int d,
                                      float * to) {
    for (int j = 0; j < CELLS; j += VECTORS * LANES) {
        vec sums[TOGETHER][VECTORS];
        for (int i = 0; i < n; i++) {
            for (int v = 0; v < VECTORS; v++) {
                sums[i][v] = SET(0.0f);
            }
        }
        for (int c = 0; c < d; c++) {
            vec key[VECTORS];
            for (int v = 0; v < VECTORS; v++) {
                key[v] = LOAD(keys + (size_t) c * CELLS + j + v * LANES);
            }
            for (int i = 0; i < n; i++) {
                vec x = SET(q[i][c]);
                for (int v = 0; v < VECTORS; v++) {
                    sums[i][v] = FMA(x, key[v], sums[i][v]);
                }
            }
        }
        for (int i = 0; i < n; i++) {
            for (int v = 0; v < VECTORS; v++) {
                STORE(to + i * CELLS + j + v * LANES, sums[i][v]);
            }
        }
    }
}

/* The scores of one query with all cells of a block, whose keys are rows of d floats: each lane adds up every
   LANES-th dimension. `memory` has CELLS * LANES floats. */
TARGET static void NAME(score_alone)(const float * q, const float * rows, int d, float * memory, float * to) {
    float sums[CELLS * LANES];
    for (int j = 0; j < CELLS; j++) {
        vec sum = SET(0.0f);
        for (int c = 0; c < d; c += LANES) {
            sum = FMA(LOAD(q + c), LOAD(rows + (size_t) j * d + c), sum);
        }
        STORE(sums + j * LANES, sum);
    }
    NAME(turn)(sums, LANES, LANES, memory);
    for (int j = 0; j < CELLS; j += LANES) {
        vec sum = LOAD(memory + j);
        for (int i = 1; i < LANES; i++) {
            sum = ADD(sum, LOAD(memory + i * CELLS + j));
        }
        STORE(to + j, sum);
    }
}

/* Adds the values of cells from `begin` to `end`, each times its weight, to `n` queries' results. */
TARGET ALWAYS static inline void NAME(weigh)(const float * weights, int n, const float * values, int stride,
                                      int begin, int end, float * to) {
    int i = 0;
    for (; i + VECTORS * LANES <= stride; i += VECTORS * LANES) {
        vec sums[TOGETHER][VECTORS];
        for (int a = 0; a < n; a++) {
            for (int v = 0; v < VECTORS; v++) {
                sums[a][v] = LOAD(to + (size_t) a * stride + i + v * LANES);
            }
        }
        for (int j = begin; j < end; j++) {
            vec value[VECTORS];
            for (int v = 0; v < VECTORS; v++) {
                value[v] = LOAD(values + (size_t) j * stride + i + v * LANES);
            }
            for (int a = 0; a < n; a++) {
                vec w = SET(weights[a * CELLS + j]);
                for (int v = 0; v < VECTORS; v++) {
                    sums[a][v] = FMA(w, value[v], sums[a][v]);
                }
            }
        }
        for (int a = 0; a < n; a++) {
            for (int v = 0; v < VECTORS; v++) {
                STORE(to + (size_t) a * stride + i + v * LANES, sums[a][v]);
            }
        }
    }
    for (; i < stride; i += LANES) {
        for (int a = 0; a < n; a++) {
            vec sum = LOAD(to + (size_t) a * stride + i);
            for (int j = begin; j < end; j++) {
                vec value = LOAD(values + (size_t) j * stride + i);
                sum = FMA(SET(weights[a * CELLS + j]), value, sum);
            }
            STORE(to + (size_t) a * stride + i, sum);
        }
    }
}

/* Scores of one query become weights; the results so far are scaled to the new maximum. False if
   nothing of the block is seen. */
TARGET static bool NAME(weights_of)(const struct query * q, const struct attention * of, int64_t first,
                                    float * scores, float * maximum, float * sums, float * result) {
    float numbers[CELLS];
    vec highest = SET(-INFINITY);
    int begin = seen_from(q, first), end = seen_to(q, first);
    if (begin >= end) {
        return false;
    }
    for (int j = 0; j < CELLS; j += LANES) {
        vec s = MUL(LOAD(scores + j), SET(of->scale));
        if (of->softcap > 0) {
            s = NAME(capped)(s, of->softcap);
        }
        STORE(numbers + j, s);
    }
    add_biases(q, first, begin, end, numbers);
    for (int j = 0; j < CELLS; j++) {
        if (j < begin || j >= end) {
            numbers[j] = -INFINITY;
        }
    }
    for (int j = 0; j < CELLS; j += LANES) {
        highest = MAX(highest, LOAD(numbers + j));
    }
    float most = HIGHEST(highest);
    most = most > *maximum ? most : *maximum;
    if (most == -INFINITY) {
        return false;
    }
    vec total = LOAD(sums);
    if (most > *maximum) {
        vec factor = NAME(exponential)(SET(*maximum - most));
        total = MUL(total, factor);
        for (int i = 0; i < of->value_stride; i += LANES) {
            STORE(result + i, MUL(LOAD(result + i), factor));
        }
        *maximum = most;
    }
    for (int j = 0; j < CELLS; j += LANES) {
        vec w = NAME(exponential)(SUB(LOAD(numbers + j), SET(most)));
        STORE(scores + j, w);
        total = ADD(total, w);
    }
    STORE(sums, total);
    return true;
}

/* All queries of a tile, which read the same keys and values. */
TARGET static void NAME(attend)(const struct attention * of, struct query * queries, int n, int64_t from,
                                int64_t to, struct tile_memory m) {
    bool alone = n == 1 && !of->ordered && of->key_stride == of->key_width;
    for (int i = 0; i < n; i++) {
        m.maximum[i] = -INFINITY;
        memset(m.sums + i * LANES, 0, LANES * sizeof(float));
        memset(m.results + (size_t) i * of->value_stride, 0, of->value_stride * sizeof(float));
    }
    for (int64_t first = from / CELLS * CELLS; first < to; first += CELLS) {
        bool seen[QUERIES];
        NAME(gather)(of, &of->key, first, from, to, of->key_stride, m.rows);
        if (alone) {
            NAME(score_alone)(queries->data, m.rows, of->key_width, m.keys, m.scores);
        } else {
            NAME(turn)(m.rows, of->key_width, of->key_stride, m.keys);
        }
        for (int i = 0; i < n && !alone; i += TOGETHER) {
            const float * q[TOGETHER];
            int some = n - i < TOGETHER ? n - i : TOGETHER;
            for (int a = 0; a < some; a++) {
                q[a] = queries[i + a].data;
            }
            if (some == TOGETHER) {
                NAME(score)(q, TOGETHER, m.keys, of->key_width, m.scores + i * CELLS);
            } else {
                for (int a = 0; a < some; a++) {
                    NAME(score)(q + a, 1, m.keys, of->key_width, m.scores + (i + a) * CELLS);
                }
            }
        }
        NAME(gather)(of, &of->value, first, from, to, of->value_stride, m.rows);
        for (int i = 0; i < n; i++) {
            seen[i] = NAME(weights_of)(queries + i, of, first, m.scores + i * CELLS, m.maximum + i,
                                       m.sums + i * LANES, m.results + (size_t) i * of->value_stride);
        }
        for (int i = 0; i < n;) {
            int alike = 0; /* queries that see the same cells of the block */
            int begin = seen_from(queries + i, first), end = seen_to(queries + i, first);
            while (alike < TOGETHER && i + alike < n && seen[i + alike] &&
                   seen_from(queries + i + alike, first) == begin && seen_to(queries + i + alike, first) == end) {
                alike++;
            }
            float * results = m.results + (size_t) i * of->value_stride;
            if (alike == TOGETHER) {
                NAME(weigh)(m.scores + i * CELLS, TOGETHER, m.rows, of->value_stride, begin, end, results);
                i += TOGETHER;
            } else {
                if (seen[i]) {
                    NAME(weigh)(m.scores + i * CELLS, 1, m.rows, of->value_stride, begin, end, results);
                }
                i++;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        finish(of, queries + i, m.maximum[i], m.sums + i * LANES, m.results + (size_t) i * of->value_stride);
    }
}
