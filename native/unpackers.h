/* Unpackers: the values of a part of a row as bytes without a sign, and a scale, maybe a minimum, for each
   block or each half of one. A value is (byte - zero) * scale, or byte * scale - minimum.

   Bytes lie in the order that is cheapest for a type; what is multiplied with them lies in the same. Four
   blocks of 32 values are a quad, in two vectors. */

#define QUAD (4 * BLOCK)

enum order {
    IN_ORDER,     /* blocks 0 and 1, 2 and 3 */
    BY_HALVES,    /* the first halves of all four, then the second ones: two halves share bytes of 4 bits */
    BY_ALTERNATES /* blocks 0 and 2, 1 and 3: two blocks share bytes of 4 bits */
};

struct line {
    uint8_t values[LINE] __attribute__((aligned(64)));
    float   scale[LINE / 16], minimum[LINE / 16];
};

/* Byte 0 or 16 of block b. */
INLINE int place_of(enum order order, int b, int half) {
    int in = b % 4, at = b / 4 * QUAD;
    switch (order) {
        case IN_ORDER: return at + 32 * in + 16 * half;
        case BY_HALVES: return at + 16 * in + 64 * half;
        default: return at + 64 * (in % 2) + 32 * (in / 2) + 16 * half;
    }
}

INLINE float half(const uint8_t * at) {
    uint16_t bits;
    memcpy(&bits, at, 2);
    return _cvtsh_ss(bits);
}

/* Four F16 numbers for each quad, `step` bytes apart, as 16 floats, of which the last may be zeros. */
INLINE __m512 halves_at(const uint8_t * from, size_t step, int quads) {
    __m128i four[4];
    for (int q = 0; q < 4; q++) {
        uint16_t bits[4] = {0};
        for (int i = 0; i < 4 && q < quads; i++, from += step) {
            memcpy(bits + i, from, 2);
        }
        four[q] = _mm_insert_epi16(_mm_cvtsi32_si128(bits[0]), bits[1], 1);
        four[q] = _mm_insert_epi16(_mm_insert_epi16(four[q], bits[2], 2), bits[3], 3);
    }
    __m128i first = _mm_unpacklo_epi64(four[0], four[1]), second = _mm_unpacklo_epi64(four[2], four[3]);
    return _mm512_cvtph_ps(_mm256_set_m128i(second, first));
}

INLINE __m128i bytes_16(const void * at) {
    return _mm_loadu_si128((const __m128i *) at);
}

INLINE __m512i bytes(int value) {
    return _mm512_set1_epi8((char) value);
}

/* 32 bytes twice. */
INLINE __m512i twice_32(const void * at) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *) at));
}

/* 16 bytes of each of four blocks, `step` bytes apart. */
INLINE __m512i of_four(const uint8_t * from, size_t step) {
    __m512i all = _mm512_castsi128_si512(bytes_16(from));
    all = _mm512_inserti32x4(all, bytes_16(from + step), 1);
    all = _mm512_inserti32x4(all, bytes_16(from + 2 * step), 2);
    return _mm512_inserti32x4(all, bytes_16(from + 3 * step), 3);
}

/* Some bits of bytes, shifted to the right by `low` in the first 32 bytes and by `high` in the second. */
INLINE __m512i bits_of(__m512i all, int low, int high, int mask) {
    __m512i shifts = _mm512_inserti64x4(_mm512_set1_epi16((short) low), _mm256_set1_epi16((short) high), 1);
    return _mm512_and_si512(_mm512_srlv_epi16(all, shifts), bytes(mask));
}

INLINE void store(uint8_t * to, __m512i values) {
    _mm512_storeu_si512(to, values);
}

INLINE void store_nibbles(uint8_t * to, __m512i all) {
    store(to, _mm512_and_si512(all, bytes(15)));
    store(to + 64, _mm512_and_si512(_mm512_srli_epi16(all, 4), bytes(15)));
}

INLINE void store_looked_up(uint8_t * to, __m512i all, const uint8_t * table) {
    __m512i values = _mm512_broadcast_i32x4(bytes_16(table));
    store(to, _mm512_shuffle_epi8(values, _mm512_and_si512(all, bytes(15))));
    store(to + 64, _mm512_shuffle_epi8(values, _mm512_and_si512(_mm512_srli_epi16(all, 4), bytes(15))));
}

