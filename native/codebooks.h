/* Unpackers of types with codebooks, by AVX-512. */

/* Eight numbers of four bytes each, from bytes. */
INLINE __m256i numbers_8(uint64_t all) {
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long) all));
}

/* Loads one by one, which are faster than a gather on AMD. */
INLINE __m512i eights(const uint64_t * table, __m256i numbers) {
    uint32_t at[8];
    _mm256_storeu_si256((__m256i *) at, numbers);
    return _mm512_setr_epi64(table[at[0]], table[at[1]], table[at[2]], table[at[3]], table[at[4]], table[at[5]],
                             table[at[6]], table[at[7]]);
}

INLINE void store_signed(uint8_t * to, __m512i values, uint64_t negative, int zero) {
    values = _mm512_mask_sub_epi8(values, negative, _mm512_setzero_si512(), values);
    store(to, _mm512_add_epi8(values, bytes(zero)));
}

/* The odd multiples of `d` that four bits each say, low ones first. */
INLINE void store_odd_scales(float * to, const uint8_t * nibbles, float d) {
    __m128i all = _mm_loadl_epi64((const __m128i *) nibbles), low = _mm_set1_epi8(15);
    __m128i four = _mm_unpacklo_epi8(_mm_and_si128(all, low), _mm_and_si128(_mm_srli_epi16(all, 4), low));
    __m512i odd = _mm512_cvtepu8_epi32(_mm_or_si128(_mm_add_epi8(four, four), _mm_set1_epi8(1)));
    _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(odd), _mm512_set1_ps(d)));
}

TARGET static void unpack_iq2_xxs(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 66) {
        float d = half(from) / 8;
        for (int i = 0; i < 4; i++) {
            const uint8_t * at = from + 2 + 16 * i;
            uint32_t first = word_of(at + 4), second = word_of(at + 12);
            to->scale[8 * b + 2 * i] = d * (float) (first >> 28 << 1 | 1);
            to->scale[8 * b + 2 * i + 1] = d * (float) (second >> 28 << 1 | 1);
            __m256i numbers = numbers_8(word_of(at) | (uint64_t) word_of(at + 8) << 32);
            uint64_t negative = with_parity(sevens_of(first) | sevens_of(second) << 32);
            store_signed(to->values + 256 * b + 64 * i, eights(ggmodel_iq2_xxs, numbers), negative, 64);
        }
    }
}

TARGET static void unpack_iq2_xs(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 74) {
        store_odd_scales(to->scale + 16 * b, from + 66, half(from) / 8);
        for (int i = 0; i < 4; i++) {
            __m128i all = bytes_16(from + 2 + 16 * i);
            __m256i numbers = _mm256_cvtepu16_epi32(_mm_and_si128(all, _mm_set1_epi16(511)));
            uint64_t sevens = (uint64_t) _mm_cvtsi128_si64(_mm_cvtepi16_epi8(_mm_srli_epi16(all, 9)));
            store_signed(to->values + 256 * b + 64 * i, eights(ggmodel_iq2_xs, numbers), with_parity(sevens), 64);
        }
    }
}

/* Two bytes or pairs of bytes, four times each, shifted. */
INLINE __m256i of_two(int first, int second) {
    return _mm256_set_m128i(_mm_set1_epi32(second), _mm_set1_epi32(first));
}

TARGET static void unpack_iq2_s(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 82) {
        store_odd_scales(to->scale + 16 * b, from + 74, half(from) / 8);
        for (int i = 0; i < 4; i++) {
            const __m256i places = _mm256_setr_epi32(8, 6, 4, 2, 8, 6, 4, 2);
            __m256i high = _mm256_sllv_epi32(of_two(from[66 + 2 * i], from[67 + 2 * i]), places);
            high = _mm256_and_si256(high, _mm256_set1_epi32(0x300));
            __m256i numbers = _mm256_or_si256(numbers_8(long_word_of(from + 2 + 8 * i)), high);
            uint64_t negative = long_word_of(from + 34 + 8 * i);
            store_signed(to->values + 256 * b + 64 * i, eights(ggmodel_iq2_s, numbers), negative, 64);
        }
    }
}

