/* The native decoder's interface. The Python binding is generated from this file, so that the two
 * cannot drift apart; lines that begin with # are skipped there, and everything else must be plain
 * declarations. */
#ifndef OUTRIDER_NATIVE_H
#define OUTRIDER_NATIVE_H
#include <stdint.h>

/* How the weights of a linear layer are stored. */
enum od_format { OD_INT8 = 0, OD_INT4 = 1 };

/* What becomes of a linear layer's result. */
enum od_activation { OD_SILU = 0, OD_GELU_TANH = 1 };

/* One linear layer. `packed` holds panels of 16 outputs, see matmul.h; `scale` is one number per
 * output for OD_INT8 and unused for OD_INT4; `bias` may be NULL. Both are padded to whole panels. */
typedef struct {
    int32_t format;
    int32_t outputs;
    int32_t inputs;
    const uint8_t *packed;
    const float *scale;
    const float *bias;
} od_linear;

/* One layer. Norms are [hidden], but `qk_norm` [heads + kv_heads, head_dim]; those that a family does
 * not have are NULL. `gate_up` alternates 8 outputs of the gate with 8 of up. `window` is how many
 * tokens a token sees, itself included; 0 is all. `rope` says which of a step's ropes it uses. */
typedef struct {
    const float *attention_norm;
    const float *qk_norm;
    const float *attention_out_norm;
    const float *mlp_norm;
    const float *mlp_out_norm;
    od_linear qkv;
    od_linear output;
    od_linear gate_up;
    od_linear down;
    int32_t window;
    int32_t rope;
} od_layer;

/* A decoder. The weights of output t of `embedding` are what token t begins as; it may be the same as
 * `head`, and its bias is not read. `hidden` and `intermediate` are multiples of 8, `head_dim` of 16
 * and at most 256. A softcap of 0 is none. */
typedef struct {
    int32_t num_layers;
    int32_t hidden;
    int32_t intermediate;
    int32_t vocabulary;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
    int32_t activation;
    float eps;
    float attention_scale;
    float attention_softcap;
    float logit_softcap;
    od_linear embedding;
    float embedding_scale;
    const od_layer *layers;
    const float *norm;
    od_linear head;
} od_model;

/* The new tokens of one sequence: rows [row, row + count), positions [start, start + count).
 * `storage` is float16, [layers, 2 (keys, values), kv_heads, capacity, head_dim]. */
typedef struct {
    int32_t row;
    int32_t count;
    int32_t start;
    int32_t capacity;
    uint16_t *storage;
} od_span;

/* Cosines and signed sines by position, [positions, head_dim] each: the first halves of the cosines
 * and the second halves of the sines are read. */
typedef struct {
    const float *cosines;
    const float *sines;
} od_rope;

/* One step: `tokens` are the ids of all rows, `ropes` what the layers' `rope` counts in. `wanted` are
 * the rows whose logits go to `logits`, [num_wanted, vocabulary]. */
typedef struct {
    int32_t rows;
    int32_t num_spans;
    int32_t num_wanted;
    const int64_t *tokens;
    const od_rope *ropes;
    const od_span *spans;
    const int32_t *wanted;
    float *logits;
} od_step;

typedef struct od_pool od_pool;

/* The instruction set that the kernels use: the best one that this CPU has, unless `od_choose`
 * named another. `od_choose` answers 0, or -1 where the CPU lacks it or the name is unknown. */
const char *od_isa(void);
int od_choose(const char *isa);

/* Threads that compute together, the caller's included. NULL if they cannot be started. */
od_pool *od_pool_new(int threads);
void od_pool_free(od_pool *pool);

/* Ask the system for large pages, of which fewer have to be looked up, before memory is first written
 * to. Where it has none to give, nothing happens. */
void od_advise(uint8_t *memory, int64_t bytes);

/* Give memory that was freed back to the system, as far as the C library can. */
void od_trim(void);

/* Bytes of `packed` for a linear layer. */
int64_t od_packed_bytes(int format, int outputs, int inputs);

/* Pack weights [outputs, inputs] of int8. Output i is row order[i], or row i if `order` is NULL. */
void od_pack_int8(const int8_t *weights, const int32_t *order, int outputs, int inputs,
                  uint8_t *packed);

/* Pack weights of 4 bits, likewise: `codes` [outputs, inputs / 2], the even inputs in the low halves;
 * a weight is steps * code + offsets, both float16 [outputs, inputs / 32]. `inputs` is a multiple of
 * 32. */
void od_pack_int4(const uint8_t *codes, const uint16_t *steps, const uint16_t *offsets,
                  const int32_t *order, int outputs, int inputs, uint8_t *packed);

/* rows @ weights.T + bias, for tests and measurements: [rows, inputs] to [rows, outputs]. */
int od_linear_run(od_pool *pool, const od_linear *linear, const float *input, int rows,
                  float *output);

/* Write the keys and values of the tokens of one step, and the wanted logits. 0, or -1 if memory ran
 * out, and then nothing was written. */
int od_forward(od_pool *pool, const od_model *model, const od_step *step);

#endif
