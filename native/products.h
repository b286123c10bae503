/* Common to all families of instructions that multiply: see products.c. */

#pragma once

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ggml.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define COMMON static inline __attribute__((always_inline, unused))

/* Families of instructions: compiled functions by function, chosen at run time. */
#if defined(__x86_64__) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 14 : __GNUC__ >= 12)
#define ON_X86 1
#elif defined(__aarch64__) && defined(__linux__) && (defined(__clang__) ? __clang_major__ >= 16 : __GNUC__ >= 12)
#define ON_ARM 1
#endif

#define BLOCK   32  /* values that are added exactly */
#define GROUP   16  /* columns that lie side by side */
#define TILE    16  /* rows that lie side by side */
#define ROWS    96 /* of a panel, at most: see struct panel_size */
#define DEPTH 2048 /* values of a panel's row, at most */
#define BLOCKS (DEPTH / BLOCK)
#define LINE   512 /* values that are unpacked at once, of TILE rows */
#define QUAD   (4 * BLOCK)
#define WIDE     8  /* blocks of activations with one scale, for weights of which 256 share one */
#define FEW      8 /* columns, at most, that are multiplied without a panel */
#define STREAM 4096 /* bytes that are fetched ahead */
#define ALIGNMENT 64

/* Vectors of one tile of rows, and of those that a kernel multiplies at once. */
#define VECS      (TILE / VEC)
#define MOST_VECS (TILES * VECS)

/* How bytes are multiplied: with a sign, less a type's zero; by an instruction that adds exact products of bytes
   without a sign and with one; or without a sign, in pairs that are added in 16 bits, of as many groups of four values
   as these hold. */
enum kind { SIGNED = -1, DOT = 0, ONE_GROUP = 1, TWO_GROUPS = 2, FOUR_GROUPS = 4, EIGHT_GROUPS = 8 };

/* Has a vector loaded once: compilers would load it again for each use. */
#ifdef ON_X86
#define IN_REGISTER(x) __asm__("" : "+v"(x))
#else
#define IN_REGISTER(x) __asm__("" : "+w"(x))
#endif

/* GROUP columns of one block of activations. */
struct columns {
    int8_t  values[GROUP][BLOCK];
    float   scale[GROUP];
    int32_t start[2][GROUP]; /* minus the sum, and that of the second half: exact sums begin at it times a zero */
    int32_t halves[GROUP];   /* minus the sums of both, in 16 bits each */
    float   sum[GROUP];      /* of activations, scaled unless blocks share a scale */
};

/* TILE rows of one block of weights. */
struct rows {
    uint8_t values[BLOCK / 4][TILE][4]; /* with a sign for some kernels */
    float   scale[2][TILE]; /* of each half */
    float   minimum[TILE];
    int16_t numbers[TILE][2]; /* that the minimum of both halves is times, where 256 values share one */
};

#define PANEL (ROWS / TILE * BLOCKS * sizeof(struct rows)) /* bytes for panels, or for a few columns */

/* LINE values of one row of weights: (byte - zero) * scale, or byte * scale - minimum, with a scale for each block
   or each half of one, or the first of each WIDE blocks. */
struct line {
    uint8_t values[LINE] __attribute__((aligned(ALIGNMENT)));
    float   scale[LINE / 16], minimum[LINE / BLOCK];
    int16_t numbers[LINE / 16]; /* of minima: see struct rows */
};

/* The rows and blocks of a panel. The smaller size stays in the nearest cache if that has 48 KiB or more; the larger in
   the one behind it, so that activations are read half as often. */
struct panel_size {
    int rows, blocks;
};

extern HIDDEN struct panel_size ggmodel_panel;

/* A block of one column. */
struct activations {
    int8_t  values[BLOCK];
    float   scale, minus_sum;
    int32_t start[2]; /* of each half, or the first of all: times a type's zero, but of halves as such if `whole` */
} __attribute__((aligned(ALIGNMENT)));

/* The order of a line's bytes: the cheapest for a type. */
enum order {
    IN_ORDER,     /* blocks 0 and 1, 2 and 3 of a quad */
    BY_HALVES,    /* the first halves of all four, then the second ones: two halves share bytes of 4 bits */
    BY_ALTERNATES /* blocks 0 and 2, 1 and 3: two blocks share bytes of 4 bits */
};

struct type {
    int number;          /* an enum ggml_type */
    enum order order;    /* of AVX-512; all others leave values in order */
    int zero;            /* 0 where there are minima */
    int most;            /* the largest byte */
    bool wide;           /* 256 values share a scale, and so do WIDE blocks of activations */
    bool halves, minima; /* a scale for 16 values; minima */
    bool whole;          /* one scale, and one minimum, for 256 values: bytes are times the whole numbers of 16 */
};

/* Types that older versions of ggml lack. */
enum { NVFP4 = 40, Q1_0 = 41, Q2_0 = 42, TYPES = 43 };

enum activation { NO_ACTIVATION, RELU, GELU, GELU_ERF, QUICK_GELU, SILU };

/* The end of elements: activation(x + bias) * factor + residual. An operand that is left out is NULL. */
struct operands {
    const float * bias, * factor, * residual;
};

/* The end of a product's elements. */
struct ending {
    enum activation activation;
    struct operands of; /* a bias of rows, others as the results `to` lie */
    const float * to;
};

