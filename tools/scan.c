/* The records of a run's file, read with as little as a comparison needs. */
#include "tools/scan.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

#include "proto/row.h"
#include "tools/run_file.h"
#include "tools/tracectl.h"

/* Rows after which the statement is begun again. */
enum { BATCH = 200000 };

/* Columns in the order of the table: SQLite finds those behind by walking
 * over those before. They are read by a function of SQL, which gets them all
 * at once: sqlite3_column_*() takes longer to find a value than to give it. */
#define ROWS                                                                  \
    "SELECT scan_row(step, object, pass, stream, io, position, seq,"          \
    " iteration, microbatch, labels, note, path, dtype, shape, n, nan, pinf," \
    " ninf, zero, subnormal, max, min, mean, std, l2, hash, samples, given)"  \
    " FROM record WHERE "
#define ORDER " ORDER BY step, object, pass, stream, io, position, seq"
/* What is left of a step, and all behind it. One condition for both would be
 * asked of each row again. */
static const char sql_rest[] =
    ROWS "step = ?1 AND (object, pass, stream, io, position, seq)"
         " >= (?2, ?3, ?4, ?5, ?6, ?7)" ORDER;
static const char sql_later[] = ROWS "step > ?1" ORDER;
static const char sql_extra[] =
    "SELECT sampling, sampling_arg FROM extra"
    " WHERE stream = ?1 AND seq = ?2";
/* "coordinates":{"tp":[0,2]} of what a process says of itself */
static const char sql_places[] =
    "SELECT s.id, e.key, json_extract(e.value, '$[0]'),"
    " json_extract(e.value, '$[1]') FROM stream s, json_each(CASE"
    " WHEN json_valid(s.info) THEN s.info ELSE '{}' END, '$.coordinates') e"
    " WHERE e.type = 'array' AND json_array_length(e.value) = 2"
    " ORDER BY s.id, e.id";
static const char sql_groups[] =
    "SELECT step, object, stream, iteration, labels FROM record"
    " ORDER BY step, object, pass, stream, io, position, seq";
enum {
    STEP, OBJECT, PASS, STREAM, IO, POSITION, SEQ, ITERATION, MICROBATCH,
    LABELS, NOTE, PATH, DTYPE, SHAPE, N, NAN_N, PINF, NINF, ZERO, SUBNORMAL,
    MAX, MIN, MEAN, STD, L2, HASH, SAMPLES, GIVEN, COLUMNS
};
enum { KEYS = SEQ + 1 };

struct word {
    int64_t id;
    char *text;
    int64_t n;         /* of a shape: elements */
};
struct words {
    struct word *at;
    size_t n;
    size_t last;       /* index of what was looked for before */
};
struct scan {
    sqlite3 *db;
    sqlite3_stmt *rest, *later, *extra;
    sqlite3_stmt *rows;    /* the one of rest and later that is read */
    char *file;
    char name[TRD_MAX_RUN + 1];
    int64_t attempt;
    uint64_t records, lost;
    struct scan_object *object;
    size_t objects;
    struct words path, shape, note;
    struct scan_stream *stream;
    size_t streams;
    bool has_extra;
    unsigned left;     /* rows until the statement is begun again */
    bool raw;          /* the statement stands on a row that key is of */
    bool stands;       /* row is waiting */
    bool ended;        /* there is no more */
    struct scan_row row;
    int64_t key[KEYS];
    bool wanted;       /* the row read last is of the attempt */
    char *samples;     /* of it */
    size_t room;
    const char *bad;   /* what is wrong with it */
};

static void take_row(sqlite3_context *call, int n, sqlite3_value **v);

static int failed(struct scan *s)
{
    int code = sqlite3_errcode(s->db) & 0xff;
    if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB)
        return ctl_fail(CTL_BAD, "'%s' is damaged: %s", s->file,
                        sqlite3_errmsg(s->db));
    return ctl_fail(CTL_FAILED, "'%s' cannot be read: %s", s->file,
                    sqlite3_errmsg(s->db));
}

