/* Families whose vectors are shorter than TILE: unpackers by vectors of any length, and rows side by side. */

#include "plain_unpackers.h"
#include "plain_codebooks.h"

static unpacker * const unpackers[TYPES] = UNPACKERS;

typedef uint32_t words4 __attribute__((vector_size(16)));
typedef uint32_t words8 __attribute__((vector_size(32)));

INLINE words8 words_of(const char * first, const char * second) {
    words4 a, b;
    memcpy(&a, first, 16);
    memcpy(&b, second, 16);
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
}

/* Four words of eight rows, which begin `step` bytes after one another; `to` has the rows of each word. */
INLINE void transpose(const void * rows, size_t step, words8 * to) {
    const char * at = rows;
    words8 a = words_of(at, at + 4 * step), b = words_of(at + step, at + 5 * step);
    words8 c = words_of(at + 2 * step, at + 6 * step), d = words_of(at + 3 * step, at + 7 * step);
    words8 e = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
    words8 f = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13);
    words8 g = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    words8 h = __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    to[0] = __builtin_shufflevector(e, f, 0, 1, 8, 9, 4, 5, 12, 13);
    to[1] = __builtin_shufflevector(e, f, 2, 3, 10, 11, 6, 7, 14, 15);
    to[2] = __builtin_shufflevector(g, h, 0, 1, 8, 9, 4, 5, 12, 13);
    to[3] = __builtin_shufflevector(g, h, 2, 3, 10, 11, 6, 7, 14, 15);
}

/* Numbers of each part of TILE lines, as those of `blocks` blocks from `to`. */
INLINE void interleave_parts(const float * from, int blocks, int each, float (*to)[TILE]) {
    for (int r = 0; r < TILE; r += 8) {
        for (int p = 0; p < each * blocks; p += 4) {
            words8 four[4];
            transpose(from + p + r * sizeof(struct line) / sizeof(float), sizeof(struct line), four);
            for (int i = 0; i < 4 && p + i < each * blocks; i++) {
                int b = (p + i) / each, h = (p + i) % each;
                memcpy((char *) (to[h] + r) + b * sizeof(struct rows), four + i, sizeof(*four));
            }
        }
    }
}

/* TILE lines as `blocks` blocks of rows; with a sign if `signs`. */
TARGET static void interleave(const struct line * lines, int blocks, bool signs, const struct type * type,
                              struct rows * to) {
    uint8_t less = signs ? (uint8_t) type->zero : 0;
    for (int b = 0; b < blocks; b++) {
        for (int r = 0; r < TILE; r += 8) {
            for (int h = 0; h < 2; h++) {
                words8 four[4];
                transpose(lines[r].values + BLOCK * b + 16 * h, sizeof(*lines), four);
                for (int i = 0; i < 4; i++) {
                    bytes32 values = (bytes32) four[i] - less;
                    memcpy(to[b].values[4 * h + i][r], &values, sizeof(values));
                }
            }
        }
    }
    int each = type->halves ? 2 : 1;
    interleave_parts(lines->scale, blocks, each, to->scale);
    if (type->minima) {
        interleave_parts(lines->minimum, blocks, 1, &to->minimum);
    }
    if (type->minima && type->whole) {
        interleave_parts((const float *) lines->numbers, blocks, 1, (float (*)[TILE]) &to->numbers);
    }
}
