/* Unpackers: n values of a row, as signed bytes (or bytes without a sign where there is a minimum),
   with a scale and a minimum for each half of a block. A value is byte * scale - minimum. */

struct line {
    int8_t values[LINE];
    float  scale[LINE / 16], minimum[LINE / 16];
};

INLINE float half(const uint8_t * at) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    return _cvtsh_ss(bits);
}

INLINE void both(float * at, float value) {
    at[0] = at[1] = value;
}

/* The low halves of n bytes, and behind them the high halves. */
INLINE void nibbles(int8_t * to, const uint8_t * from, int n) {
    const __m128i low = _mm_set1_epi8(15);
    for (int i = 0; i < n; i += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *) (from + i));
        _mm_storeu_si128((__m128i *) (to + i), _mm_and_si128(bytes, low));
        _mm_storeu_si128((__m128i *) (to + i + n), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    }
}

/* 32 bytes, plus `value` where a bit is set, minus `zero`; by 16, as they were stored. */
INLINE void adjust(int8_t * v, uint32_t bits, int value, int zero) {
    for (int i = 0; i < 32; i += 16, bits >>= 16) {
        __m128i some = _mm_loadu_si128((const __m128i *) (v + i));
        some = _mm_add_epi8(some, _mm_maskz_set1_epi8((__mmask16) bits, (char) value));
        _mm_storeu_si128((__m128i *) (v + i), _mm_sub_epi8(some, _mm_set1_epi8((char) zero)));
    }
}

INLINE uint32_t bits_at(const uint8_t * at) {
    uint32_t bits;
    memcpy(&bits, at, 4);
    return bits;
}

VNNI static void unpack_q8_0(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 32; b++, from += 34) {
        both(to->scale + 2 * b, half(from));
        memcpy(to->values + 32 * b, from + 2, 32);
    }
}

VNNI static void unpack_q4_0(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 32; b++, from += 18) {
        both(to->scale + 2 * b, half(from));
        nibbles(to->values + 32 * b, from + 2, 16);
        adjust(to->values + 32 * b, 0, 0, 8);
    }
}

VNNI static void unpack_q4_1(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 32; b++, from += 20) {
        both(to->scale + 2 * b, half(from));
        both(to->minimum + 2 * b, -half(from + 2));
        nibbles(to->values + 32 * b, from + 4, 16);
    }
}

VNNI static void unpack_q5_0(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 32; b++, from += 22) {
        both(to->scale + 2 * b, half(from));
        nibbles(to->values + 32 * b, from + 6, 16);
        adjust(to->values + 32 * b, bits_at(from + 2), 16, 16);
    }
}

VNNI static void unpack_q5_1(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 32; b++, from += 24) {
        both(to->scale + 2 * b, half(from));
        both(to->minimum + 2 * b, -half(from + 2));
        nibbles(to->values + 32 * b, from + 8, 16);
        adjust(to->values + 32 * b, bits_at(from + 4), 16, 0);
    }
}

/* The 6-bit scale and minimum of 32 values of Q4_K and Q5_K. */
INLINE void scale_and_minimum(const uint8_t * s, int i, int * scale, int * minimum) {
    if (i < 4) {
        *scale = s[i] & 63;
        *minimum = s[i + 4] & 63;
    } else {
        *scale = (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
        *minimum = s[i + 4] >> 4 | (s[i] >> 6) << 4;
    }
}

INLINE void scales_of_k(const uint8_t * from, int b, struct line * to) {
    float d = half(from), least = half(from + 2);
    for (int i = 0; i < 8; i++) {
        int scale, minimum;
        scale_and_minimum(from + 4, i, &scale, &minimum);
        both(to->scale + 16 * b + 2 * i, d * scale);
        both(to->minimum + 16 * b + 2 * i, least * minimum);
    }
}

VNNI static void unpack_q4_k(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 256; b++, from += 144) {
        scales_of_k(from, b, to);
        for (int i = 0; i < 4; i++) {
            nibbles(to->values + 256 * b + 64 * i, from + 16 + 32 * i, 32);
        }
    }
}

VNNI static void unpack_q5_k(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 256; b++, from += 176) {
        scales_of_k(from, b, to);
        for (int i = 0; i < 4; i++) {
            int8_t * v = to->values + 256 * b + 64 * i;
            nibbles(v, from + 48 + 32 * i, 32);
            for (int j = 0; j < 32; j++) {
                v[j] |= (from[16 + j] >> (2 * i) & 1) << 4;
                v[j + 32] |= (from[16 + j] >> (2 * i + 1) & 1) << 4;
            }
        }
    }
}

VNNI static void unpack_q6_k(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 256; b++, from += 210) {
        float d = half(from + 208);
        for (int i = 0; i < 16; i++) {
            to->scale[16 * b + i] = d * (int8_t) from[192 + i];
        }
        for (int h = 0; h < 2; h++) {
            const uint8_t * low = from + 64 * h, * high = from + 128 + 32 * h;
            int8_t * v = to->values + 256 * b + 128 * h;
            for (int i = 0; i < 32; i++) {
                v[i] = ((low[i] & 15) | (high[i] & 3) << 4) - 32;
                v[i + 32] = ((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4) - 32;
                v[i + 64] = (low[i] >> 4 | (high[i] >> 4 & 3) << 4) - 32;
                v[i + 96] = (low[i + 32] >> 4 | (high[i] >> 6) << 4) - 32;
            }
        }
    }
}

