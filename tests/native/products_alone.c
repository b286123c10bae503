/* Products by each family of instructions without the library: a line of a type, a number of columns and a digest of
   the results' bits, for each family that the processor has; "rounded" those of rounded columns. Weights, activations
   and codebooks are noise. Operands lie in memory of exactly their size, so that a sanitizer sees what is read beyond.

   Takes the number of a family, "small" or "large", a size of panels, or "rounded"; ends with 2 if the processor has
   none of it. */

#include <stdio.h>
#include <stdlib.h>

#include "formats.h"

uint64_t ggmodel_iq2_xxs[256], ggmodel_iq2_xs[512], ggmodel_iq2_s[1024], ggmodel_iq1[2048];
uint32_t ggmodel_iq3_xxs[256], ggmodel_iq3_s[512];

int ggmodel_use_products(int most);
bool ggmodel_multiplies(int type);
int ggmodel_blocks_of_a_scale(int type);
size_t ggmodel_columns_bytes(int64_t width, int64_t n);
size_t ggmodel_order_values(int64_t columns, int64_t experts);
size_t ggmodel_panel_bytes(void);
void ggmodel_multiply(struct ggml_tensor * dst, int ith, int nth, void * activation);
void ggmodel_finish(struct ggml_tensor * dst, int ith, int nth, void * activation);
void ggmodel_multiply_experts(struct ggml_tensor * dst, int ith, int nth, void * unused);
void ggmodel_sort_experts(struct ggml_tensor * dst, int ith, int nth, void * unused);
void ggmodel_quantize(struct ggml_tensor * dst, int ith, int nth, void * count);
size_t ggmodel_rounded_bytes(int type, int64_t width);
void ggmodel_round(struct ggml_tensor * dst, int ith, int nth, void * unused);

static const struct {
    int number, values, bytes;
} sizes[] = {
    {GGML_TYPE_F32, 1, 4},       {GGML_TYPE_F16, 1, 2},      {GGML_TYPE_BF16, 1, 2},     {GGML_TYPE_Q4_0, 32, 18},
    {GGML_TYPE_Q4_1, 32, 20},    {GGML_TYPE_Q5_0, 32, 22},   {GGML_TYPE_Q5_1, 32, 24},   {GGML_TYPE_Q8_0, 32, 34},
    {GGML_TYPE_Q2_K, 256, 84},   {GGML_TYPE_Q3_K, 256, 110}, {GGML_TYPE_Q4_K, 256, 144}, {GGML_TYPE_Q5_K, 256, 176},
    {GGML_TYPE_Q6_K, 256, 210},  {GGML_TYPE_IQ2_XXS, 256, 66}, {GGML_TYPE_IQ2_XS, 256, 74},
    {GGML_TYPE_IQ3_XXS, 256, 98},
    {GGML_TYPE_IQ1_S, 256, 50},  {GGML_TYPE_IQ4_NL, 32, 18}, {GGML_TYPE_IQ3_S, 256, 110}, {GGML_TYPE_IQ2_S, 256, 82},
    {GGML_TYPE_IQ4_XS, 256, 136}, {GGML_TYPE_IQ1_M, 256, 56}, {GGML_TYPE_TQ1_0, 256, 54}, {GGML_TYPE_TQ2_0, 256, 66},
    {GGML_TYPE_MXFP4, 32, 17},   {NVFP4, 64, 36},            {Q1_0, 128, 18},            {Q2_0, 64, 18},
};

static int of_type(enum ggml_type type) {
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        if (sizes[i].number == (int) type) {
            return (int) i;
        }
    }
    exit(3);
}

size_t ggml_type_size(enum ggml_type type) {
    return (size_t) sizes[of_type(type)].bytes;
}

int64_t ggml_blck_size(enum ggml_type type) {
    return sizes[of_type(type)].values;
}

int64_t ggml_nrows(const struct ggml_tensor * tensor) {
    return tensor->ne[1] * tensor->ne[2] * tensor->ne[3];
}

void ggmodel_read_codebooks(void) {
}

static uint32_t state = 1;

static int noise(int below) {
    state = state * 1664525u + 1013904223u;
    return (int) ((state >> 8) % (uint32_t) below);
}

static void fill(void * to, size_t size, int below, int step) {
    for (size_t i = 0; i < size; i++) {
        ((uint8_t *) to)[i] = (uint8_t) (noise(below) * step);
    }
}

