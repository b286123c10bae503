/* Columns of activations as bytes: see struct family. Blocks with a value that is not finite have a scale of NaN. */

/* Values without a sign, or NaN and infinity, which are larger as bits. */
INLINE vec larger_vec(vec a, vec b) {
    return (vec) max_ints((ints) a, (ints) b);
}

INLINE float largest_value(vec x) {
    return ((vec) ints_of(largest_int((ints) x)))[0];
}

/* One column of `count` blocks that share a scale, as column j of a group. */
INLINE void quantize_column(const float * from, int count, int j, struct columns * to) {
    static const float zeros[BLOCK];
    bool wide = count > 1;
    vec most = vec_of(0);
    for (int i = 0; i < count * BLOCK; i += VEC) {
        most = larger_vec(most, abs_vec(load_vec(from + i)));
    }
    float largest = largest_value(most), inverse = largest > 0 ? 127 / largest : 0;
    float scale = !wide ? largest / 127 : largest > 0 ? 1 / inverse : 0;
    bool finite = largest <= FLT_MAX;
    scale = finite ? scale : NAN;
    for (int b = 0; b < count; b++, from += BLOCK, to++) {
        int32_t sums[2];
        store_rounded(finite ? from : zeros, vec_of(inverse), to->values[j], sums);
        to->start[0][j] = -sums[0] - sums[1];
        to->start[1][j] = -sums[1];
        to->halves[j] = (-sums[0] & 0xffff) | (int32_t) ((uint32_t) -sums[1] << 16);
        to->scale[j] = wide ? scale : to_f16(scale);
        to->sum[j] = wide ? sums[0] + sums[1] : to_f16(scale * (sums[0] + sums[1]));
    }
}

#ifndef AVX512_VECTORS

TARGET static void quantize_columns(const float * const * from, int n, int count, struct columns * to) {
    for (int j = 0; j < n; j++) {
        quantize_column(from[j], count, j, to);
    }
}

#else

#define NEXT(op, a, b, low, high) op(low(a, b), high(a, b))
#define FIRST_HALF(a, b)    _mm512_shuffle_i32x4(a, b, 0x44)
#define SECOND_HALF(a, b)   _mm512_shuffle_i32x4(a, b, 0xee)
#define EVEN_QUARTERS(a, b) _mm512_shuffle_i32x4(a, b, 0x88)
#define ODD_QUARTERS(a, b)  _mm512_shuffle_i32x4(a, b, 0xdd)
#define EVEN_WORDS(a, b) \
    _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88))
#define ODD_WORDS(a, b) \
    _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd))

/* The elements of each of GROUP vectors, which are overwritten, as one by `op`. */
#define REDUCE(name, op)                                                                               \
    INLINE __m512i name(__m512i * x) {                                                                 \
        const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15); \
        for (int i = 0; i < 8; i++) {                                                                  \
            x[i] = NEXT(op, x[i], x[i + 8], FIRST_HALF, SECOND_HALF);                                  \
        }                                                                                              \
        for (int i = 0; i < 4; i++) {                                                                  \
            x[i] = NEXT(op, x[i], x[i + 4], EVEN_QUARTERS, ODD_QUARTERS);                              \
        }                                                                                              \
        for (int i = 0; i < 2; i++) {                                                                  \
            x[i] = NEXT(op, x[i], x[i + 2], _mm512_unpacklo_epi64, _mm512_unpackhi_epi64);             \
        }                                                                                              \
        return _mm512_permutexvar_epi32(order, NEXT(op, x[0], x[1], EVEN_WORDS, ODD_WORDS));           \
    }

/* Of numbers without a sign floats are in the order of their bits. */
REDUCE(most_of_each, _mm512_max_epi32)
REDUCE(sum_of_each, _mm512_add_epi32)

INLINE vec as_half(vec x) {
    return _mm512_cvtph_ps(_mm512_cvtps_ph(x, 0));
}

/* A block of GROUP columns, rounded; `to` has its bytes and their sums. */
INLINE void round_block(const float * const * from, const float * inverse, struct columns * to, vec scale, bool wide) {
    __m512i whole[GROUP], second[GROUP];
    for (int j = 0; j < GROUP; j++) {
        __m512i a = _mm512_cvtps_epi32(mul_vec(load_vec(from[j]), vec_of(inverse[j])));
        __m512i c = _mm512_cvtps_epi32(mul_vec(load_vec(from[j] + 16), vec_of(inverse[j])));
        _mm_storeu_si128((__m128i *) to->values[j], _mm512_cvtsepi32_epi8(a));
        _mm_storeu_si128((__m128i *) (to->values[j] + 16), _mm512_cvtsepi32_epi8(c));
        whole[j] = _mm512_add_epi32(a, c);
        second[j] = c;
    }
    __m512i sums[2] = {sum_of_each(whole), sum_of_each(second)};
    __m512i start[2];
    for (int h = 0; h < 2; h++) {
        start[h] = _mm512_sub_epi32(_mm512_setzero_si512(), sums[h]);
        _mm512_storeu_si512(to->start[h], start[h]);
    }
    __m512i first = _mm512_sub_epi32(start[0], start[1]);
    _mm512_storeu_si512(to->halves, _mm512_mask_blend_epi16(0xaaaaaaaa, first, _mm512_slli_epi32(start[1], 16)));
    store_vec(to->scale, wide ? scale : as_half(scale));
    store_vec(to->sum, wide ? vec_of_ints(sums[0]) : as_half(mul_vec(scale, vec_of_ints(sums[0]))));
}

/* Many columns at once: those behind the last of a group are computed as the first one, too, and not read. */
TARGET static void quantize_columns(const float * const * from, int n, int count, struct columns * to) {
    for (int j = 0; j < n && n < GROUP / 4; j++) {
        quantize_column(from[j], count, j, to);
    }
    if (n < GROUP / 4) {
        return;
    }
    bool wide = count > 1;
    const float * at[GROUP];
    float inverses[GROUP];
    __m512i most[GROUP];
    for (int j = 0; j < GROUP; j++) {
        at[j] = from[j < n ? j : 0];
        vec largest = vec_of(0);
        for (int i = 0; i < count * BLOCK; i += VEC) {
            largest = larger_vec(largest, abs_vec(load_vec(at[j] + i)));
        }
        most[j] = _mm512_castps_si512(largest);
    }
    vec largest = _mm512_castsi512_ps(most_of_each(most));
    __mmask16 some = _mm512_cmp_ps_mask(largest, vec_of(0), _CMP_GT_OQ);
    vec inverse = _mm512_maskz_div_ps(some, vec_of(127), largest);
    vec scale = wide ? _mm512_maskz_div_ps(some, vec_of(1), inverse) : div_vec(largest, vec_of(127));
    scale = fma_vec(largest, vec_of(0), scale); /* NaN if the largest is not finite */
    store_vec(inverses, inverse);
    for (int b = 0; b < count; b++, to++) {
        round_block(at, inverses, to, scale, wide);
        for (int j = 0; j < GROUP; j++) {
            at[j] += BLOCK;
        }
    }
}

#endif
