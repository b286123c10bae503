/* Eight 4-byte values of TILE rows, which begin `step` bytes after one another; the second four lie apart.
   `to` has the rows of each value. */
INLINE void transpose(const void * rows, const void * second, size_t step, __m512i * to) {
    const char * at[2] = {rows, second};
    __m512i z[8], u[8];
    for (int i = 0; i < 8; i++) { /* rows r and r + 4 */
        size_t r = (i % 4 + i / 4 * 8) * step, other = r + 4 * step;
        __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes_16(at[0] + r)), bytes_16(at[1] + r), 1);
        z[i] = _mm512_inserti32x4(_mm512_castsi256_si512(a), bytes_16(at[0] + other), 2);
        z[i] = _mm512_inserti32x4(z[i], bytes_16(at[1] + other), 3);
    }
    for (int i = 0; i < 8; i += 4) {
        __m512i a = _mm512_unpacklo_epi32(z[i], z[i + 1]), c = _mm512_unpackhi_epi32(z[i], z[i + 1]);
        __m512i d = _mm512_unpacklo_epi32(z[i + 2], z[i + 3]), e = _mm512_unpackhi_epi32(z[i + 2], z[i + 3]);
        u[i] = _mm512_unpacklo_epi64(a, d);
        u[i + 1] = _mm512_unpackhi_epi64(a, d);
        u[i + 2] = _mm512_unpacklo_epi64(c, e);
        u[i + 3] = _mm512_unpackhi_epi64(c, e);
    }
    for (int i = 0; i < 4; i++) {
        to[i] = _mm512_shuffle_i32x4(u[i], u[i + 4], 0x88);
        to[i + 4] = _mm512_shuffle_i32x4(u[i], u[i + 4], 0xdd);
    }
}

/* TILE lines as `blocks` blocks of rows, with a sign if `signs`. */
TARGET static void interleave(const struct line * lines, int blocks, bool signs, const struct type * type,
                              struct rows * to) {
    const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(sizeof(*lines)));
    const __m512i less = bytes(signs ? type->zero : 0);
    int each = type->halves ? 2 : 1;
    for (int b = 0; b < blocks; b++) {
        __m512i fours[8];
        transpose(lines->values + place_of(type->order, b, 0), lines->values + place_of(type->order, b, 1),
                  sizeof(*lines), fours);
        for (int i = 0; i < 8; i++) {
            _mm512_storeu_si512(to[b].values[i], _mm512_sub_epi8(fours[i], less));
        }
        for (int h = 0; h < each; h++) {
            _mm512_storeu_ps(to[b].scale[h], _mm512_i32gather_ps(places, lines->scale + each * b + h, 1));
            if (type->minima) {
                _mm512_storeu_ps(to[b].minimum[h], _mm512_i32gather_ps(places, lines->minimum + each * b + h, 1));
            }
        }
    }
}

/* Kernels: TILE rows times n columns of a group, from column `first`; `to` has where each begins. */

INLINE __mmask16 mask_of(int rows) {
    return (__mmask16) ((1 << rows) - 1);
}

/* What blocks of weights and activations have, known when a kernel is compiled: see struct type. */
struct shape {
    bool wide, halves, minima;
};

/* The sums of TILE rows and a column so far, and those of a block or its half h: the order of all kernels.
   `sum` is that of activations. */
INLINE __m512 add(__m512 sums, __m512i exact, const struct rows * w, int h, float scale, float sum, struct shape is) {
    __m512 part = _mm512_cvtepi32_ps(exact);
    if (!is.wide) {
        part = _mm512_mul_ps(part, _mm512_set1_ps(scale));
    }
    sums = _mm512_fmadd_ps(part, _mm512_loadu_ps(w->scale[h]), sums);
    if (is.minima) {
        sums = _mm512_fnmadd_ps(_mm512_loadu_ps(w->minimum[h]), _mm512_set1_ps(sum), sums);
    }
    return sums;
}

/* Numbers of a column's block, or of its half h: the second half's lie GROUP behind the whole's. */
INLINE int start_of(const int32_t * whole, int h, struct shape is) {
    return whole[is.halves ? h * GROUP : 0] - (is.halves && !h ? whole[GROUP] : 0);
}

INLINE float sum_of(const float * whole, int h, struct shape is) {
    return whole[is.halves ? h * GROUP : 0] - (is.halves && !h ? whole[GROUP] : 0);
}

