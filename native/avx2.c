/* Products by AVX2, and by AVX-VNNI where the processor has it. */

#include "formats.h"

#ifdef ON_X86

#include <immintrin.h>

#define TARGET __attribute__((target("avx2,f16c,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#define VEC           8
#define FLOAT_COLUMNS 3
typedef __m256  vec;
typedef __m256i ints;

INLINE float half(const uint8_t * at) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    return _cvtsh_ss(bits);
}

INLINE float to_f16(float x) {
    return _cvtsh_ss(_cvtss_sh(x, 0));
}

INLINE vec load_vec(const float * at) {
    return _mm256_loadu_ps(at);
}

INLINE void store_vec(float * at, vec x) {
    _mm256_storeu_ps(at, x);
}

INLINE vec vec_of(float x) {
    return _mm256_set1_ps(x);
}

INLINE vec add_vec(vec a, vec b) {
    return _mm256_add_ps(a, b);
}

INLINE vec mul_vec(vec a, vec b) {
    return _mm256_mul_ps(a, b);
}

INLINE vec fma_vec(vec a, vec b, vec c) {
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vec max_abs_vec(vec a, vec b) {
    return _mm256_max_ps(a, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), b));
}

INLINE vec vec_of_f16(const uint8_t * at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) at));
}

INLINE vec vec_of_bf16(const uint8_t * at) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

INLINE ints ints_of(int x) {
    return _mm256_set1_epi32(x);
}

INLINE vec vec_of_ints(ints x) {
    return _mm256_cvtepi32_ps(x);
}

INLINE void store_rounded(int32_t * at, vec x) {
    _mm256_storeu_si256((__m256i *) at, _mm256_cvtps_epi32(x));
}

#define entries_of(table, numbers) ((bytes16) _mm_shuffle_epi8((__m128i) (table), (__m128i) (numbers)))

INLINE ints bytes_32(const void * at) {
    return _mm256_loadu_si256((const __m256i *) at);
}

#include "plain.h"

/* The assembler knows the instruction, while a function's target would have to say it. */
INLINE ints dot(ints sums, ints weights, ints x) {
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(weights), "x"(x));
    return sums;
}

/* Sums of two products each, in 16 bits. */
INLINE ints pairs_of(ints weights, ints x, enum kind kind) {
    if (kind == SIGNED) {
        return _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
    }
    return _mm256_maddubs_epi16(weights, x);
}

INLINE ints fours_of_pairs(ints pairs) {
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* Adds the products of groups of four values, from `begin` to `end`, of TILE rows and n columns. */
INLINE void exact_sums(const struct rows * w, const struct columns * x, int begin, int end, int first, int n,
                       enum kind kind, ints (*to)[VECS]) {
    int together = kind == SMALL ? 4 : 1;
    for (int g = begin; g < end; g += together) {
        ints pairs[PLAIN_STEP][VECS];
        for (int i = 0; i < together; i++) {
            ints weights[VECS] = {bytes_32(w->values[g + i]), bytes_32(w->values[g + i][8])};
            for (int j = 0; j < n; j++) {
                ints four = ints_of((int) word_of((const uint8_t *) x->values[first + j] + 4 * (g + i)));
                for (int v = 0; v < VECS; v++) {
                    if (kind == DOT) {
                        to[j][v] = dot(to[j][v], weights[v], four);
                    } else {
                        ints more = pairs_of(weights[v], four, kind);
                        pairs[j][v] = i ? _mm256_add_epi16(pairs[j][v], more) : more;
                    }
                }
            }
        }
        for (int j = 0; j < n && kind != DOT; j++) {
            for (int v = 0; v < VECS; v++) {
                to[j][v] = _mm256_add_epi32(to[j][v], fours_of_pairs(pairs[j][v]));
            }
        }
    }
}

/* The exact sums of a quad's parts: of four blocks, or of their eight halves. */
INLINE void exact_parts(const uint8_t * weights, const int8_t * x, int zero, enum kind kind, bool halves,
                        int32_t * to) {
    ints fours[4];
    for (int i = 0; i < 4; i++) {
        ints row = bytes_32(weights + BLOCK * i), column = bytes_32(x + BLOCK * i);
        if (kind == DOT) {
            fours[i] = dot(ints_of(0), row, column);
        } else {
            row = kind == SIGNED ? _mm256_sub_epi8(row, _mm256_set1_epi8((char) zero)) : row;
            fours[i] = fours_of_pairs(pairs_of(row, column, kind));
        }
    }
    /* The first halves' sums of all four blocks, then the second ones'. */
    ints sums = _mm256_hadd_epi32(_mm256_hadd_epi32(fours[0], fours[1]), _mm256_hadd_epi32(fours[2], fours[3]));
    __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
    if (halves) {
        _mm_storeu_si128((__m128i *) to, _mm_unpacklo_epi32(first, second));
        _mm_storeu_si128((__m128i *) (to + 4), _mm_unpackhi_epi32(first, second));
    } else {
        _mm_storeu_si128((__m128i *) to, _mm_add_epi32(first, second));
    }
}

#include "plain_kernels.h"
#include "floats.h"

PLAIN_KERNELS(small, SMALL)
PLAIN_KERNELS(large, BYTES)
PLAIN_KERNELS(signed, SIGNED)
PLAIN_KERNELS(dot, DOT)

/* 16 bits hold four sums of two products of small bytes, one of larger ones, none of the largest. */
static enum kind kind_of(const struct type * type) {
    return type->most < 32 ? SMALL : type->most < 128 ? BYTES : SIGNED;
}

static kernel * kernel_of(const struct type * type, bool tiled) {
    (void) tiled;
    static kernel * const kernels[3][2][2] = {KERNELS_OF(small), KERNELS_OF(large), KERNELS_OF(signed)};
    return kernels[kind_of(type)][type->halves][type->minima];
}

static few_kernel * few_kernel_of(const struct type * type) {
    static few_kernel * const kernels[3][2] = {ROWS_OF(small), ROWS_OF(large), ROWS_OF(signed)};
    return kernels[kind_of(type)][type->halves];
}

static kernel * dot_kernel_of(const struct type * type, bool tiled) {
    (void) tiled;
    static kernel * const kernels[2][2] = KERNELS_OF(dot);
    return kernels[type->halves][type->minima];
}

static few_kernel * few_dot_kernel_of(const struct type * type) {
    static few_kernel * const kernels[2] = ROWS_OF(dot);
    return kernels[type->halves];
}

static bool needs_signs(const struct type * type) {
    return kind_of(type) == SIGNED;
}

static bool needs_none(const struct type * type) {
    (void) type;
    return false;
}

HIDDEN const struct family ggmodel_by_avx2 = {
    .unpackers = unpackers,
    .in_order = true,
    .step = PLAIN_STEP,
    .signs = needs_signs,
    .interleave = interleave,
    .kernel_of = kernel_of,
    .few_kernel_of = few_kernel_of,
    .quantize_column = quantize_column,
    .multiply_floats = multiply_floats,
};

HIDDEN const struct family ggmodel_by_avx_vnni = {
    .unpackers = unpackers,
    .in_order = true,
    .step = PLAIN_STEP,
    .signs = needs_none,
    .interleave = interleave,
    .kernel_of = dot_kernel_of,
    .few_kernel_of = few_dot_kernel_of,
    .quantize_column = quantize_column,
    .multiply_floats = multiply_floats,
};

#endif