VNNI static void unpack_q8_0(const uint8_t * restrict from, int quads, struct line * restrict to) {
    _mm512_storeu_ps(to->scale, halves_at(from, 34, quads));
    for (int i = 0; i < 2 * quads; i++, from += 68) {
        const __m256i * second = (const __m256i *) (from + 36);
        __m512i two = _mm512_inserti64x4(twice_32(from + 2), _mm256_loadu_si256(second), 1);
        store(to->values + 64 * i, _mm512_xor_si512(two, bytes(128)));
    }
}

VNNI static void unpack_q4_0(const uint8_t * restrict from, int quads, struct line * restrict to) {
    _mm512_storeu_ps(to->scale, halves_at(from, 18, quads));
    for (int i = 0; i < quads; i++, from += 72) {
        store_nibbles(to->values + QUAD * i, of_four(from + 2, 18));
    }
}

VNNI static void unpack_q4_1(const uint8_t * restrict from, int quads, struct line * restrict to) {
    _mm512_storeu_ps(to->scale, halves_at(from, 20, quads));
    _mm512_storeu_ps(to->minimum, _mm512_sub_ps(_mm512_setzero_ps(), halves_at(from + 2, 20, quads)));
    for (int i = 0; i < quads; i++, from += 80) {
        store_nibbles(to->values + QUAD * i, of_four(from + 4, 20));
    }
}

/* Nibbles of a quad, and a fifth bit for each: the 32 of a block lie before its nibbles. */
INLINE void store_five_bits(uint8_t * to, const uint8_t * from, size_t step) {
    uint64_t first = 0, second = 0;
    for (int b = 0; b < 4; b++) {
        uint16_t bits[2];
        memcpy(bits, from + b * step, 4);
        first |= (uint64_t) bits[0] << (16 * b);
        second |= (uint64_t) bits[1] << (16 * b);
    }
    __m512i all = of_four(from + 4, step), fifth = bytes(16);
    __m512i low = _mm512_and_si512(all, bytes(15)), high = _mm512_and_si512(_mm512_srli_epi16(all, 4), bytes(15));
    store(to, _mm512_mask_add_epi8(low, first, low, fifth));
    store(to + 64, _mm512_mask_add_epi8(high, second, high, fifth));
}

VNNI static void unpack_q5_0(const uint8_t * restrict from, int quads, struct line * restrict to) {
    _mm512_storeu_ps(to->scale, halves_at(from, 22, quads));
    for (int i = 0; i < quads; i++, from += 88) {
        store_five_bits(to->values + QUAD * i, from + 2, 22);
    }
}

VNNI static void unpack_q5_1(const uint8_t * restrict from, int quads, struct line * restrict to) {
    _mm512_storeu_ps(to->scale, halves_at(from, 24, quads));
    _mm512_storeu_ps(to->minimum, _mm512_sub_ps(_mm512_setzero_ps(), halves_at(from + 2, 24, quads)));
    for (int i = 0; i < quads; i++, from += 96) {
        store_five_bits(to->values + QUAD * i, from + 4, 24);
    }
}

INLINE __m256 eight_bytes(uint64_t all) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long) all)));
}

/* The scales and minima of 256 values of Q4_K and Q5_K: six bits each, of which the second four's upper
   two lie above the first four's. */
INLINE void store_scales_of_k(const uint8_t * from, int b, struct line * to) {
    uint32_t p[3];
    memcpy(p, from + 4, 12);
    uint64_t s = (p[2] & 0x0f0f0f0f) | (p[0] >> 2 & 0x30303030);
    uint64_t m = (p[2] >> 4 & 0x0f0f0f0f) | (p[1] >> 2 & 0x30303030);
    s = s << 32 | (p[0] & 0x3f3f3f3f);
    m = m << 32 | (p[1] & 0x3f3f3f3f);
    _mm256_storeu_ps(to->scale + 8 * b, _mm256_mul_ps(eight_bytes(s), _mm256_set1_ps(half(from))));
    _mm256_storeu_ps(to->minimum + 8 * b, _mm256_mul_ps(eight_bytes(m), _mm256_set1_ps(half(from + 2))));
}