/* Adds a block of TILE rows and n columns, or its half h. */
INLINE void multiply_part(const struct rows * w, const struct columns * x, int h, int first, int n, int zero,
                          struct shape is, __m512 * sums) {
    const int8_t * values = x->values[first];
    const char * numbers = (const char *) (x->scale + first);
    __asm__("" : "+r"(values), "+r"(numbers)); /* compilers would keep a pointer for each column */
    const float * scale = (const float *) numbers, * sum = scale + (x->sum[0] - x->scale);
    const int32_t * start = (const int32_t *) numbers + GROUP;
    __m512i exact[8];
    for (int j = 0; j < n; j++) {
        exact[j] = is.minima ? _mm512_setzero_si512() : _mm512_set1_epi32(zero * start_of(start + j, h, is));
    }
    for (int g = is.halves ? 4 * h : 0; g < (is.halves ? 4 * h + 4 : 8); g++) {
        __m512i weights = _mm512_loadu_si512(w->values[g]);
        for (int j = 0; j < n; j++) {
            int four;
            memcpy(&four, values + BLOCK * j + 4 * g, 4);
            exact[j] = _mm512_dpbusd_epi32(exact[j], weights, _mm512_set1_epi32(four));
        }
    }
    for (int j = 0; j < n; j++) {
        sums[j] = add(sums[j], exact[j], w, h, scale[j], is.minima ? sum_of(sum + j, h, is) : 0, is);
    }
}

INLINE void multiply_block(const struct rows * w, const struct columns * x, int first, int n, int zero,
                           struct shape is, __m512 * sums) {
    multiply_part(w, x, 0, first, n, zero, is, sums);
    if (is.halves) {
        multiply_part(w, x, 1, first, n, zero, is, sums);
    }
}

INLINE void multiply(const struct rows * w, const struct columns * x, int blocks, int first, int n, int zero,
                     struct shape is, __m512 * sums) {
    for (int b = 0; b < blocks; b += is.wide ? WIDE : 1) {
        if (!is.wide) {
            multiply_block(w + b, x + b, first, n, zero, is, sums);
            continue;
        }
        __m512 parts[8];
        for (int j = 0; j < n; j++) {
            parts[j] = _mm512_setzero_ps();
        }
        for (int i = 0; i < WIDE; i++) {
            multiply_block(w + b + i, x + b + i, first, n, zero, is, parts);
        }
        for (int j = 0; j < n; j++) {
            sums[j] = _mm512_fmadd_ps(parts[j], _mm512_set1_ps(x[b].scale[first + j]), sums[j]);
        }
    }
}

INLINE void multiply_n(const struct rows * w, const struct columns * x, int blocks, int first, int n, int zero,
                       struct shape is, int rows, float * const * to, bool more) {
    __m512 sums[8];
    for (int j = 0; j < n; j++) {
        sums[j] = more ? _mm512_maskz_loadu_ps(mask_of(rows), to[j]) : _mm512_setzero_ps();
    }
    multiply(w, x, blocks, first, n, zero, is, sums);
    for (int j = 0; j < n; j++) {
        _mm512_mask_storeu_ps(to[j], mask_of(rows), sums[j]);
    }
}

#define KERNEL(name, ...)                                                                                       \
    TARGET static void name(const struct rows * w, const struct columns * x, int blocks, int first, int n,      \
                            const struct type * type, int rows, float * const * to, bool more) {                \
        const struct shape is = {__VA_ARGS__};                                                                  \
        switch (n) {                                                                                            \
            case 1: multiply_n(w, x, blocks, first, 1, type->zero, is, rows, to, more); break;                  \
            case 2: multiply_n(w, x, blocks, first, 2, type->zero, is, rows, to, more); break;                  \
            case 3: multiply_n(w, x, blocks, first, 3, type->zero, is, rows, to, more); break;                  \
            case 4: multiply_n(w, x, blocks, first, 4, type->zero, is, rows, to, more); break;                  \
            case 5: multiply_n(w, x, blocks, first, 5, type->zero, is, rows, to, more); break;                  \
            case 6: multiply_n(w, x, blocks, first, 6, type->zero, is, rows, to, more); break;                  \
            case 7: multiply_n(w, x, blocks, first, 7, type->zero, is, rows, to, more); break;                  \
            default: multiply_n(w, x, blocks, first, 8, type->zero, is, rows, to, more);                        \
        }                                                                                                       \
    }

KERNEL(multiply_32, false, false, false)
KERNEL(multiply_32_minima, false, false, true)
KERNEL(multiply_16, false, true, false)
KERNEL(multiply_wide_32, true, false, false)
KERNEL(multiply_wide_32_minima, true, false, true)
KERNEL(multiply_wide_16, true, true, false)
KERNEL(multiply_wide_16_minima, true, true, true)

/* By tiles: 16 columns times TILE rows, whose exact sums pass through memory. */

