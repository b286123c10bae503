/* Unpackers by AVX-512. Bytes lie in the order that is cheapest for a type. Four blocks of 32 values are a quad, in
   two vectors. */

/* Four numbers of two bytes for each quad, `step` bytes apart, of which the last may be zeros. */
INLINE __m256i shorts_of(const uint8_t * from, size_t step, int quads) {
    __m128i four[4];
    for (int q = 0; q < 4; q++) {
        uint16_t bits[4] = {0};
        for (int i = 0; i < 4 && q < quads; i++, from += step) {
            memcpy(bits + i, from, 2);
        }
        uint64_t low = bits[0] | (uint32_t) bits[1] << 16, high = bits[2] | (uint32_t) bits[3] << 16;
        four[q] = _mm_cvtsi64_si128((int64_t) (low | high << 32));
    }
    __m128i first = _mm_unpacklo_epi64(four[0], four[1]), second = _mm_unpacklo_epi64(four[2], four[3]);
    return _mm256_set_m128i(second, first);
}

INLINE __m512 halves_at(const uint8_t * from, size_t step, int quads) {
    return _mm512_cvtph_ps(shorts_of(from, step, quads));
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
    __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes_16(from)), bytes_16(from + step), 1);
    __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes_16(from + 2 * step)),
                                        bytes_16(from + 3 * step), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
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

TARGET static void unpack_q8_0(const uint8_t * restrict from, int quads, struct line * restrict to) {
    _mm512_storeu_ps(to->scale, halves_at(from, 34, quads));
    for (int i = 0; i < 2 * quads; i++, from += 68) {
        const __m256i * second = (const __m256i *) (from + 36);
        __m512i two = _mm512_inserti64x4(twice_32(from + 2), _mm256_loadu_si256(second), 1);
        store(to->values + 64 * i, _mm512_xor_si512(two, bytes(128)));
    }
}

TARGET static void unpack_q4_0(const uint8_t * restrict from, int quads, struct line * restrict to) {
    _mm512_storeu_ps(to->scale, halves_at(from, 18, quads));
    for (int i = 0; i < quads; i++, from += 72) {
        store_nibbles(to->values + QUAD * i, of_four(from + 2, 18));
    }
}

TARGET static void unpack_q4_1(const uint8_t * restrict from, int quads, struct line * restrict to) {
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

TARGET static void unpack_q5_0(const uint8_t * restrict from, int quads, struct line * restrict to) {
    _mm512_storeu_ps(to->scale, halves_at(from, 22, quads));
    for (int i = 0; i < quads; i++, from += 88) {
        store_five_bits(to->values + QUAD * i, from + 2, 22);
    }
}

TARGET static void unpack_q5_1(const uint8_t * restrict from, int quads, struct line * restrict to) {
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

TARGET static void unpack_q4_k(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 144) {
        store_scales_of_k(from, b, to);
        for (int i = 0; i < 2; i++) {
            store_nibbles(to->values + 256 * b + QUAD * i, _mm512_loadu_si512(from + 16 + 64 * i));
        }
    }
}

TARGET static void unpack_q5_k(const uint8_t * restrict from, int quads, struct line * restrict to) {
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

TARGET static void unpack_q6_k(const uint8_t * restrict from, int quads, struct line * restrict to) {
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

/* Numbers of two or three bits, of which 16 each become what a table of eight bytes has for them: of four tables from
   number `first` on, whose bytes 0 to 3 are in `low`, and 4 to 7 in `high`. */
INLINE __m512i multiples_of(__m512i numbers, __m512i low, __m512i high, int first) {
    const __m512i lanes = _mm512_setr_epi32(0, 16, 0, 0, 1, 17, 0, 0, 2, 18, 0, 0, 3, 19, 0, 0);
    __m512i tables = _mm512_permutex2var_epi32(low, _mm512_add_epi32(lanes, _mm512_set1_epi32(first)), high);
    return _mm512_shuffle_epi8(tables, numbers);
}

TARGET static void unpack_q2_k(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 84) {
        __m512i both = _mm512_cvtepu8_epi32(bytes_16(from));
        __m512i scales = _mm512_and_si512(both, _mm512_set1_epi32(15));
        __m512i multiples = _mm512_mullo_epi32(scales, _mm512_set1_epi32(0x03020100));
        to->scale[8 * b] = half(from + 80);
        to->minimum[8 * b] = half(from + 82);
        _mm256_storeu_si256((__m256i *) (to->numbers + 16 * b), _mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 4)));
        for (int i = 0; i < 4; i++) {
            __m512i two = bits_of(twice_32(from + 16 + i / 2 * 32), i % 2 * 4, i % 2 * 4 + 2, 3);
            store(to->values + 256 * b + 64 * i, multiples_of(two, multiples, multiples, 4 * i));
        }
    }
}

