/* Products with few columns: VEC rows at once, straight from their blocks. Words of four values of all these rows lie
   in one vector, which all columns use: a panel would cost more than the few products with it. The sums are those of
   all kernels.

   A family brings words of VEC rows, words_at, eight_words_at, shorts_at, halves_of, low_halves, looked_up, dots and
   SIGNED_BYTES. */

/* Values 4 * g of VEC rows as to[g], of 16 bytes of two values each. */
INLINE void nibbles_at(const uint8_t * rows, size_t stride, words * to) {
    words p[4];
    words_at(rows, stride, p);
    for (int g = 0; g < 4; g++) {
        to[g] = p[g] & 0x0f0f0f0f;
        to[4 + g] = p[g] >> 4 & 0x0f0f0f0f;
    }
}

/* The lowest four bits of words as a byte each. */
INLINE words bytes_of_bits(words x) {
    return ((x & 15) * 0x00204081) & 0x01010101;
}

/* Bits of words, which become bit 4 of each of their values. */
INLINE void add_fifth_bits(words bits, words * to) {
    for (int g = 0; g < 8; g++) {
        words four = bits >> (g / 2 * 8) & (g % 2 ? 0xf0 : 0x0f); /* times four powers of two, none of which meet */
        to[g] |= (four * (g % 2 ? 0x00204081 : 0x02040810)) & 0x10101010;
    }
}

/* The values of block b of those that share scales. */
INLINE void values_of(const uint8_t * rows, size_t stride, int number, int b, words * to) {
    words more[8];
    switch (number) {
        case GGML_TYPE_Q8_0:
            eight_words_at(rows + 2, stride, to);
            for (int g = 0; g < 8; g++) {
                to[g] ^= SIGNED_BYTES ? 0 : 0x80808080;
            }
            break;
        case GGML_TYPE_Q4_0: nibbles_at(rows + 2, stride, to); break;
        case GGML_TYPE_Q4_1: nibbles_at(rows + 4, stride, to); break;
        case GGML_TYPE_Q5_0:
        case GGML_TYPE_Q5_1: {
            int before = number == GGML_TYPE_Q5_0 ? 2 : 4;
            nibbles_at(rows + before + 4, stride, to);
            words_at(rows, stride, more);
            add_fifth_bits(before == 2 ? more[0] >> 16 | more[1] << 16 : more[1], to);
            break;
        }
        case Q1_0:
            words_at(rows + 2, stride, more);
            for (int g = 0; g < 8; g++) {
                to[g] = bytes_of_bits(more[b] >> (4 * g)) << 1;
            }
            break;
        case Q2_0:
            words_at(rows + 2, stride, more);
            for (int g = 0; g < 8; g++) {
                words x = more[2 * b + g / 4] >> (8 * (g % 4)) & 255;
                to[g] = (x | x << 6 | x << 12 | x << 18) & 0x03030303;
            }
            break;
        case GGML_TYPE_Q2_K:
        case GGML_TYPE_Q3_K:
        case GGML_TYPE_TQ2_0: {
            int before = number == GGML_TYPE_Q2_K ? 16 : number == GGML_TYPE_Q3_K ? BLOCK : 0;
            eight_words_at(rows + before + b / 4 * BLOCK, stride, to);
            for (int g = 0; g < 8; g++) {
                to[g] = to[g] >> (2 * (b % 4)) & 0x03030303;
            }
            if (number == GGML_TYPE_Q3_K) {
                eight_words_at(rows, stride, more);
                for (int g = 0; g < 8; g++) {
                    to[g] |= (b < 2 ? more[g] << (2 - b) : more[g] >> (b - 2)) & 0x04040404;
                }
            }
            break;
        }
        case GGML_TYPE_Q6_K: {
            int half = b / 4, in = b % 4;
            eight_words_at(rows + 64 * half + BLOCK * (in % 2), stride, to);
            eight_words_at(rows + 128 + BLOCK * half, stride, more);
            for (int g = 0; g < 8; g++) {
                words two = in < 2 ? more[g] << (4 - 2 * in) : more[g] >> (2 * in - 4);
                to[g] = (to[g] >> (in / 2 * 4) & 0x0f0f0f0f) | (two & 0x30303030);
            }
            break;
        }
        case GGML_TYPE_MXFP4:
            nibbles_at(rows + 1, stride, to);
            for (int g = 0; g < 8; g++) {
                to[g] = looked_up(doubled, to[g]);
            }
            break;
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_IQ4_XS:
            nibbles_at(rows + (number == GGML_TYPE_IQ4_NL ? 2 : 8 + 16 * b), stride, to);
            for (int g = 0; g < 8; g++) {
                to[g] = looked_up(SIGNED_BYTES ? signed_nonlinear : nonlinear, to[g]);
            }
            break;
        default: /* Q4_K and Q5_K */
            eight_words_at(rows + (number == GGML_TYPE_Q5_K ? 48 : 16) + b / 2 * BLOCK, stride, to);
            for (int g = 0; g < 8; g++) {
                to[g] = to[g] >> (b % 2 * 4) & 0x0f0f0f0f;
            }
            if (number == GGML_TYPE_Q5_K) {
                eight_words_at(rows + 16, stride, more);
                for (int g = 0; g < 8; g++) {
                    to[g] |= (b < 4 ? more[g] << (4 - b) : more[g] >> (b - 4)) & 0x10101010;
                }
            }
    }
}

