/* Unpackers in the compilers' own vectors, of 16 and 32 bytes: values in their order. A family brings the look-up in a
   table. */

#define EACH_BLOCK(bytes) for (int b = 0; b < 4 * quads; b++, from += bytes, values += BLOCK)
#define EACH_256(bytes)   for (int b = 0; b < quads / 2; b++, from += bytes, values += 256)
#define UNPACKER(name) \
    TARGET static void name(const uint8_t * restrict from, int quads, struct line * restrict to)

typedef uint8_t  bytes16 __attribute__((vector_size(16)));
typedef uint16_t shorts8 __attribute__((vector_size(16)));
typedef uint64_t longs2 __attribute__((vector_size(16)));
typedef uint8_t  bytes32 __attribute__((vector_size(BLOCK)));
typedef uint16_t shorts16 __attribute__((vector_size(BLOCK)));
typedef uint64_t longs4 __attribute__((vector_size(BLOCK)));

#define BOTH(low, high)                                                                                          \
    __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, \
                            21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31)

INLINE bytes16 load_16(const uint8_t * at) {
    bytes16 x;
    memcpy(&x, at, 16);
    return x;
}

INLINE void store_16(uint8_t * at, bytes16 x) {
    memcpy(at, &x, 16);
}

INLINE bytes32 load_block(const uint8_t * at) {
    bytes32 x;
    memcpy(&x, at, BLOCK);
    return x;
}

INLINE void store_block(uint8_t * at, bytes32 x) {
    memcpy(at, &x, BLOCK);
}

/* Some bits of each of BLOCK bytes. */
INLINE bytes32 bits_of_block(bytes32 x, int from, uint8_t mask) {
    return (bytes32) ((shorts16) x >> from) & mask;
}

/* Some bits of each byte. */
INLINE bytes16 bits_of(bytes16 x, int from, uint8_t mask) {
    return (bytes16) ((shorts8) x >> from) & mask;
}

/* 0xff for each of BLOCK bits that are set. */
INLINE bytes32 mask_of(uint32_t bits) {
    const bytes16 first = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1}, each = {1, 2, 4, 8, 16, 32, 64, 128,
                                                                                    1, 2, 4, 8, 16, 32, 64, 128};
    bytes16 four = (bytes16) (longs2) {bits};
    bytes16 low = entries_of(four, first) & each, high = entries_of(four, first + 2) & each;
    return (bytes32) (BOTH(low, high) != 0);
}

INLINE void nibbles_of(const uint8_t * from, uint8_t * values) {
    bytes16 x = load_16(from);
    store_16(values, x & 15);
    store_16(values + 16, bits_of(x, 4, 15));
}

/* Nibbles of BLOCK bytes, the higher ones from `high`. */
INLINE void nibbles_of_block(const uint8_t * from, uint8_t * low, uint8_t * high) {
    bytes32 x = load_block(from);
    store_block(low, x & 15);
    store_block(high, bits_of_block(x, 4, 15));
}

/* Entries of a table instead of their numbers. */
INLINE void look_up(const uint8_t * table, int count, uint8_t * values) {
    bytes16 entries = load_16(table);
    for (int i = 0; i < count; i += 16) {
        store_16(values + i, entries_of(entries, load_16(values + i)));
    }
}

/* Adds a bit of each of BLOCK bytes, as 1 << up. */
INLINE void add_bits(const uint8_t * from, int bit, int up, uint8_t * values) {
    bytes32 more = (bytes32) ((shorts16) bits_of_block(load_block(from), bit, 1) << up);
    store_block(values, load_block(values) + more);
}

/* Adds each of 32 bits, as `more`. */
INLINE void add_mask(uint32_t bits, uint8_t more, uint8_t * values) {
    store_block(values, load_block(values) + (mask_of(bits) & more));
}

/* Two bits of BLOCK bytes each, for four blocks. */
INLINE void twos_of(const uint8_t * from, uint8_t * values) {
    bytes32 x = load_block(from);
    for (int s = 0; s < 4; s++) {
        store_block(values + BLOCK * s, bits_of_block(x, 2 * s, 3));
    }
}

INLINE void repeat(float scale, int count, float * to) {
    for (int i = 0; i < count; i++) {
        to[i] = scale;
    }
}

UNPACKER(unpack_q8_0) {
    uint8_t * values = to->values;
    EACH_BLOCK(34) {
        to->scale[b] = half(from);
        store_block(values, load_block(from + 2) ^ 128);
    }
}

