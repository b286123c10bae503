/* Attention of a tile of queries, once for each instruction set, which brings vectors (vectors.h), TARGET and INLINE,
   VECTORS that are computed at once, and the function's name ATTEND. The bits are those of every other set. */

/* softcap · tanh(x / softcap), of the exponential: 1 − 2 / (e^2y + 1) for positive y. */
INLINE vec capped(vec x, float softcap) {
    vec y = abs_vec(mul_vec(x, vec_of(1 / softcap)));
    vec e = exponential(mul_vec(y, vec_of(-2.0f)));
    vec t = div_vec(sub_vec(vec_of(1.0f), e), add_vec(vec_of(1.0f), e));
    return mul_vec(vec_of(softcap), sign_of(x, t));
}

/* The floats of one row, up to a multiple of VEC. */
TARGET static void read_row(const struct rows_of * of, int64_t cell, float * to) {
    const char * from = of->data + cell * of->cell;
    if (of->type == GGML_TYPE_F16 && VECTORS > 1) { /* ggml's is faster than that of any machine */
        int i = 0;
        for (; i + VEC <= of->width; i += VEC) {
            store_vec(to + i, vec_of_f16(from + 2 * i));
        }
        if (i < of->width) {
            ggml_fp16_t padded[VEC] = {0};
            memcpy(padded, from + 2 * i, 2 * (of->width - i));
            store_vec(to + i, vec_of_f16(padded));
        }
    } else if (of->type == GGML_TYPE_Q8_0) {
        for (int b = 0; b < of->width; b += 32, from += 34) {
            vec scale = vec_of(half(from));
            for (int i = 0; i < 32; i += VEC) {
                store_vec(to + b + i, mul_vec(vec_of_bytes(from + 2 + i), scale));
            }
        }
    } else if (of->type == GGML_TYPE_F32) {
        memcpy(to, from, of->width * sizeof(float));
    } else {
        ggml_get_type_traits(of->type)->to_float(from, to, of->width);
    }
}

/* Rows [CELLS][stride] of the cells of a block that some query of a tile may see; zeros for others. */
TARGET static void gather(const struct attention * of, const struct rows_of * x, int64_t first, int64_t from,
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
        read_row(x, cell, rows);
        if (x->width < stride) {
            memset(rows + x->width, 0, (stride - x->width) * sizeof(float));
        }
    }
}

/* Keys of CELLS cells as [d][CELLS], from rows [CELLS][stride]. */
TARGET static void turn(const float * rows, int d, int stride, float * to) {
    for (int j = 0; j < CELLS; j += VEC) {
        for (int i = 0; i < d; i += VEC) {
            transpose_floats(rows + (size_t) j * stride + i, stride, to + (size_t) i * CELLS + j, CELLS);
        }
    }
}

/* The scores of `n` queries with all cells of a block: products added by ascending dimension. */
INLINE void score(const float * const * q, int n, const float * keys, int d,
                                      float * to) {
    for (int j = 0; j < CELLS; j += VECTORS * VEC) {
        vec sums[TOGETHER][VECTORS];
        for (int i = 0; i < n; i++) {
            for (int v = 0; v < VECTORS; v++) {
                sums[i][v] = vec_of(0.0f);
            }
        }
        for (int c = 0; c < d; c++) {
            vec key[VECTORS];
            for (int v = 0; v < VECTORS; v++) {
                key[v] = load_vec(keys + (size_t) c * CELLS + j + v * VEC);
            }
            for (int i = 0; i < n; i++) {
                vec x = vec_of(q[i][c]);
                for (int v = 0; v < VECTORS; v++) {
                    sums[i][v] = fma_vec(x, key[v], sums[i][v]);
                }
            }
        }
        for (int i = 0; i < n; i++) {
            for (int v = 0; v < VECTORS; v++) {
                store_vec(to + i * CELLS + j + v * VEC, sums[i][v]);
            }
        }
    }
}

/* The scores of one query with all cells of a block, whose keys are rows of d floats: each lane adds up every
   LANES-th dimension. `memory` has CELLS * LANES floats. */