static int damaged(struct scan *s, const char *what)
{
    return ctl_fail(CTL_BAD, "'%s' is damaged: %s; see 'tracectl verify'",
                    s->file, what);
}

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- the dictionary ---- */

/* Calls take() for each row. 0 or an exit code. */
static int each(struct scan *s, const char *sql,
                int (*take)(struct scan *s, sqlite3_stmt *row, void *to),
                void *to)
{
    sqlite3_stmt *row = NULL;
    int code = 0, got = SQLITE_ROW;
    if (sqlite3_prepare_v2(s->db, sql, -1, &row, NULL) != SQLITE_OK)
        return failed(s);
    while (code == 0 && (got = sqlite3_step(row)) == SQLITE_ROW)
        code = take(s, row, to);
    if (code == 0 && got != SQLITE_DONE)
        code = failed(s);
    sqlite3_finalize(row);
    return code;
}

/* Room for one more of a growing list, doubled at powers of two; NULL
 * without memory, the list as it was. */
static void *grown(void *list, size_t n, size_t size)
{
    if (n & (n - 1))
        return list;
    return realloc(list, (n ? 2 * n : 1) * size);
}

static char *column_text(sqlite3_stmt *row, int i)
{
    const char *text = (const char *)sqlite3_column_text(row, i);
    return strdup(text ? text : "");
}

static int take_word(struct scan *s, sqlite3_stmt *row, void *to)
{
    struct words *w = to;
    struct word *at = grown(w->at, w->n, sizeof *at);
    (void)s;
    if (!at)
        return no_memory();
    w->at = at;
    at += w->n;
    at->id = sqlite3_column_int64(row, 0);
    at->text = column_text(row, 1);
    at->n = sqlite3_column_int64(row, 2);
    if (!at->text)
        return no_memory();
    w->n++;
    return 0;
}

static int take_object(struct scan *s, sqlite3_stmt *row, void *to)
{
    struct scan_object *o = grown(s->object, s->objects, sizeof *o);
    (void)to;
    if (!o)
        return no_memory();
    s->object = o;
    o += s->objects++;
    o->id = sqlite3_column_int64(row, 0);
    o->class_name = column_text(row, 1);
    o->instance = sqlite3_column_int64(row, 2);
    o->module = column_text(row, 3);
    if (!o->class_name || !o->module)
        return no_memory();
    if (strlen(o->class_name) > TRD_MAX_NAME ||
        strlen(o->module) > TRD_MAX_NAME)
        return damaged(s, "the name of an object is too long");
    return 0;
}

static int take_stream(struct scan *s, sqlite3_stmt *row, void *to)
{
    struct scan_stream *t = grown(s->stream, s->streams, sizeof *t);
    (void)to;
    if (!t)
        return no_memory();
    s->stream = t;
    t += s->streams++;
    t->id = sqlite3_column_int64(row, 0);
    t->rank = (uint32_t)sqlite3_column_int64(row, 1);
    t->wanted = sqlite3_column_int64(row, 2) == s->attempt;
    t->world = (uint32_t)sqlite3_column_int64(row, 4);
    t->info = column_text(row, 5);
    t->place = NULL;
    t->places = 0;
    if (t->wanted)
        s->records += (uint64_t)sqlite3_column_int64(row, 3);
    return t->info ? 0 : no_memory();
}

static int take_place(struct scan *s, sqlite3_stmt *row, void *to)
{
    struct scan_stream *t = s->stream, *end = t + s->streams;
    struct scan_place *p;
    (void)to;
    while (t < end && t->id != sqlite3_column_int64(row, 0))
        t++;
    if (t == end)
        return 0;
    p = grown(t->place, t->places, sizeof *p);
    if (!p)
        return no_memory();
    t->place = p;
    p += t->places;
    p->name = column_text(row, 1);
    p->at = sqlite3_column_int64(row, 2);
    p->size = sqlite3_column_int64(row, 3);
    if (!p->name)
        return no_memory();
    t->places++;
    return 0;
}

static int take_number(struct scan *s, sqlite3_stmt *row, void *to)
{
    (void)s;
    *(int64_t *)to = sqlite3_column_int64(row, 0);
    return 0;
}