UNPACKER(unpack_q4_0) {
    uint8_t * values = to->values;
    EACH_BLOCK(18) {
        to->scale[b] = half(from);
        nibbles_of(from + 2, values);
    }
}

UNPACKER(unpack_q4_1) {
    uint8_t * values = to->values;
    EACH_BLOCK(20) {
        to->scale[b] = half(from);
        to->minimum[b] = 0 - half(from + 2);
        nibbles_of(from + 4, values);
    }
}

UNPACKER(unpack_q5_0) {
    uint8_t * values = to->values;
    EACH_BLOCK(22) {
        to->scale[b] = half(from);
        nibbles_of(from + 6, values);
        add_mask(word_of(from + 2), 16, values);
    }
}

UNPACKER(unpack_q5_1) {
    uint8_t * values = to->values;
    EACH_BLOCK(24) {
        to->scale[b] = half(from);
        to->minimum[b] = 0 - half(from + 2);
        nibbles_of(from + 8, values);
        add_mask(word_of(from + 4), 16, values);
    }
}

/* Eight bytes as floats, times a factor. */
INLINE void store_scales(uint64_t bytes, float factor, float * to) {
    typedef uint8_t bytes8 __attribute__((vector_size(8)));
    typedef int32_t ints8 __attribute__((vector_size(32)));
    typedef float floats8 __attribute__((vector_size(32)));
    bytes8 eight;
    memcpy(&eight, &bytes, 8);
    floats8 scales = __builtin_convertvector(__builtin_convertvector(eight, ints8), floats8) * factor;
    memcpy(to, &scales, sizeof(scales));
}

/* The scales and minima of 256 values of Q4_K and Q5_K: six bits each, of which the second four's upper two lie above
   the first four's. */
INLINE void scales_of_k(const uint8_t * from, float * scale, float * minimum) {
    uint64_t first = word_of(from + 4), second = word_of(from + 8), last = word_of(from + 12);
    uint64_t scales = (last & 0x0f0f0f0f) | (first >> 2 & 0x30303030);
    uint64_t minima = (last >> 4 & 0x0f0f0f0f) | (second >> 2 & 0x30303030);
    store_scales(scales << 32 | (first & 0x3f3f3f3f), half(from), scale);
    store_scales(minima << 32 | (second & 0x3f3f3f3f), half(from + 2), minimum);
}

UNPACKER(unpack_q4_k) {
    uint8_t * values = to->values;
    EACH_256(144) {
        scales_of_k(from, to->scale + 8 * b, to->minimum + 8 * b);
        for (int i = 0; i < 4; i++) {
            nibbles_of_block(from + 16 + BLOCK * i, values + 64 * i, values + 64 * i + BLOCK);
        }
    }
}

UNPACKER(unpack_q5_k) {
    uint8_t * values = to->values;
    EACH_256(176) {
        scales_of_k(from, to->scale + 8 * b, to->minimum + 8 * b);
        for (int i = 0; i < 4; i++) {
            nibbles_of_block(from + 48 + BLOCK * i, values + 64 * i, values + 64 * i + BLOCK);
        }
        for (int i = 0; i < 8; i++) {
            add_bits(from + 16, i, 4, values + BLOCK * i);
        }
    }
}

UNPACKER(unpack_q6_k) {
    uint8_t * values = to->values;
    EACH_256(210) {
        float d = half(from + 208);
        for (int i = 0; i < 16; i++) {
            to->scale[16 * b + i] = (float) (int8_t) from[192 + i] * d;
        }
        for (int i = 0; i < 2; i++) {
            bytes32 twos = load_block(from + 128 + BLOCK * i);
            for (int j = 0; j < 4; j++) {
                bytes32 four = bits_of_block(load_block(from + 64 * i + BLOCK * (j % 2)), j / 2 * 4, 15);
                bytes32 high = (bytes32) ((shorts16) bits_of_block(twos, 2 * j, 3) << 4);
                store_block(values + 128 * i + BLOCK * j, four | high);
            }
        }
    }
}

/* 16 numbers as what a table of eight bytes has for them. */
INLINE void multiples_of(uint64_t table, uint8_t * values) {
    bytes16 tables = (bytes16) (longs2) {table, table};
    store_16(values, entries_of(tables, load_16(values)));
}

UNPACKER(unpack_q2_k) {
    uint8_t * values = to->values;
    EACH_256(84) {
        to->scale[8 * b] = half(from + 80);
        to->minimum[8 * b] = half(from + 82);
        twos_of(from + 16, values);
        twos_of(from + 48, values + 128);
        for (int i = 0; i < 16; i++) {
            to->numbers[16 * b + i] = from[i] >> 4;
            multiples_of(UINT64_C(0x03020100) * (from[i] & 15), values + 16 * i);
        }
    }
}

