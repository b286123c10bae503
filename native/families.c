/* Types of weights and families of instructions. */

#include "products.h"

#if defined(ON_X86) || defined(ON_ARM)

#ifdef ON_X86
#include <cpuid.h>
#include <sys/syscall.h>
#else
#include <sys/auxv.h>
#endif
#include <unistd.h>

static const struct type types[] = {
    {GGML_TYPE_Q8_0, IN_ORDER, 128, 255, false, false, false},
    {GGML_TYPE_Q4_0, BY_HALVES, 8, 15, false, false, false},
    {GGML_TYPE_Q4_1, BY_HALVES, 0, 15, false, false, true},
    {GGML_TYPE_Q5_0, BY_HALVES, 16, 31, false, false, false},
    {GGML_TYPE_Q5_1, BY_HALVES, 0, 31, false, false, true},
    {GGML_TYPE_Q2_K, IN_ORDER, 0, 45, true, false, true, true},
    {GGML_TYPE_Q3_K, IN_ORDER, 128, 252, true, false, false, true},
    {GGML_TYPE_Q4_K, BY_ALTERNATES, 0, 15, true, false, true},
    {GGML_TYPE_Q5_K, BY_ALTERNATES, 0, 31, true, false, true},
    {GGML_TYPE_Q6_K, IN_ORDER, 32, 63, true, true, false},
    {GGML_TYPE_IQ4_NL, BY_HALVES, 128, 241, false, false, false},
    {GGML_TYPE_IQ4_XS, BY_HALVES, 128, 241, true, false, false},
    {GGML_TYPE_IQ2_XXS, IN_ORDER, 64, 127, true, false, false},
    {GGML_TYPE_IQ2_XS, IN_ORDER, 64, 127, true, true, false},
    {GGML_TYPE_IQ2_S, IN_ORDER, 64, 127, true, true, false},
    {GGML_TYPE_IQ3_XXS, IN_ORDER, 64, 127, true, false, false},
    {GGML_TYPE_IQ3_S, IN_ORDER, 16, 31, true, false, false},
    {GGML_TYPE_IQ1_S, IN_ORDER, 9, 18, true, false, false},
    {GGML_TYPE_IQ1_M, IN_ORDER, 9, 18, true, true, false},
    {GGML_TYPE_TQ1_0, IN_ORDER, 1, 2, true, false, false, true},
    {GGML_TYPE_TQ2_0, IN_ORDER, 1, 3, true, false, false, true},
    {GGML_TYPE_MXFP4, BY_HALVES, 12, 24, false, false, false},
    {NVFP4, IN_ORDER, 12, 24, false, true, false},
    {Q1_0, IN_ORDER, 1, 2, false, false, false},
    {Q2_0, IN_ORDER, 1, 3, false, false, false},
};

HIDDEN const struct type * ggmodel_type_of(int type) {
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        if (types[i].number == type) {
            return types + i;
        }
    }
    return NULL;
}

HIDDEN const struct family * ggmodel_family;
HIDDEN struct panel_size ggmodel_panel = {48, 512 / BLOCK};

#ifdef ON_X86

static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx_vnni(void) {
    unsigned a, b, c, d;
    return has_avx2() && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}

static bool has_amx(void) {
    unsigned a, b, c, d;
    bool tiles = has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 3) == 3;
    return tiles && !syscall(SYS_arch_prctl, 0x1023, 18); /* ARCH_REQ_XCOMP_PERM of XFEATURE_XTILEDATA */
}

#else

static bool has_dot_product(void) {
    return getauxval(AT_HWCAP) >> 20 & 1; /* HWCAP_ASIMDDP */
}

#endif

/* Families by their number, which ml/ggml/products.py knows. */
static const struct {
    int number;
    bool (*has)(void);
    const struct family * family;
} families[] = {
#ifdef ON_X86
    {1, has_avx2, &ggmodel_by_avx2},
    {2, has_avx_vnni, &ggmodel_by_avx_vnni},
    {3, has_avx512, &ggmodel_by_avx512},
    {4, has_amx, &ggmodel_by_amx},
#else
    {5, has_dot_product, &ggmodel_by_neon},
#endif
};

/* Chooses the last family of those up to a number that the processor has; returns its number, 0 for none. */
HIDDEN int ggmodel_use_products(int most) {
    const struct family * family = NULL;
    int number = 0;
    for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++) {
        if (families[i].number <= most && families[i].has()) {
            number = families[i].number;
            family = families[i].family;
        }
    }
    if (family) {
        ggmodel_read_codebooks();
    }
#ifdef _SC_LEVEL1_DCACHE_SIZE /* 0 if it is not known */
    long nearest = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    if (nearest > 0 && nearest < 48 << 10) {
        ggmodel_panel = (struct panel_size) {ROWS, BLOCKS};
    }
#endif
    ggmodel_family = family;
    return number;
}

#endif
