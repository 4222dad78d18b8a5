#include "native.h"

#include <stdatomic.h>
#include <string.h>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "isa.h"

enum { PANEL = 16, GROUP = 32, INT8_BYTES = PANEL * GROUP, INT4_BYTES = PANEL * GROUP / 2 + PANEL * 4 };

typedef struct {
    const char *name;
    const od_functions *functions;
    int (*available)(void);
} isa;

static int always(void) { return 1; }
#if defined(__x86_64__)
static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c");
}
static int has_vnni(void) {
    return has_avx2() && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
}
#endif

static const isa known[] = { /* the best first */
#if defined(__x86_64__)
    {"avx512vnni", &od_vnni, has_vnni},
    {"avx2", &od_avx2, has_avx2},
#endif
    {"portable", &od_portable, always},
};

static const isa *_Atomic chosen;

/* Several threads may be the first to ask: each finds the same, and none sees another's search. */
static const isa *current(void) {
    const isa *found = atomic_load(&chosen);
    if (found) return found;
    for (found = known; !found->available(); found++) continue;
    atomic_store(&chosen, found);
    return found;
}

const char *od_isa(void) { return current()->name; }

int od_choose(const char *name) {
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!strcmp(known[i].name, name) && known[i].available()) {
            atomic_store(&chosen, &known[i]);
            return 0;
        }
    }
    return -1;
}

int od_forward(od_pool *pool, const od_model *model, const od_step *step) {
    return current()->functions->forward(pool, model, step);
}

int od_linear_run(od_pool *pool, const od_linear *linear, const float *input, int rows,
                  float *output) {
    return current()->functions->linear(pool, linear, input, rows, output);
}

void od_pack_int8(const int8_t *weights, const int32_t *order, int outputs, int inputs,
                  uint8_t *packed) {
    current()->functions->pack_int8(weights, order, outputs, inputs, packed);
}

void od_advise(uint8_t *memory, int64_t bytes) {
#ifdef MADV_HUGEPAGE
    uintptr_t page = 4096, from = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)memory + (uintptr_t)bytes) / page * page;
    if (from < to) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}

void od_trim(void) {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

int64_t od_packed_bytes(int format, int outputs, int inputs) {
    int64_t panels = (outputs + PANEL - 1) / PANEL, groups = (inputs + GROUP - 1) / GROUP;
    return panels * groups * (format == OD_INT8 ? INT8_BYTES : INT4_BYTES);
}

void od_pack_int4(const uint8_t *codes, const uint16_t *steps, const uint16_t *offsets,
                  const int32_t *order, int outputs, int inputs, uint8_t *packed) {
    int64_t groups = inputs / GROUP;
    memset(packed, 0, (size_t)od_packed_bytes(OD_INT4, outputs, inputs));
    for (int64_t o = 0; o < outputs; o++) {
        int64_t row = order ? order[o] : o;
        int vector = (int)(o % PANEL) / 8, lane = (int)(o % 8);
        for (int64_t g = 0; g < groups; g++) {
            uint8_t *group = packed + (o / PANEL * groups + g) * INT4_BYTES;
            const uint8_t *from = codes + (row * groups + g) * (GROUP / 2);
            for (int s = 0; s < 4; s++) {
                for (int i = 0; i < 4; i++) {
                    int low = from[s * 4 + i / 2] >> i % 2 * 4 & 15;
                    int high = from[s * 4 + 2 + i / 2] >> i % 2 * 4 & 15;
                    group[(s * 2 + vector) * 32 + lane * 4 + i] = (uint8_t)(low | high << 4);
                }
            }
            uint16_t *numbers = (uint16_t *)(group + PANEL * GROUP / 2);
            numbers[o % PANEL] = steps[row * groups + g];
            numbers[PANEL + o % PANEL] = offsets[row * groups + g];
        }
    }
}