TARGET static void score_alone(const float * q, const float * rows, int d, float * memory, float * to) {
    float sums[CELLS * LANES];
    for (int j = 0; j < CELLS; j++) {
        for (int lane = 0; lane < LANES; lane += VEC) {
            vec sum = vec_of(0.0f);
            for (int c = lane; c < d; c += LANES) {
                sum = fma_vec(load_vec(q + c), load_vec(rows + (size_t) j * d + c), sum);
            }
            store_vec(sums + j * LANES + lane, sum);
        }
    }
    turn(sums, LANES, LANES, memory);
    for (int j = 0; j < CELLS; j += VEC) {
        vec sum = load_vec(memory + j);
        for (int i = 1; i < LANES; i++) {
            sum = add_vec(sum, load_vec(memory + i * CELLS + j));
        }
        store_vec(to + j, sum);
    }
}

/* Adds the values of cells from `begin` to `end`, each times its weight, to `n` queries' results. */
INLINE void weigh(const float * weights, int n, const float * values, int stride,
                                      int begin, int end, float * to) {
    int i = 0;
    for (; i + VECTORS * VEC <= stride; i += VECTORS * VEC) {
        vec sums[TOGETHER][VECTORS];
        for (int a = 0; a < n; a++) {
            for (int v = 0; v < VECTORS; v++) {
                sums[a][v] = load_vec(to + (size_t) a * stride + i + v * VEC);
            }
        }
        for (int j = begin; j < end; j++) {
            vec value[VECTORS];
            for (int v = 0; v < VECTORS; v++) {
                value[v] = load_vec(values + (size_t) j * stride + i + v * VEC);
            }
            for (int a = 0; a < n; a++) {
                vec w = vec_of(weights[a * CELLS + j]);
                for (int v = 0; v < VECTORS; v++) {
                    sums[a][v] = fma_vec(w, value[v], sums[a][v]);
                }
            }
        }
        for (int a = 0; a < n; a++) {
            for (int v = 0; v < VECTORS; v++) {
                store_vec(to + (size_t) a * stride + i + v * VEC, sums[a][v]);
            }
        }
    }
    for (; i < stride; i += VEC) {
        for (int a = 0; a < n; a++) {
            vec sum = load_vec(to + (size_t) a * stride + i);
            for (int j = begin; j < end; j++) {
                vec value = load_vec(values + (size_t) j * stride + i);
                sum = fma_vec(vec_of(weights[a * CELLS + j]), value, sum);
            }
            store_vec(to + (size_t) a * stride + i, sum);
        }
    }
}

TARGET static void add_biases(const struct query * q, int64_t first, int begin, int end, float * scores) {
    if (!q->mask && !q->bias && q->slope == 0) {
        return;
    }
    for (int j = begin; j < end; j++) {
        if (q->bias) {
            int64_t cell = cell_of(q->of, first + j);
            scores[j] = cell < q->biased ? scores[j] + q->bias[cell] : -INFINITY;
        }
        if (q->mask) {
            float m = q->half ? ggml_fp16_to_fp32(((const ggml_fp16_t *) q->mask)[first + j]) :
                                ((const float *) q->mask)[first + j];
            float masked = q->slope != 0 ? scores[j] + q->slope * m : scores[j] + m;
            scores[j] = m == -INFINITY ? m : masked; /* NaN is not seen */
        } else if (q->slope != 0) {
            float distance = (float) (q->position - (first + j));
            float lost = q->slope * (distance < 0 ? -distance : distance);
            scores[j] = scores[j] - lost;
        }
    }
}

INLINE void scale(float * x, int n, vec factor) {
    for (int i = 0; i < n; i += VEC) {
        store_vec(x + i, mul_vec(load_vec(x + i), factor));
    }
}

/* Whether a score of a block is NaN. */
TARGET static bool any_nan(const float * scores) {
    bool any = false;
    for (int j = 0; j < CELLS; j++) {
        any = any || scores[j] != scores[j];
    }
    return any;
}

/* Scores of one query become weights; the results so far are scaled to the new maximum. False if
   nothing of the block is seen. The weight of NaN is NaN, and so is the result. */
