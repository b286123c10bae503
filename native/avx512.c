/* Products by AVX-512 with VNNI, and by AMX where the processor has it. */

#include "formats.h"

#ifdef ON_X86

#include <immintrin.h>

#define AVX512_VECTORS
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,f16c,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#include "vectors.h"
#include "unpackers.h"
#include "codebooks.h"

static unpacker * const unpackers[TYPES] = UNPACKERS;

#define FLOAT_COLUMNS 6
#define SHORT_COLUMNS 6
typedef __m512i ints;
typedef uint32_t words __attribute__((vector_size(64)));
typedef int32_t  signed_words __attribute__((vector_size(64)));

INLINE ints ints_of(int x) {
    return _mm512_set1_epi32(x);
}

INLINE ints load_ints(const void * at) {
    return _mm512_loadu_si512(at);
}

INLINE ints start_of(int start, int zero) {
    return ints_of(zero * start);
}

INLINE vec vec_of_ints(ints x) {
    return _mm512_cvtepi32_ps(x);
}

INLINE ints rounded(vec x) {
    return _mm512_cvtps_epi32(x);
}

INLINE float to_f16(float x) {
    return _cvtsh_ss(_cvtss_sh(x, 0));
}

/* BLOCK values times a factor, as bytes, and the sums of both halves. */
INLINE void store_rounded(const float * from, vec factor, int8_t * to, int32_t * sums) {
    for (int h = 0; h < 2; h++) {
        ints whole = rounded(mul_vec(load_vec(from + VEC * h), factor));
        _mm_storeu_si128((__m128i *) to + h, _mm512_cvtsepi32_epi8(whole));
        sums[h] = _mm512_reduce_add_epi32(whole);
    }
}

INLINE ints max_ints(ints a, ints b) {
    return _mm512_max_epi32(a, b);
}

INLINE int largest_int(ints x) {
    return _mm512_reduce_max_epi32(x);
}

INLINE void store_shorts(int16_t * at, ints x) {
    _mm256_storeu_si256((__m256i *) at, _mm512_cvtepi32_epi16(x));
}

/* Adds both products of pairs of 16 bits. */
INLINE ints dot_shorts(ints sums, ints a, ints b) {
    return _mm512_dpwssd_epi32(sums, a, b);
}

INLINE ints dot(ints sums, ints weights, ints x) {
    return _mm512_dpbusd_epi32(sums, weights, x);
}

#define STEP  4
#define TILES 3

#include "kernels.h"
#include "tiles.h"
#include "floats.h"
#include "finish.h"

KERNELS(dot, DOT)

#define SIGNED_BYTES false

/* 16 bytes of VEC rows as four words of each. */
INLINE void words_at(const uint8_t * rows, size_t stride, words * to) {
    __m512i z[4];
    for (int i = 0; i < 4; i++) {
        z[i] = of_four(rows + i * stride, 4 * stride);
    }
    transpose_lanes(z, (__m512i *) to);
}

/* 32 bytes of VEC rows as eight words of each. */
INLINE void eight_words_at(const uint8_t * rows, size_t stride, words * to) {
    __m512i halves[8];
    for (int i = 0; i < 8; i++) { /* rows r and r + 4 */
        const uint8_t * at = rows + (i % 4 + i / 4 * 8) * stride;
        __m512i first = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *) at));
        halves[i] = _mm512_inserti64x4(first, _mm256_loadu_si256((const __m256i *) (at + 4 * stride)), 1);
    }
    transpose_halves(halves, (__m512i *) to);
}

/* Two bytes of VEC rows. */
INLINE words shorts_at(const uint8_t * rows, size_t stride) {
    return (words) _mm512_cvtepu16_epi32(shorts_of(rows, stride, 4));
}

/* An F16 number of VEC rows. */
INLINE vec halves_of(const uint8_t * rows, size_t stride) {
    return halves_at(rows, stride, 4);
}

/* The lower halves of words, as F16 numbers. */
INLINE vec low_halves(words x) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i) x));
}

INLINE words looked_up(const uint8_t * table, words numbers) {
    return (words) _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes_16(table)), (__m512i) numbers);
}

/* `start` and the exact products of words from `begin` to `end` with a column's values. */
INLINE ints dots(const words * values, const int8_t * x, int begin, int end, int most, int start) {
    (void) most;
    ints sum = _mm512_set1_epi32(start);
    for (int g = begin; g < end; g++) {
        __m512i four = _mm512_set1_epi32((int) word_of((const uint8_t *) x + 4 * g));
        sum = dot(sum, (__m512i) values[g], four);
    }
    return sum;
}

#include "few_columns.h"
#include "quantize.h"
#include "rounded.h"

static kernel * kernel_of(const struct type * type, bool tiled) {
    static kernel * const kernels[2][3][2][2] = {KERNELS_OF(dot), KERNELS_OF(tiles)};
    return kernels[tiled][breadth_of(type)][type->halves][type->minima];
}

static bool needs_no_signs(const struct type * type) {
    (void) type;
    return false;
}

static const struct tile_shapes shapes = {1, 0, {0}, {32, 64, 64, 16, 64, 64, 16, 64}, {16, 8, 16, 16, 4, 16, 16, 4}};

static void begin_tiles(struct tile_shapes * before) {
    __asm__ volatile("sttilecfg %0" : "=m"(*before));
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes));
}

/* ggml's own kernels set the shapes once a thread. */
static void end_tiles(const struct tile_shapes * before) {
    if (before->palette) {
        __asm__ volatile("ldtilecfg %0" ::"m"(*before));
    } else {
        __asm__ volatile("tilerelease");
    }
}

#define BY_AVX512                         \
    .unpackers = unpackers,               \
    .step = STEP,                         \
    .signs = needs_no_signs,              \
    .interleave = interleave,             \
    .kernel_of = kernel_of,               \
    .few_kernel_of = few_kernel_of,       \
    .signed_bytes = SIGNED_BYTES,         \
    .quantize_columns = quantize_columns, \
    .multiply_floats = multiply_floats,   \
    .round_column = round_column,         \
    .multiply_rounded = multiply_rounded, \
    .finish = finish

HIDDEN const struct family ggmodel_by_avx512 = {BY_AVX512};
HIDDEN const struct family ggmodel_by_amx = {BY_AVX512, .begin_tiles = begin_tiles, .end_tiles = end_tiles};

#endif
