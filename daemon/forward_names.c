/* Names of a run's dictionaries as values of a row. Forwarder's thread.
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

/* The first column is real_ns, the others are the row's; ?2: the run. */
static const struct {
    const char *sql;
    bool may_lack; /* then all is empty */
} dictionaries[] = {
    [NAME_STREAM] = {"SELECT real_ns, ?2, epoch, attempt, rank FROM stream"
                     " WHERE id = ?1", false},
    [NAME_OBJECT] = {"SELECT 0, class, instance, module FROM object"
                     " WHERE id = ?1", true},
    [NAME_PATH] = {"SELECT 0, text FROM path WHERE id = ?1", false},
    [NAME_SHAPE] = {"SELECT 0, dims FROM shape WHERE id = ?1", false},
    [NAME_NOTE] = {"SELECT 0, text FROM note WHERE id = ?1", true},
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
        free(c->place[i].name.text);
    free(c->run);
    free(c);
}

/* All texts in one piece of memory. */
static bool copy(sqlite3_stmt *q, struct name *out)
{
    size_t n = 0;
    for (unsigned i = 0; i < out->n; i++) {
        sqlite3_column_blob(q, (int)i + 1); /* as bytes, which are counted */
        out->part[i].n = (size_t)sqlite3_column_bytes(q, (int)i + 1);
        n += out->part[i].n;
    }
    out->text = malloc(n + 1);
    n = 0;
    for (unsigned i = 0; out->text && i < out->n; i++) {
        const void *text = sqlite3_column_blob(q, (int)i + 1);
        out->part[i].number = sqlite3_column_int64(q, (int)i + 1);
        if (text)
            memcpy(out->text + n, text, out->part[i].n);
        n += out->part[i].n;
    }
    out->real_ns = sqlite3_column_int64(q, 0);
    return out->text != NULL;
}

static int fill(sqlite3_stmt *q, enum name_kind kind, struct name *out)
{
    int rc = sqlite3_step(q);
    out->n = (unsigned)sqlite3_column_count(q) - 1;
    if (rc == SQLITE_ROW)
        return copy(q, out) ? SQLITE_OK : SQLITE_NOMEM;
    if (rc != SQLITE_DONE)
        return rc;
    return dictionaries[kind].may_lack ? SQLITE_OK : SQLITE_CORRUPT;
}

/* In place of the name that is there. */
static int read_name(const struct names *c, sqlite3 *db, enum name_kind kind,
                     int64_t id, struct name *out)
{
    struct name name = {.text = NULL};
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(db, dictionaries[kind].sql, -1, &q, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_int64(q, 1, id);
    if (rc == SQLITE_OK && sqlite3_bind_parameter_count(q) > 1)
        rc = sqlite3_bind_text(q, 2, c->run, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK)
        rc = fill(q, kind, &name);
    sqlite3_finalize(q);
    if (rc == SQLITE_OK) {
        free(out->text);
        *out = name;
    }
    return rc;
}

void names_put(const struct name *name, struct block *b)
{
    const char *text = name->text ? name->text : "";
    for (unsigned i = 0; i < name->n; i++) {
        if (block_wants_text(b))
            block_text(b, text, name->part[i].n);
        else
            block_number(b, (uint64_t)name->part[i].number);
        text += name->part[i].n;
    }
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
