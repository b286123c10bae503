/* Vectors of VEC floats, each operation rounded once, so that all give the same bits: of AVX-512, AVX2 or NEON, as
   the including file's AVX512_VECTORS, AVX2_VECTORS or NEON_VECTORS says, else of any machine. It defines TARGET, of
   functions, and INLINE. Maxima and minima are b where one is no number, or both are zeros; largest_of takes numbers
   alone. Those of any machine are what attention_tiles.h needs. */

#if defined(AVX512_VECTORS)
#define VEC 16
typedef __m512 vec;

INLINE vec load_vec(const float * at) { return _mm512_loadu_ps(at); }
INLINE void store_vec(float * at, vec x) { _mm512_storeu_ps(at, x); }
INLINE vec vec_of(float x) { return _mm512_set1_ps(x); }
INLINE vec add_vec(vec a, vec b) { return _mm512_add_ps(a, b); }
INLINE vec sub_vec(vec a, vec b) { return _mm512_sub_ps(a, b); }
INLINE vec mul_vec(vec a, vec b) { return _mm512_mul_ps(a, b); }
INLINE vec div_vec(vec a, vec b) { return _mm512_div_ps(a, b); }
INLINE vec fma_vec(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vec max_vec(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vec min_vec(vec a, vec b) { return _mm512_min_ps(a, b); }
INLINE vec abs_vec(vec x) { return _mm512_abs_ps(x); }
INLINE float largest_of(vec x) { return _mm512_reduce_max_ps(x); }
INLINE vec sign_of(vec x, vec y) {
    __m512 sign = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_and_ps(sign, x), _mm512_andnot_ps(sign, y));
}
INLINE vec zero_below(vec x, float least, vec y) {
    return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, vec_of(least), _CMP_LT_OQ), vec_of(0));
}
INLINE vec power_vec(vec x) {
    __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(x), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f800000)));
}
INLINE float half(const void * at) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    return _cvtsh_ss(bits);
}
INLINE vec vec_of_bytes(const void * at) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) at)));
}
INLINE vec vec_of_f16(const void * at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) at)); }
INLINE vec vec_of_bf16(const void * at) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
INLINE void transpose_floats(const float * from, int stride, float * to, int step) {
    __m512 r[VEC], t[VEC];
    for (int i = 0; i < VEC; i++) {
        r[i] = _mm512_loadu_ps(from + (size_t) i * stride);
    }
    for (int i = 0; i < VEC; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < VEC; i += 4) {
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
        _mm512_storeu_ps(to + (size_t) i * step, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_ps(to + (size_t) (i + 8) * step, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
    }
}
#elif defined(AVX2_VECTORS)
#define VEC 8
typedef __m256 vec;

INLINE vec load_vec(const float * at) { return _mm256_loadu_ps(at); }
INLINE void store_vec(float * at, vec x) { _mm256_storeu_ps(at, x); }
INLINE vec vec_of(float x) { return _mm256_set1_ps(x); }
INLINE vec add_vec(vec a, vec b) { return _mm256_add_ps(a, b); }
INLINE vec sub_vec(vec a, vec b) { return _mm256_sub_ps(a, b); }
INLINE vec mul_vec(vec a, vec b) { return _mm256_mul_ps(a, b); }
INLINE vec div_vec(vec a, vec b) { return _mm256_div_ps(a, b); }
INLINE vec fma_vec(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vec max_vec(vec a, vec b) { return _mm256_max_ps(a, b); }
INLINE vec min_vec(vec a, vec b) { return _mm256_min_ps(a, b); }
INLINE vec abs_vec(vec x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
INLINE float largest_of(vec x) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
INLINE vec sign_of(vec x, vec y) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_and_ps(sign, x), _mm256_andnot_ps(sign, y));
}
INLINE vec zero_below(vec x, float least, vec y) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, vec_of(least), _CMP_LT_OQ), y);
}
INLINE vec power_vec(vec x) {
    __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(x), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000)));
}
INLINE float half(const void * at) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    return _cvtsh_ss(bits);
}
INLINE vec vec_of_bytes(const void * at) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) at)));
}
INLINE vec vec_of_f16(const void * at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) at)); }
INLINE vec vec_of_bf16(const void * at) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
INLINE void transpose_floats(const float * from, int stride, float * to, int step) {
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
        _mm256_storeu_ps(to + (size_t) i * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (size_t) (i + 4) * step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}
#elif defined(NEON_VECTORS)
#define VEC 4
typedef float32x4_t vec;

INLINE vec load_vec(const float * at) { return vld1q_f32(at); }
INLINE void store_vec(float * at, vec x) { vst1q_f32(at, x); }
INLINE vec vec_of(float x) { return vdupq_n_f32(x); }
INLINE vec add_vec(vec a, vec b) { return vaddq_f32(a, b); }
INLINE vec sub_vec(vec a, vec b) { return vsubq_f32(a, b); }
INLINE vec mul_vec(vec a, vec b) { return vmulq_f32(a, b); }
INLINE vec div_vec(vec a, vec b) { return vdivq_f32(a, b); }
INLINE vec fma_vec(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
INLINE vec max_vec(vec a, vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
INLINE vec min_vec(vec a, vec b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
INLINE vec abs_vec(vec x) { return vabsq_f32(x); }
INLINE float largest_of(vec x) { return vmaxvq_f32(x); }
INLINE vec sign_of(vec x, vec y) { return vbslq_f32(vdupq_n_u32(0x80000000u), x, y); }
INLINE vec zero_below(vec x, float least, vec y) {
    uint32x4_t below = vcltq_f32(x, vdupq_n_f32(least));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), below));
}
INLINE vec power_vec(vec x) {
    uint32x4_t bits = vshlq_n_u32(vreinterpretq_u32_f32(x), 23);
    return vreinterpretq_f32_u32(vaddq_u32(bits, vdupq_n_u32(0x3f800000u)));
}
INLINE float half(const void * at) {
    __fp16 value;
    memcpy(&value, at, 2);
    return value;
}
INLINE vec vec_of_bytes(const void * at) {
    uint32_t four;
    memcpy(&four, at, sizeof(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))));
}
INLINE vec vec_of_f16(const void * at) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *) at))); }
INLINE vec vec_of_bf16(const void * at) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *) at)), 16));
}
INLINE void transpose_floats(const float * from, int stride, float * to, int step) {
    float32x4x2_t low = vtrnq_f32(vld1q_f32(from), vld1q_f32(from + stride));
    float32x4x2_t high = vtrnq_f32(vld1q_f32(from + 2 * stride), vld1q_f32(from + 3 * stride));
    for (int odd = 0; odd < 2; odd++) {
        float32x4_t a = low.val[odd], b = high.val[odd];
        vst1q_f32(to + odd * step, vcombine_f32(vget_low_f32(a), vget_low_f32(b)));
        vst1q_f32(to + (odd + 2) * step, vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
    }
}
#else
#define VEC 16
typedef struct { float x[VEC]; } vec;

#define EACH(expression)              \
    vec r;                            \
    for (int i = 0; i < VEC; i++) {   \
        r.x[i] = (expression);        \
    }                                 \
    return r

INLINE vec load_vec(const float * at) { EACH(at[i]); }
INLINE void store_vec(float * at, vec x) { memcpy(at, x.x, sizeof(x.x)); }
INLINE vec vec_of(float x) { EACH(x); }
INLINE vec add_vec(vec a, vec b) { EACH(a.x[i] + b.x[i]); }
INLINE vec sub_vec(vec a, vec b) { EACH(a.x[i] - b.x[i]); }
INLINE vec mul_vec(vec a, vec b) { EACH(a.x[i] * b.x[i]); }
INLINE vec div_vec(vec a, vec b) { EACH(a.x[i] / b.x[i]); }
INLINE vec fma_vec(vec a, vec b, vec c) { EACH(__builtin_fmaf(a.x[i], b.x[i], c.x[i])); }
INLINE vec max_vec(vec a, vec b) { EACH(a.x[i] > b.x[i] ? a.x[i] : b.x[i]); }
INLINE vec abs_vec(vec x) { EACH(__builtin_fabsf(x.x[i])); }
INLINE vec sign_of(vec x, vec y) { EACH(__builtin_copysignf(y.x[i], x.x[i])); }
INLINE vec zero_below(vec x, float least, vec y) { EACH(x.x[i] < least ? 0.0f : y.x[i]); }
INLINE float half(const void * at) {
    ggml_fp16_t value;
    memcpy(&value, at, 2);
    return ggml_fp16_to_fp32(value);
}
INLINE vec vec_of_bytes(const void * at) { EACH(((const int8_t *) at)[i]); }
INLINE vec vec_of_f16(const void * at) { EACH(ggml_fp16_to_fp32(((const ggml_fp16_t *) at)[i])); }
INLINE vec power_vec(vec x) {
    uint32_t bits[VEC];
    memcpy(bits, x.x, sizeof(bits));
    for (int i = 0; i < VEC; i++) {
        bits[i] = (bits[i] << 23) + 0x3f800000u;
    }
    memcpy(x.x, bits, sizeof(bits));
    return x;
}
INLINE float largest_of(vec x) {
    float most = x.x[0];
    for (int i = 1; i < VEC; i++) {
        most = x.x[i] > most ? x.x[i] : most;
    }
    return most;
}
INLINE void transpose_floats(const float * from, int stride, float * to, int step) {
    for (int j = 0; j < VEC; j++) {
        for (int i = 0; i < VEC; i++) {
            to[(size_t) i * step + j] = from[(size_t) j * stride + i];
        }
    }
}
#endif

/* e to the x, for x of at most 0: 0 below -87. */
INLINE vec exponential(vec x) {
    const vec magic = vec_of(0x1.8p23f);
    vec clamped = max_vec(vec_of(-88.0f), x); /* NaN stays NaN */
    vec z = fma_vec(clamped, vec_of(0x1.715476p+0f), magic), n = sub_vec(z, magic);
    vec r = fma_vec(n, vec_of(-0x1.62e400p-1f), clamped);
    r = fma_vec(n, vec_of(-0x1.7f7d1cp-20f), r);
    vec p = vec_of(1.9875691500e-4f);
    p = fma_vec(p, r, vec_of(1.3981999507e-3f));
    p = fma_vec(p, r, vec_of(8.3334519073e-3f));
    p = fma_vec(p, r, vec_of(4.1665795894e-2f));
    p = fma_vec(p, r, vec_of(1.6666665459e-1f));
    p = fma_vec(p, r, vec_of(5.0000001201e-1f));
    vec y = add_vec(fma_vec(p, mul_vec(r, r), r), vec_of(1.0f));
    return zero_below(x, -87.0f, mul_vec(y, power_vec(z)));
}
