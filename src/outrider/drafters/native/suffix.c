/* See suffix.h for the interface and drafters/suffix_log.py for what it does: both give the same
 * results, to the last bit. */
#include "suffix.h"

#include <stdlib.h>

enum { LEVELS = 4, MAX_MATCH = 64, STEPS = 32, CANDIDATES = 32, SEPARATOR = -1 };

static const int32_t ORDERS[LEVELS] = {2, 4, 8, 16};
static const double ESCAPE = 4.0;
static const double LEAST = 0.2;

/* Positions count up from 1 and wrap; whatever lies `held` or more before `end` is gone. `heads` has
 * the latest position of every n-gram, `before` what stood there until a position took it over. */
struct os_log {
    uint32_t mask;
    int32_t shift;
    uint32_t end;  /* position of the last token */
    uint32_t held; /* tokens that are kept */
    int32_t *tokens;
    uint32_t *heads[LEVELS];
    uint32_t (*before)[LEVELS];
};

typedef struct {
    uint32_t position; /* of the last token of the match */
    int32_t match;
} candidate;

int64_t os_bytes(int64_t window) {
    return (int64_t)sizeof(struct os_log) + window * (1 + 2 * LEVELS) * 4;
}

os_log *os_open(int64_t window) {
    os_log *log = calloc(1, sizeof *log);
    uint32_t *memory = calloc((size_t)window * (1 + 2 * LEVELS), 4);
    if (!log || !memory) {
        free(log);
        free(memory);
        return NULL;
    }
    log->mask = (uint32_t)window - 1;
    log->shift = 32;
    for (int64_t slots = window; slots > 1; slots >>= 1) log->shift--;
    log->before = (uint32_t (*)[LEVELS])memory;
    for (int level = 0; level < LEVELS; level++) log->heads[level] = memory + window * (LEVELS + level);
    log->tokens = (int32_t *)(memory + window * 2 * LEVELS);
    return log;
}

void os_close(os_log *log) {
    if (log) free(log->before);
    free(log);
}

static inline int32_t at(const os_log *log, uint32_t position) {
    return log->tokens[position & log->mask];
}

/* Slots of the n-grams that end with `log`, one per order; how many there are. */
static inline int32_t slots_of(const os_log *log, int32_t shift, uint32_t *slots) {
    uint32_t hash = 0;
    int32_t back = 0, level = 0;
    for (; level < LEVELS && (uint32_t)ORDERS[level] <= log->held; level++) {
        for (; back < ORDERS[level]; back++) {
            hash = (hash ^ (uint32_t)at(log, log->end - (uint32_t)back)) * 0x9E3779B1u;
        }
        slots[level] = hash >> shift;
    }
    return level;
}

void os_append(os_log *log, const int32_t *tokens, int64_t count) {
    for (int64_t index = 0; index < count; index++) {
        uint32_t position = ++log->end, slots[LEVELS];
        log->tokens[position & log->mask] = tokens[index];
        if (log->held <= log->mask) log->held++;
        int32_t levels = slots_of(log, log->shift, slots);
        for (int32_t level = 0; level < levels; level++) {
            uint32_t *head = &log->heads[level][slots[level]];
            log->before[position & log->mask][level] = *head;
            *head = position;
        }
    }
}

os_log *os_grown(const os_log *log, int64_t window) {
    os_log *grown = os_open(window);
    if (!grown) return NULL;
    for (uint32_t back = log->held; back > 0; back--) {
        int32_t token = at(log, log->end - back + 1);
        os_append(grown, &token, 1);
    }
    return grown;
}

/* How many tokens, up to `most`, that end at `position` are the last of `text`. */
static int32_t matched(const os_log *log, uint32_t position, const os_log *text, int32_t most) {
    uint32_t reach = log->held - (log->end - position);
    if (reach > text->held) reach = text->held;
    if (reach > (uint32_t)most) reach = (uint32_t)most;
    uint32_t length = 0;
    while (length < reach && at(log, position - length) == at(text, text->end - length)) length++;
    return (int32_t)length;
}

