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

/* The sums of TILE rows and a column so far, and those of a block or its half h: the order of all kernels. */
INLINE __m512 add(__m512 sums, __m512i exact, const struct rows * w, const struct columns * x, int h, int column,
                  bool halves, bool minima) {
    __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(exact), _mm512_set1_ps(x->scale[column]));
    sums = _mm512_fmadd_ps(part, _mm512_loadu_ps(w->scale[h]), sums);
    if (minima) {
        float sum = x->sum[h][column] + (halves ? 0 : x->sum[1][column]);
        sums = _mm512_fnmadd_ps(_mm512_loadu_ps(w->minimum[h]), _mm512_set1_ps(sum), sums);
    }
    return sums;
}

INLINE void multiply(const struct rows * w, const struct columns * x, int blocks, int first, int n, int zero,
                     bool halves, bool minima, __m512 * sums) {
    for (int b = 0; b < blocks; b++) {
        for (int h = 0; h < (halves ? 2 : 1); h++) {
            __m512i exact[8];
            for (int j = 0; j < n; j++) {
                int start = x[b].start[h][first + j];
                start += halves ? 0 : x[b].start[1][first + j];
                exact[j] = minima ? _mm512_setzero_si512() : _mm512_set1_epi32(zero * start);
            }
            for (int g = halves ? 4 * h : 0; g < (halves ? 4 * h + 4 : 8); g++) {
                __m512i weights = _mm512_loadu_si512(w[b].values[g]);
                for (int j = 0; j < n; j++) {
                    int four;
                    memcpy(&four, x[b].values[first + j] + 4 * g, 4);
                    exact[j] = _mm512_dpbusd_epi32(exact[j], weights, _mm512_set1_epi32(four));
                }
            }
            for (int j = 0; j < n; j++) {
                sums[j] = add(sums[j], exact[j], w + b, x + b, h, first + j, halves, minima);
            }
        }
    }
}

INLINE void multiply_n(const struct rows * w, const struct columns * x, int blocks, int first, int n, int zero,
                       bool halves, bool minima, int rows, float * const * to, bool more) {
    __m512 sums[8];
    for (int j = 0; j < n; j++) {
        sums[j] = more ? _mm512_maskz_loadu_ps(mask_of(rows), to[j]) : _mm512_setzero_ps();
    }
    multiply(w, x, blocks, first, n, zero, halves, minima, sums);
    for (int j = 0; j < n; j++) {
        _mm512_mask_storeu_ps(to[j], mask_of(rows), sums[j]);
    }
}

#define KERNEL(name, halves, minima)                                                                    \
    TARGET static void name(const struct rows * w, const struct columns * x, int blocks, int first, int n, \
                          const struct type * type, int rows, float * const * to, bool more) {          \
        switch (n) {                                                                                    \
            case 1: multiply_n(w, x, blocks, first, 1, type->zero, halves, minima, rows, to, more); break; \
            case 2: multiply_n(w, x, blocks, first, 2, type->zero, halves, minima, rows, to, more); break; \
            case 3: multiply_n(w, x, blocks, first, 3, type->zero, halves, minima, rows, to, more); break; \
            case 4: multiply_n(w, x, blocks, first, 4, type->zero, halves, minima, rows, to, more); break; \
            case 5: multiply_n(w, x, blocks, first, 5, type->zero, halves, minima, rows, to, more); break; \
            case 6: multiply_n(w, x, blocks, first, 6, type->zero, halves, minima, rows, to, more); break; \
            case 7: multiply_n(w, x, blocks, first, 7, type->zero, halves, minima, rows, to, more); break; \
            default: multiply_n(w, x, blocks, first, 8, type->zero, halves, minima, rows, to, more);      \
        }                                                                                               \
    }

KERNEL(multiply_32, false, false)
KERNEL(multiply_32_minima, false, true)
KERNEL(multiply_16, true, false)
KERNEL(multiply_16_minima, true, true)

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

INLINE void multiply_by_tiles(const struct rows * w, const struct columns * x, int blocks, int n, bool halves,
                              bool minima, int rows, float * const * to, bool more) {
    __m512 sums[GROUP];
    int32_t exact[RING][2 * GROUP][TILE] __attribute__((aligned(64)));
    for (int j = 0; j < GROUP; j++) {
        sums[j] = more && j < n ? _mm512_maskz_loadu_ps(mask_of(rows), to[j]) : _mm512_setzero_ps();
    }
    for (int b = 0; b < AHEAD && b < blocks; b++) {
        exact_sums(w + b, x + b, halves, exact[b % RING]);
    }
    for (int b = 0; b < blocks; b++) {
        if (b + AHEAD < blocks) {
            exact_sums(w + b + AHEAD, x + b + AHEAD, halves, exact[(b + AHEAD) % RING]);
        }
        for (int h = 0; h < (halves ? 2 : 1); h++) {
            int32_t (*at)[TILE] = exact[b % RING] + h * GROUP;
#pragma GCC unroll 16
            for (int j = 0; j < GROUP; j++) {
                sums[j] = add(sums[j], _mm512_load_si512(at[j]), w + b, x + b, h, j, halves, minima);
            }
        }
    }
    for (int j = 0; j < GROUP; j++) {
        if (j < n) {
            _mm512_mask_storeu_ps(to[j], mask_of(rows), sums[j]);
        }
    }
}

#define BY_TILES(name, halves, minima)                                                                  \
    TARGET static void name(const struct rows * w, const struct columns * x, int blocks, int first, int n, \
                          const struct type * type, int rows, float * const * to, bool more) {          \
        multiply_by_tiles(w, x, blocks, n, halves, minima, rows, to, more);                             \
    }

BY_TILES(tiles_32, false, false)
BY_TILES(tiles_32_minima, false, true)
BY_TILES(tiles_16, true, false)
BY_TILES(tiles_16_minima, true, true)
