/* Attention by AVX2. */

#include "attention.h"

#ifdef ATTENTION_X86

#include <immintrin.h>

#define AVX2_VECTORS
#define TARGET  __attribute__((target("avx2,fma,f16c")))
#define INLINE  static inline __attribute__((always_inline)) TARGET
#define VECTORS 2
#define ATTEND  ggmodel_attend_avx2

#include "vectors.h"
#include "attention_tiles.h"

#endif