VNNI static void unpack_q4_k(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 144) {
        store_scales_of_k(from, b, to);
        for (int i = 0; i < 2; i++) {
            store_nibbles(to->values + 256 * b + QUAD * i, _mm512_loadu_si512(from + 16 + 64 * i));
        }
    }
}

VNNI static void unpack_q5_k(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 176) {
        __m512i fifth = twice_32(from + 16);
        store_scales_of_k(from, b, to);
        for (int i = 0; i < 4; i++) {
            __m512i four = bits_of(_mm512_loadu_si512(from + 48 + i / 2 * 64), i % 2 * 4, i % 2 * 4, 15);
            int bit = i / 2 * 4 + i % 2;
            __m512i high = _mm512_slli_epi16(bits_of(fifth, bit, bit + 2, 1), 4);
            store(to->values + 256 * b + 64 * i, _mm512_or_si512(four, high));
        }
    }
}

VNNI static void unpack_q6_k(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 210) {
        __m512 scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes_16(from + 192)));
        _mm512_storeu_ps(to->scale + 16 * b, _mm512_mul_ps(scales, _mm512_set1_ps(half(from + 208))));
        for (int i = 0; i < 4; i++) {
            __m512i four = bits_of(_mm512_loadu_si512(from + i / 2 * 64), i % 2 * 4, i % 2 * 4, 15);
            __m512i two = bits_of(twice_32(from + 128 + i / 2 * 32), i % 2 * 4, i % 2 * 4 + 2, 3);
            store(to->values + 256 * b + 64 * i, _mm512_or_si512(four, _mm512_slli_epi16(two, 4)));
        }
    }
}

VNNI static void unpack_q2_k(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 84) {
        __m512i both = _mm512_cvtepu8_epi32(bytes_16(from));
        __m512 scales = _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
        __m512 minima = _mm512_cvtepi32_ps(_mm512_srli_epi32(both, 4));
        _mm512_storeu_ps(to->scale + 16 * b, _mm512_mul_ps(scales, _mm512_set1_ps(half(from + 80))));
        _mm512_storeu_ps(to->minimum + 16 * b, _mm512_mul_ps(minima, _mm512_set1_ps(half(from + 82))));
        for (int i = 0; i < 4; i++) {
            __m512i all = twice_32(from + 16 + i / 2 * 32);
            store(to->values + 256 * b + 64 * i, bits_of(all, i % 2 * 4, i % 2 * 4 + 2, 3));
        }
    }
}

VNNI static void unpack_q3_k(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 110) {
        const uint8_t * s = from + 96;
        int8_t scale[16];
        for (int i = 0; i < 16; i++) {
            int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
            scale[i] = (low | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32;
        }
        __m512 scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes_16(scale)));
        _mm512_storeu_ps(to->scale + 16 * b, _mm512_mul_ps(scales, _mm512_set1_ps(half(from + 108))));
        __m512i third = twice_32(from);
        for (int i = 0; i < 4; i++) {
            __m512i two = bits_of(twice_32(from + 32 + i / 2 * 32), i % 2 * 4, i % 2 * 4 + 2, 3);
            __m512i high = _mm512_slli_epi16(bits_of(third, 2 * i, 2 * i + 1, 1), 2);
            store(to->values + 256 * b + 64 * i, _mm512_or_si512(two, high));
        }
    }
}

#define ABOVE(value) (128 + (value))

static const uint8_t nonlinear[16] = {ABOVE(-127), ABOVE(-104), ABOVE(-83), ABOVE(-65), ABOVE(-49), ABOVE(-35),
                                      ABOVE(-22),  ABOVE(-10),  ABOVE(1),   ABOVE(13),  ABOVE(25),  ABOVE(38),
                                      ABOVE(53),   ABOVE(69),   ABOVE(89),  ABOVE(113)};