/* The rows and columns of a product of floats that one thread computes: see floats.h. */
struct floats {
    const struct ending * ending;
    const struct ggml_tensor * w, * x;
    const uint8_t * data;   /* of the matrix */
    const int32_t * order;  /* of experts' columns, else NULL */
    int used, begin, end;   /* slots of a token, and columns */
    int row, last;          /* the first row, and the one behind the last */
    float * to;
    void * panel;
};

/* A row's values from bytes, in quads. */
typedef void unpacker(const uint8_t * restrict from, int quads, struct line * restrict to);

/* `rows`, whose tiles lie BLOCKS apart, times n columns of a group, from column `first`; `to` has where each column's
   begin. */
typedef void kernel(const struct rows * w, const struct columns * x, int blocks, int first, int n,
                    const struct type * type, int rows, float * const * to, bool more);

/* TILE rows times n columns, whose blocks lie side by side; `to` has where each column's begin. */
typedef void few_kernel(const struct ggml_tensor * w, const uint8_t * data, const struct activations * x, int n,
                        float * const * to);

/* The processor's configuration of tiles. */
struct tile_shapes {
    uint8_t palette, start, unused[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

struct family {
    unpacker * const * unpackers; /* by a type's number */
    int step;                     /* columns of a kernel, without an order of tiles */
    /* Whether other kernels want bytes with a sign, less a type's zero. */
    bool (*signs)(const struct type * type);
    /* TILE lines as `blocks` blocks of rows. */
    void (*interleave)(const struct line * lines, int blocks, bool signs, const struct type * type, struct rows * to);
    kernel * (*kernel_of)(const struct type * type, bool tiled);
    few_kernel * (*few_kernel_of)(const struct type * type); /* NULL, or gives NULL, where panels serve few columns */
    bool signed_bytes; /* few kernels want bytes above 127 with a sign, less a type's zero */
    /* `count` blocks of the first n columns of a group, with one scale each: as ggml quantises them for dot products
       with weights of blocks of 32 values (Q8_0 and Q8_1, whose scales and sums are F16) and of 256 (Q8_K). */
    void (*quantize_columns)(const float * const * from, int n, int count, struct columns * to);
    void (*multiply_floats)(const struct floats * of);
    /* The same of rounded columns, and `blocks` of a column as such: see rounded.h; or NULL. */
    void (*multiply_rounded)(const struct floats * of);
    void (*round_column)(const float * from, int blocks, void * to);
    /* `to` has what becomes of x, of n elements each. */
    void (*finish)(const float * x, const struct operands * of, enum activation activation, int n, float * to);
    /* Multiplies more than 8 columns by tiles, with signs, between these; else NULL. */
    void (*begin_tiles)(struct tile_shapes * before);
    void (*end_tiles)(const struct tile_shapes * before);
};

extern HIDDEN const struct family ggmodel_by_avx512, ggmodel_by_amx, ggmodel_by_avx2, ggmodel_by_avx_vnni,
    ggmodel_by_neon;
extern HIDDEN const struct family * ggmodel_family; /* in use, or NULL */

HIDDEN const struct type * ggmodel_type_of(int type); /* NULL of those without a kernel */
HIDDEN void ggmodel_read_codebooks(void);

/* Fetches bytes that are read later, and not into the nearest cache, which may be too small for them. */
COMMON void fetch(const uint8_t * from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch(from + at, 0, 1);
    }
}

/* Ends `rows` elements of a column from `row` on. */
COMMON void end_rows(const struct ending * ending, float * at, int row, int rows) {
    struct operands of = ending->of;
    if (of.bias || of.factor || of.residual || ending->activation) {
        of.bias = of.bias ? of.bias + row : NULL;
        of.factor = of.factor ? of.factor + (at - ending->to) : NULL;
        of.residual = of.residual ? of.residual + (at - ending->to) : NULL;
        ggmodel_family->finish(at, &of, ending->activation, rows, at);
    }
}

/* A family's kernels of one kind, by breadth, and by whether they have halves and minima: no type has both. */
#define KERNELS_OF(name) {                                             \
    {{name##_32, name##_32_minima}, {name##_16, NULL}},                \
    {{name##_wide_32, name##_wide_32_minima}, {name##_wide_16, NULL}}, \
    {{name##_whole, name##_whole_minima}, {NULL, NULL}},               \
}

/* The first index of KERNELS_OF. */
COMMON int breadth_of(const struct type * type) {
    return type->whole ? 2 : type->wide;
}

/* Byte 0 or 16 of block b. */
COMMON int place_of(enum order order, int b, int half) {
    int in = b % 4, at = b / 4 * QUAD;
    switch (order) {
        case IN_ORDER: return at + 32 * in + 16 * half;
        case BY_HALVES: return at + 16 * in + 64 * half;
        default: return at + 64 * (in % 2) + 32 * (in / 2) + 16 * half;
    }
}

/* At most LINE values of a row, which may end within a quad. */
COMMON void unpack_line(unpacker * unpack, const uint8_t * from, size_t bytes, int n, struct line * to) {
    uint8_t padded[LINE / BLOCK * 34];
    if (n % QUAD) {
        memset(padded, 0, sizeof(padded));
        from = (const uint8_t *) memcpy(padded, from, bytes);
    }
    unpack(from, (n + QUAD - 1) / QUAD, to);
}

COMMON bool is_float(int type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}
