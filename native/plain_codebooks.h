/* Unpackers of types with codebooks. */

/* BLOCK values of entries, those of some bits negative, above a zero. */
INLINE void store_signed(uint8_t * to, longs4 entries, uint32_t negative, int zero) {
    bytes32 minus = mask_of(negative);
    store_block(to, ((bytes32) entries ^ minus) - minus + (uint8_t) zero);
}

/* Entries of 8 values for four numbers; `negative` has a byte for each. */
INLINE void eights_of(const uint64_t * table, const int * numbers, uint32_t negative, uint8_t * to) {
    longs4 entries = {table[numbers[0]], table[numbers[1]], table[numbers[2]], table[numbers[3]]};
    store_signed(to, entries, negative, 64);
}

/* Entries of 4 values for 8 numbers; `negative` has four bits for each. */
INLINE void fours_of(const uint32_t * table, const int * numbers, uint32_t negative, int zero, uint8_t * to) {
    uint64_t pairs[4];
    for (int i = 0; i < 4; i++) {
        pairs[i] = table[numbers[2 * i]] | (uint64_t) table[numbers[2 * i + 1]] << 32;
    }
    store_signed(to, (longs4) {pairs[0], pairs[1], pairs[2], pairs[3]}, negative, zero);
}

INLINE void odd_scales(const uint8_t * nibbles, int count, float d, float * to) {
    for (int i = 0; i < count; i++) {
        to[i] = d * (float) ((nibbles[i / 2] >> (4 * (i % 2)) & 15) << 1 | 1);
    }
}

UNPACKER(unpack_iq2_xxs) {
    uint8_t * values = to->values;
    EACH_256(66) {
        float d = half(from) / 8;
        for (int i = 0; i < 8; i++) {
            const uint8_t * at = from + 2 + 8 * i;
            uint32_t bits = word_of(at + 4);
            int numbers[4] = {at[0], at[1], at[2], at[3]};
            to->scale[8 * b + i] = d * (float) (bits >> 28 << 1 | 1);
            eights_of(ggmodel_iq2_xxs, numbers, (uint32_t) with_parity(sevens_of(bits)), values + BLOCK * i);
        }
    }
}

UNPACKER(unpack_iq2_xs) {
    uint8_t * values = to->values;
    EACH_256(74) {
        odd_scales(from + 66, 16, half(from) / 8, to->scale + 16 * b);
        for (int i = 0; i < 8; i++) {
            uint64_t four = long_word_of(from + 2 + 8 * i), sevens = 0;
            int numbers[4];
            for (int j = 0; j < 4; j++) {
                numbers[j] = (int) (four >> (16 * j) & 511);
                sevens |= (four >> (16 * j + 9) & 127) << (8 * j);
            }
            eights_of(ggmodel_iq2_xs, numbers, (uint32_t) with_parity(sevens), values + BLOCK * i);
        }
    }
}

UNPACKER(unpack_iq2_s) {
    uint8_t * values = to->values;
    EACH_256(82) {
        odd_scales(from + 74, 16, half(from) / 8, to->scale + 16 * b);
        for (int i = 0; i < 8; i++) {
            int numbers[4];
            for (int j = 0; j < 4; j++) {
                numbers[j] = from[2 + 4 * i + j] | (from[66 + i] >> (2 * j) & 3) << 8;
            }
            eights_of(ggmodel_iq2_s, numbers, word_of(from + 34 + 4 * i), values + BLOCK * i);
        }
    }
}

UNPACKER(unpack_iq3_xxs) {
    uint8_t * values = to->values;
    EACH_256(98) {
        float d = half(from) / 4;
        for (int i = 0; i < 8; i++) {
            uint32_t bits = word_of(from + 66 + 4 * i);
            int numbers[8];
            for (int j = 0; j < 8; j++) {
                numbers[j] = from[2 + 8 * i + j];
            }
            to->scale[8 * b + i] = d * (float) (bits >> 28 << 1 | 1);
            fours_of(ggmodel_iq3_xxs, numbers, (uint32_t) with_parity(sevens_of(bits)), 64, values + BLOCK * i);
        }
    }
}

UNPACKER(unpack_iq3_s) {
    uint8_t * values = to->values;
    EACH_256(110) {
        odd_scales(from + 106, 8, half(from), to->scale + 8 * b);
        for (int i = 0; i < 8; i++) {
            int numbers[8];
            for (int j = 0; j < 8; j++) {
                numbers[j] = from[2 + 8 * i + j] | (from[66 + i] >> j & 1) << 8;
            }
            fours_of(ggmodel_iq3_s, numbers, word_of(from + 74 + 4 * i), 16, values + BLOCK * i);
        }
    }
}

/* An entry of eighths, an eighth above or below: both are 9 too large. */
INLINE void above_of(int number, bool above, uint8_t * to) {
    uint64_t values = ggmodel_iq1[number] + (above ? UINT64_C(0x0202020202020202) : 0);
    memcpy(to, &values, 8);
}

UNPACKER(unpack_iq1_s) {
    uint8_t * values = to->values;
    EACH_256(50) {
        float d = half(from) / 8;
        for (int i = 0; i < 8; i++) {
            int high = from[34 + 2 * i] | from[35 + 2 * i] << 8;
            to->scale[8 * b + i] = d * (float) ((high >> 11 & 14) | 1);
            for (int j = 0; j < 4; j++) {
                int number = from[2 + 4 * i + j] | (high >> (3 * j) & 7) << 8;
                above_of(number, !(high & 0x8000), values + BLOCK * i + 8 * j);
            }
        }
    }
}

UNPACKER(unpack_iq1_m) {
    uint8_t * values = to->values;
    EACH_256(56) {
        uint64_t scales = long_word_of(from + 48);
        uint16_t bits = (scales >> 12 & 15) | (scales >> 24 & 0xf0) | (scales >> 36 & 0xf00) | (scales >> 48 & 0xf000);
        float d = half((const uint8_t *) &bits) / 8;
        for (int i = 0; i < 16; i++) {
            to->scale[16 * b + i] = d * (float) ((scales >> (i / 4 * 16 + i % 4 * 3) & 7) << 1 | 1);
        }
        for (int i = 0; i < 32; i++) {
            int four = from[32 + i / 2] >> (4 * (i % 2)) & 15;
            above_of(from[i] | (four & 7) << 8, four < 8, values + 8 * i);
        }
    }
}
