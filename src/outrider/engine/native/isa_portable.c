#pragma GCC diagnostic ignored "-Wpsabi" /* no vector crosses a file */
#define OD_TABLE od_portable
#include "decoder.h"
