/* Products with one column by AVX2: eight rows at once, straight from their blocks. A panel would cost more than the
   few products with it. The sums are those of all kernels. */

#define TOGETHER 8 /* rows */

/* The values of block b of a row, in order. */
INLINE ints block_of(const uint8_t * row, int type, int b) {
    const ints low = _mm256_set1_epi8(15);
    switch (type) {
        case GGML_TYPE_Q8_0: return load_ints(row + 34 * b + 2);
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_Q4_1: {
            int bytes = type == GGML_TYPE_Q4_0 ? 18 : 20;
            __m128i all = _mm_loadu_si128((const __m128i *) (row + bytes * b + bytes - 16));
            return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(all, 4), all), low);
        }
        case GGML_TYPE_Q4_K: {
            ints all = load_ints(row + b / 8 * 144 + 16 + b % 8 / 2 * BLOCK);
            return _mm256_and_si256(b % 2 ? _mm256_srli_epi16(all, 4) : all, low);
        }
        default: { /* Q6_K */
            const uint8_t * from = row + b / 8 * 210;
            int half = b / 4 % 2, in = b % 4;
            ints four = load_ints(from + 64 * half + BLOCK * (in % 2)), two = load_ints(from + 128 + BLOCK * half);
            four = _mm256_and_si256(in / 2 ? _mm256_srli_epi16(four, 4) : four, low);
            two = in < 2 ? _mm256_slli_epi16(two, 4 - 2 * in) : _mm256_srli_epi16(two, 2 * in - 4);
            return _mm256_or_si256(four, _mm256_and_si256(two, _mm256_set1_epi8(48)));
        }
    }
}

/* The exact sums of the halves of eight rows' blocks and a column's. */
INLINE void sums_of_halves(const ints * blocks, ints x, int type, ints * to) {
    ints p[TOGETHER];
    for (int r = 0; r < TOGETHER; r++) {
        p[r] = pairs_of(blocks[r], x, type == GGML_TYPE_Q8_0 ? SIGNED : BYTES);
    }
    if (type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q6_K) { /* more than 16 bits */
        const ints ones = _mm256_set1_epi16(1);
        for (int r = 0; r < TOGETHER; r++) {
            p[r] = _mm256_madd_epi16(p[r], ones);
        }
        ints a = _mm256_hadd_epi32(_mm256_hadd_epi32(p[0], p[1]), _mm256_hadd_epi32(p[2], p[3]));
        ints c = _mm256_hadd_epi32(_mm256_hadd_epi32(p[4], p[5]), _mm256_hadd_epi32(p[6], p[7]));
        to[0] = _mm256_permute2x128_si256(a, c, 0x20);
        to[1] = _mm256_permute2x128_si256(a, c, 0x31);
        return;
    }
    ints a = _mm256_hadd_epi16(_mm256_hadd_epi16(p[0], p[1]), _mm256_hadd_epi16(p[2], p[3]));
    ints c = _mm256_hadd_epi16(_mm256_hadd_epi16(p[4], p[5]), _mm256_hadd_epi16(p[6], p[7]));
    ints all = _mm256_hadd_epi16(a, c);
    to[0] = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(all));
    to[1] = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(all, 1));
}

/* F16 numbers of eight rows. */
INLINE vec halves_of(const uint8_t * const * rows, size_t at) {
    uint16_t bits[TOGETHER];
    for (int r = 0; r < TOGETHER; r++) {
        memcpy(bits + r, rows[r] + at, 2);
    }
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) bits));
}

/* 16 bytes of eight rows as four words of each. */
INLINE void words_of_rows(const uint8_t * const * rows, size_t at, words8 * to) {
    uint8_t bytes[TOGETHER][16];
    for (int r = 0; r < TOGETHER; r++) {
        memcpy(bytes[r], rows[r] + at, 16);
    }
    transpose(bytes, 16, to);
}

/* The scales and minima of eight blocks of eight rows of Q4_K: see scales_of_k. */
INLINE void scales_of_q4_k(const uint8_t * const * rows, size_t at, vec * scale, vec * minimum) {
    words8 p[4];
    words_of_rows(rows, at, p);
    words8 scales[2] = {p[1] & 0x3f3f3f3f, (p[3] & 0x0f0f0f0f) | (p[1] >> 2 & 0x30303030)};
    words8 minima[2] = {p[2] & 0x3f3f3f3f, (p[3] >> 4 & 0x0f0f0f0f) | (p[2] >> 2 & 0x30303030)};
    vec d = halves_of(rows, at), least = halves_of(rows, at + 2);
    for (int i = 0; i < 8; i++) {
        scale[i] = mul_vec(vec_of_ints((ints) (scales[i / 4] >> (8 * (i % 4)) & 255)), d);
        minimum[i] = mul_vec(vec_of_ints((ints) (minima[i / 4] >> (8 * (i % 4)) & 255)), least);
    }
}

