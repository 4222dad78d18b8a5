#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#pragma GCC diagnostic ignored "-Wpsabi" /* no vector crosses a file */
#define OD_TABLE od_avx2
#include "decoder.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