VNNI static void unpack_iq4_nl(const uint8_t * restrict from, int quads, struct line * restrict to) {
    _mm512_storeu_ps(to->scale, halves_at(from, 18, quads));
    for (int i = 0; i < quads; i++, from += 72) {
        store_looked_up(to->values + QUAD * i, of_four(from + 2, 18), nonlinear);
    }
}

VNNI static void unpack_iq4_xs(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 136) {
        int high = from[2] | from[3] << 8;
        int8_t scale[16] = {0};
        for (int i = 0; i < 8; i++) {
            scale[i] = ((from[4 + i / 2] >> (4 * (i % 2)) & 15) | (high >> (2 * i) & 3) << 4) - 32;
        }
        __m256 scales = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes_16(scale)));
        _mm256_storeu_ps(to->scale + 8 * b, _mm256_mul_ps(scales, _mm256_set1_ps(half(from))));
        for (int i = 0; i < 2; i++) {
            store_looked_up(to->values + 256 * b + QUAD * i, _mm512_loadu_si512(from + 8 + 64 * i), nonlinear);
        }
    }
}

VNNI static void unpack_mxfp4(const uint8_t * restrict from, int quads, struct line * restrict to) {
    static const uint8_t doubled[16] = {
        ABOVE(0), ABOVE(1),  ABOVE(2),  ABOVE(3),  ABOVE(4),  ABOVE(6),  ABOVE(8),  ABOVE(12),
        ABOVE(0), ABOVE(-1), ABOVE(-2), ABOVE(-3), ABOVE(-4), ABOVE(-6), ABOVE(-8), ABOVE(-12)};
    for (int b = 0; b < 4 * quads; b++) {
        uint8_t power = from[17 * b];
        uint32_t bits = power < 2 ? UINT32_C(0x200000) << power : (uint32_t) (power - 1) << 23;
        memcpy(to->scale + b, &bits, 4);
    }
    for (int i = 0; i < quads; i++, from += 68) {
        store_looked_up(to->values + QUAD * i, of_four(from + 1, 17), doubled);
    }
}

static const struct type {
    enum ggml_type type;
    void (*unpack)(const uint8_t * restrict from, int quads, struct line * restrict to);
    enum order order;
    int zero; /* 0 where there are minima */
    bool halves, minima; /* a scale for 16 values; minima */
} types[] = {
    {GGML_TYPE_Q8_0, unpack_q8_0, IN_ORDER, 128, false, false},
    {GGML_TYPE_Q4_0, unpack_q4_0, BY_HALVES, 8, false, false},
    {GGML_TYPE_Q4_1, unpack_q4_1, BY_HALVES, 0, false, true},
    {GGML_TYPE_Q5_0, unpack_q5_0, BY_HALVES, 16, false, false},
    {GGML_TYPE_Q5_1, unpack_q5_1, BY_HALVES, 0, false, true},
    {GGML_TYPE_Q2_K, unpack_q2_k, IN_ORDER, 0, true, true},
    {GGML_TYPE_Q3_K, unpack_q3_k, IN_ORDER, 4, true, false},
    {GGML_TYPE_Q4_K, unpack_q4_k, BY_ALTERNATES, 0, false, true},
    {GGML_TYPE_Q5_K, unpack_q5_k, BY_ALTERNATES, 0, false, true},
    {GGML_TYPE_Q6_K, unpack_q6_k, IN_ORDER, 32, true, false},
    {GGML_TYPE_IQ4_NL, unpack_iq4_nl, BY_HALVES, 128, false, false},
    {GGML_TYPE_IQ4_XS, unpack_iq4_xs, BY_HALVES, 128, false, false},
    {GGML_TYPE_MXFP4, unpack_mxfp4, BY_HALVES, 128, false, false},
};

static const struct type * type_of(int type) {
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        if ((int) types[i].type == type) {
            return types + i;
        }
    }
    return NULL;
}

/* At most LINE values of a row, which may end within a quad. */
VNNI static void unpack_line(const struct type * type, const uint8_t * from, size_t bytes, int n, struct line * to) {
    uint8_t padded[LINE / BLOCK * 34];
    if (n % QUAD) {
        memset(padded, 0, sizeof(padded));
        from = memcpy(padded, from, bytes);
    }
    type->unpack(from, (n + QUAD - 1) / QUAD, to);
}