/* The scales of eight blocks' halves of eight rows of Q6_K. */
INLINE void scales_of_q6_k(const uint8_t * const * rows, size_t at, vec * scale) {
    words8 p[4];
    words_of_rows(rows, at + 192, p);
    vec d = halves_of(rows, at + 208);
    for (int i = 0; i < 16; i++) {
        ints signs = _mm256_srai_epi32((ints) (p[i / 4] << (24 - 8 * (i % 4))), 24);
        scale[i] = mul_vec(vec_of_ints(signs), d);
    }
}

/* Scales and minima of eight rows, of the blocks that share them, from block b. */
INLINE void scales_of(const uint8_t * const * rows, int type, int b, vec * scale, vec * minimum) {
    switch (type) {
        case GGML_TYPE_Q8_0: scale[0] = halves_of(rows, 34 * b); break;
        case GGML_TYPE_Q4_0: scale[0] = halves_of(rows, 18 * b); break;
        case GGML_TYPE_Q4_1:
            scale[0] = halves_of(rows, 20 * b);
            minimum[0] = -halves_of(rows, 20 * b + 2);
            break;
        case GGML_TYPE_Q4_K: scales_of_q4_k(rows, b / 8 * 144, scale, minimum); break;
        default: scales_of_q6_k(rows, b / 8 * 210, scale);
    }
}

/* TILE rows or fewer of a type times one column. */
INLINE void multiply_column(const struct ggml_tensor * w, int number, int zero, const uint8_t * data, int rows,
                            const struct columns * x, float * to) {
    bool halves = number == GGML_TYPE_Q6_K, minima = number == GGML_TYPE_Q4_1 || number == GGML_TYPE_Q4_K;
    int step = number == GGML_TYPE_Q4_K || halves ? 8 : 1, each = halves ? 2 : 1, all = (int) w->ne[0] / BLOCK;
    size_t bytes = w->nb[1] / (all / step); /* of blocks that share scales */
    for (int begin = 0; begin < rows; begin += TOGETHER) {
        const uint8_t * row[TOGETHER];
        for (int r = 0; r < TOGETHER; r++) {
            row[r] = data + (begin + r < rows ? begin + r : begin) * w->nb[1];
        }
        vec sums = vec_of(0);
        for (int b = 0; b < all; b += step) {
            vec scale[16], minimum[8];
            scales_of(row, number, b, scale, minimum);
            /* The next rows are fetched: each is too short a stream for the processor to foresee. */
            for (int r = 0; r < TOGETHER && (step > 1 || b % 2 == 0); r++) {
                for (size_t line = 0; line < bytes; line += 64) {
                    __builtin_prefetch(row[r] + TOGETHER * w->nb[1] + b / step * bytes + line);
                }
            }
#pragma GCC unroll 8
            for (int i = 0; i < step; i++) {
                const struct columns * at = x + b + i;
                ints blocks[TOGETHER], exact[2];
                for (int r = 0; r < TOGETHER; r++) {
                    blocks[r] = block_of(row[r], number, b + i);
                }
                sums_of_halves(blocks, load_ints(at->values[0]), number, exact);
                if (!halves) {
                    exact[0] = _mm256_add_epi32(exact[0], exact[1]);
                }
                for (int h = 0; h < each; h++) {
                    int start = zero * (at->start[h][0] + (halves ? 0 : at->start[1][0]));
                    ints sum = zero ? _mm256_add_epi32(exact[h], ints_of(start)) : exact[h];
                    vec part = mul_vec(vec_of_ints(sum), vec_of(at->scale[0]));
                    sums = fma_vec(part, scale[each * i + h], sums);
                    if (minima) {
                        sums = fma_vec(minimum[i], vec_of(-(at->sum[0][0] + at->sum[1][0])), sums);
                    }
                }
            }
        }
        float eight[TOGETHER];
        store_vec(eight, sums);
        memcpy(to + begin, eight, (rows - begin < TOGETHER ? rows - begin : TOGETHER) * sizeof(float));
    }
}

#define COLUMN_KERNEL(name, type, zero)                                                                        \
    TARGET static void name(const struct ggml_tensor * w, const uint8_t * data, int rows, const struct columns * x, \
                            float * to) {                                                                      \
        multiply_column(w, type, zero, data, rows, x, to);                                                     \
    }

COLUMN_KERNEL(column_q8_0, GGML_TYPE_Q8_0, 0)
COLUMN_KERNEL(column_q4_0, GGML_TYPE_Q4_0, 8)
COLUMN_KERNEL(column_q4_1, GGML_TYPE_Q4_1, 0)
COLUMN_KERNEL(column_q4_k, GGML_TYPE_Q4_K, 0)
COLUMN_KERNEL(column_q6_k, GGML_TYPE_Q6_K, 32)

static column_kernel * column_kernel_of(const struct type * type) {
    switch (type->number) {
        case GGML_TYPE_Q8_0: return column_q8_0;
        case GGML_TYPE_Q4_0: return column_q4_0;
        case GGML_TYPE_Q4_1: return column_q4_1;
        case GGML_TYPE_Q4_K: return column_q4_k;
        case GGML_TYPE_Q6_K: return column_q6_k;
        default: return NULL;
    }
}