/* Values times their scale, both less what they may be below zero, as what 128 is above it. */
TARGET static void unpack_q3_k(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 110) {
        uint64_t fours = long_word_of(from + 96), twos = word_of(from + 104), scale[2];
        for (int h = 0; h < 2; h++) {
            uint64_t two = (twos >> (4 * h) & 0x03030303) | (twos >> (4 * h + 2) & 0x03030303) << 32;
            scale[h] = (fours >> (4 * h) & UINT64_C(0x0f0f0f0f0f0f0f0f)) | two << 4;
        }
        __m512i scales = _mm512_cvtepu8_epi32(bytes_16(scale));
        __m512i low = _mm512_mullo_epi32(scales, _mm512_set1_epi32(0x01020304));
        __m512i high = _mm512_mullo_epi32(scales, _mm512_set1_epi32(0x03020100));
        low = _mm512_add_epi32(low, _mm512_set1_epi32(0x60402000));
        high = _mm512_sub_epi32(_mm512_set1_epi32((int) 0xe0c0a080), high);
        to->scale[8 * b] = -half(from + 108);
        __m512i third = twice_32(from);
        for (int i = 0; i < 4; i++) {
            __m512i two = bits_of(twice_32(from + 32 + i / 2 * 32), i % 2 * 4, i % 2 * 4 + 2, 3);
            __m512i more = _mm512_slli_epi16(bits_of(third, 2 * i, 2 * i + 1, 1), 2);
            store(to->values + 256 * b + 64 * i, multiples_of(_mm512_or_si512(two, more), low, high, 4 * i));
        }
    }
}

TARGET static void unpack_iq4_nl(const uint8_t * restrict from, int quads, struct line * restrict to) {
    _mm512_storeu_ps(to->scale, halves_at(from, 18, quads));
    for (int i = 0; i < quads; i++, from += 72) {
        store_looked_up(to->values + QUAD * i, of_four(from + 2, 18), nonlinear);
    }
}

TARGET static void unpack_iq4_xs(const uint8_t * restrict from, int quads, struct line * restrict to) {
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

TARGET static void unpack_mxfp4(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < 4 * quads; b++) {
        to->scale[b] = half_of_power(from[17 * b]);
    }
    for (int i = 0; i < quads; i++, from += 68) {
        store_looked_up(to->values + QUAD * i, of_four(from + 1, 17), doubled);
    }
}

TARGET static void unpack_nvfp4(const uint8_t * restrict from, int quads, struct line * restrict to) {
    const __m512i twice = _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3);
    const __m512i shifts = _mm512_setr_epi64(0, 4, 0, 4, 0, 4, 0, 4);
    for (int b = 0; b < 2 * quads; b++, from += 36) {
        for (int i = 0; i < 4; i++) {
            to->scale[4 * b + i] = half_of_e4m3(from[i]);
        }
        __m512i all = _mm512_permutexvar_epi64(twice, twice_32(from + 4));
        all = _mm512_and_si512(_mm512_srlv_epi64(all, shifts), bytes(15));
        store(to->values + 64 * b, _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes_16(doubled)), all));
    }
}

TARGET static void unpack_q1_0(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int i = 0; i < quads; i++, from += 18) {
        _mm_storeu_ps(to->scale + 4 * i, _mm_set1_ps(half(from)));
        for (int h = 0; h < 2; h++) {
            uint64_t bits;
            memcpy(&bits, from + 2 + 8 * h, 8);
            store(to->values + QUAD * i + 64 * h, _mm512_maskz_mov_epi8(bits, bytes(2)));
        }
    }
}

TARGET static void unpack_q2_0(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < 2 * quads; b++, from += 18) {
        to->scale[2 * b] = to->scale[2 * b + 1] = half(from);
        __m512i all = _mm512_cvtepu8_epi32(bytes_16(from + 2));
        __m512i even = _mm512_or_si512(all, _mm512_slli_epi32(all, 12));
        all = _mm512_or_si512(even, _mm512_slli_epi32(even, 6));
        store(to->values + 64 * b, _mm512_and_si512(all, bytes(3)));
    }
}

INLINE void store_one_scale(const uint8_t * at, int b, struct line * to) {
    _mm256_storeu_ps(to->scale + 8 * b, _mm256_set1_ps(half(at)));
}

TARGET static void unpack_tq2_0(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 66) {
        store_one_scale(from + 64, b, to);
        for (int i = 0; i < 4; i++) {
            __m512i all = twice_32(from + i / 2 * 32);
            store(to->values + 256 * b + 64 * i, bits_of(all, i % 2 * 4, i % 2 * 4 + 2, 3));
        }
    }
}

/* A digit of each of 32 bytes, which are fractions of 256 in base 3: the first one behind what powers of 3 skip. */
INLINE void store_digits(uint8_t * to, __m256i all, __m512i powers) {
    __m512i left = _mm512_and_si512(_mm512_mullo_epi16(_mm512_cvtepu8_epi16(all), powers), _mm512_set1_epi16(255));
    __m512i digits = _mm512_srli_epi16(_mm512_mullo_epi16(left, _mm512_set1_epi16(3)), 8);
    _mm256_storeu_si256((__m256i *) to, _mm512_cvtepi16_epi8(digits));
}

