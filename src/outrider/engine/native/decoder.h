/* The decoder for one instruction set. Each isa_*.c includes this file with its own target options
 * and a name for the table of functions at the end. */
#include "attention.h"
#include "isa.h"
#include "matmul.h"
#include "pool.h"
#include "rows.h"

enum ending { STORE, ADD, GATE };

/* What all threads know of one step. Buffers hold `rows` rows. */
typedef struct {
    const od_model *model;
    const od_step *step;
    const int32_t *span_of; /* [rows] */
    float *hidden;          /* [hidden] */
    float *normed;          /* [hidden] */
    float *qkv;             /* [(heads + 2 * kv_heads) * head_dim] */
    float *attended;        /* [heads * head_dim] */
    float *gated;           /* [intermediate] */
    float *added;           /* [hidden], for families with a norm before the sum */
    float *kept;            /* [hidden], the wanted rows */
    activations rounded;    /* wide enough for every layer's inputs */
} job;

static activations rounded_for(const activations *space, int inputs) {
    activations a = *space;
    a.groups = groups_of(inputs);
    a.padded = a.groups * GROUP;
    return a;
}

/* A share of `total` small enough that no thread is left alone with much of it. */
static int share(od_pool *pool, int total) {
    int size = total / (pool_threads(pool) * 8);
    return size < 1 ? 1 : size;
}

#define EACH(pool, index, total)                                                            \
    for (int size_ = share(pool, total), first_ = 0;                                        \
         (first_ = pool_claim(pool, size_, total)) < (total);)                              \
        for (int index = first_; index < first_ + size_ && index < (total); index++)

/* A phase: one linear layer over all rows, by panels. */
static void multiply(od_pool *pool, const od_linear *linear, const activations *a, int rows,
                     enum ending ending, int activation, float *output, int64_t stride) {
    float results[STRIP * PANEL] __attribute__((aligned(64)));
    EACH(pool, panel, panels_of(linear->outputs)) {
        int outputs = linear->outputs - panel * PANEL;
        if (outputs > PANEL) outputs = PANEL;
        for (int from = 0; from < rows; from += STRIP) {
            int count = rows - from < STRIP ? rows - from : STRIP;
            run_panel(linear, a, panel, from, count, results);
            for (int r = 0; r < count; r++) {
                const float *result = results + r * PANEL;
                float *to = output + (from + r) * stride;
                if (ending == GATE) {
                    v8f gate = load8(result);
                    gate = activation == OD_SILU ? silu8(gate) : gelu8(gate);
                    store8(to + panel * LANES, gate * load8(result + LANES));
                } else if (ending == ADD) {
                    for (int o = 0; o < outputs; o++) to[panel * PANEL + o] += result[o];
                } else {
                    memcpy(to + panel * PANEL, result, (size_t)outputs * sizeof(float));
                }
            }
        }
    }
    pool_barrier(pool);
}

/* A phase: rotate the heads, and write keys and values to where the sequences keep them. */
static void place(od_pool *pool, const job *j, int index) {
    const od_model *m = j->model;
    const od_layer *layer = &m->layers[index];
    int turned = m->heads + m->kv_heads, all = turned + m->kv_heads, dim = m->head_dim;
    EACH(pool, row, j->step->rows) {
        float *heads = j->qkv + (int64_t)row * all * dim;
        const od_span *span = &j->step->spans[j->span_of[row]];
        int position = span->start + row - span->row;
        const od_rope *rope = &j->step->ropes[layer->rope];
        const float *cosines = rope->cosines + (int64_t)position * dim;
        const float *sines = rope->sines + (int64_t)position * dim + dim / 2;
        for (int h = 0; h < turned; h++) {
            float *head = heads + h * dim;
            if (layer->qk_norm) normalize(head, layer->qk_norm + h * dim, head, dim, m->eps);
            rotate(head, cosines, sines, dim / 2);
        }
        for (int h = 0; h < 2 * m->kv_heads; h++) {
            uint16_t *to = span->storage + (((int64_t)index * 2 * m->kv_heads + h) * span->capacity +
                                            position) * dim;
            const float *from = heads + (m->heads + h) * dim;
            for (int d = 0; d < dim; d += LANES) to_half8(to + d, load8(from + d));
        }
    }
    pool_barrier(pool);
}