TARGET static void unpack_iq3_xxs(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 98) {
        float d = half(from) / 4;
        for (int i = 0; i < 4; i++) {
            uint32_t first = word_of(from + 66 + 8 * i), second = word_of(from + 70 + 8 * i);
            to->scale[8 * b + 2 * i] = d * (float) (first >> 28 << 1 | 1);
            to->scale[8 * b + 2 * i + 1] = d * (float) (second >> 28 << 1 | 1);
            __m512i numbers = _mm512_cvtepu8_epi32(bytes_16(from + 2 + 16 * i));
            uint64_t negative = with_parity(sevens_of(first) | sevens_of(second) << 32);
            __m512i values = _mm512_i32gather_epi32(numbers, ggmodel_iq3_xxs, 4);
            store_signed(to->values + 256 * b + 64 * i, values, negative, 64);
        }
    }
}

TARGET static void unpack_iq3_s(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 110) {
        float scales[16];
        uint8_t nibbles[8] = {0};
        memcpy(nibbles, from + 106, 4);
        store_odd_scales(scales, nibbles, half(from));
        memcpy(to->scale + 8 * b, scales, 8 * sizeof(float));
        for (int i = 0; i < 4; i++) {
            __m512i numbers = _mm512_cvtepu8_epi32(bytes_16(from + 2 + 16 * i)), high = _mm512_set1_epi32(256);
            __mmask16 ninth = (__mmask16) (from[66 + 2 * i] | from[67 + 2 * i] << 8);
            numbers = _mm512_mask_add_epi32(numbers, ninth, numbers, high);
            uint64_t negative = long_word_of(from + 74 + 8 * i);
            __m512i values = _mm512_i32gather_epi32(numbers, ggmodel_iq3_s, 4);
            store_signed(to->values + 256 * b + 64 * i, values, negative, 16);
        }
    }
}

/* Eights of values, of which some are an eighth of a step above the others: all are 9 too large. */
INLINE void store_above(uint8_t * to, __m512i values, int above) {
    store(to, _mm512_mask_add_epi64(values, (__mmask8) above, values, bytes(2)));
}

TARGET static void unpack_iq1_s(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 50) {
        float d = half(from) / 8;
        for (int i = 0; i < 4; i++) {
            const __m256i places = _mm256_setr_epi32(0, 3, 6, 9, 0, 3, 6, 9);
            uint32_t both = word_of(from + 34 + 4 * i);
            int first = both & 0xffff, second = both >> 16;
            to->scale[8 * b + 2 * i] = d * (float) ((first >> 11 & 14) | 1);
            to->scale[8 * b + 2 * i + 1] = d * (float) ((second >> 11 & 14) | 1);
            __m256i high = _mm256_and_si256(_mm256_srlv_epi32(of_two(first, second), places), _mm256_set1_epi32(7));
            __m256i low = numbers_8(long_word_of(from + 2 + 8 * i));
            __m512i values = eights(ggmodel_iq1, _mm256_or_si256(low, _mm256_slli_epi32(high, 8)));
            int above = (first & 0x8000 ? 0 : 15) | (second & 0x8000 ? 0 : 240);
            store_above(to->values + 256 * b + 64 * i, values, above);
        }
    }
}

TARGET static void unpack_iq1_m(const uint8_t * restrict from, int quads, struct line * restrict to) {
    for (int b = 0; b < quads / 2; b++, from += 56) {
        uint64_t scales = long_word_of(from + 48);
        uint16_t bits = (scales >> 12 & 15) | (scales >> 24 & 0xf0) | (scales >> 36 & 0xf00) | (scales >> 48 & 0xf000);
        float d = half((const uint8_t *) &bits) / 8;
        for (int i = 0; i < 16; i++) {
            to->scale[16 * b + i] = d * (float) ((scales >> (i / 4 * 16 + i % 4 * 3) & 7) << 1 | 1);
        }
        for (int i = 0; i < 4; i++) {
            const __m256i places = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
            __m256i high = _mm256_srlv_epi32(_mm256_set1_epi32((int) word_of(from + 32 + 4 * i)), places);
            int above = ~_mm256_test_epi32_mask(high, _mm256_set1_epi32(8));
            high = _mm256_slli_epi32(_mm256_and_si256(high, _mm256_set1_epi32(7)), 8);
            __m256i numbers = _mm256_or_si256(numbers_8(long_word_of(from + 8 * i)), high);
            store_above(to->values + 256 * b + 64 * i, eights(ggmodel_iq1, numbers), above);
        }
    }
}
