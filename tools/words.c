/* The import's dictionary: a hash table over the words' bytes. Numbers are
 * given in the order of the file, so a second import of the same file gives
 * the same ones. */
#include "tools/words.h"

#include <stdlib.h>

enum { BODY_MAX = 2 * (TRD_MAX_NAME + 2) + 1024 };

struct word {
    uint64_t hash;
    uint64_t count;
    uint32_t kind, n;
    uint8_t *body;
};

struct words {
    struct ingest *in;
    struct word *word;  /* number id at id - 1 */
    uint32_t n, room;
    uint32_t *table;    /* ids, 0: free; a power of two */
    size_t table_room;
    uint8_t entry[ENTRY_HEADER_BYTES + BODY_MAX];
};

int words_open(struct ingest *in, struct words **out)
{
    struct words *w = calloc(1, sizeof *w);
    if (!w)
        return ctl_fail(CTL_FAILED, "out of memory");
    w->in = in;
    *out = w;
    return 0;
}

void words_close(struct words *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; i < w->n; i++)
        free(w->word[i].body);
    free(w->word);
    free(w->table);
    free(w);
}

static uint64_t hash_of(uint32_t kind, const uint8_t *body, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ kind;
    for (size_t i = 0; i < n; i++)
        h = (h ^ body[i]) * UINT64_C(0x100000001b3);
    return h ^ h >> 32;
}

static void put_id(struct words *w, uint32_t id)
{
    size_t i = (size_t)w->word[id - 1].hash & (w->table_room - 1);
    while (w->table[i])
        i = (i + 1) & (w->table_room - 1);
    w->table[i] = id;
}

static uint32_t find(const struct words *w, uint64_t hash, uint32_t kind,
                     const uint8_t *body, size_t n)
{
    if (!w->table_room)
        return 0;
    for (size_t i = (size_t)hash & (w->table_room - 1); w->table[i];
         i = (i + 1) & (w->table_room - 1)) {
        const struct word *x = &w->word[w->table[i] - 1];
        if (x->hash == hash && x->kind == kind && x->n == n &&
            memcmp(x->body, body, n) == 0)
            return w->table[i];
    }
    return 0;
}

static int grow(struct words *w)
{
    uint32_t room = w->room ? 2 * w->room : 256;
    struct word *word = realloc(w->word, room * sizeof *word);
    if (!word)
        return ctl_fail(CTL_FAILED, "out of memory");
    w->word = word;
    w->room = room;
    free(w->table);
    w->table_room = 2 * (size_t)room;
    w->table = calloc(w->table_room, sizeof *w->table);
    if (!w->table)
        return ctl_fail(CTL_FAILED, "out of memory");
    for (uint32_t id = 1; id <= w->n; id++)
        put_id(w, id);
    return 0;
}

/* The body is in w->entry already. */
static int intern(struct words *w, uint32_t kind, size_t n, uint32_t *id)
{
    const uint8_t *body = w->entry + ENTRY_HEADER_BYTES;
    uint64_t hash = hash_of(kind, body, n);
    *id = find(w, hash, kind, body, n);
    if (*id)
        return 0;
    if (w->n == DICT_MAX_ENTRIES)
        return ctl_fail(CTL_BAD, "more than %d different names",
                        DICT_MAX_ENTRIES);
    if (w->n == w->room && grow(w))
        return CTL_FAILED;
    struct word *x = &w->word[w->n];
    x->body = malloc(n ? n : 1);
    if (!x->body)
        return ctl_fail(CTL_FAILED, "out of memory");
    memcpy(x->body, body, n);
    x->hash = hash;
    x->kind = kind;
    x->n = (uint32_t)n;
    x->count = 0;
    *id = ++w->n;
    put_id(w, *id);
    uint32_t len = (uint32_t)(ENTRY_HEADER_BYTES + n);
    struct writer head = writer_of(w->entry, 4);
    put_u32(&head, entry_seal(w->entry, kind, len, *id));
    return ingest_word(w->in, *id, w->entry, len);
}

static struct writer body_of(struct words *w)
{
    return writer_of(w->entry + ENTRY_HEADER_BYTES, BODY_MAX);
}

static int finish(struct words *w, int bad, const struct writer *at,
                  uint32_t kind, uint32_t *id)
{
    if (bad)
        return ctl_fail(CTL_BAD, "a name is too long");
    return intern(w, kind,
                  (size_t)(at->at - (w->entry + ENTRY_HEADER_BYTES)), id);
}

int words_object(struct words *w, const struct wire_object *o, uint32_t *id)
{
    struct writer at = body_of(w);
    int bad = object_put(&at, o);
    return finish(w, bad, &at, ENTRY_OBJECT, id);
}

int words_site(struct words *w, const struct wire_site *s, uint32_t *id)
{
    struct writer at = body_of(w);
    int bad = site_put(&at, s);
    return finish(w, bad, &at, ENTRY_SITE, id);
}

int words_shape(struct words *w, const struct wire_shape *s, uint32_t *id)
{
    struct writer at = body_of(w);
    int bad = shape_put(&at, s);
    return finish(w, bad, &at, ENTRY_SHAPE, id);
}

int words_count(struct words *w, uint32_t id, uint64_t *out)
{
    if (id < 1 || id > w->n)
        return ctl_fail(CTL_FAILED, "a word that is not there");
    *out = ++w->word[id - 1].count;
    return 0;
}
