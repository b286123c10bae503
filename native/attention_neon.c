/* Attention by NEON. */

#include "attention.h"

#ifdef ATTENTION_ARM

#include <arm_neon.h>

#define NEON_VECTORS
#define TARGET
#define INLINE  static inline __attribute__((always_inline)) TARGET
#define VECTORS 4
#define ATTEND  ggmodel_attend_neon

#include "vectors.h"
#include "attention_tiles.h"

#endif
