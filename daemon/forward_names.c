/* Names of a run's dictionaries as columns of RowBinary. Forwarder's thread.
 *
 * A table of fixed size, in which a name takes the place of the one that had
 * it: ids are dense, so that those of one model rarely meet. A row of a
 * dictionary never changes. */
#include "daemon/forward.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES = 1 << 16, KINDS = 8 };

struct place {
    uint64_t key; /* 0: free */
    struct name name;
};

struct names {
    char *run;
    struct place place[PLACES];
};

static const struct {
    const char *sql; /* the first column is real_ns */
    const char *types, *none; /* of no row; NULL: there must be one */
    size_t none_n;
} dictionaries[] = {
    [NAME_STREAM] = {"SELECT real_ns, epoch, attempt, rank FROM stream"
                     " WHERE id = ?1",
                     "lii", NULL, 0},
    [NAME_OBJECT] = {"SELECT 0, class, instance, module FROM object"
                     " WHERE id = ?1",
                     "sis", "\0\0\0\0\0", 6},
    [NAME_PATH] = {"SELECT 0, text FROM path WHERE id = ?1", "s", NULL, 0},
    [NAME_SHAPE] = {"SELECT 0, dims FROM shape WHERE id = ?1", "s", NULL, 0},
    [NAME_NOTE] = {"SELECT 0, text FROM note WHERE id = ?1", "s", "", 1},
};

struct names *names_new(const char *run)
{
    struct names *c = calloc(1, sizeof *c);
    if (c)
        c->run = strdup(run);
    if (!c || !c->run) {
        free(c);
        return NULL;
    }
    return c;
}

void names_free(struct names *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < PLACES; i++)
        free(c->place[i].name.bytes);
    free(c->run);
    free(c);
}

static int fill(const struct names *c, sqlite3_stmt *q, enum name_kind kind,
                struct block *b, int64_t *real_ns)
{
    int rc = sqlite3_step(q);
    if (kind == NAME_STREAM)
        block_text(b, c->run, strlen(c->run));
    if (rc == SQLITE_ROW) {
        *real_ns = sqlite3_column_int64(q, 0);
        block_columns(b, q, 1, dictionaries[kind].types);
    } else if (rc != SQLITE_DONE) {
        return rc;
    } else if (!dictionaries[kind].none) {
        return SQLITE_CORRUPT;
    }
    for (size_t i = 0; rc == SQLITE_DONE && i < dictionaries[kind].none_n; i++)
        block_put(b, (uint8_t)dictionaries[kind].none[i], 1);
    return b->bad ? SQLITE_NOMEM : SQLITE_OK;
}

/* In place of the name that is there. */
static int read_name(const struct names *c, sqlite3 *db, enum name_kind kind,
                     int64_t id, struct name *out)
{
    struct block b = {.at = NULL};
    sqlite3_stmt *q = NULL;
    int64_t real_ns = 0;
    uint8_t *bytes;
    int rc = sqlite3_prepare_v2(db, dictionaries[kind].sql, -1, &q, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(q, 1, id);
    if (rc == SQLITE_OK)
        rc = fill(c, q, kind, &b, &real_ns);
    sqlite3_finalize(q);
    bytes = rc == SQLITE_OK ? malloc(b.n) : NULL; /* no more than it needs */
    if (bytes) {
        memcpy(bytes, b.at, b.n);
        free(out->bytes);
        out->bytes = bytes;
        out->n = b.n;
        out->real_ns = real_ns;
    } else if (rc == SQLITE_OK) {
        rc = SQLITE_NOMEM;
    }
    block_free(&b);
    return rc;
}

int names_get(struct names *c, sqlite3 *db, enum name_kind kind, int64_t id,
              const struct name **out)
{
    uint64_t key = (uint64_t)id * KINDS + kind + 1;
    /* what differs in ids of streams is above the first 12 bits */
    uint64_t spread = ((uint64_t)id ^ (uint64_t)id >> 12) * KINDS + kind;
    struct place *p = &c->place[spread % PLACES];
    int rc = SQLITE_OK;
    if (p->key != key) {
        rc = read_name(c, db, kind, id, &p->name);
        if (rc == SQLITE_OK)
            p->key = key;
    }
    *out = &p->name;
    return rc;
}
