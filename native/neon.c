/* Products by NEON with the dot product of bytes. */

#include "formats.h"

#ifdef ON_ARM

#include <arm_neon.h>

#define NEON_VECTORS
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define INLINE static inline __attribute__((always_inline)) TARGET

#include "vectors.h"

#define FLOAT_COLUMNS 6
typedef int32x4_t ints;

INLINE float to_f16(float x) {
    return (__fp16) x;
}

INLINE ints ints_of(int x) {
    return vdupq_n_s32(x);
}

INLINE ints start_of(int start, int zero) {
    return ints_of(zero * start);
}

INLINE vec vec_of_ints(ints x) {
    return vcvtq_f32_s32(x);
}

INLINE ints max_ints(ints a, ints b) {
    return vmaxq_s32(a, b);
}

INLINE int largest_int(ints x) {
    return vmaxvq_s32(x);
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

/* Both operands have a sign. */
INLINE ints dot(ints sums, ints weights, ints x) {
    return vdotq_s32(sums, vreinterpretq_s8_s32(weights), vreinterpretq_s8_s32(x));
}

INLINE ints load_ints(const void * at) {
    return vld1q_s32((const int32_t *) at);
}

/* Adds both products of pairs of 16 bits. */
INLINE ints dot_shorts(ints sums, ints a, ints b) {
    int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
    ints low = vmull_s16(vget_low_s16(x), vget_low_s16(y)), high = vmull_s16(vget_high_s16(x), vget_high_s16(y));
    return vaddq_s32(sums, vpaddq_s32(low, high));
}

#define STEP  4
#define TILES 1

#include "plain.h"
#include "kernels.h"

#include "quantize.h"
#include "floats.h"
#include "finish.h"

KERNELS(dot, SIGNED)

static kernel * kernel_of(const struct type * type, bool tiled) {
    (void) tiled;
    static kernel * const kernels[3][2][2] = KERNELS_OF(dot);
    return kernels[breadth_of(type)][type->halves][type->minima];
}

static bool needs_signs(const struct type * type) {
    (void) type;
    return true;
}

HIDDEN const struct family ggmodel_by_neon = {
    .unpackers = unpackers,
    .step = STEP,
    .signs = needs_signs,
    .interleave = interleave,
    .kernel_of = kernel_of,
    .quantize_columns = quantize_columns,
    .multiply_floats = multiply_floats,
    .finish = finish,
};

#endif
