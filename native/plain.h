/* Kernels of families whose vectors are shorter than TILE: a family brings vectors of VEC floats and integers,
   and exact sums.

   A kind says how bytes are multiplied: in pairs, of small bytes added in 16 bits for a while; with a sign, less a
   type's zero; or by an instruction that adds exact products of bytes without a sign. */

enum kind { SMALL, BYTES, SIGNED, DOT };

#define VECS      (TILE / VEC)
#define PLAIN_STEP 4 /* columns whose sums stay close */

#include "plain_unpackers.h"
#include "plain_codebooks.h"

static unpacker * const unpackers[TYPES] = UNPACKERS;

/* TILE lines as `blocks` blocks of rows; with a sign if `signs`. */
TARGET static void interleave(const struct line * lines, int blocks, bool signs, const struct type * type,
                              struct rows * to) {
    int each = type->halves ? 2 : 1;
    uint8_t less = signs ? (uint8_t) type->zero : 0;
    for (int b = 0; b < blocks; b++, to++) {
        for (int r = 0; r < TILE; r++) {
            for (int g = 0; g < BLOCK / 4; g++) {
                memcpy(to->values[g][r], lines[r].values + BLOCK * b + 4 * g, 4);
            }
            for (int h = 0; h < each; h++) {
                to->scale[h][r] = lines[r].scale[each * b + h];
                to->minimum[h][r] = type->minima ? lines[r].minimum[each * b + h] : 0;
            }
        }
        uint8_t * values = (uint8_t *) to->values;
        for (size_t i = 0; i < sizeof(to->values) && less; i++) {
            values[i] -= less;
        }
    }
}
