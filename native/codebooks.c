/* Codebooks of types whose bits are numbers of entries: eight or four values each, most of them without their
   signs. They are read from ggml: it decodes blocks of some numbers. */

#include "formats.h"

HIDDEN uint64_t ggmodel_iq2_xxs[256], ggmodel_iq2_xs[512], ggmodel_iq2_s[1024];
HIDDEN uint32_t ggmodel_iq3_xxs[256], ggmodel_iq3_s[512];
HIDDEN uint64_t ggmodel_iq1[2048];

#define F16_ONE 0x3c00

/* Writes the number of the entry at `place` of a block's entries; the bytes are zeros before. */
typedef void write_entry(uint8_t * block, int place, int number);

static void write_iq2_xxs(uint8_t * block, int place, int number) {
    block[2 + place / 4 * 8 + place % 4] = (uint8_t) number;
}

static void write_iq2_xs(uint8_t * block, int place, int number) {
    block[2 + 2 * place] = (uint8_t) number;
    block[3 + 2 * place] = (uint8_t) (number >> 8);
}

static void write_iq2_s(uint8_t * block, int place, int number) {
    block[2 + place] = (uint8_t) number;
    block[66 + place / 4] |= (uint8_t) (number >> 8 << (2 * (place % 4)));
}

static void write_iq3_xxs(uint8_t * block, int place, int number) {
    block[2 + place] = (uint8_t) number;
}

static void write_iq3_s(uint8_t * block, int place, int number) {
    block[2 + place] = (uint8_t) number;
    block[66 + place / 8] |= (uint8_t) (number >> 8 << (place % 8));
}

static void write_iq1_s(uint8_t * block, int place, int number) {
    int high = number >> 8 << (3 * (place % 4));
    block[2 + place] = (uint8_t) number;
    block[34 + place / 4 * 2] |= (uint8_t) high;
    block[35 + place / 4 * 2] |= (uint8_t) (high >> 8);
}

/* Fills a table of `count` entries, of `each` values: those that ggml decodes from blocks of F16_ONE as the
   factor, times `factor`, plus `more`. */
static void read_codebook(enum ggml_type type, write_entry * write, int each, int count, float factor, float more,
                          uint8_t * table) {
    const struct ggml_type_traits * traits = ggml_get_type_traits(type);
    uint8_t block[256];
    float values[256];
    int entries = 256 / each;
    for (int first = 0; first < count; first += entries) {
        memset(block, 0, sizeof(block));
        block[0] = F16_ONE & 0xff;
        block[1] = F16_ONE >> 8;
        for (int i = 0; i < entries; i++) {
            write(block, i, first + i);
        }
        traits->to_float(block, values, 256);
        for (int i = 0; i < 256; i++) {
            table[first * each + i] = (uint8_t) (values[i] * factor + more);
        }
    }
}

HIDDEN void ggmodel_read_codebooks(void) {
    static bool done;
    if (!done) {
        read_codebook(GGML_TYPE_IQ2_XXS, write_iq2_xxs, 8, 256, 8, 0, (uint8_t *) ggmodel_iq2_xxs);
        read_codebook(GGML_TYPE_IQ2_XS, write_iq2_xs, 8, 512, 8, 0, (uint8_t *) ggmodel_iq2_xs);
        read_codebook(GGML_TYPE_IQ2_S, write_iq2_s, 8, 1024, 8, 0, (uint8_t *) ggmodel_iq2_s);
        read_codebook(GGML_TYPE_IQ3_XXS, write_iq3_xxs, 4, 256, 4, 0, (uint8_t *) ggmodel_iq3_xxs);
        read_codebook(GGML_TYPE_IQ3_S, write_iq3_s, 4, 512, 1, 0, (uint8_t *) ggmodel_iq3_s);
        read_codebook(GGML_TYPE_IQ1_S, write_iq1_s, 8, 2048, 8, 7, (uint8_t *) ggmodel_iq1);
        done = true;
    }
}