#define TILE_LOAD(tile, at, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(at), "r"((long) (stride)) : "memory")
#define TILE_STORE(tile, at, stride) \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(at), "r"((long) (stride)) : "memory")

/* Block b's exact sums, as 16 columns of TILE; with halves, those of its second half lie behind. */
INLINE void exact_sums(const struct rows * w, const struct columns * x, bool halves, int32_t (*to)[TILE]) {
    if (halves) {
        __asm__ volatile("tilezero %%tmm2" ::: "memory");
        TILE_LOAD(3, x->values, BLOCK);
        TILE_LOAD(4, w->values, 64);
        __asm__ volatile("tdpbssd %%tmm4, %%tmm3, %%tmm2" ::: "memory");
        TILE_STORE(2, to, 64);
        __asm__ volatile("tilezero %%tmm5" ::: "memory");
        TILE_LOAD(6, x->values[0] + 16, BLOCK);
        TILE_LOAD(7, w->values[4], 64);
        __asm__ volatile("tdpbssd %%tmm7, %%tmm6, %%tmm5" ::: "memory");
        TILE_STORE(5, to + GROUP, 64);
    } else {
        __asm__ volatile("tilezero %%tmm2" ::: "memory");
        TILE_LOAD(0, x->values, BLOCK);
        TILE_LOAD(1, w->values, 64);
        __asm__ volatile("tdpbssd %%tmm1, %%tmm0, %%tmm2" ::: "memory");
        TILE_STORE(2, to, 64);
    }
}

#define AHEAD 2 /* blocks: what a tile stores is read late */
#define RING 4

/* Adds a block's exact sums, which tiles stored. */
INLINE void add_stored(const struct rows * w, const struct columns * x, int32_t (*exact)[TILE], struct shape is,
                       __m512 * sums) {
    for (int h = 0; h < (is.halves ? 2 : 1); h++, exact += GROUP) {
#pragma GCC unroll 16
        for (int j = 0; j < GROUP; j++) {
            float sum = is.minima ? sum_of(x->sum[0] + j, h, is) : 0;
            sums[j] = add(sums[j], _mm512_load_si512(exact[j]), w, h, x->scale[j], sum, is);
        }
    }
}

INLINE void multiply_by_tiles(const struct rows * w, const struct columns * x, int blocks, int n, struct shape is,
                              int rows, float * const * to, bool more) {
    __m512 sums[GROUP], parts[GROUP];
    int32_t exact[RING][2 * GROUP][TILE] __attribute__((aligned(64)));
    for (int j = 0; j < GROUP; j++) {
        sums[j] = more && j < n ? _mm512_maskz_loadu_ps(mask_of(rows), to[j]) : _mm512_setzero_ps();
    }
    for (int b = 0; b < AHEAD && b < blocks; b++) {
        exact_sums(w + b, x + b, is.halves, exact[b % RING]);
    }
    for (int begin = 0; begin < blocks; begin += is.wide ? WIDE : 1) {
        for (int j = 0; j < GROUP && is.wide; j++) {
            parts[j] = _mm512_setzero_ps();
        }
        for (int b = begin; b < begin + (is.wide ? WIDE : 1); b++) {
            if (b + AHEAD < blocks) {
                exact_sums(w + b + AHEAD, x + b + AHEAD, is.halves, exact[(b + AHEAD) % RING]);
            }
            add_stored(w + b, x + b, exact[b % RING], is, is.wide ? parts : sums);
        }
        for (int j = 0; j < GROUP && is.wide; j++) {
            sums[j] = _mm512_fmadd_ps(parts[j], _mm512_set1_ps(x[begin].scale[j]), sums[j]);
        }
    }
    for (int j = 0; j < GROUP; j++) {
        if (j < n) {
            _mm512_mask_storeu_ps(to[j], mask_of(rows), sums[j]);
        }
    }
}

#define BY_TILES(name, ...)                                                                                     \
    TARGET static void name(const struct rows * w, const struct columns * x, int blocks, int first, int n,      \
                            const struct type * type, int rows, float * const * to, bool more) {                \
        multiply_by_tiles(w, x, blocks, n, (struct shape) {__VA_ARGS__}, rows, to, more);                       \
    }

BY_TILES(tiles_32, false, false, false)
BY_TILES(tiles_32_minima, false, false, true)
BY_TILES(tiles_16, false, true, false)
BY_TILES(tiles_wide_32, true, false, false)
BY_TILES(tiles_wide_32_minima, true, false, true)
BY_TILES(tiles_wide_16, true, true, false)
BY_TILES(tiles_wide_16_minima, true, true, true)
