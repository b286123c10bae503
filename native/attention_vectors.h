/* Operations on vectors of LANES floats, each for four instruction sets: those of every machine, AVX2,
   AVX-512, and NEON. Each rounds once, so that all give the same bits. */

#define FMA_OF(a, b, c) __builtin_fmaf(a, b, c)

typedef struct { float x[LANES]; } lanes;

#define EACH(expression)                \
    lanes r;                            \
    for (int i = 0; i < LANES; i++) {   \
        r.x[i] = (expression);          \
    }                                   \
    return r

#define DEFINE_LANES(suffix, target)                                                                           \
    target static inline lanes load_##suffix(const float * p) { EACH(p[i]); }                                  \
    target static inline void store_##suffix(float * p, lanes a) { memcpy(p, a.x, sizeof(a.x)); }              \
    target static inline lanes set_##suffix(float a) { EACH(a); }                                              \
    target static inline lanes fma_##suffix(lanes a, lanes b, lanes c) { EACH(FMA_OF(a.x[i], b.x[i], c.x[i])); } \
    target static inline lanes mul_##suffix(lanes a, lanes b) { EACH(a.x[i] * b.x[i]); }                       \
    target static inline lanes div_##suffix(lanes a, lanes b) { EACH(a.x[i] / b.x[i]); }                       \
    target static inline lanes add_##suffix(lanes a, lanes b) { EACH(a.x[i] + b.x[i]); }                       \
    target static inline lanes sub_##suffix(lanes a, lanes b) { EACH(a.x[i] - b.x[i]); }                       \
    target static inline lanes max_##suffix(lanes a, lanes b) { EACH(a.x[i] > b.x[i] ? a.x[i] : b.x[i]); }     \
    target static inline lanes abs_##suffix(lanes a) { EACH(__builtin_fabsf(a.x[i])); }                        \
    target static inline lanes sign_##suffix(lanes a, lanes b) { EACH(__builtin_copysignf(b.x[i], a.x[i])); }  \
    target static inline lanes below_##suffix(lanes a, float least, lanes b) { EACH(a.x[i] < least ? 0.0f : b.x[i]); } \
    target static inline lanes power_##suffix(lanes a) {                                                       \
        uint32_t bits[LANES];                                                                                  \
        memcpy(bits, a.x, sizeof(bits));                                                                       \
        for (int i = 0; i < LANES; i++) {                                                                      \
            bits[i] = (bits[i] << 23) + 0x3f800000u;                                                           \
        }                                                                                                      \
        memcpy(a.x, bits, sizeof(bits));                                                                       \
        return a;                                                                                              \
    }                                                                                                          \
    target static inline float highest_##suffix(lanes a) {                                                     \
        float most = a.x[0];                                                                                   \
        for (int i = 1; i < LANES; i++) {                                                                      \
            most = a.x[i] > most ? a.x[i] : most;                                                              \
        }                                                                                                      \
        return most;                                                                                           \
    }                                                                                                          \
    target static inline void transpose_##suffix(const float * from, int stride, float * to) {                 \
        for (int j = 0; j < LANES; j++) {                                                                      \
            for (int i = 0; i < LANES; i++) {                                                                  \
                to[(size_t) i * CELLS + j] = from[(size_t) j * stride + i];                                    \
            }                                                                                                  \
        }                                                                                                      \
    }

DEFINE_LANES(plain, )

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 9)
#define WIDE_VECTORS
#include <immintrin.h>

/* Two vectors of eight. */

#define AVX2 __attribute__((target("avx2,fma,f16c")))
typedef struct { __m256 a, b; } pair;

#define PAIRWISE(name, function)                                                 \
    AVX2 static inline pair name##_avx2(pair x, pair y) {                      \
        return (pair) {function(x.a, y.a), function(x.b, y.b)};                  \
    }