static struct ggml_tensor tensor_of(int type, int64_t width, int64_t rows, int64_t matrices, size_t bytes) {
    struct ggml_tensor t = {0};
    t.type = (enum ggml_type) type;
    t.ne[0] = width, t.ne[1] = rows, t.ne[2] = matrices, t.ne[3] = 1;
    t.nb[1] = bytes / (size_t) rows / (size_t) matrices;
    t.nb[0] = t.nb[1] / (size_t) width;
    t.nb[2] = bytes / (size_t) matrices, t.nb[3] = bytes;
    t.data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (type != GGML_TYPE_I8 && bytes % 64) { /* of exactly its size */
        free(t.data);
        t.data = malloc(bytes);
    }
    return t;
}

static uint64_t digest(const struct ggml_tensor * t) {
    uint64_t sum = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < t->nb[3]; i++) {
        sum = (sum ^ ((const uint8_t *) t->data)[i]) * UINT64_C(0x100000001b3);
    }
    return sum;
}

static struct ggml_tensor floats_of(int64_t width, int64_t n) {
    struct ggml_tensor t = tensor_of(GGML_TYPE_F32, width, n, 1, (size_t) (4 * width * n));
    for (int64_t j = 0; j < width * n; j++) {
        ((float *) t.data)[j] = (float) (noise(2001) - 1000) / 128;
    }
    return t;
}

/* The digest of activation(x + bias) * factor + residual. */
static uint64_t finished(int64_t width, int64_t n, int activation, int threads) {
    state = 1;
    struct ggml_tensor x = floats_of(width, n), bias = floats_of(width, 1), residual = floats_of(width, n);
    struct ggml_tensor factor = floats_of(width, n), y = floats_of(width, n);
    y.src[0] = &x, y.src[1] = activation % 2 ? &bias : NULL, y.src[2] = width % 2 ? &factor : NULL;
    y.src[3] = activation % 3 ? &residual : NULL;
    for (int t = 0; t < threads; t++) {
        ggmodel_finish(&y, t, threads, (void *) (intptr_t) activation);
    }
    uint64_t sum = digest(&y);
    free(x.data), free(bias.data), free(factor.data), free(residual.data), free(y.data);
    return sum;
}

/* The digest of products of a type with n columns, `rounded` or not, and of their ends; experts' if there are some. */
static uint64_t multiplied(int i, int64_t width, int64_t rows, int64_t n, int64_t experts, int threads, bool rounded) {
    int64_t matrices = experts ? experts : 1, used = 2;
    size_t bytes = (size_t) (width / sizes[i].values * rows * matrices) * (size_t) sizes[i].bytes;
    state = 1;
    struct ggml_tensor w = tensor_of(sizes[i].number, width, rows, matrices, bytes);
    fill(w.data, bytes, 60, 1); /* no byte is the top of an infinite half */
    struct ggml_tensor x = tensor_of(GGML_TYPE_F32, width, experts ? 1 : n, experts ? n : 1, (size_t) (4 * width * n));
    for (int64_t j = 0; j < width * n; j++) {
        ((float *) x.data)[j] = (float) (noise(2001) - 1000) / 512;
    }
    size_t panel = ggmodel_panel_bytes();
    struct ggml_tensor memory = tensor_of(GGML_TYPE_I8, (int64_t) panel, threads, 1, panel * (size_t) threads + 32);
    void * begin = memory.data;
    memory.data = (char *) begin + 32; /* ggml promises no more */
    memory.nb[1] = panel;
    struct ggml_tensor ids = {0}, order = {0}, columns = {0};
    int64_t slots = n;
    if (experts) {
        ids = tensor_of(GGML_TYPE_I32, used, n, 1, (size_t) (4 * used * n));
        for (int64_t j = 0; j < n; j++) {
            int first = noise((int) experts);
            ((int32_t *) ids.data)[2 * j] = first;
            ((int32_t *) ids.data)[2 * j + 1] = (first + 1) % (int) experts;
        }
        size_t values = ggmodel_order_values(used * n, experts);
        order = tensor_of(GGML_TYPE_I32, (int64_t) values, 1, 1, 4 * values);
        order.src[0] = &ids, order.src[1] = &w;
        ggmodel_sort_experts(&order, 0, 1, NULL);
        slots = (int64_t) values - experts - 1;
    }
    int together = ggmodel_blocks_of_a_scale(sizes[i].number);
    if (together) {
        size_t size = ggmodel_columns_bytes(width, slots);
        columns = tensor_of(GGML_TYPE_I8, (int64_t) size, 1, 1, size);
        columns.src[0] = &x;
        if (experts) {
            columns.src[1] = &order, columns.src[2] = &ids, columns.src[3] = &w;
        }
        for (int t = 0; t < threads; t++) {
            ggmodel_quantize(&columns, t, threads, (void *) (intptr_t) together);
        }
    }
    if (rounded) {
        size_t size = ggmodel_rounded_bytes(sizes[i].number, width);
        columns = tensor_of(GGML_TYPE_I8, (int64_t) size, n, 1, size * (size_t) n);
        columns.src[0] = &x;
        for (int t = 0; t < threads; t++) {
            ggmodel_round(&columns, t, threads, NULL);
        }
    }
    int64_t results = experts ? used * n : n;
    size_t size = (size_t) (4 * rows * results);
    struct ggml_tensor y = tensor_of(GGML_TYPE_F32, rows, experts ? used : n, experts ? n : 1, size);
    struct ggml_tensor bias = floats_of(rows, 1), factor = floats_of(rows, n), residual = floats_of(rows, n);
    y.src[0] = &w, y.src[1] = together || rounded ? &columns : &x;
    y.src[2] = &memory, y.src[3] = experts ? &order : &bias;
    y.src[4] = n % 3 ? NULL : &factor, y.src[5] = n % 2 ? NULL : &residual;
    for (int t = 0; t < threads; t++) {
        (experts ? ggmodel_multiply_experts : ggmodel_multiply)(&y, t, threads, (void *) (intptr_t) (n % 4));
    }
    uint64_t sum = digest(&y);
    free(bias.data), free(factor.data), free(residual.data), free(w.data), free(x.data), free(begin);
    free(ids.data), free(order.data), free(columns.data), free(y.data);
    return sum;
}