/* Values times their scale, both less what they may be below zero, as what 128 is above it. */
UNPACKER(unpack_q3_k) {
    uint8_t * values = to->values;
    EACH_256(110) {
        const uint8_t * s = from + 96;
        to->scale[8 * b] = -half(from + 108);
        twos_of(from + 32, values);
        twos_of(from + 64, values + 128);
        for (int i = 0; i < 8; i++) {
            add_bits(from, i, 2, values + BLOCK * i);
        }
        for (int i = 0; i < 16; i++) {
            int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
            uint64_t scale = (uint64_t) (low | (s[8 + i % 4] >> (2 * (i / 4)) & 3) << 4);
            uint64_t first = 0x01020304 * scale + 0x60402000, second = 0xe0c0a080 - 0x03020100 * scale;
            multiples_of(first | second << 32, values + 16 * i);
        }
    }
}

UNPACKER(unpack_iq4_nl) {
    unpack_q4_0(from, quads, to);
    look_up(nonlinear, QUAD * quads, to->values);
}

UNPACKER(unpack_iq4_xs) {
    uint8_t * values = to->values;
    EACH_256(136) {
        float d = half(from);
        int high = from[2] | from[3] << 8;
        for (int i = 0; i < 8; i++) {
            int six = (from[4 + i / 2] >> (4 * (i % 2)) & 15) | (high >> (2 * i) & 3) << 4;
            to->scale[8 * b + i] = (float) (six - 32) * d;
            nibbles_of(from + 8 + 16 * i, values + BLOCK * i);
        }
    }
    look_up(nonlinear, QUAD * quads, to->values);
}

UNPACKER(unpack_mxfp4) {
    uint8_t * values = to->values;
    EACH_BLOCK(17) {
        to->scale[b] = half_of_power(from[0]);
        nibbles_of(from + 1, values);
    }
    look_up(doubled, QUAD * quads, to->values);
}

UNPACKER(unpack_nvfp4) {
    uint8_t * values = to->values;
    for (int b = 0; b < 2 * quads; b++, from += 36, values += 64) {
        for (int i = 0; i < 4; i++) {
            to->scale[4 * b + i] = half_of_e4m3(from[i]);
            longs2 both = {long_word_of(from + 4 + 8 * i), long_word_of(from + 4 + 8 * i) >> 4};
            store_16(values + 16 * i, (bytes16) both & 15);
        }
    }
    look_up(doubled, QUAD * quads, to->values);
}

UNPACKER(unpack_q1_0) {
    memset(to->values, 0, QUAD * quads);
    for (int q = 0; q < quads; q++, from += 18) {
        repeat(half(from), 4, to->scale + 4 * q);
        for (int i = 0; i < 4; i++) {
            add_mask(word_of(from + 2 + 4 * i), 2, to->values + QUAD * q + BLOCK * i);
        }
    }
}

UNPACKER(unpack_q2_0) {
    uint8_t * values = to->values;
    for (int b = 0; b < 2 * quads; b++, from += 18, values += 64) {
        repeat(half(from), 2, to->scale + 2 * b);
        for (int i = 0; i < 16; i++) {
            uint32_t x = from[2 + i], four = (x | x << 6 | x << 12 | x << 18) & 0x03030303;
            memcpy(values + 4 * i, &four, 4);
        }
    }
}

UNPACKER(unpack_tq2_0) {
    uint8_t * values = to->values;
    EACH_256(66) {
        repeat(half(from + 64), 8, to->scale + 8 * b);
        twos_of(from, values);
        twos_of(from + BLOCK, values + 128);
    }
}

INLINE void digits_of(const uint8_t * restrict from, int count, int power, uint8_t * restrict values) {
    for (int i = 0; i < count; i++) {
        values[i] = (uint8_t) ((uint8_t) (from[i] * power) * 3 >> 8);
    }
}

UNPACKER(unpack_tq1_0) {
    static const uint8_t powers[5] = {1, 3, 9, 27, 81};
    uint8_t * values = to->values;
    EACH_256(54) {
        repeat(half(from + 52), 8, to->scale + 8 * b);
        for (int i = 0; i < 5; i++) {
            digits_of(from, 32, powers[i], values + 32 * i);
            digits_of(from + 32, 16, powers[i], values + 160 + 16 * i);
        }
        for (int i = 0; i < 4; i++) {
            digits_of(from + 48, 4, powers[i], values + 240 + 4 * i);
        }
    }
}