INLINE vec scaled(words numbers, vec d) {
    return mul_vec(vec_of_ints((ints) numbers), d);
}

/* The scales and minima of Q4_K and Q5_K: see store_scales_of_k. */
INLINE void scales_of_six_bits(const uint8_t * rows, size_t stride, vec * scale, vec * minimum) {
    words p[4];
    words_at(rows, stride, p);
    words scales[2] = {p[1] & 0x3f3f3f3f, (p[3] & 0x0f0f0f0f) | (p[1] >> 2 & 0x30303030)};
    words minima[2] = {p[2] & 0x3f3f3f3f, (p[3] >> 4 & 0x0f0f0f0f) | (p[2] >> 2 & 0x30303030)};
    vec d = low_halves(p[0]), least = low_halves(p[0] >> 16);
    for (int i = 0; i < 8; i++) {
        scale[i] = scaled(scales[i / 4] >> (8 * (i % 4)) & 255, d);
        minimum[i] = scaled(minima[i / 4] >> (8 * (i % 4)) & 255, least);
    }
}

/* The whole numbers of scales of 16 values and of minima, and those that they are times. */
INLINE void numbers_of_q2_k(const uint8_t * rows, size_t stride, words * scale, words * minimum, vec * times) {
    words p[4];
    words_at(rows, stride, p);
    for (int i = 0; i < 16; i++) {
        scale[i] = p[i / 4] >> (8 * (i % 4)) & 15;
        minimum[i] = p[i / 4] >> (8 * (i % 4) + 4) & 15;
    }
    times[0] = halves_of(rows + 80, stride);
    times[1] = halves_of(rows + 82, stride);
}

/* The same, of six bits, the upper two behind the lower four, with the sign of the factor turned as in a panel. */
INLINE void numbers_of_q3_k(const uint8_t * rows, size_t stride, words * scale, vec * times) {
    words p[4];
    words_at(rows + 94, stride, p); /* the last bytes, of which the first two are values */
    words low[2] = {p[0] >> 16 | p[1] << 16, p[1] >> 16 | p[2] << 16}, high = p[2] >> 16 | p[3] << 16;
    times[0] = -low_halves(p[3] >> 16);
    for (int i = 0; i < 16; i++) {
        words four = low[i / 4 % 2] >> (8 * (i % 4) + i / 8 * 4) & 15;
        scale[i] = 32 - (four | (high >> (8 * (i % 4) + i / 4 * 2) & 3) << 4);
    }
}

INLINE void scales_of_q6_k(const uint8_t * rows, size_t stride, vec * scale) {
    words p[4];
    words_at(rows + 192, stride, p);
    vec d = halves_of(rows + 208, stride);
    for (int i = 0; i < 16; i++) {
        scale[i] = scaled((words) ((signed_words) (p[i / 4] << (24 - 8 * (i % 4))) >> 24), d);
    }
}

INLINE void scales_of_iq4_xs(const uint8_t * rows, size_t stride, vec * scale) {
    words p[4];
    words_at(rows, stride, p);
    vec d = low_halves(p[0]);
    for (int i = 0; i < 8; i++) {
        words six = (p[1] >> (4 * i) & 15) | (p[0] >> (16 + 2 * i) & 3) << 4;
        scale[i] = scaled(six - 32, d);
    }
}

/* Halves of powers of two: see half_of_power. The words' lowest bytes count. */
INLINE vec halves_of_powers(words x) {
    words power = x & 255, small = (words) (power < 2), bits = (power - 1) << 23;
    return (vec) ((small & (0x200000 << (power & 1))) | (~small & bits));
}

