/* Attention by AVX-512. */

#include "attention.h"

#ifdef ATTENTION_X86

#include <immintrin.h>

#define AVX512_VECTORS
#define TARGET  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")))
#define INLINE  static inline __attribute__((always_inline)) TARGET
#define VECTORS 4
#define ATTEND  ggmodel_attend_avx512

#include "vectors.h"
#include "attention_tiles.h"

#endif
