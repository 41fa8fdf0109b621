/* Fetching runs from a ClickHouse into files. One thread.
 *
 * Numbers of objects are those of the node that stored them: the run's first
 * node has its numbers, what differs gets free ones, so that records come in
 * the order that the node gave them. */
#include "tools/house_fetch.h"

#include <errno.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/place.h"
#include "schema.h"
#include "tools/house_put.h"
#include "tools/house_rows.h"
#include "tools/house_where.h"
#include "tools/run_file.h"
#include "tools/tracectl.h"

enum {
    SQL_BYTES = 8192,
    LIMIT_MAX = 1000000 /* above, an engine would sort too much */
};

enum insert {
    PUT_META,
    PUT_STREAM,
    PUT_LOSS,
    PUT_OBJECT,
    PUT_PATH,
    INSERT_COUNT
};

/* An id that is taken by another gets a free one. */
static const char *const insert_sql[INSERT_COUNT] = {
    [PUT_META] = "INSERT OR IGNORE INTO meta VALUES(?, ?)",
    [PUT_STREAM] =
        "INSERT OR IGNORE INTO stream SELECT (SELECT CASE WHEN EXISTS(SELECT"
        " 1 FROM stream WHERE id = ?1) THEN (SELECT max(id) + 1 FROM stream"
        " WHERE id < (?1 | 4095)) ELSE ?1 END),"
        "?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,0,?18,?19,"
        "?20",
    [PUT_LOSS] = "INSERT OR IGNORE INTO loss VALUES((SELECT id FROM stream"
                 " WHERE epoch = ?1),?2,?3,?4,?5,?6,?7)",
    [PUT_OBJECT] =
        "INSERT OR IGNORE INTO object SELECT CASE WHEN EXISTS(SELECT 1 FROM"
        " object WHERE id = ?1) THEN NULL ELSE ?1 END, ?2, ?3, ?4",
    [PUT_PATH] = "INSERT OR IGNORE INTO path(text) VALUES(?)",
};

#define FILL_SQL                                                               \
    "PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF;"                  \
    "PRAGMA cache_size = -16000;"
/* Of a new file: records are put in faster, but one that has none is nearly a
 * MB. */
#define BIG_PAGES_SQL "PRAGMA page_size = 32768;"

/* The file that is being filled. */
struct filling {
    char run[TRD_MAX_RUN + 1]; /* "": none */
    sqlite3 *db;
    sqlite3_stmt *insert[INSERT_COUNT];
    struct house_put *records;
};

struct fetch {
    struct house_place place;
    struct house *house;
    struct filling to;
    size_t heads, records;
    int all_runs; /* the heads of all are asked for */
    int any;
    int objects;    /* there is a table of them */
    int64_t until;  /* a step; -1: none */
    int code; /* of the first thing that went wrong in a row */
};

/* ---- the directory, one for the program ---- */

/* Kept until the end: a signal handler goes through it. */
struct temp_file {
    struct temp_file *next;
    char path[];
};

static char temp_dir[1024];
static struct temp_file *temp_files;

static void remove_temp(void)
{
    for (struct temp_file *t = temp_files; t; t = t->next)
        unlink(t->path);
    if (*temp_dir)
        rmdir(temp_dir);
}

static void on_signal(int number)
{
    remove_temp();
    signal(number, SIG_DFL);
    raise(number);
}

static int keep_path(const char *path)
{
    size_t n = strlen(path) + 1;
    struct temp_file *t = malloc(sizeof *t + n);
    if (!t)
        return SQLITE_NOMEM;
    memcpy(t->path, path, n);
    t->next = temp_files;
    temp_files = t;
    return SQLITE_OK;
}

static int make_temp(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    const char *tmp = getenv("TMPDIR");
    if (*temp_dir)
        return 0;
    /* each allocation would be counted; refused where SQLite already runs */
    sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0);
    snprintf(temp_dir, sizeof temp_dir, "%s/tracectl-XXXXXX",
             tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(temp_dir)) {
        int code = ctl_fail(CTL_FAILED, "cannot make '%s': %s", temp_dir,
                            ctl_errno(errno));
        *temp_dir = '\0';
        return code;
    }
    atexit(remove_temp);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (signal(numbers[i], on_signal) == SIG_IGN)
            signal(numbers[i], SIG_IGN);
    return 0;
}