PAIRWISE(mul, _mm256_mul_ps)
PAIRWISE(div, _mm256_div_ps)
PAIRWISE(add, _mm256_add_ps)
PAIRWISE(sub, _mm256_sub_ps)
PAIRWISE(max, _mm256_max_ps)
AVX2 static inline pair load_avx2(const float * p) {
    return (pair) {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
AVX2 static inline void store_avx2(float * p, pair x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
AVX2 static inline pair set_avx2(float x) {
    return (pair) {_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
AVX2 static inline pair fma_avx2(pair x, pair y, pair z) {
    return (pair) {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
AVX2 static inline pair abs_avx2(pair x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (pair) {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
AVX2 static inline pair sign_avx2(pair x, pair y) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (pair) {_mm256_or_ps(_mm256_and_ps(sign, x.a), _mm256_andnot_ps(sign, y.a)),
                   _mm256_or_ps(_mm256_and_ps(sign, x.b), _mm256_andnot_ps(sign, y.b))};
}
AVX2 static inline pair below_avx2(pair x, float least, pair y) {
    __m256 l = _mm256_set1_ps(least);
    return (pair) {_mm256_andnot_ps(_mm256_cmp_ps(x.a, l, _CMP_LT_OQ), y.a),
                   _mm256_andnot_ps(_mm256_cmp_ps(x.b, l, _CMP_LT_OQ), y.b)};
}
AVX2 static inline __m256 power_of_eight(__m256 x) {
    __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(x), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000)));
}
AVX2 static inline pair power_avx2(pair x) {
    return (pair) {power_of_eight(x.a), power_of_eight(x.b)};
}
AVX2 static inline float highest_avx2(pair x) {
    float all[LANES], most;
    store_avx2(all, x);
    most = all[0];
    for (int i = 1; i < LANES; i++) {
        most = all[i] > most ? all[i] : most;
    }
    return most;
}
AVX2 static inline void transpose_eight(const float * from, int stride, float * to) {
    __m256 r[8], t[8];
    for (int i = 0; i < 8; i++) {
        r[i] = _mm256_loadu_ps(from + (size_t) i * stride);
    }
    for (int i = 0; i < 8; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + (size_t) i * CELLS, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (size_t) (i + 4) * CELLS, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}
AVX2 static inline void transpose_avx2(const float * from, int stride, float * to) {
    for (int j = 0; j < LANES; j += 8) {
        for (int i = 0; i < LANES; i += 8) {
            transpose_eight(from + (size_t) j * stride + i, stride, to + (size_t) i * CELLS + j);
        }
    }
}

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")))

AVX512 static inline __m512 load_avx512(const float * p) { return _mm512_loadu_ps(p); }
AVX512 static inline void store_avx512(float * p, __m512 x) { _mm512_storeu_ps(p, x); }
AVX512 static inline __m512 set_avx512(float x) { return _mm512_set1_ps(x); }
AVX512 static inline __m512 fma_avx512(__m512 x, __m512 y, __m512 z) { return _mm512_fmadd_ps(x, y, z); }
AVX512 static inline __m512 mul_avx512(__m512 x, __m512 y) { return _mm512_mul_ps(x, y); }
AVX512 static inline __m512 div_avx512(__m512 x, __m512 y) { return _mm512_div_ps(x, y); }
AVX512 static inline __m512 add_avx512(__m512 x, __m512 y) { return _mm512_add_ps(x, y); }
AVX512 static inline __m512 sub_avx512(__m512 x, __m512 y) { return _mm512_sub_ps(x, y); }
AVX512 static inline __m512 max_avx512(__m512 x, __m512 y) { return _mm512_max_ps(x, y); }
AVX512 static inline __m512 abs_avx512(__m512 x) { return _mm512_abs_ps(x); }
AVX512 static inline __m512 sign_avx512(__m512 x, __m512 y) {
    __m512 sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_and_ps(sign, x), _mm512_andnot_ps(sign, y));
}
AVX512 static inline __m512 below_avx512(__m512 x, float least, __m512 y) {
    __mmask16 below = _mm512_cmp_ps_mask(x, _mm512_set1_ps(least), _CMP_LT_OQ);
    return _mm512_mask_mov_ps(y, below, _mm512_setzero_ps());
}
AVX512 static inline __m512 power_avx512(__m512 x) {
    __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(x), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f800000)));
}
AVX512 static inline float highest_avx512(__m512 x) { return _mm512_reduce_max_ps(x); }
AVX512 static inline void transpose_avx512(const float * from, int stride, float * to) {
    __m512 r[LANES], t[LANES];
    for (int i = 0; i < LANES; i++) {
        r[i] = _mm512_loadu_ps(from + (size_t) i * stride);
    }
    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < LANES; i += 4) {
        r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
        r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
        r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 8; i++) {
        _mm512_storeu_ps(to + (size_t) i * CELLS, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_ps(to + (size_t) (i + 8) * CELLS, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
    }
}

#elif defined(__aarch64__)
#define WIDE_VECTORS
#include <arm_neon.h>

/* Four vectors of four. */

typedef struct { float32x4_t x[4]; } quad;

#define FOURFOLD(name, arguments, expression)                    \
    ALWAYS static inline quad name##_neon arguments {            \
        quad r;                                                  \
        for (int i = 0; i < 4; i++) {                            \
            r.x[i] = (expression);                               \
        }                                                        \
        return r;                                                \
    }
FOURFOLD(load, (const float * p), vld1q_f32(p + 4 * i))
FOURFOLD(set, (float a), vdupq_n_f32(a))
FOURFOLD(fma, (quad a, quad b, quad c), vfmaq_f32(c.x[i], a.x[i], b.x[i]))
FOURFOLD(mul, (quad a, quad b), vmulq_f32(a.x[i], b.x[i]))
FOURFOLD(div, (quad a, quad b), vdivq_f32(a.x[i], b.x[i]))
FOURFOLD(add, (quad a, quad b), vaddq_f32(a.x[i], b.x[i]))
FOURFOLD(sub, (quad a, quad b), vsubq_f32(a.x[i], b.x[i]))
FOURFOLD(max, (quad a, quad b), vbslq_f32(vcgtq_f32(a.x[i], b.x[i]), a.x[i], b.x[i]))
FOURFOLD(abs, (quad a), vabsq_f32(a.x[i]))
FOURFOLD(sign, (quad a, quad b), vbslq_f32(vdupq_n_u32(0x80000000u), a.x[i], b.x[i]))
FOURFOLD(below, (quad a, float least, quad b), vreinterpretq_f32_u32(vbicq_u32(
    vreinterpretq_u32_f32(b.x[i]), vcltq_f32(a.x[i], vdupq_n_f32(least)))))
FOURFOLD(power, (quad a), vreinterpretq_f32_u32(vaddq_u32(
    vshlq_n_u32(vreinterpretq_u32_f32(a.x[i]), 23), vdupq_n_u32(0x3f800000u))))
ALWAYS static inline void store_neon(float * p, quad a) {
    for (int i = 0; i < 4; i++) {
        vst1q_f32(p + 4 * i, a.x[i]);
    }
}
ALWAYS static inline float highest_neon(quad a) {
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.x[0], a.x[1]), vmaxq_f32(a.x[2], a.x[3])));
}
ALWAYS static inline void transpose_neon(const float * from, int stride, float * to) {
    for (int j = 0; j < LANES; j += 4) {
        for (int i = 0; i < LANES; i += 4) {
            const float * rows = from + (size_t) j * stride + i;
            float * columns = to + (size_t) i * CELLS + j;
            float32x4x2_t low = vtrnq_f32(vld1q_f32(rows), vld1q_f32(rows + stride));
            float32x4x2_t high = vtrnq_f32(vld1q_f32(rows + 2 * stride), vld1q_f32(rows + 3 * stride));
            for (int odd = 0; odd < 2; odd++) {
                float32x4_t a = low.val[odd], b = high.val[odd];
                vst1q_f32(columns + odd * CELLS, vcombine_f32(vget_low_f32(a), vget_low_f32(b)));
                vst1q_f32(columns + (odd + 2) * CELLS, vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
            }
        }
    }
}

#endif
