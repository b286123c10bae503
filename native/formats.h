/* What the unpackers of all families know of formats. */

#pragma once

#include "products.h"

/* Codebooks: see codebooks.c. */
extern HIDDEN uint64_t ggmodel_iq2_xxs[256], ggmodel_iq2_xs[512], ggmodel_iq2_s[1024];
extern HIDDEN uint32_t ggmodel_iq3_xxs[256], ggmodel_iq3_s[512];
extern HIDDEN uint64_t ggmodel_iq1[2048]; /* 8 for each step above the least */

/* Values of IQ4, each above a zero. */
#define NONLINEAR(zero)                                                                        \
    {zero - 127, zero - 104, zero - 83, zero - 65, zero - 49, zero - 35, zero - 22, zero - 10, \
     zero + 1,   zero + 13,  zero + 25, zero + 38, zero + 53, zero + 69, zero + 89, zero + 113}

static const uint8_t nonlinear[16] = NONLINEAR(128), signed_nonlinear[16] = NONLINEAR(0);

/* Twice the values of E2M1, 12 too large. */
static const uint8_t doubled[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

COMMON uint32_t word_of(const uint8_t * at) {
    uint32_t all;
    memcpy(&all, at, 4);
    return all;
}

COMMON uint64_t long_word_of(const uint8_t * at) {
    uint64_t all;
    memcpy(&all, at, 8);
    return all;
}

/* Eight times seven bits, a byte each, with an eighth that makes their number even. */
COMMON uint64_t with_parity(uint64_t sevens) {
    uint64_t p = sevens ^ sevens >> 4;
    p ^= p >> 2;
    p ^= p >> 1;
    return sevens | (p & UINT64_C(0x0101010101010101)) << 7;
}

/* 28 bits as four times seven, a byte each. */
COMMON uint64_t sevens_of(uint32_t bits) {
    return (bits & 0x7f) | (bits & 0x3f80) << 1 | (bits & 0x1fc000) << 2 | (bits & 0xfe00000) << 3;
}

/* Half of a number of four bits of exponent and three of mantissa, without a sign; 0x7f is zero. */
COMMON float half_of_e4m3(uint8_t x) {
    int exponent = x >> 3 & 15, mantissa = x & 7;
    uint32_t bits = (uint32_t) (exponent + 119) << 23 | (uint32_t) mantissa << 20;
    float value;
    memcpy(&value, &bits, 4);
    return x == 0x7f ? 0 : exponent ? value : (float) mantissa / 1024;
}

/* Half of the power of two that a byte says, less 127. */
COMMON float half_of_power(uint8_t power) {
    uint32_t bits = power < 2 ? UINT32_C(0x200000) << power : (uint32_t) (power - 1) << 23;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* A family's unpackers, by the numbers of their types. */
#define UNPACKERS {                                                                                 \
    [GGML_TYPE_Q8_0] = unpack_q8_0, [GGML_TYPE_Q4_0] = unpack_q4_0,                                 \
    [GGML_TYPE_Q4_1] = unpack_q4_1, [GGML_TYPE_Q5_0] = unpack_q5_0,                                 \
    [GGML_TYPE_Q5_1] = unpack_q5_1, [GGML_TYPE_Q2_K] = unpack_q2_k,                                 \
    [GGML_TYPE_Q3_K] = unpack_q3_k, [GGML_TYPE_Q4_K] = unpack_q4_k,                                 \
    [GGML_TYPE_Q5_K] = unpack_q5_k, [GGML_TYPE_Q6_K] = unpack_q6_k,                                 \
    [GGML_TYPE_IQ4_NL] = unpack_iq4_nl, [GGML_TYPE_IQ4_XS] = unpack_iq4_xs,                         \
    [GGML_TYPE_IQ2_XXS] = unpack_iq2_xxs, [GGML_TYPE_IQ2_XS] = unpack_iq2_xs,                       \
    [GGML_TYPE_IQ2_S] = unpack_iq2_s, [GGML_TYPE_IQ3_XXS] = unpack_iq3_xxs,                         \
    [GGML_TYPE_IQ3_S] = unpack_iq3_s, [GGML_TYPE_IQ1_S] = unpack_iq1_s,                             \
    [GGML_TYPE_IQ1_M] = unpack_iq1_m, [GGML_TYPE_TQ1_0] = unpack_tq1_0,                             \
    [GGML_TYPE_TQ2_0] = unpack_tq2_0, [GGML_TYPE_MXFP4] = unpack_mxfp4,                             \
    [NVFP4] = unpack_nvfp4, [Q1_0] = unpack_q1_0,                                                   \
    [Q2_0] = unpack_q2_0,                                                                           \
}