static int take_name(struct scan *s, sqlite3_stmt *row, void *to)
{
    const char *text = (const char *)sqlite3_column_text(row, 0);
    (void)to;
    if (text && strlen(text) < sizeof s->name)
        strcpy(s->name, text);
    return 0;
}

static int load(struct scan *s, int64_t attempt)
{
    int64_t last = 0, lost = 0, extra = 0;
    int code = each(s, "SELECT value FROM meta WHERE key = 'name'",
                    take_name, NULL);
    if (!code)
        code = each(s, "SELECT max(attempt) FROM stream", take_number, &last);
    s->attempt = attempt < 0 ? last : attempt;
    if (!code)
        code = each(s, "SELECT id, rank, attempt, seq, world, info FROM stream"
                       " ORDER BY id", take_stream, NULL);
    if (!code && attempt > last)
        code = ctl_fail(CTL_BAD, "'%s' has no attempt %lld: its last is %lld",
                        s->file, (long long)attempt, (long long)last);
    if (!code)
        code = each(s, sql_places, take_place, NULL);
    if (!code)
        code = each(s, "SELECT id, class, instance, module FROM object"
                       " ORDER BY id", take_object, NULL);
    if (!code)
        code = each(s, "SELECT id, text, 0 FROM path ORDER BY id", take_word,
                    &s->path);
    if (!code)
        code = each(s, "SELECT id, dims, n FROM shape ORDER BY id", take_word,
                    &s->shape);
    if (!code)
        code = each(s, "SELECT id, text, 0 FROM note ORDER BY id", take_word,
                    &s->note);
    if (!code)
        code = each(s, "SELECT total(count) FROM loss", take_number, &lost);
    if (!code)
        code = each(s, "SELECT count(*) FROM (SELECT 1 FROM extra LIMIT 1)",
                    take_number, &extra);
    s->lost = (uint64_t)lost;
    s->records -= s->lost < s->records ? s->lost : s->records;
    s->has_extra = extra > 0;
    return code;
}

int scan_open(const char *file, int64_t attempt, struct scan **out)
{
    struct scan *s = calloc(1, sizeof *s);
    int code;
    *out = NULL;
    if (!s || !(s->file = strdup(file))) {
        free(s);
        return no_memory();
    }
    code = run_file_open(file, &s->db);
    if (!code)
        code = load(s, attempt);
    if (!code && s->has_extra &&
        sqlite3_prepare_v2(s->db, sql_extra, -1, &s->extra, NULL))
        code = failed(s);
    if (!code &&
        (sqlite3_create_function(s->db, "scan_row", COLUMNS, SQLITE_UTF8, s,
                                 take_row, NULL, NULL) ||
         sqlite3_prepare_v2(s->db, sql_rest, -1, &s->rest, NULL) ||
         sqlite3_prepare_v2(s->db, sql_later, -1, &s->later, NULL)))
        code = failed(s);
    if (!code)
        code = scan_goto(s, INT64_MIN, INT64_MIN);
    if (code) {
        scan_close(s);
        return code;
    }
    *out = s;
    return 0;
}

static void free_words(struct words *w)
{
    for (size_t i = 0; i < w->n; i++)
        free(w->at[i].text);
    free(w->at);
}

void scan_close(struct scan *s)
{
    if (!s)
        return;
    sqlite3_finalize(s->rest);
    sqlite3_finalize(s->later);
    sqlite3_finalize(s->extra);
    sqlite3_close(s->db);
    for (size_t i = 0; i < s->objects; i++) {
        free((char *)s->object[i].class_name);
        free((char *)s->object[i].module);
    }
    free(s->object);
    free_words(&s->path);
    free_words(&s->shape);
    free_words(&s->note);
    for (size_t i = 0; i < s->streams; i++) {
        for (size_t j = 0; j < s->stream[i].places; j++)
            free(s->stream[i].place[j].name);
        free(s->stream[i].place);
        free(s->stream[i].info);
    }
    free(s->stream);
    free(s->samples);
    free(s->file);
    free(s);
}

const char *scan_name(const struct scan *s)
{
    return s->name;
}