const char *fetch_dir(const struct fetch *f)
{
    (void)f;
    return temp_dir;
}

const char *fetch_shown(const struct fetch *f)
{
    return f->place.shown;
}

const char *fetch_last(const struct fetch *f)
{
    return f->to.run;
}

/* ---- files ---- */

static int failed(struct fetch *f)
{
    f->code = ctl_fail(CTL_FAILED, "cannot write into '%s': %s", temp_dir,
                       f->to.db ? sqlite3_errmsg(f->to.db) : "out of memory");
    return f->code;
}

static int done(struct fetch *f)
{
    struct filling *t = &f->to;
    int bad = t->db && sqlite3_exec(t->db, "COMMIT", NULL, NULL, NULL);
    if (bad)
        failed(f);
    for (int i = 0; i < INSERT_COUNT; i++) {
        sqlite3_finalize(t->insert[i]);
        t->insert[i] = NULL;
    }
    house_put_close(t->records);
    t->records = NULL;
    sqlite3_close(t->db);
    t->db = NULL;
    return f->code;
}

/* The file of the run, made where it is missing. */
static int fill(struct fetch *f, const char *run)
{
    struct filling *t = &f->to;
    char name[TRD_MAX_RUN + 4], *path;
    int made, rc;
    if (t->db && strcmp(t->run, run) == 0)
        return 0;
    if (done(f))
        return f->code;
    snprintf(t->run, sizeof t->run, "%s", run);
    snprintf(name, sizeof name, "%s.db", run);
    path = run_dir_join(temp_dir, name);
    if (!path)
        return failed(f);
    made = access(path, F_OK) != 0;
    rc = made ? keep_path(path) : SQLITE_OK;
    if (rc == SQLITE_OK)
        rc = sqlite3_open_v2(path, &t->db,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE |
                                 SQLITE_OPEN_NOMUTEX,
                             NULL);
    free(path);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(t->db,
                          f->all_runs ? FILL_SQL "BEGIN"
                                      : FILL_SQL BIG_PAGES_SQL "BEGIN",
                          NULL, NULL, NULL);
    if (rc == SQLITE_OK && made)
        rc = sqlite3_exec(t->db, schema_sql, NULL, NULL, NULL);
    for (int i = 0; rc == SQLITE_OK && i < INSERT_COUNT; i++)
        rc = sqlite3_prepare_v2(t->db, insert_sql[i], -1, &t->insert[i],
                                NULL);
    if (rc == SQLITE_OK)
        rc = house_put_open(t->db, &t->records);
    return rc == SQLITE_OK ? 0 : failed(f);
}

static int put(struct fetch *f, enum insert which)
{
    int rc = house_put_step(f->to.insert[which]);
    return rc == SQLITE_OK ? 0 : failed(f);
}

/* ---- questions ---- */

#ifdef __GNUC__
__attribute__((format(printf, 4, 5)))
#endif
static int
ask_typed(struct fetch *f, house_row *row, const char *types,
          const char *format, ...)
{
    char sql[SQL_BYTES];
    struct house_rows rows = {.row = row, .to = f, .types = types};
    va_list args;
    va_start(args, format);
    vsnprintf(sql, sizeof sql, format, args);
    va_end(args);
    f->code = 0;
    enum house_result rc =
        house_ask(f->house, sql, NULL, 0, house_rows_take, &rows);
    int bad = rows.bad || (rc == HOUSE_OK && !house_rows_good(&rows));
    house_rows_free(&rows);
    if (f->code)
        return f->code;
    if (bad)
        return ctl_fail(CTL_FAILED, "the answer of '%s' is damaged",
                        f->place.shown);
    if (rc != HOUSE_OK)
        return ctl_fail(CTL_FAILED, "'%s' does not answer: %s",
                        f->place.shown, house_why(f->house));
    return 0;
}

#define ask(f, row, ...) ask_typed(f, row, NULL, __VA_ARGS__)

static int bad_row(struct fetch *f)
{
    f->code = ctl_fail(CTL_FAILED, "'%s' has rows of another form",
                       f->place.shown);
    return f->code;
}