/* A phase: attention of every sequence, by key-value heads and blocks of queries. */
static void attend_all(od_pool *pool, const job *j, int index) {
    const od_model *m = j->model;
    const od_step *step = j->step;
    int dim = m->head_dim, group = m->heads / m->kv_heads;
    int64_t stride = (int64_t)(m->heads + 2 * m->kv_heads) * dim;
    int total = 0;
    for (int s = 0; s < step->num_spans; s++)
        total += m->kv_heads * ((step->spans[s].count * group + QUERIES - 1) / QUERIES);
    attention_scratch scratch __attribute__((aligned(64)));
    EACH(pool, item, total) {
        int left = item, s = 0, blocks;
        for (;; s++) {
            blocks = (step->spans[s].count * group + QUERIES - 1) / QUERIES;
            if (left < m->kv_heads * blocks) break;
            left -= m->kv_heads * blocks;
        }
        const od_span *span = &step->spans[s];
        int kv_head = left % m->kv_heads, from = left / m->kv_heads * QUERIES;
        int count = span->count * group - from;
        const uint16_t *layer = span->storage +
                                (int64_t)index * 2 * m->kv_heads * span->capacity * dim;
        attention a = {
            .queries = j->qkv + span->row * stride + kv_head * group * dim,
            .query_stride = stride,
            .results = j->attended + ((int64_t)span->row * m->heads + kv_head * group) * dim,
            .result_stride = (int64_t)m->heads * dim,
            .keys = layer + (int64_t)kv_head * span->capacity * dim,
            .values = layer + (int64_t)(m->kv_heads + kv_head) * span->capacity * dim,
            .start = span->start,
            .group = group,
            .head_dim = dim,
            .window = m->layers[index].window,
            .scale = m->attention_scale,
            .softcap = m->attention_softcap,
        };
        attend(&scratch, &a, from, count < QUERIES ? count : QUERIES);
    }
    pool_barrier(pool);
}

/* A phase: hidden += what a layer's half computed, normed first where the family does that; then
 * the next half's norm, rounded. `added` and `norm` may be NULL. */
static void turn(od_pool *pool, const job *j, float *hidden, int rows, const float *added_norm,
                 const float *norm, const activations *a) {
    int size = j->model->hidden;
    float eps = j->model->eps;
    EACH(pool, row, rows) {
        float *x = hidden + (int64_t)row * size;
        float *normed = j->normed + (int64_t)row * size;
        if (added_norm) {
            normalize(j->added + (int64_t)row * size, added_norm, normed, size, eps);
            add_to(x, normed, size);
        }
        if (norm) {
            normalize(x, norm, normed, size, eps);
            round_row(a, row, normed, size);
        }
    }
    pool_barrier(pool);
}

/* A phase: round rows of `x`; with `wanted`, those rows alone, and keep their hidden state too. */
static void round_all(od_pool *pool, const job *j, const float *x, int size, int rows,
                      const int32_t *wanted, const activations *a) {
    int hidden = j->model->hidden;
    EACH(pool, row, rows) {
        int64_t from = wanted ? wanted[row] : row;
        round_row(a, row, x + from * size, size);
        if (wanted)
            memcpy(j->kept + (int64_t)row * hidden, j->hidden + from * hidden,
                   (size_t)hidden * sizeof(float));
    }
    pool_barrier(pool);
}

/* A phase: the embeddings of all tokens. */
static void embed(od_pool *pool, const job *j) {
    const od_model *m = j->model;
    v8f scale = splat8(m->embedding_scale);
    EACH(pool, row, j->step->rows) {
        float *to = j->hidden + (int64_t)row * m->hidden;
        unpack(&m->embedding, j->step->tokens[row], to);
        for (int i = 0; i < m->hidden; i += LANES) store8(to + i, load8(to + i) * scale);
    }
    pool_barrier(pool);
}

static void run_step(od_pool *pool, int thread, void *argument) {
    (void)thread;
    const job *j = argument;
    const od_model *m = j->model;
    const od_step *step = j->step;
    int rows = step->rows, hidden_size = m->hidden, queries = m->heads * m->head_dim;
    float *hidden = j->hidden;
    activations wide = rounded_for(&j->rounded, hidden_size);
    activations heads = rounded_for(&j->rounded, queries);
    activations inner = rounded_for(&j->rounded, m->intermediate);
    const float *added_norm = NULL;
    embed(pool, j);
    for (int index = 0; index < m->num_layers; index++) {
        const od_layer *layer = &m->layers[index];
        turn(pool, j, hidden, rows, added_norm, layer->attention_norm, &wide);
        multiply(pool, &layer->qkv, &wide, rows, STORE, 0, j->qkv, layer->qkv.outputs);
        place(pool, j, index);
        const int32_t *wanted = NULL;
        if (index == m->num_layers - 1) {
            /* Behind the last keys and values, only what is wanted has to be computed. */
            if (step->num_wanted == 0) return;
            wanted = step->wanted;
        }
        attend_all(pool, j, index);
        if (wanted) rows = step->num_wanted;
        round_all(pool, j, j->attended, queries, rows, wanted, &heads);
        if (wanted) hidden = j->kept;
        added_norm = layer->attention_out_norm;
        multiply(pool, &layer->output, &heads, rows, added_norm ? STORE : ADD, 0,
                 added_norm ? j->added : hidden, hidden_size);
        turn(pool, j, hidden, rows, added_norm, layer->mlp_norm, &wide);
        multiply(pool, &layer->gate_up, &wide, rows, GATE, m->activation, j->gated,
                 m->intermediate);
        round_all(pool, j, j->gated, m->intermediate, rows, NULL, &inner);
        added_norm = layer->mlp_out_norm;
        multiply(pool, &layer->down, &inner, rows, added_norm ? STORE : ADD, 0,
                 added_norm ? j->added : hidden, hidden_size);
    }
    turn(pool, j, hidden, rows, added_norm, m->norm, &wide);
    multiply(pool, &m->head, &wide, rows, STORE, 0, step->logits, m->vocabulary);
    if (m->logit_softcap > 0.0f) {
        EACH(pool, row, rows) {
            float *logits = step->logits + (int64_t)row * m->vocabulary;
            int64_t i = 0;
            for (; i + LANES <= m->vocabulary; i += LANES)
                store8(logits + i, softcap8(load8(logits + i), m->logit_softcap));
            for (; i < m->vocabulary; i++)
                logits[i] = softcap8(splat8(logits[i]), m->logit_softcap)[0];
        }
        pool_barrier(pool);
    }
}

