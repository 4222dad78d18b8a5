/* Eight floats at a time, and the few functions of them that a decoder needs.
 *
 * Every function does the same operations in the same order for the same row, whatever else is
 * computed beside it: that is what makes the decoder batch-invariant. The files are compiled without
 * contraction of a * b + c, so that the compiler cannot round one copy of a loop otherwise than
 * another. */
#ifndef OUTRIDER_VECTOR_H
#define OUTRIDER_VECTOR_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define LANES 8

typedef float v8f __attribute__((vector_size(32), aligned(4)));
typedef int32_t v8i __attribute__((vector_size(32), aligned(4)));

#define INLINE static inline __attribute__((always_inline))

INLINE v8f load8(const float *p) { return *(const v8f *)p; }
INLINE void store8(float *p, v8f v) { *(v8f *)p = v; }
INLINE v8f splat8(float x) { return (v8f){x, x, x, x, x, x, x, x}; }

INLINE v8f fma8(v8f a, v8f b, v8f c) {
#if defined(__FMA__)
    return (v8f)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

INLINE v8f max8(v8f a, v8f b) {
    v8i greater = a > b;
    return (v8f)(((v8i)a & greater) | ((v8i)b & ~greater));
}

INLINE float sum8(v8f v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

INLINE float peak8(v8f v) {
    float most = v[0];
    for (int i = 1; i < LANES; i++) most = v[i] > most ? v[i] : most;
    return most;
}

/* e^x, within 2 units in the last place; 0 below -87.3, as for a masked position. */
INLINE v8f exp8(v8f x) {
    v8i alive = x > splat8(-87.3f);
    x = max8(x, splat8(-87.3f));
    x = -max8(-x, splat8(-88.3f));
    v8f n = (x * splat8(1.44269504f) + splat8(12582912.0f)) - splat8(12582912.0f);
    v8f r = (x - n * splat8(0.693359375f)) - n * splat8(-2.12194440e-4f);
    v8f p = splat8(1.9875691500e-4f);
    p = p * r + splat8(1.3981999507e-3f);
    p = p * r + splat8(8.3334519073e-3f);
    p = p * r + splat8(4.1665795894e-2f);
    p = p * r + splat8(1.6666665459e-1f);
    p = p * r + splat8(5.0000001201e-1f);
    p = p * (r * r) + r + splat8(1.0f);
    v8i power = (__builtin_convertvector(n, v8i) + 127) << 23;
    return (v8f)((v8i)(p * (v8f)power) & alive);
}

/* x * sigmoid(x) (Elfwing et al., 2017). */
INLINE v8f silu8(v8f x) { return x / (splat8(1.0f) + exp8(-x)); }

/* The tanh form of GELU (Hendrycks and Gimpel, 2016): x * sigmoid(2u) with u its usual argument. */
INLINE v8f gelu8(v8f x) {
    v8f u = splat8(1.59576912f) * (x + splat8(0.044715f) * x * x * x);
    return x / (splat8(1.0f) + exp8(-u));
}

/* cap * tanh(x / cap). */
INLINE v8f softcap8(v8f x, float cap) {
    v8f e = exp8(x * splat8(2.0f / cap));
    return splat8(cap) - splat8(2.0f * cap) / (e + splat8(1.0f));
}

#if defined(__F16C__)
INLINE v8f from_half8(const uint16_t *p) {
    return (v8f)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
INLINE void to_half8(uint16_t *p, v8f v) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}
#else
INLINE float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff, bits;
    float value;
    if (rest >= 0x7c00) {
        bits = sign | 0x7f800000 | (rest & 0x3ff) << 13;
    } else if (rest >= 0x400) {
        bits = sign | ((rest << 13) + 0x38000000);
    } else {
        value = (float)rest * 5.9604644775390625e-8f;
        return sign ? -value : value;
    }
    memcpy(&value, &bits, 4);
    return value;
}
INLINE uint16_t half_from_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return sign | 0x7e00;
    if (rest >= 0x47800000) return sign | 0x7c00;
    if (rest < 0x38800000) { /* subnormal: let the float unit round at 2^-24 */
        float magnitude;
        memcpy(&magnitude, &rest, 4);
        return sign | (uint16_t)lrintf(magnitude * 16777216.0f);
    }
    rest += 0xfff + (rest >> 13 & 1);
    return rest >= 0x47800000 ? sign | 0x7c00 : sign | (uint16_t)((rest - 0x38000000) >> 13);
}
INLINE v8f from_half8(const uint16_t *p) {
    v8f v;
    for (int i = 0; i < LANES; i++) v[i] = half_to_float(p[i]);
    return v;
}
INLINE void to_half8(uint16_t *p, v8f v) {
    for (int i = 0; i < LANES; i++) p[i] = half_from_float(v[i]);
}
#endif

#endif