/* Scales and minima of the blocks that share them. */
INLINE void scales_of(const uint8_t * rows, size_t stride, int number, int step, vec * scale,
                      vec * minimum) {
    words first[4];
    switch (number) {
        case GGML_TYPE_Q5_0:
            words_at(rows, stride, first);
            scale[0] = low_halves(first[0]);
            break;
        case GGML_TYPE_Q8_0:
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_IQ4_NL:
        case Q2_0:
        case Q1_0:
            for (int i = 0; i < step; i++) {
                scale[i] = halves_of(rows, stride);
            }
            break;
        case GGML_TYPE_MXFP4: scale[0] = halves_of_powers(shorts_at(rows, stride)); break;
        case GGML_TYPE_Q4_1:
        case GGML_TYPE_Q5_1:
            words_at(rows, stride, first);
            scale[0] = low_halves(first[0]);
            minimum[0] = -low_halves(first[0] >> 16);
            break;
        case GGML_TYPE_Q6_K: scales_of_q6_k(rows, stride, scale); break;
        case GGML_TYPE_IQ4_XS: scales_of_iq4_xs(rows, stride, scale); break;
        default: scales_of_six_bits(rows, stride, scale, minimum);
    }
}

/* Adds 256 values of VEC rows times n columns, in blocks side by side, whose scale is one. */
INLINE void add_whole_values(const uint8_t * rows, size_t stride, int number, int most, const struct activations * x,
                             int n, vec * sums) {
    words scale[16], minimum[16];
    vec times[2];
    ints exact[FEW], less[FEW];
    int each = number == GGML_TYPE_TQ2_0 ? 1 : 2, zero = number == GGML_TYPE_TQ2_0 ? 1 : 4;
    bool minima = number == GGML_TYPE_Q2_K;
    if (number == GGML_TYPE_TQ2_0) {
        times[0] = halves_of(rows + 64, stride);
    } else if (minima) {
        numbers_of_q2_k(rows, stride, scale, minimum, times);
    } else {
        numbers_of_q3_k(rows, stride, scale, times);
    }
    for (int j = 0; j < n; j++) {
        exact[j] = less[j] = ints_of(0);
    }
#pragma GCC unroll 8
    for (int i = 0; i < WIDE; i++) {
        words values[8];
        values_of(rows, stride, number, i, values);
        for (int j = 0; j < n; j++) {
            const struct activations * at = x + i * n + j;
#pragma GCC unroll 2
            for (int h = 0; h < each; h++) {
                int end = each == 2 ? 4 * h + 4 : 8, start = each == 2 ? at->start[h] : at->start[0] + at->start[1];
                words part = (words) dots(values, at->values, 4 * h, end, most, minima ? 0 : zero * start);
                exact[j] = (ints) ((words) exact[j] + (each == 2 ? part * scale[2 * i + h] : part));
                if (minima) {
                    less[j] = (ints) ((words) less[j] + minimum[2 * i + h] * (words) ints_of(at->start[h]));
                }
            }
        }
    }
    for (int j = 0; j < n; j++) {
        vec part = mul_vec(vec_of_ints(exact[j]), times[0]);
        part = minima ? fma_vec(times[1], vec_of_ints(less[j]), part) : part;
        sums[j] = fma_vec(part, vec_of(x[j].scale), sums[j]);
    }
}

/* Fetches what is read after `bytes` of VEC rows: as much of the next rows, in the order of memory, which is fastest;
   into the nearest cache what these rows have two steps on. */
INLINE void fetch_ahead(const uint8_t * rows, size_t stride, int bytes, const uint8_t * next) {
    fetch(next, VEC * bytes);
    for (int r = 0; r < VEC; r++) {
        for (int line = 0; line < bytes; line += 64) {
            __builtin_prefetch(rows + r * stride + 2 * bytes + line);
        }
    }
}

/* TILE rows of a type times n columns. `bytes` have `step` blocks that share scales, and no value above `most`. */
INLINE void multiply_few_columns(const struct ggml_tensor * w, int number, int bytes, int step, int most,
                                 const uint8_t * data, const struct activations * x, int n, float * const * to) {
    bool whole = number == GGML_TYPE_Q2_K || number == GGML_TYPE_Q3_K || number == GGML_TYPE_TQ2_0;
    bool halves = number == GGML_TYPE_Q6_K;
    bool minima = number == GGML_TYPE_Q4_1 || number == GGML_TYPE_Q5_1 || number == GGML_TYPE_Q4_K ||
                  number == GGML_TYPE_Q5_K;
    bool wide = step == WIDE;
    int all = (int) w->ne[0] / BLOCK, each = halves ? 2 : 1;
    size_t stride = w->nb[1];
    for (int row = 0; row < TILE; row += VEC) {
        const uint8_t * rows = data + row * stride, * next = data + (TILE + row) * stride;
        const struct activations * at = x;
        vec sums[FEW], parts[FEW], * to_sums = wide ? parts : sums;
        for (int j = 0; j < n; j++) {
            sums[j] = vec_of(0);
        }
        for (int b = 0; b < all; b += step, rows += bytes) {
            vec scale[16], minimum[16];
            fetch_ahead(rows, stride, bytes, next);
            next += VEC * bytes;
            if (whole) {
                add_whole_values(rows, stride, number, most, at, n, sums);
                at += WIDE * n;
                continue;
            }
            scales_of(rows, stride, number, step, scale, minimum);
            for (int j = 0; j < n && wide; j++) {
                parts[j] = vec_of(0);
            }
#pragma GCC unroll 8
            for (int i = 0; i < step; i++) {
                words values[8];
                values_of(rows, stride, number, i, values);
                for (int j = 0; j < n; j++, at++) {
#pragma GCC unroll 2
                    for (int h = 0; h < each; h++) {
                        int begin = 4 * h, end = halves ? begin + 4 : 8;
                        ints exact = dots(values, at->values, begin, end, most, minima ? 0 : at->start[h]);
                        vec part = vec_of_ints(exact);
                        part = wide ? part : mul_vec(part, vec_of(at->scale));
                        to_sums[j] = fma_vec(part, scale[each * i + h], to_sums[j]);
                        if (minima) {
                            to_sums[j] = fma_vec(minimum[each * i + h], vec_of(at->minus_sum), to_sums[j]);
                        }
                    }
                }
            }
            for (int j = 0; j < n && wide; j++) {
                sums[j] = fma_vec(parts[j], vec_of((at - n + j)->scale), sums[j]);
            }
        }
        for (int j = 0; j < n; j++) {
            store_vec(to[j] + row, sums[j]);
        }
    }
}