static void *take(uintptr_t *memory, int64_t bytes) {
    void *piece = (void *)*memory;
    *memory += (uintptr_t)((bytes + 63) / 64 * 64);
    return piece;
}

/* Lay the buffers of a step out from `memory` on, which is 0 to learn how much they take. */
static size_t lay_out(job *j, uintptr_t memory) {
    const od_model *m = j->model;
    int64_t rows = j->step->rows;
    int queries = m->heads * m->head_dim;
    int widest = m->hidden > m->intermediate ? m->hidden : m->intermediate;
    if (queries > widest) widest = queries;
    int64_t groups = groups_of(widest);
    uintptr_t at = memory;
    j->span_of = take(&at, rows * 4);
    j->hidden = take(&at, rows * m->hidden * 4);
    j->normed = take(&at, rows * m->hidden * 4);
    j->added = take(&at, rows * m->hidden * 4);
    j->kept = take(&at, rows * m->hidden * 4);
    j->qkv = take(&at, rows * (queries + 2 * m->kv_heads * m->head_dim) * 4);
    j->attended = take(&at, rows * queries * 4);
    j->gated = take(&at, rows * m->intermediate * 4);
    j->rounded = (activations){0};
    j->rounded.bytes = take(&at, rows * groups * GROUP);
    j->rounded.words = take(&at, rows * groups * GROUP * 2);
    j->rounded.scales = take(&at, rows * groups * 4);
    j->rounded.sums = take(&at, rows * groups * 4);
    j->rounded.totals = take(&at, rows * groups * 4);
    return at - memory;
}

static int forward(od_pool *pool, const od_model *model, const od_step *step) {
    job j = {.model = model, .step = step};
    void *memory = pool_memory(pool, lay_out(&j, 0));
    if (!memory) return -1;
    lay_out(&j, (uintptr_t)memory);
    for (int s = 0; s < step->num_spans; s++)
        for (int r = 0; r < step->spans[s].count; r++)
            ((int32_t *)j.span_of)[step->spans[s].row + r] = s;
    pool_run(pool, run_step, &j);
    return 0;
}

typedef struct {
    const od_linear *linear;
    const float *input;
    float *output;
    int rows;
    activations rounded;
} linear_job;

static void run_linear(od_pool *pool, int thread, void *argument) {
    (void)thread;
    const linear_job *j = argument;
    EACH(pool, row, j->rows)
        round_row(&j->rounded, row, j->input + (int64_t)row * j->linear->inputs, j->linear->inputs);
    pool_barrier(pool);
    multiply(pool, j->linear, &j->rounded, j->rows, STORE, 0, j->output, j->linear->outputs);
}

static int linear(od_pool *pool, const od_linear *linear, const float *input, int rows,
                  float *output) {
    linear_job j = {.linear = linear, .input = input, .output = output, .rows = rows};
    int64_t groups = groups_of(linear->inputs);
    uintptr_t at = (uintptr_t)pool_memory(
        pool, (size_t)(rows * groups * (GROUP * 3 + 12) + 5 * 64));
    if (!at) return -1;
    j.rounded = rounded_for(&j.rounded, linear->inputs);
    j.rounded.bytes = take(&at, rows * groups * GROUP);
    j.rounded.words = take(&at, rows * groups * GROUP * 2);
    j.rounded.scales = take(&at, rows * groups * 4);
    j.rounded.sums = take(&at, rows * groups * 4);
    j.rounded.totals = take(&at, rows * groups * 4);
    pool_run(pool, run_linear, &j);
    return 0;
}

static void pack_int8(const int8_t *weights, const int32_t *order, int outputs, int inputs,
                      uint8_t *packed) {
    int padded = groups_of(inputs) * GROUP;
    for (int64_t o = 0; o < (int64_t)panels_of(outputs) * PANEL; o++) {
        uint8_t *panel = packed + o / PANEL * PANEL * padded;
        const int8_t *from = o < outputs ? weights + (order ? order[o] : o) * inputs : NULL;
        for (int i = 0; i < padded; i++) {
            int8_t w = from && i < inputs ? from[i] : 0;
            panel[i / PAIR * PAIR * PANEL + o % PANEL * PAIR + i % PAIR] =
                DOT_INSTRUCTION ? (uint8_t)(w + 128) : (uint8_t)w;
        }
    }
}

const od_functions OD_TABLE = {forward, linear, pack_int8};