int main(int count, char ** arguments) {
    int family = count > 1 ? atoi(arguments[1]) : 0;
    const char * way = count > 2 ? arguments[2] : "";
    if (ggmodel_use_products(family) != family) {
        return 2;
    }
    ggmodel_panel = !strcmp(way, "small") ? (struct panel_size) {48, 16} : (struct panel_size) {ROWS, BLOCKS};
    fill(ggmodel_iq2_xxs, sizeof(ggmodel_iq2_xxs), 63, 1);
    fill(ggmodel_iq2_xs, sizeof(ggmodel_iq2_xs), 63, 1);
    fill(ggmodel_iq2_s, sizeof(ggmodel_iq2_s), 63, 1);
    fill(ggmodel_iq3_xxs, sizeof(ggmodel_iq3_xxs), 63, 1);
    fill(ggmodel_iq3_s, sizeof(ggmodel_iq3_s), 16, 1);
    fill(ggmodel_iq1, sizeof(ggmodel_iq1), 3, 8);
    static const int64_t shapes[][2] = {{256, 1}, {768, 37}, {2304, 20}, {384, 33}};
    if (!strcmp(way, "rounded")) {
        for (int i = 1; i < 3; i++) { /* F16 and BF16 */
            for (int n = 1; n < 33 && ggmodel_rounded_bytes(sizes[i].number, 32); n += n < 9 ? 1 : 11) {
                for (int s = 0; s < 4; s++) {
                    uint64_t sum = multiplied(i, shapes[s][0], shapes[s][1], n, 0, 1 + n % 2, true);
                    printf("%d %d %d %016llx\n", sizes[i].number, s, n, (unsigned long long) sum);
                }
            }
        }
        return 0;
    }
    for (int activation = 0; activation < 6; activation++) {
        for (int64_t width = 1; width < 70; width += 17) {
            unsigned long long sum = finished(width, 1 + width % 5, activation, 1 + activation % 2);
            printf("ends %d %d %016llx\n", activation, (int) width, sum);
        }
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        for (int s = 0; s < 4; s++) {
            if (shapes[s][0] % sizes[i].values) {
                continue;
            }
            for (int n = 1; n < 41; n += n < 9 ? 1 : 15) {
                uint64_t sum = multiplied((int) i, shapes[s][0], shapes[s][1], n, 0, 1 + n % 2, false);
                printf("%d %d %d %016llx\n", sizes[i].number, s, n, (unsigned long long) sum);
            }
        }
        uint64_t sum = multiplied((int) i, 256, 19, 23, 5, 2, false);
        printf("%d experts %016llx\n", sizes[i].number, (unsigned long long) sum);
    }
    return 0;
}
