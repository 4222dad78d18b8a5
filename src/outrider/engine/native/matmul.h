/* Integer matrix products of few rows with many weights, each weight read from memory once.
 *
 * Weights lie in panels of 16 outputs. A panel is a sequence of groups of 32 inputs, read from front
 * to back:
 *   int8, 512 bytes: steps of PAIR inputs, each [2 vectors][8 outputs][PAIR inputs];
 *   int4, 320 bytes: 4 steps of [2 vectors][8 outputs][4 inputs], the low halves of the bytes being
 *     inputs 8s to 8s+3 of the group and the high halves 8s+4 to 8s+7; then 16 steps and 16 offsets,
 *     float16.
 *
 * Activations are rounded to int8 per row and group, by the largest of the group. Sums within a
 * group are whole numbers and exact; across groups they are added in float32 in the order of the
 * groups. So a result depends on its own row alone. */
#ifndef OUTRIDER_MATMUL_H
#define OUTRIDER_MATMUL_H
#include "native.h"
#include "vector.h"

#define PANEL 16
#define GROUP 32
#define INT8_BYTES (PANEL * GROUP)
#define INT4_BYTES (PANEL * GROUP / 2 + PANEL * 4)
#define BLOCK 4         /* rows that share one pass over a panel */
#define RESIDENT 8192   /* bytes of a panel that stay in the first-level cache between passes,
                         * with as many that are fetched for the next ones, and the activations */
#define UNROLL _Pragma("GCC unroll 16")
#define STRIP 128       /* rows that a panel is used for before it is read again */

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define DOT_INSTRUCTION 1
#else
#define DOT_INSTRUCTION 0
#endif
#if DOT_INSTRUCTION
#define PAIR 4
#else
#define PAIR 2
#endif

/* Rows of activations, rounded. `bytes` and `words` hold the same numbers. */
typedef struct {
    int8_t *bytes;   /* [rows, padded] */
    int16_t *words;  /* [rows, padded] */
    float *scales;   /* [rows, groups] */
    int32_t *sums;   /* [rows, groups], of the numbers in a group */
    float *totals;   /* [rows, groups], scales * sums */
    int padded;
    int groups;
} activations;

static inline int groups_of(int inputs) { return (inputs + GROUP - 1) / GROUP; }
static inline int panels_of(int outputs) { return (outputs + PANEL - 1) / PANEL; }

/* A group of small whole numbers in 8 and in 16 bits. */
INLINE void narrow(const v8i *whole, int8_t *bytes, int16_t *words) {
#if defined(__AVX2__)
    __m256i halves[2];
    for (int i = 0; i < 2; i++) {
        /* Packing works within 128 bits, so the four quarters come out of order. */
        __m256i packed = _mm256_packs_epi32((__m256i)whole[2 * i], (__m256i)whole[2 * i + 1]);
        halves[i] = _mm256_permute4x64_epi64(packed, 0xd8);
        _mm256_storeu_si256((__m256i *)(words + i * 16), halves[i]);
    }
    __m256i packed = _mm256_packs_epi16(halves[0], halves[1]);
    _mm256_storeu_si256((__m256i *)bytes, _mm256_permute4x64_epi64(packed, 0xd8));
#else
    for (int i = 0; i < GROUP; i++) {
        bytes[i] = (int8_t)whole[i / LANES][i % LANES];
        words[i] = (int16_t)whole[i / LANES][i % LANES];
    }
#endif
}

/* One row of `a` from `inputs` floats; what is missing to a whole group counts as 0, and so does a
 * group of nothing but numbers too small to divide by. A group with a number that is not finite gets
 * a scale of NaN, so that nobody takes the results for good ones. */
static void round_row(const activations *a, int row, const float *x, int inputs) {
    int8_t *bytes = a->bytes + (int64_t)row * a->padded;
    int16_t *words = a->words + (int64_t)row * a->padded;
    for (int g = 0; g < a->groups; g++) {
        float group[GROUP] = {0};
        int count = inputs - g * GROUP < GROUP ? inputs - g * GROUP : GROUP;
        memcpy(group, x + g * GROUP, (size_t)count * sizeof(float));
        v8f most = splat8(0.0f), faults = splat8(0.0f);
        for (int i = 0; i < GROUP; i += LANES) {
            v8f v = load8(group + i);
            most = max8(most, max8(v, -v));
            faults += v - v;
        }
        float peak = peak8(most), scale = peak / 127.0f + sum8(faults);
        v8f inverse = splat8(peak > 1e-36f ? 127.0f / peak : 0.0f);
        v8i total = {0}, whole[GROUP / LANES];
        for (int i = 0; i < GROUP; i += LANES) {
            /* Adding 1.5 * 2^23 rounds to the nearest whole number, ties to even, and leaves it in
             * the lowest bits. */
            v8f v = load8(group + i) * inverse + splat8(12582912.0f);
            whole[i / LANES] = (v8i)v << 24 >> 24;
            total += whole[i / LANES];
        }
        narrow(whole, bytes + g * GROUP, words + g * GROUP);
        int32_t sum = 0;
        for (int j = 0; j < LANES; j++) sum += total[j];
        a->scales[(int64_t)row * a->groups + g] = scale;
        a->sums[(int64_t)row * a->groups + g] = sum;
        a->totals[(int64_t)row * a->groups + g] = scale * (float)sum;
    }
}

