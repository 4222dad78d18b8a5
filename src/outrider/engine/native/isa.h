/* What each instruction set provides. */
#ifndef OUTRIDER_ISA_H
#define OUTRIDER_ISA_H
#include "native.h"

typedef struct {
    int (*forward)(od_pool *, const od_model *, const od_step *);
    int (*linear)(od_pool *, const od_linear *, const float *, int, float *);
    void (*pack_int8)(const int8_t *, const int32_t *, int, int, uint8_t *);
} od_functions;

extern const od_functions od_portable;
extern const od_functions od_avx2;
extern const od_functions od_vnni;

#endif
