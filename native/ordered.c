/* Products whose sums have one order, whatever else is computed beside them, for every type and machine,
   as custom ops of ggml: see ml/ggml/ordered.py. An element is ggml's own dot product of one row and one
   column, converted alone. */

#define _GNU_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include "ggml-cpu.h"
#include "ggml.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define ROWS 16 /* of weights, that all columns are multiplied with while they are in the core's cache */

typedef const struct ggml_type_traits_cpu * traits_function(enum ggml_type);

static traits_function * traits_of;
static char library_path[4096];

/* The file of the library with ggml's kernels, once found. */
HIDDEN const char * ggmodel_ordered_library(void) {
    return library_path;
}

/* Finds ggml's kernels by one function of the library that has them; false if it lacks them. */
HIDDEN bool ggmodel_use_ordered(void * function) {
#ifdef _WIN32
    HMODULE library;
    DWORD flags = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    if (GetModuleHandleExA(flags, (LPCSTR) function, &library)) {
        traits_of = (traits_function *) GetProcAddress(library, "ggml_get_type_traits_cpu");
        GetModuleFileNameA(library, library_path, sizeof(library_path) - 1);
    }
#else
    Dl_info info;
    void * library = dladdr(function, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library) {
        traits_of = (traits_function *) dlsym(library, "ggml_get_type_traits_cpu");
        strncpy(library_path, info.dli_fname, sizeof(library_path) - 1);
    }
#endif
    return traits_of;
}

/* The type that columns are converted to for weights of a type; −1 without a kernel. */
HIDDEN int ggmodel_column_type(int type) {
    const struct ggml_type_traits_cpu * traits = traits_of ? traits_of((enum ggml_type) type) : NULL;
    return traits && traits->vec_dot ? (int) traits->vec_dot_type : -1;
}

static int64_t part_of(int64_t n, int i, int of) {
    return n * i / of;
}

/* dst I8 [bytes of a column, columns], of F32 x [k, …], in the type that `type` says. */
HIDDEN void ggmodel_convert_columns(struct ggml_tensor * dst, int ith, int nth, void * type) {
    const struct ggml_tensor * x = dst->src[0];
    ggml_from_float_t convert = traits_of((enum ggml_type) (intptr_t) type)->from_float;
    int64_t n = ggml_nrows(x);
    for (int64_t i = part_of(n, ith, nth); i < part_of(n, ith + 1, nth); i++) {
        int64_t a = i % x->ne[1], b = i / x->ne[1] % x->ne[2], c = i / x->ne[1] / x->ne[2];
        const char * from = (const char *) x->data + a * x->nb[1] + b * x->nb[2] + c * x->nb[3];
        convert((const float *) from, (char *) dst->data + i * dst->nb[1], x->ne[0]);
    }
}

/* Where column (a, b, c) of x [k, …] lies: in x itself, or converted and dense. */
static const char * column_of(const struct ggml_tensor * x, const struct ggml_tensor * converted, int64_t a, int64_t b,
                              int64_t c) {
    if (converted) {
        return (const char *) converted->data + ((c * x->ne[2] + b) * x->ne[1] + a) * converted->nb[1];
    }
    return (const char *) x->data + a * x->nb[1] + b * x->nb[2] + c * x->nb[3];
}

/* dst F32 [m, n, b, c], of w [k, m, b', c'], x [k, n, b, c], and x converted, if it has to be. */
HIDDEN void ggmodel_multiply_ordered(struct ggml_tensor * dst, int ith, int nth, void * unused) {
    (void) unused;
    const struct ggml_tensor * w = dst->src[0], * x = dst->src[1], * converted = dst->src[2];
    ggml_vec_dot_t dot = traits_of(w->type)->vec_dot;
    int64_t m = w->ne[1], blocks = (m + ROWS - 1) / ROWS, all = blocks * dst->ne[2] * dst->ne[3];
    for (int64_t at = part_of(all, ith, nth); at < part_of(all, ith + 1, nth); at++) {
        int64_t row = at % blocks * ROWS, end = row + ROWS < m ? row + ROWS : m;
        int64_t b = at / blocks % dst->ne[2], c = at / blocks / dst->ne[2];
        const char * weights = (const char *) w->data + b / (dst->ne[2] / w->ne[2]) * w->nb[2] +
                               c / (dst->ne[3] / w->ne[3]) * w->nb[3];
        for (int64_t j = 0; j < dst->ne[1]; j++) {
            const char * column = column_of(x, converted, j, b, c);
            float * to = (float *) ((char *) dst->data + j * dst->nb[1] + b * dst->nb[2] + c * dst->nb[3]);
            for (int64_t r = row; r < end; r++) {
                dot((int) w->ne[0], to + r, 0, weights + r * w->nb[1], 0, column, 0, 1);
            }
        }
    }
}

/* dst F32 [m, used, tokens], of experts w [k, m, experts], x [k, 1 or more, tokens], x converted or not,
   and ids I32 [used, tokens]. */
HIDDEN void ggmodel_multiply_experts_ordered(struct ggml_tensor * dst, int ith, int nth, void * unused) {
    (void) unused;
    const struct ggml_tensor * w = dst->src[0], * x = dst->src[1], * converted = dst->src[2], * ids = dst->src[3];
    ggml_vec_dot_t dot = traits_of(w->type)->vec_dot;
    int64_t row = part_of(w->ne[1], ith, nth), end = part_of(w->ne[1], ith + 1, nth);
    for (int64_t e = 0; e < w->ne[2] && row < end; e++) {
        for (int64_t token = 0; token < ids->ne[1]; token++) {
            for (int64_t slot = 0; slot < ids->ne[0]; slot++) {
                const char * id = (const char *) ids->data + slot * ids->nb[0] + token * ids->nb[1];
                if (*(const int32_t *) id != e) {
                    continue;
                }
                const char * column = column_of(x, converted, slot % x->ne[1], token, 0);
                float * to = (float *) ((char *) dst->data + slot * dst->nb[1] + token * dst->nb[2]);
                for (int64_t r = row; r < end; r++) {
                    const char * weights = (const char *) w->data + e * w->nb[2] + r * w->nb[1];
                    dot((int) w->ne[0], to + r, 0, weights, 0, column, 0, 1);
                }
            }
        }
    }
}
