/* Products by NEON with the dot product of bytes. */

#include "formats.h"

#ifdef ON_ARM

#include <arm_neon.h>

#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#define VEC           4
#define FLOAT_COLUMNS 6
typedef float32x4_t vec;
typedef int32x4_t   ints;

INLINE float half(const uint8_t * at) {
    __fp16 value;
    memcpy(&value, at, 2);
    return value;
}

INLINE float to_f16(float x) {
    return (__fp16) x;
}

INLINE vec load_vec(const float * at) {
    return vld1q_f32(at);
}

INLINE void store_vec(float * at, vec x) {
    vst1q_f32(at, x);
}

INLINE vec vec_of(float x) {
    return vdupq_n_f32(x);
}

INLINE vec add_vec(vec a, vec b) {
    return vaddq_f32(a, b);
}

INLINE vec mul_vec(vec a, vec b) {
    return vmulq_f32(a, b);
}

INLINE vec sub_vec(vec a, vec b) {
    return vsubq_f32(a, b);
}

INLINE vec div_vec(vec a, vec b) {
    return vdivq_f32(a, b);
}

INLINE vec fma_vec(vec a, vec b, vec c) {
    return vfmaq_f32(c, a, b);
}

/* As x86 has them: b where one is no number, or both are zeros. */
INLINE vec max_vec(vec a, vec b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

INLINE vec min_vec(vec a, vec b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

INLINE vec abs_vec(vec x) {
    return vabsq_f32(x);
}

INLINE vec zero_below(vec x, float least, vec y) {
    uint32x4_t below = vcltq_f32(x, vdupq_n_f32(least));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), below));
}

INLINE vec power_vec(vec x) {
    uint32x4_t bits = vshlq_n_u32(vreinterpretq_u32_f32(x), 23);
    return vreinterpretq_f32_u32(vaddq_u32(bits, vdupq_n_u32(0x3f800000u)));
}

INLINE vec vec_of_f16(const uint8_t * at) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at)));
}

INLINE vec vec_of_bf16(const uint8_t * at) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(at)), 16));
}

INLINE ints ints_of(int x) {
    return vdupq_n_s32(x);
}

INLINE vec vec_of_ints(ints x) {
    return vcvtq_f32_s32(x);
}

/* BLOCK values times a factor, as bytes, and the sums of both halves. */
INLINE void store_rounded(const float * from, vec factor, int8_t * to, int32_t * sums) {
    for (int h = 0; h < 2; h++, from += 16, to += 16) {
        int16x4_t four[4];
        for (int i = 0; i < 4; i++) {
            four[i] = vqmovn_s32(vcvtnq_s32_f32(mul_vec(load_vec(from + VEC * i), factor)));
        }
        int8x8_t first = vqmovn_s16(vcombine_s16(four[0], four[1]));
        int8x16_t bytes = vcombine_s8(first, vqmovn_s16(vcombine_s16(four[2], four[3])));
        vst1q_s8(to, bytes);
        sums[h] = vaddlvq_s8(bytes);
    }
}

#define entries_of(table, numbers) ((bytes16) vqtbl1q_u8((uint8x16_t) (table), (uint8x16_t) (numbers)))

#include "plain.h"

/* Adds the products of groups of four values, from `begin` to `end`, of TILE rows and n columns. */
INLINE void exact_sums(const struct rows * w, const struct columns * x, int begin, int end, int first, int n,
                       const struct type * type, enum kind kind, ints (*to)[VECS]) {
    (void) type, (void) kind;
    for (int g = begin; g < end; g++) {
        int8x16_t weights[VECS];
        for (int v = 0; v < VECS; v++) {
            weights[v] = vld1q_s8((const int8_t *) w->values[g][VEC * v]);
        }
        for (int j = 0; j < n; j++) {
            uint32_t four = word_of((const uint8_t *) x->values[first + j] + 4 * g);
            int8x16_t column = vreinterpretq_s8_u32(vdupq_n_u32(four));
            for (int v = 0; v < VECS; v++) {
                to[j][v] = vdotq_s32(to[j][v], weights[v], column);
            }
        }
    }
}

#include "plain_kernels.h"
#include "floats.h"
#include "finish.h"

PLAIN_KERNELS(dot, SIGNED)

static kernel * kernel_of(const struct type * type, bool tiled) {
    (void) tiled;
    static kernel * const kernels[2][2] = KERNELS_OF(dot);
    return kernels[type->halves][type->minima];
}

static bool needs_signs(const struct type * type) {
    (void) type;
    return true;
}

HIDDEN const struct family ggmodel_by_neon = {
    .unpackers = unpackers,
    .step = PLAIN_STEP,
    .signs = needs_signs,
    .interleave = interleave,
    .kernel_of = kernel_of,
    .quantize_column = quantize_column,
    .multiply_floats = multiply_floats,
    .finish = finish,
};

#endif
