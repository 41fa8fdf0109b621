/* A table of which each place has one key. */
#include "tools/house_memo.h"

#include <stdlib.h>
#include <string.h>

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static uint64_t mix_bytes(uint64_t h, struct slice s)
{
    uint64_t v;
    h = mix(h, s.n);
    for (; s.n >= sizeof v; s.text += sizeof v, s.n -= sizeof v) {
        memcpy(&v, s.text, sizeof v);
        h = mix(h, v);
    }
    v = 0;
    if (s.n)
        memcpy(&v, s.text, s.n);
    return mix(h, v);
}

static size_t place_of(const struct memo_key *k)
{
    uint64_t h = mix(mix(0, (uint64_t)k->kind), (uint64_t)k->number);
    return mix_bytes(mix_bytes(h, k->a), k->b) % HOUSE_MEMO_PLACES;
}

static bool same_bytes(struct slice a, struct slice b)
{
    return a.n == b.n && (!a.n || memcmp(a.text, b.text, a.n) == 0);
}

static bool same(const struct memo_key *a, const struct memo_key *b)
{
    return a->kind == b->kind && a->number == b->number &&
           same_bytes(a->a, b->a) && same_bytes(a->b, b->b);
}

/* Without memory the entry is of no key, and is not found again. */
static void keep(struct memo_entry *e, const struct memo_key *key)
{
    struct slice a = key->a, b = key->b;
    char *bytes = malloc(a.n + b.n + 1);
    if (bytes && a.n)
        memcpy(bytes, a.text, a.n);
    if (bytes && b.n)
        memcpy(bytes + a.n, b.text, b.n);
    free(e->bytes);
    *e = (struct memo_entry){.key = *key, .bytes = bytes};
    e->key.a.text = bytes;
    e->key.b.text = bytes ? bytes + a.n : NULL;
}

struct memo_entry *house_memo_at(struct house_memo *m,
                                 const struct memo_key *key)
{
    struct memo_entry *e = &m->place[place_of(key)];
    if (!e->bytes || !same(&e->key, key))
        keep(e, key);
    return e;
}

void house_memo_clear(struct house_memo *m)
{
    for (size_t i = 0; i < HOUSE_MEMO_PLACES; i++)
        free(m->place[i].bytes);
    memset(m, 0, sizeof *m);
}
