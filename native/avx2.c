/* Products by AVX2, and by AVX-VNNI where the processor has it. */

#include "formats.h"

#ifdef ON_X86

#include <immintrin.h>

#define AVX2_VECTORS
#define TARGET __attribute__((target("avx2,f16c,fma")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#include "vectors.h"

#define FLOAT_COLUMNS 3
#define SHORT_COLUMNS 4
typedef __m256i ints;

INLINE float to_f16(float x) {
    return _cvtsh_ss(_cvtss_sh(x, 0));
}

INLINE ints ints_of(int x) {
    return _mm256_set1_epi32(x);
}

INLINE vec vec_of_ints(ints x) {
    return _mm256_cvtepi32_ps(x);
}

INLINE ints rounded(vec x) {
    return _mm256_cvtps_epi32(x);
}

INLINE ints max_ints(ints a, ints b) {
    return _mm256_max_epi32(a, b);
}

INLINE int largest_int(ints x) {
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

INLINE void store_shorts(int16_t * at, ints x) {
    __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storeu_si128((__m128i *) at, shorts);
}

/* Adds in the order of the source, as dot_shorts does: compilers would add a block's products at its end, which no
   registers hold. */
INLINE ints add_halves(ints a, ints b) {
    ints sum = _mm256_add_epi16(a, b);
    IN_REGISTER(sum);
    return sum;
}

/* Adds both products of pairs of 16 bits. */
INLINE ints dot_shorts(ints sums, ints a, ints b) {
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
    IN_REGISTER(sums);
    return sums;
}

/* The start of exact sums, from memory straight to a vector. */
INLINE ints start_of(int start, int zero) {
    return _mm256_mullo_epi32(ints_of(start), ints_of(zero));
}

#define entries_of(table, numbers) ((bytes16) _mm_shuffle_epi8((__m128i) (table), (__m128i) (numbers)))

INLINE ints load_ints(const void * at) {
    return _mm256_loadu_si256((const __m256i *) at);
}

/* BLOCK values times a factor, as bytes, and the sums of both halves. */
INLINE void store_rounded(const float * from, vec factor, int8_t * to, int32_t * sums) {
    const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    ints four[4];
    for (int i = 0; i < 4; i++) {
        four[i] = _mm256_cvtps_epi32(mul_vec(load_vec(from + VEC * i), factor));
    }
    ints first = _mm256_packs_epi32(four[0], four[1]), second = _mm256_packs_epi32(four[2], four[3]);
    ints bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), in_order);
    _mm256_storeu_si256((__m256i *) to, bytes);
    ints pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    ints parts = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    parts = _mm256_hadd_epi32(parts, parts);
    parts = _mm256_hadd_epi32(parts, parts);
    sums[0] = _mm256_extract_epi32(parts, 0);
    sums[1] = _mm256_extract_epi32(parts, 4);
}

#define STEP  4
#define TILES 1

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

#define IN_PAIRS

/* Adds the products of groups of four values, from `begin` to `end`, of TILE rows and n columns. Where few groups are
   added in 16 bits, they are those of a column at a time: registers hold its sums, and all exact ones. */
INLINE void add_in_pairs(const struct rows * w, const struct columns * x, int begin, int end, int first, int n,
                         enum kind kind, ints (*to)[MOST_VECS]) {
    int together = kind == SIGNED ? 1 : (int) kind, at_once = together > 2 ? n : 1;
    const ints ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int begins = begin; begins < end; begins += together) {
#pragma GCC unroll 4
        for (int at = 0; at < n; at += at_once) {
            ints pairs[STEP][VECS];
#pragma GCC unroll 8
            for (int g = begins; g < begins + together; g++) {
                ints weights[VECS] = {load_ints(w->values[g]), load_ints(w->values[g][VEC])};
                IN_REGISTER(weights[0]);
                IN_REGISTER(weights[1]);
                for (int j = 0; j < at_once; j++) {
                    ints four = ints_of((int) word_of((const uint8_t *) x->values[first + at + j] + 4 * g));
                    for (int v = 0; v < VECS; v++) {
                        ints two = pairs_of(weights[v], four, kind);
                        pairs[j][v] = g > begins ? add_halves(pairs[j][v], two) : two;
                    }
                }
            }
            for (int j = 0; j < at_once; j++) {
                for (int v = 0; v < VECS; v++) {
                    to[at + j][v] = dot_shorts(to[at + j][v], pairs[j][v], ones);
                }
            }
        }
    }
}

#include "kernels.h"
#include "floats.h"
#include "finish.h"

#define SIGNED_BYTES true
typedef words8 words;
typedef int32_t signed_words __attribute__((vector_size(32)));

/* 16 bytes of VEC rows as four words of each. */
INLINE void words_at(const uint8_t * rows, size_t stride, words * to) {
    transpose(rows, stride, to);
}

/* 32 bytes of VEC rows as eight words of each. */
INLINE void eight_words_at(const uint8_t * rows, size_t stride, words * to) {
    words_at(rows, stride, to);
    words_at(rows + 16, stride, to + 4);
}

INLINE __m128i shorts_of(const uint8_t * rows, size_t stride) {
    uint16_t bits[VEC];
    for (int r = 0; r < VEC; r++) {
        memcpy(bits + r, rows + r * stride, 2);
    }
    return _mm_loadu_si128((const __m128i *) bits);
}

/* Two bytes of VEC rows. */
INLINE words shorts_at(const uint8_t * rows, size_t stride) {
    return (words) _mm256_cvtepu16_epi32(shorts_of(rows, stride));
}

/* An F16 number of VEC rows. */
INLINE vec halves_of(const uint8_t * rows, size_t stride) {
    return _mm256_cvtph_ps(shorts_of(rows, stride));
}

