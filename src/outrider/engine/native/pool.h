/* Threads that run one function together, with barriers inside it and shared counters of work. */
#ifndef OUTRIDER_POOL_H
#define OUTRIDER_POOL_H
#include <stddef.h>

#include "native.h"

typedef void (*pool_function)(od_pool *pool, int thread, void *argument);

int pool_threads(const od_pool *pool);

/* Run `function` on every thread, the caller's as number 0, and wait for all. One caller at a time. */
void pool_run(od_pool *pool, pool_function function, void *argument);

/* Wait until every thread is here. What any of them wrote before is seen by all. */
void pool_barrier(od_pool *pool);

/* Claim up to `size` of `total` pieces of work that all threads of the present phase share; a phase
 * ends at the next barrier. The first piece claimed, or `total` when none is left. */
int pool_claim(od_pool *pool, int size, int total);

/* At least `size` bytes, aligned for any use, good until the next call; NULL if there are none. */
void *pool_memory(od_pool *pool, size_t size);

#endif