int64_t scan_attempt(const struct scan *s)
{
    return s->attempt;
}

uint64_t scan_records(const struct scan *s)
{
    return s->records;
}

uint64_t scan_lost(const struct scan *s)
{
    return s->lost;
}

const struct scan_stream *scan_streams(const struct scan *s, size_t *n)
{
    *n = s->streams;
    return s->stream;
}

const struct scan_object *scan_objects(const struct scan *s, size_t *n)
{
    *n = s->objects;
    return s->object;
}

/* An id against what begins with its own, as objects and words do. */
static int by_id(const void *key, const void *of)
{
    int64_t a = *(const int64_t *)key, b = *(const int64_t *)of;
    return (a > b) - (a < b);
}

size_t scan_index(const struct scan *s, int64_t id)
{
    const struct scan_object *o =
        s->objects
            ? bsearch(&id, s->object, s->objects, sizeof *s->object, by_id)
            : NULL;
    return o ? (size_t)(o - s->object) : SIZE_MAX;
}

const char *scan_module(const struct scan *s, size_t index)
{
    return index < s->objects ? s->object[index].module : "";
}

/* Of a list sorted by id. */
static const struct word *find_word(const struct words *w, int64_t id)
{
    return w->n ? bsearch(&id, w->at, w->n, sizeof *w->at, by_id) : NULL;
}

/* Mostly it is the word of the record before. */
static const struct word *next_word(struct words *w, int64_t id)
{
    const struct word *at = w->n ? &w->at[w->last] : NULL;
    if (at && at->id != id && (at = find_word(w, id)))
        w->last = (size_t)(at - w->at);
    return at;
}

const char *scan_path(const struct scan *s, int64_t path)
{
    const struct word *w = find_word(&s->path, path);
    return w ? w->text : NULL;
}

const char *scan_path_at(const struct scan *s, size_t i, int64_t *path)
{
    if (i >= s->path.n)
        return NULL;
    *path = s->path.at[i].id;
    return s->path.at[i].text;
}

const char *scan_note(const struct scan *s, int64_t note)
{
    const struct word *w = find_word(&s->note, note);
    return w ? w->text : "";
}

/* ---- rows ---- */

static int begin(struct scan *s)
{
    sqlite3_reset(s->rest);
    sqlite3_reset(s->later);
    for (int i = 0; i < KEYS; i++)
        sqlite3_bind_int64(s->rest, i + 1, s->key[i]);
    sqlite3_bind_int64(s->later, 1, s->key[STEP]);
    s->rows = s->rest;
    s->left = BATCH;
    return 0;
}

int scan_goto(struct scan *s, int64_t step, int64_t object)
{
    s->raw = s->stands = s->ended = false;
    for (int i = 0; i < KEYS; i++)
        s->key[i] = INT64_MIN;
    s->key[STEP] = step;
    s->key[OBJECT] = object;
    return begin(s);
}

static bool is_there(sqlite3_value *v)
{
    return sqlite3_value_type(v) != SQLITE_NULL;
}

static uint64_t bits(sqlite3_value *v)
{
    return (uint64_t)sqlite3_value_int64(v);
}

/* A figure of a text log, whose NaN and infinities are codes. */
static double given(sqlite3_value *v, int64_t code)
{
    return given_value((uint32_t)code & 3, is_there(v),
                       sqlite3_value_double(v));
}

/* Does what was given say anything of the figure? */
static bool is_known(sqlite3_value *v, int64_t code)
{
    return code & 3 || is_there(v);
}

static void read_given(struct diff_side *f, sqlite3_value **v)
{
    int64_t code = sqlite3_value_int64(v[GIVEN]);
    f->has |= TRD_IS_GIVEN;
    if (is_known(v[MAX], code) && is_known(v[MIN], code >> 2))
        f->has |= TRD_HAS_RANGE;
    if (is_known(v[MEAN], code >> 4))
        f->has |= TRD_HAS_MEAN;
    f->max = given(v[MAX], code);
    f->min = given(v[MIN], code >> 2);
    f->mean = given(v[MEAN], code >> 4);
    f->std = given(v[STD], code >> 6);
}