TARGET static bool weights_of(const struct query * q, const struct attention * of, int64_t first,
                                    float * scores, float * maximum, float * sums, float * result) {
    float numbers[CELLS];
    vec highest = vec_of(-INFINITY);
    int begin = seen_from(q, first), end = seen_to(q, first);
    if (begin >= end) {
        return false;
    }
    for (int j = 0; j < CELLS; j += VEC) {
        vec s = mul_vec(load_vec(scores + j), vec_of(of->scale));
        if (of->softcap > 0) {
            s = capped(s, of->softcap);
        }
        store_vec(numbers + j, s);
    }
    add_biases(q, first, begin, end, numbers);
    for (int j = 0; j < CELLS; j++) {
        if (j < begin || j >= end) {
            numbers[j] = -INFINITY;
        }
    }
    for (int j = 0; j < CELLS; j += VEC) {
        highest = max_vec(load_vec(numbers + j), highest); /* of numbers */
    }
    float most = largest_of(highest);
    most = most > *maximum ? most : *maximum;
    if (most == -INFINITY && !any_nan(numbers)) {
        return false;
    }
    if (most > *maximum) {
        vec factor = exponential(vec_of(*maximum - most));
        scale(sums, LANES, factor);
        scale(result, of->value_stride, factor);
        *maximum = most;
    }
    for (int lane = 0; lane < LANES; lane += VEC) {
        vec total = load_vec(sums + lane);
        for (int j = lane; j < CELLS; j += LANES) {
            vec w = exponential(sub_vec(load_vec(numbers + j), vec_of(most)));
            store_vec(scores + j, w);
            total = add_vec(total, w);
        }
        store_vec(sums + lane, total);
    }
    return true;
}

/* What all elements of a vector are. */
INLINE float number_of(vec x) {
    float numbers[VEC];
    store_vec(numbers, x);
    return numbers[0];
}

TARGET static void end_query(const struct attention * of, const struct query * q, float maximum, const float * sums,
                   const float * result) {
    float total = 0, factor = 1;
    for (int i = 0; i < LANES; i++) {
        total += sums[i];
    }
    if (q->sink) {
        float most = *q->sink > maximum ? *q->sink : maximum;
        factor = most > maximum ? number_of(exponential(vec_of(maximum - most))) : 1.0f;
        total = total * factor;
        total = total + number_of(exponential(vec_of(*q->sink - most)));
    }
    factor = total > 0 ? factor / total : total == total ? 0.0f : total;
    for (int i = 0; i < of->value.width; i++) {
        q->to[i] = result[i] * factor;
    }
}

TARGET HIDDEN void ATTEND(const struct attention * of, struct query * queries, int n, int64_t from, int64_t to,
                          struct tile_memory m) {
    bool alone = n == 1 && !of->ordered && of->key_stride == of->key_width;
    for (int i = 0; i < n; i++) {
        m.maximum[i] = -INFINITY;
        memset(m.sums + i * LANES, 0, LANES * sizeof(float));
        memset(m.results + (size_t) i * of->value_stride, 0, of->value_stride * sizeof(float));
    }
    for (int64_t first = from / CELLS * CELLS; first < to; first += CELLS) {
        bool seen[QUERIES];
        gather(of, &of->key, first, from, to, of->key_stride, m.rows);
        if (alone) {
            score_alone(queries->data, m.rows, of->key_width, m.keys, m.scores);
        } else {
            turn(m.rows, of->key_width, of->key_stride, m.keys);
        }
        for (int i = 0; i < n && !alone; i += TOGETHER) {
            const float * q[TOGETHER];
            int some = n - i < TOGETHER ? n - i : TOGETHER;
            for (int a = 0; a < some; a++) {
                q[a] = queries[i + a].data;
            }
            if (some == TOGETHER) {
                score(q, TOGETHER, m.keys, of->key_width, m.scores + i * CELLS);
            } else {
                for (int a = 0; a < some; a++) {
                    score(q + a, 1, m.keys, of->key_width, m.scores + (i + a) * CELLS);
                }
            }
        }
        gather(of, &of->value, first, from, to, of->value_stride, m.rows);
        for (int i = 0; i < n; i++) {
            seen[i] = weights_of(queries + i, of, first, m.scores + i * CELLS, m.maximum + i,
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
                weigh(m.scores + i * CELLS, TOGETHER, m.rows, of->value_stride, begin, end, results);
                i += TOGETHER;
            } else {
                if (seen[i]) {
                    weigh(m.scores + i * CELLS, 1, m.rows, of->value_stride, begin, end, results);
                }
                i++;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        end_query(of, queries + i, m.maximum[i], m.sums + i * LANES, m.results + (size_t) i * of->value_stride);
    }
}