TARGET static void unpack_tq1_0(const uint8_t * restrict from, int quads, struct line * restrict to) {
    static const short powers[5] = {1, 3, 9, 27, 81};
    const __m256i last = _mm256_setr_epi16(1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27);
    for (int b = 0; b < quads / 2; b++, from += 54) {
        uint8_t * values = to->values + 256 * b;
        __m256i all = _mm256_loadu_si256((const __m256i *) from);
        __m128i few = bytes_16(from + 32);
        store_one_scale(from + 52, b, to);
        for (int i = 0; i < 5; i++) {
            store_digits(values + 32 * i, all, _mm512_set1_epi16(powers[i]));
        }
        for (int i = 0; i < 3; i++) {
            __m256i second = i < 2 ? _mm256_set1_epi16(powers[2 * i + 1]) : last;
            __m512i both = _mm512_inserti64x4(_mm512_set1_epi16(powers[2 * i]), second, 1);
            __m128i behind = i < 2 ? few : _mm_shuffle_epi32(_mm_loadu_si32(from + 48), 0);
            store_digits(values + 160 + 32 * i, _mm256_set_m128i(behind, few), both);
        }
    }
}

/* Four words of four rows in each lane; `to` has the rows of each word. */
INLINE void transpose_lanes(const __m512i * rows, __m512i * to) {
    __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]), c = _mm512_unpackhi_epi32(rows[0], rows[1]);
    __m512i d = _mm512_unpacklo_epi32(rows[2], rows[3]), e = _mm512_unpackhi_epi32(rows[2], rows[3]);
    to[0] = _mm512_unpacklo_epi64(a, d);
    to[1] = _mm512_unpackhi_epi64(a, d);
    to[2] = _mm512_unpacklo_epi64(c, e);
    to[3] = _mm512_unpackhi_epi64(c, e);
}

/* Eight words of TILE rows, whose halves lie in lanes: rows r and r + 4 of all 8, then of the others. `to` has the rows
   of each word. */
INLINE void transpose_halves(const __m512i * rows, __m512i * to) {
    __m512i u[8];
    transpose_lanes(rows, u);
    transpose_lanes(rows + 4, u + 4);
    for (int i = 0; i < 4; i++) {
        to[i] = _mm512_shuffle_i32x4(u[i], u[i + 4], 0x88);
        to[i + 4] = _mm512_shuffle_i32x4(u[i], u[i + 4], 0xdd);
    }
}

/* Eight words of TILE rows, which begin `step` bytes after one another; the second four lie apart. */
INLINE void transpose(const void * rows, const void * second, size_t step, __m512i * to) {
    const char * at[2] = {rows, second};
    __m512i halves[8];
    for (int i = 0; i < 8; i++) { /* rows r and r + 4 */
        size_t r = (i % 4 + i / 4 * 8) * step, other = r + 4 * step;
        __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes_16(at[0] + r)), bytes_16(at[1] + r), 1);
        halves[i] = _mm512_inserti32x4(_mm512_castsi256_si512(a), bytes_16(at[0] + other), 2);
        halves[i] = _mm512_inserti32x4(halves[i], bytes_16(at[1] + other), 3);
    }
    transpose_halves(halves, to);
}

/* TILE lines as `blocks` blocks of rows, with a sign if `signs`. */
TARGET static void interleave(const struct line * lines, int blocks, bool signs, const struct type * type,
                              struct rows * to) {
    const __m512i numbers = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i places = _mm512_mullo_epi32(numbers, _mm512_set1_epi32(sizeof(*lines)));
    const __m512i less = bytes(signs ? type->zero : 0);
    int each = type->halves ? 2 : 1;
    float scales[LINE / 16][TILE];
    for (int i = 0; i < each * blocks; i += TILE) {
        transpose_floats(lines->scale + i, sizeof(*lines) / sizeof(float), scales[i], TILE);
    }
    for (int b = 0; b < blocks; b++) {
        __m512i fours[8];
        transpose(lines->values + place_of(type->order, b, 0), lines->values + place_of(type->order, b, 1),
                  sizeof(*lines), fours);
        for (int i = 0; i < 8; i++) {
            _mm512_storeu_si512(to[b].values[i], _mm512_sub_epi8(fours[i], less));
        }
        for (int h = 0; h < each; h++) {
            store_vec(to[b].scale[h], load_vec(scales[each * b + h]));
        }
        if (type->minima) {
            _mm512_storeu_ps(to[b].minimum, _mm512_i32gather_ps(places, lines->minimum + b, 1));
        }
        if (type->minima && type->whole) {
            _mm512_storeu_si512(to[b].numbers, _mm512_i32gather_epi32(places, lines->numbers + 2 * b, 1));
        }
    }
}