/* The lower halves of words, as F16 numbers. */
INLINE vec low_halves(words x) {
    ints packed = _mm256_packus_epi32((ints) (x & 0xffff), _mm256_setzero_si256());
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 8)));
}

INLINE words looked_up(const uint8_t * table, words numbers) {
    ints twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) table));
    return (words) _mm256_shuffle_epi8(twice, (ints) numbers);
}

/* Groups of four values whose products 16 bits can add, two of a group in each: eight of the smallest bytes, one of
   the largest. */
INLINE int together_of(int most) {
    return most < 16 ? 8 : most < 32 ? 4 : most < 64 ? 2 : 1;
}

/* `start` and the exact products of words from `begin` to `end` with a column's values. */
INLINE ints dots(const words * values, const int8_t * x, int begin, int end, int most, int start) {
    int together = together_of(most);
    ints sum = ints_of(start), pairs = ints_of(0);
    for (int g = begin; g < end; g++) {
        ints four = ints_of((int) word_of((const uint8_t *) x + 4 * g));
        ints two = pairs_of((ints) values[g], four, most > 127 ? SIGNED : ONE_GROUP);
        pairs = g % together ? _mm256_add_epi16(pairs, two) : two;
        if (g % together == together - 1 || g == end - 1) {
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
    }
    return sum;
}

#include "few_columns.h"
#include "quantize.h"
#include "rounded.h"

KERNEL(signed_32, SIGNED, false, false, false)
KERNEL(signed_wide, SIGNED, true, false, false)
KERNEL(signed_whole, SIGNED, true, false, false, true)
KERNEL(one_wide, ONE_GROUP, true, false, false)
KERNEL(one_wide_16, ONE_GROUP, true, true, false)
KERNEL(two_wide_16, TWO_GROUPS, true, true, false)
KERNEL(two_whole_minima, TWO_GROUPS, true, false, true, true)
KERNEL(four_32, FOUR_GROUPS, false, false, false)
KERNEL(four_32_minima, FOUR_GROUPS, false, false, true)
KERNEL(four_16, FOUR_GROUPS, false, true, false)
KERNEL(four_wide, FOUR_GROUPS, true, false, false)
KERNEL(four_wide_minima, FOUR_GROUPS, true, false, true)
KERNEL(four_wide_16, FOUR_GROUPS, true, true, false)
KERNEL(eight_32, EIGHT_GROUPS, false, false, false)
KERNEL(eight_32_minima, EIGHT_GROUPS, false, false, true)
KERNEL(eight_wide_minima, EIGHT_GROUPS, true, false, true)
KERNEL(eight_whole, EIGHT_GROUPS, true, false, false, true)
KERNELS(dot, DOT)

static bool needs_signs(const struct type * type) {
    return type->most > 127;
}

/* By a type's number: those of together_of its largest byte, or with signs. */
static kernel * const kernels[TYPES] = {
    [GGML_TYPE_Q8_0] = signed_32, [GGML_TYPE_IQ4_NL] = signed_32, [GGML_TYPE_IQ4_XS] = signed_wide,
    [GGML_TYPE_Q3_K] = signed_whole,
    [GGML_TYPE_IQ2_XXS] = one_wide, [GGML_TYPE_IQ3_XXS] = one_wide,
    [GGML_TYPE_IQ2_XS] = one_wide_16, [GGML_TYPE_IQ2_S] = one_wide_16,
    [GGML_TYPE_Q6_K] = two_wide_16, [GGML_TYPE_Q2_K] = two_whole_minima,
    [GGML_TYPE_Q5_0] = four_32, [GGML_TYPE_MXFP4] = four_32, [GGML_TYPE_Q5_1] = four_32_minima, [NVFP4] = four_16,
    [GGML_TYPE_IQ3_S] = four_wide, [GGML_TYPE_IQ1_S] = four_wide, [GGML_TYPE_Q5_K] = four_wide_minima,
    [GGML_TYPE_IQ1_M] = four_wide_16,
    [GGML_TYPE_Q4_0] = eight_32, [Q1_0] = eight_32, [Q2_0] = eight_32, [GGML_TYPE_Q4_1] = eight_32_minima,
    [GGML_TYPE_Q4_K] = eight_wide_minima, [GGML_TYPE_TQ1_0] = eight_whole, [GGML_TYPE_TQ2_0] = eight_whole,
};

static kernel * kernel_of(const struct type * type, bool tiled) {
    (void) tiled;
    return kernels[type->number];
}

static kernel * dot_kernel_of(const struct type * type, bool tiled) {
    (void) tiled;
    static kernel * const kernels[3][2][2] = KERNELS_OF(dot);
    return kernels[breadth_of(type)][type->halves][type->minima];
}

static bool needs_none(const struct type * type) {
    (void) type;
    return false;
}

HIDDEN const struct family ggmodel_by_avx2 = {
    .unpackers = unpackers,
    .step = STEP,
    .signs = needs_signs,
    .interleave = interleave,
    .kernel_of = kernel_of,
    .few_kernel_of = few_kernel_of,
    .signed_bytes = SIGNED_BYTES,
    .quantize_columns = quantize_columns,
    .multiply_floats = multiply_floats,
    .round_column = round_column,
    .multiply_rounded = multiply_rounded,
    .finish = finish,
};

HIDDEN const struct family ggmodel_by_avx_vnni = {
    .unpackers = unpackers,
    .step = STEP,
    .signs = needs_none,
    .interleave = interleave,
    .kernel_of = dot_kernel_of,
    .few_kernel_of = few_kernel_of,
    .signed_bytes = SIGNED_BYTES,
    .quantize_columns = quantize_columns,
    .multiply_floats = multiply_floats,
    .round_column = round_column,
    .multiply_rounded = multiply_rounded,
    .finish = finish,
};

#endif
