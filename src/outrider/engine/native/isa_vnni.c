#if defined(__x86_64__) && defined(__GNUC__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")
#endif
#pragma GCC diagnostic ignored "-Wpsabi" /* no vector crosses a file */
#define OD_TABLE od_vnni
#include "decoder.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
