/* Bounded logs of token ids in which the continuations of a text are found. The Python binding is
 * generated from this file; lines that begin with # are skipped there, and everything else must be
 * plain declarations. drafters/suffix_log.py has the same in Python, and says what it does. */
#ifndef OUTRIDER_SUFFIX_H
#define OUTRIDER_SUFFIX_H
#include <stdint.h>

typedef struct os_log os_log;

/* Tokens that are likely to follow. `match` is how many tokens in front of them were found, `score`
 * how many of them are expected to be right. */
typedef struct {
    int32_t length;
    int32_t match;
    double score;
    int32_t tokens[64];
} os_guess;

/* A log that keeps the last `window` tokens, a power of 2 of at least 16; NULL: out of memory. */
os_log *os_open(int64_t window);
void os_close(os_log *log);

/* Bytes of a log with such a window. */
int64_t os_bytes(int64_t window);

/* A log with a larger window that holds the same tokens; NULL: out of memory. Only reads `log`. */
os_log *os_grown(const os_log *log, int64_t window);

/* Append tokens, each at least -1, which separates texts. */
void os_append(os_log *log, const int32_t *tokens, int64_t count);

/* What followed the last tokens of `text` where they occurred in `log`, which may be the same. At most
 * `max_tokens`, up to 64. */
void os_find(const os_log *log, const os_log *text, int32_t max_tokens, os_guess *guess);
#endif