/* ---- heads ---- */

#define STREAM_COLUMNS                                                         \
    "run, id, attempt, rank, epoch, world, pid, start_time, boot_id, host,"    \
    " uid, client, real_ns, mono_ns, info, seq, iteration, last_ns, state,"    \
    " block_ms, spool_bytes, job, store_id, created_ns, version"

static int put_meta(struct fetch *f, const char *key,
                    const struct house_field *c, int whole)
{
    sqlite3_stmt *q = f->to.insert[PUT_META];
    sqlite3_bind_text(q, 1, key, -1, SQLITE_STATIC);
    if (whole)
        house_bind_whole(q, 2, c);
    else
        house_bind_text(q, 2, c);
    return put(f, PUT_META);
}

static int on_stream(void *to, const struct house_field *c, int n)
{
    enum { COLUMNS = 25, JOB = 21 };
    static const char text[] = "siiiiiiissisiisiiisii";
    struct fetch *f = to;
    sqlite3_stmt *q;
    if (n != COLUMNS || !place_run_ok(c[0].s.text, c[0].s.n))
        return bad_row(f);
    f->heads += strcmp(f->to.run, c[0].s.text) != 0;
    if (fill(f, c[0].s.text))
        return f->code;
    q = f->to.insert[PUT_STREAM];
    for (int i = 1; i < JOB; i++)
        if (text[i] == 's')
            house_bind_text(q, i, &c[i]);
        else
            house_bind_whole(q, i, &c[i]);
    return put(f, PUT_STREAM) || put_meta(f, "name", &c[0], 0) ||
           put_meta(f, "job", &c[JOB], 0) ||
           put_meta(f, "store_id", &c[JOB + 1], 0) ||
           put_meta(f, "created_ns", &c[JOB + 2], 1) ||
           put_meta(f, "version", &c[JOB + 3], 0);
}

static int on_loss(void *to, const struct house_field *c, int n)
{
    enum { COLUMNS = 8 };
    struct fetch *f = to;
    if (n != COLUMNS || !place_run_ok(c[0].s.text, c[0].s.n))
        return bad_row(f);
    if (fill(f, c[0].s.text))
        return f->code;
    for (int i = 1; i < COLUMNS; i++)
        if (i == 6)
            house_bind_text(f->to.insert[PUT_LOSS], i, &c[i]);
        else
            house_bind_whole(f->to.insert[PUT_LOSS], i, &c[i]);
    return put(f, PUT_LOSS);
}

int fetch_heads(struct fetch *f, const char *run, size_t *n)
{
    char which[TRD_MAX_RUN + 128] = "1";
    int code;
    if (run && *run && !place_run_ok(run, strlen(run)))
        return ctl_fail(CTL_BAD,
                        "'%s' cannot name a run: letters, digits, '.', "
                        "'_' and '-' only",
                        run);
    if (run && *run)
        snprintf(which, sizeof which, "run = '%s'", run);
    else if (run)
        snprintf(which, sizeof which,
                 "run GLOBAL IN (SELECT run FROM stream GROUP BY run"
                 " ORDER BY min(created_ns) DESC, run LIMIT 1)");
    f->heads = 0;
    f->all_runs = !run;
    f->to.run[0] = '\0';
    code = ask(f, on_stream,
               "SELECT " STREAM_COLUMNS " FROM stream FINAL WHERE %s"
               " ORDER BY run, created_ns, id, epoch FORMAT TabSeparated",
               which);
    if (code == 0)
        code = ask(f, on_loss,
                   "SELECT run, epoch, seq, last, count, bytes, cause, t_ns"
                   " FROM loss FINAL WHERE %s ORDER BY run, stream, seq"
                   " FORMAT TabSeparated",
                   which);
    *n = f->heads;
    int bad = done(f);
    return code ? code : bad;
}

/* ---- records ---- */

static int on_object(void *to, const struct house_field *c, int n)
{
    struct fetch *f = to;
    sqlite3_stmt *q = f->to.insert[PUT_OBJECT];
    if (n != 4)
        return bad_row(f);
    house_bind_whole(q, 1, &c[0]);
    house_bind_text(q, 2, &c[1]);
    house_bind_whole(q, 3, &c[2]);
    house_bind_text(q, 4, &c[3]);
    return put(f, PUT_OBJECT);
}