/* The longest matches, and the latest of equal ones, in this order. */
static int32_t gather(const os_log *log, const os_log *text, candidate *found) {
    uint32_t slots[LEVELS];
    int32_t levels = slots_of(text, log->shift, slots), count = 0, most = MAX_MATCH;
    for (int32_t level = levels - 1; level >= 0; level--) {
        uint32_t distance = log->end - log->heads[level][slots[level]];
        for (int32_t step = 0; step < STEPS && count < CANDIDATES && distance < log->held; step++) {
            uint32_t position = log->end - distance;
            int32_t length = matched(log, position, text, most);
            /* What matches more was found on the level above; a collision matches less. */
            int known = level < levels - 1 && length >= most;
            if (distance > 0 && length >= ORDERS[level] && !known) {
                int32_t place = count++;
                for (; place > 0 && found[place - 1].match < length; place--) {
                    found[place] = found[place - 1];
                }
                found[place] = (candidate){position, length};
            }
            uint32_t further = log->end - log->before[position & log->mask][level];
            if (further <= distance) break;
            distance = further;
        }
        most = ORDERS[level];
    }
    return count;
}

/* What follows a candidate's match and `guess`. A copy that reaches the end of the text itself goes on
 * with what it copied. */
static int32_t follower(const os_log *log, uint32_t position, int own, const os_guess *guess) {
    uint32_t ahead = (uint32_t)guess->length, left = log->end - position;
    if (ahead < left) return at(log, position + 1 + ahead);
    return own ? guess->tokens[ahead - left] : SEPARATOR;
}

/* The token that most of `next` are, the first among equals, and how many are. */
static int32_t majority(const int32_t *next, int32_t count, int32_t *votes) {
    int32_t best = SEPARATOR;
    *votes = 0;
    for (int32_t index = 0; index < count && count - index > *votes; index++) {
        if (next[index] == SEPARATOR) continue;
        int32_t same = 1;
        for (int32_t other = index + 1; other < count; other++) same += next[other] == next[index];
        if (same > *votes) {
            *votes = same;
            best = next[index];
        }
    }
    return best;
}

/* Follow the majority of the first `count` candidates for as long as it is worth it. */
static void follow(const os_log *log, const candidate *found, int32_t count, int own,
                   int32_t max_tokens, os_guess *guess) {
    uint32_t positions[CANDIDATES];
    int32_t next[CANDIDATES], votes;
    double right = 1.0;
    guess->length = 0;
    guess->score = 0.0;
    guess->match = found[count - 1].match;
    for (int32_t index = 0; index < count; index++) positions[index] = found[index].position;
    while (guess->length < max_tokens) {
        for (int32_t index = 0; index < count; index++) {
            next[index] = follower(log, positions[index], own, guess);
        }
        int32_t best = majority(next, count, &votes);
        double match = guess->match + guess->length;
        right *= (double)votes / ((double)count + ESCAPE / (match * match));
        if (votes == 0 || right < LEAST) return;
        guess->tokens[guess->length++] = best;
        guess->score += right;
        int32_t kept = 0;
        for (int32_t index = 0; index < count; index++) {
            if (next[index] == best) positions[kept++] = positions[index];
        }
        count = kept;
    }
}

static int32_t order_of(int32_t match) {
    int32_t level = LEVELS - 1;
    while (match < ORDERS[level]) level--;
    return level;
}

void os_find(const os_log *log, const os_log *text, int32_t max_tokens, os_guess *guess) {
    candidate found[CANDIDATES];
    os_guess other;
    int32_t count = gather(log, text, found);
    guess->length = guess->match = 0;
    guess->score = 0.0;
    for (int32_t end = 1; end <= count; end++) {
        int last = end == count || order_of(found[end].match) < order_of(found[end - 1].match);
        int longest = end < count && found[0].match == found[end - 1].match &&
                      found[end].match < found[0].match;
        if (!last && !longest) continue;
        follow(log, found, end, log == text, max_tokens, &other);
        if (other.score > guess->score) *guess = other;
    }
}
