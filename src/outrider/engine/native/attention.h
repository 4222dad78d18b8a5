/* Attention of the new tokens of one sequence over its keys and values, one key-value head at a
 * time: softmax in one pass over tiles of 32 positions (Milakov and Gimelshein, 2018). Tiles begin
 * at multiples of 32, so that a token's result does not depend on the tokens computed beside it. */
#ifndef OUTRIDER_ATTENTION_H
#define OUTRIDER_ATTENTION_H
#include "native.h"
#include "vector.h"

#define TILE 32
#define MAX_HEAD_DIM 256
#define QUERIES 16 /* (token, head) pairs that share one pass over the keys */

typedef struct {
    float keys[TILE * MAX_HEAD_DIM];
    float values[TILE * MAX_HEAD_DIM];
    float sums[QUERIES * MAX_HEAD_DIM];
    float queries[QUERIES * MAX_HEAD_DIM];
    float peaks[QUERIES];
    float totals[QUERIES];
} attention_scratch;

static void widen(const uint16_t *halves, int count, int head_dim, float *floats) {
    for (int64_t i = 0; i < (int64_t)count * head_dim; i += LANES)
        store8(floats + i, from_half8(halves + i));
}

/* Products of one query with 8 keys. */
INLINE v8f products8(const float *query, const float *keys, int head_dim) {
    v8f sums[LANES];
    for (int j = 0; j < LANES; j++) sums[j] = splat8(0.0f);
    for (int d = 0; d < head_dim; d += LANES) {
        v8f q = load8(query + d);
        for (int j = 0; j < LANES; j++) sums[j] = fma8(q, load8(keys + j * head_dim + d), sums[j]);
    }
#if defined(__AVX2__)
    __m256 a = _mm256_hadd_ps((__m256)sums[0], (__m256)sums[1]);
    __m256 b = _mm256_hadd_ps((__m256)sums[2], (__m256)sums[3]);
    __m256 c = _mm256_hadd_ps((__m256)sums[4], (__m256)sums[5]);
    __m256 d = _mm256_hadd_ps((__m256)sums[6], (__m256)sums[7]);
    a = _mm256_hadd_ps(a, b);
    c = _mm256_hadd_ps(c, d);
    __m256 low = _mm256_permute2f128_ps(a, c, 0x20), high = _mm256_permute2f128_ps(a, c, 0x31);
    return (v8f)_mm256_add_ps(low, high);
#else
    v8f result;
    for (int j = 0; j < LANES; j++) result[j] = sum8(sums[j]);
    return result;
#endif
}

/* sums[0 .. 8 * N) += the weighted sum of the values of positions [low, high). */
INLINE void weigh_values(const int N, const float *weights, const float *values, int low, int high,
                         int head_dim, float *sums) {
    v8f parts[4];
    for (int i = 0; i < N; i++) parts[i] = load8(sums + i * LANES);
    for (int j = low; j < high; j++) {
        v8f weight = splat8(weights[j]);
        for (int i = 0; i < N; i++)
            parts[i] = fma8(weight, load8(values + j * head_dim + i * LANES), parts[i]);
    }
    for (int i = 0; i < N; i++) store8(sums + i * LANES, parts[i]);
}

/* One tile for one query, which sees positions [low, high) of it. */
static void attend_tile(attention_scratch *s, int query, int low, int high, int head_dim,
                        float softcap) {
    float weights[TILE];
    v8f peak = splat8(-INFINITY);
    const v8i lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    for (int j = 0; j < high; j += LANES) {
        v8f score = products8(s->queries + query * head_dim, s->keys + j * head_dim, head_dim);
        if (softcap > 0.0f) score = softcap8(score, softcap);
        v8i at = lanes + j;
        v8i seen = (at >= low) & (at < high);
        score = (v8f)(((v8i)score & seen) | ((v8i)splat8(-INFINITY) & ~seen));
        store8(weights + j, score);
        peak = max8(peak, score);
    }
    float before = s->peaks[query], most = peak8(peak);
    if (most < before) most = before;
    float *sums = s->sums + query * head_dim;
    if (most > before) {
        v8f shrink = exp8(splat8(before - most));
        for (int d = 0; d < head_dim; d += LANES) store8(sums + d, load8(sums + d) * shrink);
        s->totals[query] *= shrink[0];
        s->peaks[query] = most;
    }
    v8f total = splat8(0.0f);
    for (int j = 0; j < high; j += LANES) {
        v8f weight = exp8(load8(weights + j) - splat8(most));
        store8(weights + j, weight);
        total += weight;
    }
    s->totals[query] += sum8(total);
    int d = 0;
    for (; d + 4 * LANES <= head_dim; d += 4 * LANES)
        weigh_values(4, weights, s->values + d, low, high, head_dim, sums + d);
    for (; d < head_dim; d += LANES)
        weigh_values(1, weights, s->values + d, low, high, head_dim, sums + d);
}

/* The queries of one sequence by the heads that share one key-value head. */
typedef struct {
    const float *queries; /* of the first token and head; heads lie side by side */
    int64_t query_stride; /* from token to token */
    float *results;       /* likewise */
    int64_t result_stride;
    const uint16_t *keys; /* [positions, head_dim] */
    const uint16_t *values;
    int start; /* position of the first token */
    int group; /* heads */
    int head_dim;
    int window; /* 0, or how many positions a token sees */
    float scale;
    float softcap;
} attention;

/* Attend for the (token, head) pairs from `from` on, `count` of them, at most QUERIES. */
static void attend(attention_scratch *s, const attention *a, int from, int count) {
    int head_dim = a->head_dim, group = a->group, window = a->window;
    for (int q = 0; q < count; q++) {
        int token = (from + q) / group, head = (from + q) % group;
        const float *query = a->queries + token * a->query_stride + head * head_dim;
        for (int d = 0; d < head_dim; d += LANES) {
            store8(s->queries + q * head_dim + d, load8(query + d) * splat8(a->scale));
            store8(s->sums + q * head_dim + d, splat8(0.0f));
        }
        s->peaks[q] = -INFINITY;
        s->totals[q] = 0.0f;
    }
    int first = a->start + from / group, end = a->start + (from + count - 1) / group + 1;
    int tile = window && first + 1 > window ? (first + 1 - window) / TILE * TILE : 0;
    for (; tile < end; tile += TILE) {
        int filled = end - tile < TILE ? end - tile : TILE;
        widen(a->keys + (int64_t)tile * head_dim, filled, head_dim, s->keys);
        widen(a->values + (int64_t)tile * head_dim, filled, head_dim, s->values);
        /* Products are computed by eights: what lies behind the last key must be finite. */
        int rounded = (filled + LANES - 1) / LANES * LANES;
        memset(s->keys + filled * head_dim, 0,
               (size_t)((rounded - filled) * head_dim) * sizeof(float));
        for (int q = 0; q < count; q++) {
            int position = a->start + (from + q) / group;
            int high = position + 1 - tile < TILE ? position + 1 - tile : TILE;
            int low = window && position + 1 - window > tile ? position + 1 - window - tile : 0;
            if (low < high) attend_tile(s, q, low, high, head_dim, a->softcap);
        }
    }
    for (int q = 0; q < count; q++) {
        int token = (from + q) / group, head = (from + q) % group;
        float *result = a->results + token * a->result_stride + head * head_dim;
        v8f inverse = splat8(1.0f / s->totals[q]);
        for (int d = 0; d < head_dim; d += LANES)
            store8(result + d, load8(s->sums + q * head_dim + d) * inverse);
    }
}

#endif
