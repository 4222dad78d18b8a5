/* What is done to each row by itself: norms, rotations, activations. */
#ifndef OUTRIDER_ROWS_H
#define OUTRIDER_ROWS_H
#include "vector.h"

/* Root mean square norm (Zhang and Sennrich, 2019). `size` is a multiple of 8. */
static void normalize(const float *x, const float *weight, float *result, int size, float eps) {
    v8f squares = splat8(0.0f);
    for (int i = 0; i < size; i += LANES) {
        v8f v = load8(x + i);
        squares = fma8(v, v, squares);
    }
    v8f scale = splat8(1.0f / sqrtf(sum8(squares) / (float)size + eps));
    for (int i = 0; i < size; i += LANES)
        store8(result + i, load8(x + i) * scale * load8(weight + i));
}

/* Turn the first 2 * half numbers of a head (Su et al., 2021); pairs lie `half` apart, as
 * checkpoints in Hugging Face's form have them. `half` is a multiple of 8. */
static void rotate(float *head, const float *cosines, const float *sines, int half) {
    for (int i = 0; i < half; i += LANES) {
        v8f x = load8(head + i), y = load8(head + half + i);
        v8f c = load8(cosines + i), s = load8(sines + i);
        store8(head + i, x * c - y * s);
        store8(head + half + i, y * c + x * s);
    }
}

static void add_to(float *sums, const float *x, int size) {
    for (int i = 0; i < size; i += LANES) store8(sums + i, load8(sums + i) + load8(x + i));
}

#endif
