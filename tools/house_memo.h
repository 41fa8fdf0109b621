/* What a word's row is in a file that is being filled: rows of a ClickHouse
 * say the same few words again and again. Of fixed size: a word takes the
 * place of another, which then is looked up once more. */
#ifndef TOOLS_HOUSE_MEMO_H
#define TOOLS_HOUSE_MEMO_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/bytes.h"

enum { HOUSE_MEMO_PLACES = 1 << 14 };

struct memo_key {
    int kind;
    int64_t number;
    struct slice a, b;
};

struct memo_entry {
    struct memo_key key;
    bool known;    /* what follows is set */
    int64_t id, n; /* the user's */
    char *bytes;   /* of the key */
};

struct house_memo {
    struct memo_entry place[HOUSE_MEMO_PLACES];
};

/* The key's place: with known what was found before; else the user sets the
 * rest. Valid until the next call. */
struct memo_entry *house_memo_at(struct house_memo *m,
                                 const struct memo_key *key);
void house_memo_clear(struct house_memo *m);

#endif