static int on_path(void *to, const struct house_field *c, int n)
{
    struct fetch *f = to;
    if (n != 1)
        return bad_row(f);
    house_bind_text(f->to.insert[PUT_PATH], 1, &c[0]);
    return put(f, PUT_PATH);
}

static int on_record(void *to, const struct house_field *c, int n)
{
    struct fetch *f = to;
    if (n != HOUSE_RECORD_FIELDS)
        return bad_row(f);
    f->records++;
    return house_put_record(f->to.records, c) == SQLITE_OK ? 0 : failed(f);
}

static int on_there(void *to, const struct house_field *c, int n)
{
    struct fetch *f = to;
    if (n != 1)
        return bad_row(f);
    f->objects = house_whole(c) != 0;
    return 0;
}

/* Those that records name, or all. A database that only older daemons wrote to
 * does not know the others. */
static int ask_objects(struct fetch *f, const char *run, const char *where)
{
    char others[TRD_MAX_RUN + 128] = "";
    int code = ask(f, on_there, "EXISTS TABLE object FORMAT TabSeparated");
    if (f->objects && !*where)
        snprintf(others, sizeof others,
                 " UNION ALL SELECT object, class, instance, module FROM"
                 " object WHERE run = '%s'", run);
    if (code)
        return code;
    return ask(f, on_object,
               "SELECT DISTINCT object, class, instance, module FROM"
               " (SELECT object, class, instance, module FROM record"
               " WHERE run = '%s' AND object > 0%s%s) ORDER BY object, class,"
               " instance, module FORMAT TabSeparated",
               run, where, others);
}

static int ask_paths(struct fetch *f, const char *run)
{
    return ask(f, on_path,
               "SELECT DISTINCT path FROM record WHERE run = '%s'"
               " ORDER BY path FORMAT TabSeparated",
               run);
}

/* The columns of where are read first, and the others only near rows that it
 * lets through; with a step it is found by the key. */
static int ask_records(struct fetch *f, const char *run, const char *where,
                       const char *limit)
{
    f->records = 0;
    return ask_typed(f, on_record, house_record_types,
                     "SELECT %s FROM record%s%s WHERE run = '%s'%s"
                     " FORMAT RowBinary",
                     house_record_columns, *where ? " PREWHERE 1" : "", where,
                     run, limit);
}

static int on_any(void *to, const struct house_field *c, int n)
{
    struct fetch *f = to;
    (void)c;
    f->any = n > 0;
    return 0;
}

/* Whether the run knows the object, module or path: then no later reading of
 * a name is meant. */
static int ask_known(struct fetch *f, const char *run,
                     const struct name_reading *r, int *known)
{
    struct house_where w;
    int code = 0;
    house_where_who(r, &w);
    f->any = r->kind == NAME_ALL || r->kind == NAME_TEXT;
    if (!f->any)
        code = ask(f, on_any,
                   "SELECT 1 FROM record WHERE run = '%s'%s LIMIT 1"
                   " FORMAT TabSeparated",
                   run, w.text);
    if (code == 0 && !f->any && f->objects && r->kind != NAME_PATH)
        code = ask(f, on_any,
                   "SELECT 1 FROM object WHERE run = '%s'%s LIMIT 1"
                   " FORMAT TabSeparated",
                   run, w.text);
    *known = f->any;
    return code;
}

/* Objects come before records, in an order that does not depend on which of
 * them are asked for. */
static int fetch_where(struct fetch *f, const char *run, const char *where)
{
    int code = ask_objects(f, run, where);
    return code ? code : ask_records(f, run, where, "");
}

static int on_until(void *to, const struct house_field *c, int n)
{
    struct fetch *f = to;
    if (n != 1)
        return bad_row(f);
    f->until = house_whole(c);
    return 0;
}

/* The step by which there are so many different records, where the order is
 * that of steps: the order within one is known when all of it is there. Some
 * may be there twice; when most are, all are fetched. */