static void read_figures(struct diff_side *f, sqlite3_value **v)
{
    f->has = is_there(v[NAN_N]) ? TRD_HAS_COUNTS : 0;
    f->nan = bits(v[NAN_N]);
    f->pinf = bits(v[PINF]);
    f->ninf = bits(v[NINF]);
    f->max = sqlite3_value_double(v[MAX]);
    f->min = sqlite3_value_double(v[MIN]);
    if (is_there(v[MAX]) && is_there(v[MIN]))
        f->has |= TRD_HAS_RANGE;
    f->mean = sqlite3_value_double(v[MEAN]);
    f->std = sqlite3_value_double(v[STD]);
    if (is_there(v[MEAN]) && is_there(v[STD]))
        f->has |= TRD_HAS_MEAN;
    f->l2 = sqlite3_value_double(v[L2]);
    if (is_there(v[L2]))
        f->has |= TRD_HAS_L2;
    f->hash = bits(v[HASH]);
    if (is_there(v[HASH]))
        f->has |= TRD_HAS_HASH;
    if (is_there(v[GIVEN]))
        read_given(f, v);
}

/* The value is SQLite's, and goes with the call. */
static bool keep_samples(struct scan *s, sqlite3_value *v)
{
    const void *text = sqlite3_value_blob(v);
    size_t n = (size_t)sqlite3_value_bytes(v);
    if (n > s->room) {
        char *more = realloc(s->samples, n);
        if (!more)
            return false;
        s->samples = more;
        s->room = n;
    }
    if (n)
        memcpy(s->samples, text, n);
    s->row.side.samples.text = s->samples;
    s->row.side.samples.n = n;
    return true;
}

static int read_sampling(struct scan *s, int64_t stream, struct scan_row *r)
{
    int code;
    r->side.sampling = TRD_EQUIDISTANT;
    r->side.sampling_arg = 0;
    if (!s->has_extra)
        return 0;
    sqlite3_reset(s->extra);
    sqlite3_bind_int64(s->extra, 1, stream);
    sqlite3_bind_int64(s->extra, 2, r->seq);
    code = sqlite3_step(s->extra);
    if (code == SQLITE_ROW) {
        r->side.sampling = sqlite3_column_int(s->extra, 0);
        r->side.sampling_arg =
            (uint64_t)sqlite3_column_int64(s->extra, 1);
    }
    sqlite3_reset(s->extra);
    return code == SQLITE_ROW || code == SQLITE_DONE ? 0 : failed(s);
}

