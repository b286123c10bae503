/* Kernels by AMX: 16 columns times TILE rows, whose exact sums pass through memory. */

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
                       vec * sums) {
    for (int h = 0; h < (is.halves ? 2 : 1); h++, exact += GROUP) {
#pragma GCC unroll 16
        for (int j = 0; j < GROUP; j++) {
            sums[j] = add_exact(sums[j], load_ints(exact[j]), w, 0, x, j, h, is);
        }
    }
}

/* The same of WIDE blocks that share a scale, behind the sums of those before. */
INLINE void add_stored_numbers(const struct rows * w, const struct columns * x, int32_t (*exact)[TILE],
                               struct shape is, ints * sums, ints * less) {
    for (int j = 0; j < GROUP; j++) {
        sums[j] = _mm512_add_epi32(sums[j], load_ints(exact[j]));
        if (is.minima) {
            less[j] = dot_shorts(less[j], load_ints(w->numbers), ints_of(x->halves[j]));
        }
    }
}

INLINE __mmask16 mask_of(int rows) {
    return (__mmask16) ((1 << rows) - 1);
}

INLINE void multiply_by_tiles(const struct rows * w, const struct columns * x, int blocks, int n, struct shape is,
                              int row, int rows, float * const * to, bool more) {
    vec sums[GROUP], parts[GROUP];
    int32_t exact[RING][2 * GROUP][TILE] __attribute__((aligned(64)));
    for (int j = 0; j < GROUP; j++) {
        sums[j] = more && j < n ? _mm512_maskz_loadu_ps(mask_of(rows), to[j] + row) : vec_of(0);
    }
    for (int b = 0; b < AHEAD && b < blocks; b++) {
        exact_sums(w + b, x + b, is.halves, exact[b % RING]);
    }
    for (int begin = 0; begin < blocks; begin += is.wide ? WIDE : 1) {
        ints numbers[GROUP], less[GROUP];
        for (int j = 0; j < GROUP && is.wide; j++) {
            parts[j] = vec_of(0);
            numbers[j] = less[j] = ints_of(0);
        }
        for (int b = begin; b < begin + (is.wide ? WIDE : 1); b++) {
            if (b + AHEAD < blocks) {
                exact_sums(w + b + AHEAD, x + b + AHEAD, is.halves, exact[(b + AHEAD) % RING]);
            }
            if (is.whole) {
                add_stored_numbers(w + b, x + b, exact[b % RING], is, numbers, less);
                continue;
            }
            add_stored(w + b, x + b, exact[b % RING], is, is.wide ? parts : sums);
        }
        for (int j = 0; j < GROUP && is.whole; j++) {
            sums[j] = add_whole(sums[j], numbers[j], less[j], w + begin, 0, x + begin, j, is);
        }
        for (int j = 0; j < GROUP && is.wide && !is.whole; j++) {
            sums[j] = fma_vec(parts[j], vec_of(x[begin].scale[j]), sums[j]);
        }
    }
    for (int j = 0; j < GROUP; j++) {
        if (j < n) {
            _mm512_mask_storeu_ps(to[j] + row, mask_of(rows), sums[j]);
        }
    }
}

#define BY_TILES(name, ...)                                                                                     \
    TARGET static void name(const struct rows * w, const struct columns * x, int blocks, int first, int n,      \
                            const struct type * type, int rows, float * const * to, bool more) {                \
        (void) first, (void) type;                                                                              \
        for (int row = 0; row < rows; row += TILE, w += BLOCKS) {                                               \
            int some = rows - row < TILE ? rows - row : TILE;                                                   \
            multiply_by_tiles(w, x, blocks, n, (struct shape) {__VA_ARGS__}, row, some, to, more);              \
        }                                                                                                       \
    }

BY_TILES(tiles_32, false, false, false)
BY_TILES(tiles_32_minima, false, false, true)
BY_TILES(tiles_16, false, true, false)
BY_TILES(tiles_wide_32, true, false, false)
BY_TILES(tiles_wide_32_minima, true, false, true)
BY_TILES(tiles_wide_16, true, true, false)
BY_TILES(tiles_whole, true, false, false, true)
BY_TILES(tiles_whole_minima, true, false, true, true)