INLINE v8i splat_bytes(const void *p) {
    int32_t word;
    memcpy(&word, p, 4);
#if defined(__AVX2__)
    return (v8i)_mm256_set1_epi32(word);
#else
    return (v8i){word, word, word, word, word, word, word, word};
#endif
}

/* `lines` cache lines from `p` on. */
INLINE void prefetch(const uint8_t *p, int lines) {
    for (int i = 0; i < lines; i++) __builtin_prefetch(p + i * 64, 0, 3);
}

#if defined(__AVX2__) && !DOT_INSTRUCTION
/* The innermost steps are written out, since compilers run out of registers over them and then keep
 * sums in memory. Two vectors of sums += products of pairs, or of bytes in pairs, with what lies at x
 * in four bytes. */
INLINE void add_words(v8i *sum0, v8i *sum1, __m256i w0, __m256i w1, const int16_t *x) {
    __m256i t0, t1;
    __asm__("vpbroadcastd %[x], %[t0]\n\t"
            "vpmaddwd %[t0], %[w0], %[t1]\n\t"
            "vpmaddwd %[t0], %[w1], %[t0]\n\t"
            "vpaddd %[t1], %[sum0], %[sum0]\n\t"
            "vpaddd %[t0], %[sum1], %[sum1]"
            : [sum0] "+x"(*sum0), [sum1] "+x"(*sum1), [t0] "=&x"(t0), [t1] "=&x"(t1)
            : [w0] "x"(w0), [w1] "x"(w1), [x] "m"(*(const int32_t(*)[1])x));
}

INLINE void add_bytes(__m256i *sum0, __m256i *sum1, __m256i w0, __m256i w1, const int8_t *x) {
    __m256i t0, t1;
    __asm__("vpbroadcastd %[x], %[t0]\n\t"
            "vpmaddubsw %[t0], %[w0], %[t1]\n\t"
            "vpmaddubsw %[t0], %[w1], %[t0]\n\t"
            "vpaddw %[t1], %[sum0], %[sum0]\n\t"
            "vpaddw %[t0], %[sum1], %[sum1]"
            : [sum0] "+x"(*sum0), [sum1] "+x"(*sum1), [t0] "=&x"(t0), [t1] "=&x"(t1)
            : [w0] "x"(w0), [w1] "x"(w1), [x] "m"(*(const int32_t(*)[1])x));
}
#endif

/* sums[r][v] = whole-number products of one group of a panel with R rows. */
INLINE void group_int8(const int R, const uint8_t *w, const activations *a, int64_t row, int g,
                       v8i sums[BLOCK][2]) {
#if DOT_INSTRUCTION
    const int8_t *x = a->bytes + row * a->padded + g * GROUP;
    UNROLL for (int r = 0; r < R; r++) {
        /* The instruction wants its weights from 0 on, so they are stored with 128 added. */
        int32_t excess = -128 * a->sums[(row + r) * a->groups + g];
        sums[r][0] = sums[r][1] = (v8i)_mm256_set1_epi32(excess);
    }
#else
    const int16_t *x = a->words + row * a->padded + g * GROUP;
    UNROLL for (int r = 0; r < R; r++) sums[r][0] = sums[r][1] = (v8i){0};
#endif
#pragma GCC unroll 1
    for (int s = 0; s < GROUP / PAIR; s++) {
        const uint8_t *step = w + s * PANEL * PAIR;
#if DOT_INSTRUCTION
        __m256i w0 = _mm256_loadu_si256((const __m256i *)step);
        __m256i w1 = _mm256_loadu_si256((const __m256i *)(step + 32));
        UNROLL for (int r = 0; r < R; r++) {
            __m256i pairs = (__m256i)splat_bytes(x + (int64_t)r * a->padded + s * PAIR);
            sums[r][0] = (v8i)_mm256_dpbusd_epi32((__m256i)sums[r][0], w0, pairs);
            sums[r][1] = (v8i)_mm256_dpbusd_epi32((__m256i)sums[r][1], w1, pairs);
        }
#elif defined(__AVX2__)
        __m256i w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)step));
        __m256i w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(step + 16)));
        UNROLL for (int r = 0; r < R; r++)
            add_words(&sums[r][0], &sums[r][1], w0, w1, x + (int64_t)r * a->padded + s * PAIR);