VNNI static void unpack_q2_k(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 256; b++, from += 84) {
        float d = half(from + 80), least = half(from + 82);
        for (int i = 0; i < 16; i++) {
            to->scale[16 * b + i] = d * (from[i] & 15);
            to->minimum[16 * b + i] = least * (from[i] >> 4);
        }
        for (int i = 0; i < 8; i++) {
            for (int j = 0; j < 32; j++) {
                to->values[256 * b + 32 * i + j] = from[16 + 32 * (i / 4) + j] >> (2 * (i % 4)) & 3;
            }
        }
    }
}

VNNI static void unpack_q3_k(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 256; b++, from += 110) {
        const uint8_t * s = from + 96;
        float d = half(from + 108);
        for (int i = 0; i < 16; i++) {
            int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
            int scale = low | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4;
            to->scale[16 * b + i] = d * (scale - 32);
        }
        for (int i = 0; i < 8; i++) {
            for (int j = 0; j < 32; j++) {
                int low = from[32 + 32 * (i / 4) + j] >> (2 * (i % 4)) & 3;
                to->values[256 * b + 32 * i + j] = low - (from[j] >> i & 1 ? 0 : 4);
            }
        }
    }
}

static const int8_t nonlinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                     1, 13, 25, 38, 53, 69, 89, 113};

INLINE void looked_up(int8_t * v, const uint8_t * from, const int8_t * table) {
    __m128i all = _mm_loadu_si128((const __m128i *) from), values = _mm_loadu_si128((const __m128i *) table);
    __m128i low = _mm_and_si128(all, _mm_set1_epi8(15));
    __m128i high = _mm_and_si128(_mm_srli_epi16(all, 4), _mm_set1_epi8(15));
    _mm_storeu_si128((__m128i *) v, _mm_shuffle_epi8(values, low));
    _mm_storeu_si128((__m128i *) (v + 16), _mm_shuffle_epi8(values, high));
}

VNNI static void unpack_iq4_nl(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 32; b++, from += 18) {
        both(to->scale + 2 * b, half(from));
        looked_up(to->values + 32 * b, from + 2, nonlinear);
    }
}

VNNI static void unpack_iq4_xs(const uint8_t * restrict from, int n, struct line * restrict to) {
    for (int b = 0; b < n / 256; b++, from += 136) {
        float d = half(from);
        int high = from[2] | from[3] << 8;
        for (int i = 0; i < 8; i++) {
            int scale = (from[4 + i / 2] >> (4 * (i % 2)) & 15) | (high >> (2 * i) & 3) << 4;
            both(to->scale + 16 * b + 2 * i, d * (scale - 32));
            looked_up(to->values + 256 * b + 32 * i, from + 8 + 16 * i, nonlinear);
        }
    }
}

VNNI static void unpack_mxfp4(const uint8_t * restrict from, int n, struct line * restrict to) {
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int b = 0; b < n / 32; b++, from += 17) {
        uint32_t bits = from[0] < 2 ? UINT32_C(0x200000) << from[0] : (uint32_t) (from[0] - 1) << 23;
        float scale;
        memcpy(&scale, &bits, 4);
        both(to->scale + 2 * b, scale);
        looked_up(to->values + 32 * b, from + 1, doubled);
    }
}

static const struct type {
    enum ggml_type type;
    void (*unpack)(const uint8_t * restrict from, int n, struct line * restrict to);
    bool halves, minima; /* a scale for 16 values; minima */
} types[] = {
    {GGML_TYPE_Q8_0, unpack_q8_0, false, false},
    {GGML_TYPE_Q4_0, unpack_q4_0, false, false},
    {GGML_TYPE_Q4_1, unpack_q4_1, false, true},
    {GGML_TYPE_Q5_0, unpack_q5_0, false, false},
    {GGML_TYPE_Q5_1, unpack_q5_1, false, true},
    {GGML_TYPE_Q2_K, unpack_q2_k, true, true},
    {GGML_TYPE_Q3_K, unpack_q3_k, true, false},
    {GGML_TYPE_Q4_K, unpack_q4_k, false, true},
    {GGML_TYPE_Q5_K, unpack_q5_k, false, true},
    {GGML_TYPE_Q6_K, unpack_q6_k, true, false},
    {GGML_TYPE_IQ4_NL, unpack_iq4_nl, false, false},
    {GGML_TYPE_IQ4_XS, unpack_iq4_xs, false, false},
    {GGML_TYPE_MXFP4, unpack_mxfp4, false, false},
};

static const struct type * type_of(int type) {
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        if ((int) types[i].type == type) {
            return types + i;
        }
    }
    return NULL;
}