static int ask_until(struct fetch *f, const char *run, const char *where,
                     uint64_t limit)
{
    f->until = -1;
    return ask(f, on_until,
               "SELECT max(step) FROM (SELECT step, stream, seq, epoch FROM"
               " record WHERE run = '%s'%s ORDER BY step LIMIT %llu) HAVING"
               " uniqExact(stream, seq, epoch) >= %llu FORMAT TabSeparated",
               run, where, 2 * (unsigned long long)limit,
               (unsigned long long)limit);
}

static int fetch_reading(struct fetch *f, const char *run,
                         const struct query *q, const struct name_reading *r)
{
    struct house_where w;
    int code = 0;
    house_where_records(q, r, &w);
    if (q->limit && q->limit <= LIMIT_MAX && q->order == ORDER_NAME &&
        house_where_is_exact(r)) {
        code = ask_until(f, run, w.text, q->limit);
        if (code == 0 && f->until >= 0)
            house_where_until(&w, f->until);
    }
    return code ? code : fetch_where(f, run, w.text);
}

/* The readings of the name, with the first that the run knows at `at`. */
static int find_reading(struct fetch *f, const char *run,
                        const struct name_query *names, unsigned *at)
{
    int code = 0, known = 0;
    for (*at = 0; code == 0 && *at < names->n; ++*at) {
        code = ask_known(f, run, &names->reading[*at], &known);
        if (known)
            break;
    }
    return code;
}

static int fetch_named(struct fetch *f, const char *run,
                       const struct query *q, const struct name_query *names)
{
    int code = 0, known = 0;
    for (unsigned i = 0; code == 0 && !known && i < names->n; i++) {
        code = fetch_reading(f, run, q, &names->reading[i]);
        known = f->records > 0; /* then it need not be asked for */
        if (code == 0 && !known)
            code = ask_known(f, run, &names->reading[i], &known);
    }
    return code;
}

/* What can be told about a name that has no records: all names, what the one
 * that was meant has, and that the run has any. */
static int fetch_near(struct fetch *f, const char *run,
                      const struct name_query *names)
{
    struct house_where w;
    unsigned at;
    int code = ask_objects(f, run, "");
    if (code == 0)
        code = ask_paths(f, run);
    if (code == 0)
        code = ask_records(f, run, "", " LIMIT 1");
    if (code == 0)
        code = find_reading(f, run, names, &at);
    if (code || at == names->n)
        return code;
    house_where_who(&names->reading[at], &w);
    return ask_records(f, run, w.text, "");
}

int fetch_records(struct fetch *f, const char *run, const struct query *q,
                  enum fetch_what what)
{
    struct name_query names = {.n = 0};
    const char *why;
    int code = fill(f, run);
    if (what != FETCH_ALL && q->name.n &&
        name_parse(q->name, (enum name_as)q->as, &names, &why))
        what = FETCH_ALL; /* what is wrong is told later */
    if (what == FETCH_NEAR && !names.n)
        what = FETCH_ALL;
    if (code == 0 && what == FETCH_NEAR)
        code = fetch_near(f, run, &names);
    else if (code == 0 && what == FETCH_SOME && names.n)
        code = fetch_named(f, run, q, &names);
    else if (code == 0 && what == FETCH_SOME)
        code = fetch_reading(f, run, q, NULL);
    else if (code == 0 && (code = ask_paths(f, run)) == 0)
        code = fetch_where(f, run, "");
    int bad = done(f);
    return code ? code : bad;
}

/* ---- opening ---- */

int fetch_open(const char *url, struct fetch **out)
{
    char why[HOUSE_WHY_BYTES];
    struct fetch *f = calloc(1, sizeof *f);
    int code = 0;
    if (!f)
        return ctl_fail(CTL_FAILED, "out of memory");
    const struct house_options o = {.place = &f->place};
    if (house_place_read(url, &f->place, why))
        code = ctl_fail(CTL_BAD, "--store: %s", why);
    else if (house_open(&o, &f->house, why))
        code = ctl_fail(CTL_FAILED, "--store: %s", why);
    else
        code = make_temp();
    if (code) {
        fetch_close(f);
        return code;
    }
    *out = f;
    return 0;
}

void fetch_close(struct fetch *f)
{
    if (!f)
        return;
    (void)done(f);
    house_close(f->house);
    free(f);
}