#define FEW_COLUMNS(name, number, bytes, step, most)                                                                   \
    TARGET static void name(const struct ggml_tensor * w, const uint8_t * data, const struct activations * x, int n,   \
                            float * const * to) {                                                                      \
        if (n == 1) {                                                                                                  \
            multiply_few_columns(w, number, bytes, step, most, data, x, 1, to);                                        \
        } else {                                                                                                       \
            multiply_few_columns(w, number, bytes, step, most, data, x, n, to);                                        \
        }                                                                                                              \
    }

FEW_COLUMNS(few_q8_0, GGML_TYPE_Q8_0, 34, 1, 255)
FEW_COLUMNS(few_q4_0, GGML_TYPE_Q4_0, 18, 1, 15)
FEW_COLUMNS(few_q4_1, GGML_TYPE_Q4_1, 20, 1, 15)
FEW_COLUMNS(few_q5_0, GGML_TYPE_Q5_0, 22, 1, 31)
FEW_COLUMNS(few_q5_1, GGML_TYPE_Q5_1, 24, 1, 31)
FEW_COLUMNS(few_mxfp4, GGML_TYPE_MXFP4, 17, 1, 24)
FEW_COLUMNS(few_q1_0, Q1_0, 18, 4, 2)
FEW_COLUMNS(few_q2_0, Q2_0, 18, 2, 3)
FEW_COLUMNS(few_tq2_0, GGML_TYPE_TQ2_0, 66, 8, 3)
FEW_COLUMNS(few_q2_k, GGML_TYPE_Q2_K, 84, 8, 3)
FEW_COLUMNS(few_q3_k, GGML_TYPE_Q3_K, 110, 8, 7)
FEW_COLUMNS(few_iq4_nl, GGML_TYPE_IQ4_NL, 18, 1, 255)
FEW_COLUMNS(few_q4_k, GGML_TYPE_Q4_K, 144, 8, 15)
FEW_COLUMNS(few_q5_k, GGML_TYPE_Q5_K, 176, 8, 31)
FEW_COLUMNS(few_q6_k, GGML_TYPE_Q6_K, 210, 8, 63)
FEW_COLUMNS(few_iq4_xs, GGML_TYPE_IQ4_XS, 136, 8, 255)

static few_kernel * few_kernel_of(const struct type * type) {
    switch (type->number) {
        case GGML_TYPE_Q8_0: return few_q8_0;
        case GGML_TYPE_Q4_0: return few_q4_0;
        case GGML_TYPE_Q4_1: return few_q4_1;
        case GGML_TYPE_Q5_0: return few_q5_0;
        case GGML_TYPE_Q5_1: return few_q5_1;
        case GGML_TYPE_MXFP4: return few_mxfp4;
        case Q1_0: return few_q1_0;
        case Q2_0: return few_q2_0;
        case GGML_TYPE_TQ2_0: return few_tq2_0;
        case GGML_TYPE_Q2_K: return few_q2_k;
        case GGML_TYPE_Q3_K: return few_q3_k;
        case GGML_TYPE_IQ4_NL: return few_iq4_nl;
        case GGML_TYPE_Q4_K: return few_q4_k;
        case GGML_TYPE_Q5_K: return few_q5_k;
        case GGML_TYPE_Q6_K: return few_q6_k;
        case GGML_TYPE_IQ4_XS: return few_iq4_xs;
        default: return NULL;
    }
}