#else
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int v = 0; v < 2; v++)
                for (int o = 0; o < LANES; o++)
                    for (int i = 0; i < PAIR; i++)
                        sums[r][v][o] += (int8_t)step[(v * LANES + o) * PAIR + i] *
                                         x[(int64_t)r * a->padded + s * PAIR + i];
#endif
    }
}

INLINE void group_int4(const int R, const uint8_t *w, const activations *a, int64_t row, int g,
                       v8i sums[BLOCK][2]) {
    const int8_t *x = a->bytes + row * a->padded + g * GROUP;
#if defined(__AVX2__)
    const __m256i low = _mm256_set1_epi8(15);
    __m256i totals[BLOCK][2];
    UNROLL for (int r = 0; r < R; r++) totals[r][0] = totals[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++) {
        __m256i w0 = _mm256_loadu_si256((const __m256i *)(w + s * 64));
        __m256i w1 = _mm256_loadu_si256((const __m256i *)(w + s * 64 + 32));
        __m256i halves[4] = {_mm256_and_si256(w0, low), _mm256_and_si256(w1, low),
                             _mm256_and_si256(_mm256_srli_epi16(w0, 4), low),
                             _mm256_and_si256(_mm256_srli_epi16(w1, 4), low)};
        UNROLL for (int r = 0; r < R; r++) {
            const int8_t *quads = x + (int64_t)r * a->padded + s * 8;
#if DOT_INSTRUCTION
            UNROLL for (int h = 0; h < 4; h++)
                totals[r][h % 2] = _mm256_dpbusd_epi32(totals[r][h % 2], halves[h],
                                                       (__m256i)splat_bytes(quads + h / 2 * 4));
#else
            /* 8 times 2 products of 0..15 and -127..127 fit into 16 bits: 30480. */
            add_bytes(&totals[r][0], &totals[r][1], halves[0], halves[1], quads);
            add_bytes(&totals[r][0], &totals[r][1], halves[2], halves[3], quads + 4);
#endif
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int v = 0; v < 2; v++)
#if DOT_INSTRUCTION
            sums[r][v] = (v8i)totals[r][v];
#else
            sums[r][v] = (v8i)_mm256_madd_epi16(totals[r][v], _mm256_set1_epi16(1));
#endif
#else
    UNROLL for (int r = 0; r < R; r++) {
        UNROLL for (int v = 0; v < 2; v++) {
            sums[r][v] = (v8i){0};
            for (int s = 0; s < 4; s++) {
                for (int o = 0; o < LANES; o++) {
                    for (int i = 0; i < 4; i++) {
                        int both = w[(s * 2 + v) * 32 + o * 4 + i];
                        const int8_t *at = x + (int64_t)r * a->padded + s * 8 + i;
                        sums[r][v][o] += (both & 15) * at[0] + (both >> 4) * at[4];
                    }
                }
            }
        }
    }
#endif
}

/* Add `groups` groups of a panel, `first` being the first, to `results` of R rows from `row` on. */
INLINE void pass_of(const int format, const int R, const uint8_t *w, const activations *a,
                    int64_t row, int first, int groups, float *results, const uint8_t *ahead,
                    int lines) {
    for (int g = first; g < first + groups; g++, ahead += lines * 64) {
        prefetch(ahead, lines);
        /* Results stay in memory: the registers are for the sums of the group. */
        __asm__ volatile("" : : : "memory");
        v8i sums[BLOCK][2];
        if (format == OD_INT8) {
            group_int8(R, w, a, row, g, sums);
            UNROLL for (int r = 0; r < R; r++) {
                v8f scale = splat8(a->scales[(row + r) * a->groups + g]);
                UNROLL for (int v = 0; v < 2; v++) {
                    v8f sum = __builtin_convertvector(sums[r][v], v8f);
                    float *result = results + r * PANEL + v * LANES;
                    store8(result, fma8(sum, scale, load8(result)));
                }
            }
            w += INT8_BYTES;
        } else {
            group_int4(R, w, a, row, g, sums);
            const uint16_t *numbers = (const uint16_t *)(w + PANEL * GROUP / 2);
            v8f step[2] = {from_half8(numbers), from_half8(numbers + LANES)};
            v8f offset[2] = {from_half8(numbers + PANEL), from_half8(numbers + PANEL + LANES)};
            UNROLL for (int r = 0; r < R; r++) {
                v8f scale = splat8(a->scales[(row + r) * a->groups + g]);
                v8f total = splat8(a->totals[(row + r) * a->groups + g]);
                UNROLL for (int v = 0; v < 2; v++) {
                    v8f sum = __builtin_convertvector(sums[r][v], v8f) * scale;
                    float *result = results + r * PANEL + v * LANES;
                    store8(result, fma8(sum, step[v], fma8(offset[v], total, load8(result))));
                }
            }
            w += INT4_BYTES;
        }
    }
}

/* One function each, so that the compiler has all registers for it. */
#define PASS(NAME, FORMAT, R)                                                                     \
    static __attribute__((noinline)) void NAME(const uint8_t *w, const activations *a,            \
                                               int64_t row, int first, int groups, float *results, \
                                               const uint8_t *ahead, int lines) {                 \
        pass_of(FORMAT, R, w, a, row, first, groups, results, ahead, lines);                      \
    }
PASS(pass_int8_1, OD_INT8, 1)
PASS(pass_int8_2, OD_INT8, 2)
PASS(pass_int8_3, OD_INT8, 3)
PASS(pass_int8_4, OD_INT8, 4)
PASS(pass_int4_1, OD_INT4, 1)
PASS(pass_int4_2, OD_INT4, 2)
PASS(pass_int4_3, OD_INT4, 3)
PASS(pass_int4_4, OD_INT4, 4)
#undef PASS

typedef void (*pass_function)(const uint8_t *, const activations *, int64_t, int, int, float *,
                              const uint8_t *, int);

static const pass_function passes_of[2][BLOCK] = {
    {pass_int8_1, pass_int8_2, pass_int8_3, pass_int8_4},
    {pass_int4_1, pass_int4_2, pass_int4_3, pass_int4_4},
};

/* The 16 outputs of one panel for `rows` rows, scaled and with bias, to results [rows, 16]. */
static void run_panel(const od_linear *linear, const activations *a, int panel, int from, int rows,
                      float *results) {
    int format = linear->format;
    int group_bytes = format == OD_INT8 ? INT8_BYTES : INT4_BYTES;
    const uint8_t *w = linear->packed + (int64_t)panel * a->groups * group_bytes;
    int passes = (rows + BLOCK - 1) / BLOCK;
    int chunk = passes == 1 ? a->groups : RESIDENT / group_bytes;
    memset(results, 0, (size_t)rows * PANEL * sizeof(float));
    for (int first = 0; first < a->groups; first += chunk) {
        int groups = a->groups - first < chunk ? a->groups - first : chunk;
        /* With one pass, run a little ahead; with several, each fetches its part of the next chunk. */
        int lines = (group_bytes / 64 + passes - 1) / passes;
        const uint8_t *ahead = passes == 1 ? w + 2048 : w + (int64_t)groups * group_bytes;
        for (int row = 0; row < rows; row += BLOCK) {
            int block = rows - row < BLOCK ? rows - row : BLOCK;
            passes_of[format][block - 1](w, a, from + row, first, groups, results + row * PANEL,
                                         ahead, lines);
            ahead += (int64_t)lines * 64 * groups;
        }
        w += (int64_t)groups * group_bytes;
    }
    for (int v = 0; v < 2; v++) {
        int output = panel * PANEL + v * LANES;
        v8f scale = format == OD_INT8 ? load8(linear->scale + output) : splat8(1.0f);
        v8f bias = linear->bias ? load8(linear->bias + output) : splat8(0.0f);
        for (int r = 0; r < rows; r++) {
            float *result = results + r * PANEL + v * LANES;
            store8(result, load8(result) * scale + bias);
        }
    }
}

/* The weights of one output, to result [inputs]. */
static void unpack(const od_linear *linear, int64_t output, float *result) {
    int format = linear->format, o = (int)(output % PANEL), groups = groups_of(linear->inputs);
    int group_bytes = format == OD_INT8 ? INT8_BYTES : INT4_BYTES;
    const uint8_t *w = linear->packed + output / PANEL * groups * group_bytes;
    for (int first = 0; first < linear->inputs; first += GROUP, w += group_bytes) {
        int count = linear->inputs - first < GROUP ? linear->inputs - first : GROUP;
        if (format == OD_INT8) {
            float scale = linear->scale[output];
            for (int i = 0; i < count; i++) {
                uint8_t byte = w[i / PAIR * PAIR * PANEL + o * PAIR + i % PAIR];
                result[first + i] = scale * (float)(DOT_INSTRUCTION ? byte - 128 : (int8_t)byte);
            }
        } else {
            const uint16_t *numbers = (const uint16_t *)(w + PANEL * GROUP / 2) + o / LANES * LANES;
            float step = from_half8(numbers)[o % LANES], offset = from_half8(numbers + PANEL)[o % LANES];
            for (int i = 0; i < count; i++) {
                uint8_t both = w[i / 8 * 64 + o * 4 + i % 4];
                result[first + i] = step * (float)(i % 8 < 4 ? both & 15 : both >> 4) + offset;
            }
        }
    }
}

#endif
