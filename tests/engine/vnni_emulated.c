/* The decoder as it is for AVX512-VNNI, for CPUs that lack it: the one instruction that it adds is
 * said in plain C. Compiled with -mavx2 -mfma -mf16c. */
#include <immintrin.h>
#include <stdint.h>

/* 32-bit sums + products of unsigned bytes with signed ones, four at a time. */
static inline __m256i emulated(__m256i sums, __m256i unsigned_bytes, __m256i signed_bytes) {
    int32_t total[8];
    uint8_t a[32];
    int8_t b[32];
    _mm256_storeu_si256((__m256i *)total, sums);
    _mm256_storeu_si256((__m256i *)a, unsigned_bytes);
    _mm256_storeu_si256((__m256i *)b, signed_bytes);
    for (int i = 0; i < 32; i++) total[i / 4] += a[i] * b[i];
    return _mm256_loadu_si256((const __m256i *)total);
}

#undef _mm256_dpbusd_epi32
#define _mm256_dpbusd_epi32 emulated
#define __AVX512VNNI__ 1
#define __AVX512VL__ 1
#define OD_TABLE od_emulated
#include "decoder.h"

int emulated_forward(od_pool *pool, const od_model *model, const od_step *step) {
    return od_emulated.forward(pool, model, step);
}

int emulated_linear(od_pool *pool, const od_linear *layer, const float *input, int rows,
                    float *output) {
    return od_emulated.linear(pool, layer, input, rows, output);
}

void emulated_pack_int8(const int8_t *weights, const int32_t *order, int outputs, int inputs,
                        uint8_t *packed) {
    od_emulated.pack_int8(weights, order, outputs, inputs, packed);
}