static const struct scan_stream *find_stream(const struct scan *s, int64_t id)
{
    size_t low = 0, high = s->streams;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (s->stream[mid].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low < s->streams && s->stream[low].id == id ? &s->stream[low]
                                                       : NULL;
}

/* What a row has besides its key. False without memory. */
static bool read_row(struct scan *s, const struct scan_stream *t,
                     const struct word *shape, sqlite3_value **v)
{
    struct scan_row *r = &s->row;
    r->step = s->key[STEP];
    r->object = s->key[OBJECT];
    r->pass = (int)s->key[PASS];
    r->io = (int)s->key[IO];
    r->position = s->key[POSITION];
    r->seq = s->key[SEQ];
    r->rank = t->rank;
    r->iteration = sqlite3_value_int64(v[ITERATION]);
    r->microbatch = sqlite3_value_int64(v[MICROBATCH]);
    r->labels = (uint32_t)sqlite3_value_int64(v[LABELS]);
    r->note = sqlite3_value_int64(v[NOTE]);
    r->path = sqlite3_value_int64(v[PATH]);
    r->side.dtype = sqlite3_value_int(v[DTYPE]);
    r->side.shape = slice_of(shape->text);
    r->side.n = is_there(v[N]) ? bits(v[N]) : (uint64_t)shape->n;
    r->zero = bits(v[ZERO]);
    r->subnormal = bits(v[SUBNORMAL]);
    read_figures(&r->side, v);
    s->bad = trd_pass_name(r->pass) && r->io >= 0 && r->io <= TRD_OUTPUT &&
                     trd_dtype_name(r->side.dtype)
                 ? NULL
                 : "a record has a code that is not known";
    return keep_samples(s, v[SAMPLES]);
}

/* scan_row() of SQL. */
static void take_row(sqlite3_context *call, int n, sqlite3_value **v)
{
    struct scan *s = sqlite3_user_data(call);
    const struct scan_stream *t;
    const struct word *shape;
    (void)n;
    for (int i = 0; i < KEYS; i++)
        s->key[i] = sqlite3_value_int64(v[i]);
    t = find_stream(s, s->key[STREAM]);
    shape = next_word(&s->shape, sqlite3_value_int64(v[SHAPE]));
    /* of a process that came after the dictionary was read */
    s->wanted = t && t->wanted && shape;
    if (s->wanted && !read_row(s, t, shape, v))
        sqlite3_result_error_nomem(call);
}

/* Makes the statement stand on a row. 1, 0 behind the last, or minus the exit
 * code. */
static int stand(struct scan *s)
{
    int got;
    if (s->ended || s->raw)
        return !s->ended;
    if (s->left == 0) {
        s->key[SEQ]++;
        begin(s);
    }
    got = sqlite3_step(s->rows);
    if (got == SQLITE_DONE && s->rows == s->rest) {
        sqlite3_reset(s->rest);
        s->rows = s->later;
        got = sqlite3_step(s->rows);
    }
    if (got == SQLITE_DONE) {
        sqlite3_reset(s->rows);
        s->ended = true;
        return 0;
    }
    if (got != SQLITE_ROW)
        return -failed(s);
    s->left--;
    s->raw = true;
    return 1;
}

/* The row that the statement stands on becomes the one that waits, if it is
 * wanted. 0 or an exit code. */
static int judge(struct scan *s)
{
    s->raw = false;
    if (s->wanted && s->bad)
        return damaged(s, s->bad);
    s->stands = s->wanted;
    return s->wanted ? read_sampling(s, s->key[STREAM], &s->row) : 0;
}

int scan_peek(struct scan *s, const struct scan_row **out)
{
    while (!s->stands) {
        int got = stand(s), code = got > 0 ? judge(s) : 0;
        if (got <= 0 || code)
            return code ? -code : got;
    }
    *out = &s->row;
    return 1;
}

int scan_peek_at(struct scan *s, int64_t step, int64_t object,
                 const struct scan_row **out)
{
    while (!s->stands) {
        int got = stand(s), code;
        if (got <= 0 || s->key[STEP] != step || s->key[OBJECT] != object)
            return got < 0 ? got : 0;
        code = judge(s);
        if (code)
            return -code;
    }
    *out = &s->row;
    return s->row.step == step && s->row.object == object;
}

int scan_next(struct scan *s, const struct scan_row **out)
{
    int got = scan_peek(s, out);
    s->stands = false;
    return got;
}

/* ---- groups ---- */

struct group_taker {
    int (*take)(void *to, const struct scan_group *g);
    void *to;
    struct scan_group last;
    bool some;
};

static int take_group(struct scan *s, sqlite3_stmt *row, void *to)
{
    struct group_taker *t = to;
    const struct scan_stream *from;
    struct scan_group g = {.step = sqlite3_column_int64(row, 0),
                           .object = sqlite3_column_int64(row, 1),
                           .iteration = sqlite3_column_int64(row, 3)};
    from = find_stream(s, sqlite3_column_int64(row, 2));
    if (!from || !from->wanted ||
        sqlite3_column_int64(row, 4) & TRD_L_RECOMPUTE)
        return 0;
    g.rank = from->rank;
    if (t->some && g.step == t->last.step && g.object == t->last.object &&
        g.iteration == t->last.iteration && g.rank == t->last.rank)
        return 0;
    t->last = g;
    t->some = true;
    return t->take(t->to, &g);
}

int scan_groups(struct scan *s,
                int (*take)(void *to, const struct scan_group *g), void *to)
{
    struct group_taker t = {.take = take, .to = to};
    return each(s, sql_groups, take_group, &t);
}
