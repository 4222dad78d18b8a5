#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

/* How often to look again before giving the processor away at each look: for a few
 * microseconds. Others may need the processor, and to give it away costs little if nobody does. */
#define SPINS 256

typedef struct {
    od_pool *pool;
    pthread_t handle;
    int number;
} worker;

struct od_pool {
    int threads;
    worker *workers;

    /* The two counters take turns, so that the one not in use can be set back in peace. */
    _Alignas(64) atomic_int claimed[2];
    _Alignas(64) atomic_int arrived;
    _Alignas(64) atomic_uint phase;
    _Alignas(64) atomic_uint calls;

    pool_function function;
    void *argument;
    pthread_mutex_t lock;
    pthread_cond_t begun;
    int sleeping;
    int closing;

    void *memory;
    size_t capacity;
};

static inline void relax(int spins) {
    if (spins < SPINS) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    } else {
        sched_yield();
    }
}

int pool_threads(const od_pool *pool) { return pool->threads; }

void pool_barrier(od_pool *pool) {
    unsigned phase = atomic_load_explicit(&pool->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) == pool->threads - 1) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        /* Nobody claims from the finished phase any more; it is the one after next that uses its
         * counter again. */
        atomic_store_explicit(&pool->claimed[phase & 1], 0, memory_order_relaxed);
        atomic_store_explicit(&pool->phase, phase + 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&pool->phase, memory_order_acquire) == phase; spins++)
        relax(spins);
}

void *pool_memory(od_pool *pool, size_t size) {
    if (size > pool->capacity) {
        free(pool->memory);
        pool->memory = NULL;
        pool->capacity = 0;
        if (posix_memalign(&pool->memory, 64, size)) return NULL;
        pool->capacity = size;
    }
    return pool->memory;
}

int pool_claim(od_pool *pool, int size, int total) {
    unsigned phase = atomic_load_explicit(&pool->phase, memory_order_relaxed);
    int first = atomic_fetch_add_explicit(&pool->claimed[phase & 1], size, memory_order_relaxed);
    return first < total ? first : total;
}

static unsigned wait_for_call(od_pool *pool, unsigned done) {
    for (int spins = 0; spins < SPINS; spins++) {
        unsigned calls = atomic_load_explicit(&pool->calls, memory_order_acquire);
        if (calls != done) return calls;
        relax(spins);
    }
    pthread_mutex_lock(&pool->lock);
    pool->sleeping++;
    while (atomic_load_explicit(&pool->calls, memory_order_acquire) == done)
        pthread_cond_wait(&pool->begun, &pool->lock);
    pool->sleeping--;
    pthread_mutex_unlock(&pool->lock);
    return atomic_load_explicit(&pool->calls, memory_order_acquire);
}

static void *work(void *argument) {
    worker *self = argument;
    od_pool *pool = self->pool;
    unsigned done = 0;
    for (;;) {
        done = wait_for_call(pool, done);
        if (pool->closing) return NULL;
        pool->function(pool, self->number, pool->argument);
        pool_barrier(pool);
    }
}

static void begin(od_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add_explicit(&pool->calls, 1, memory_order_release);
    if (pool->sleeping > 0) pthread_cond_broadcast(&pool->begun);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(od_pool *pool, pool_function function, void *argument) {
    pool->function = function;
    pool->argument = argument;
    begin(pool);
    function(pool, 0, argument);
    pool_barrier(pool);
}

od_pool *od_pool_new(int threads) {
    od_pool *pool = NULL;
    if (threads < 1 || posix_memalign((void **)&pool, 64, sizeof *pool)) return NULL;
    *pool = (od_pool){.threads = 1};
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->begun, NULL);
    pool->workers = calloc((size_t)threads, sizeof *pool->workers);
    if (!pool->workers) {
        od_pool_free(pool);
        return NULL;
    }
    for (int number = 1; number < threads; number++) {
        worker *one = &pool->workers[number];
        *one = (worker){.pool = pool, .number = number};
        if (pthread_create(&one->handle, NULL, work, one)) {
            od_pool_free(pool);
            return NULL;
        }
        /* No call has been made yet, so nobody has read this. */
        pool->threads = number + 1;
    }
    return pool;
}

void od_pool_free(od_pool *pool) {
    if (!pool) return;
    pool->closing = 1;
    begin(pool);
    for (int number = 1; number < pool->threads; number++)
        pthread_join(pool->workers[number].handle, NULL);
    pthread_cond_destroy(&pool->begun);
    pthread_mutex_destroy(&pool->lock);
    free(pool->memory);
    free(pool->workers);
    free(pool);
}
