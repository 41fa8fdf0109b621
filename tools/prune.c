/* Pruning a run: what stays is copied into a new file, and the new file takes
 * the name of the old one, which is only read before. So room is given back,
 * and whatever is killed when, the old or the new run is there as a whole.
 *
 * Others may read meanwhile; at the end the file is taken for a moment, and
 * if anybody has it open then, or it is not what was copied, it stays. Each
 * range of sequence numbers that is gone is a row of table pruned. */
#include "tools/prune.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tools/check.h"
#include "tools/run_file.h"
#include "tools/run_fresh.h"
#include "tools/run_use.h"
#include "tools/verify.h"

enum { PATH_BYTES = PATH_MAX + 16, RULE_BYTES = 128 };

struct prune {
    const char *path;
    const struct prune_rule *rule;
    struct fresh fresh;
    struct prune_result *out;
    char *was;       /* marks of its streams when it was copied */
    int64_t records; /* all of them, before */
    int64_t missing; /* sequence numbers that the new file has not */
    int64_t twice;
};

static int failed(struct prune *p, const char *doing)
{
    return ctl_fail(CTL_FAILED, "cannot prune '%s': %s: %s", p->path, doing,
                    p->fresh.db ? sqlite3_errmsg(p->fresh.db)
                                : ctl_errno(errno));
}

static int left(const char *path, const char *why)
{
    return ctl_fail(CTL_FAILED, "'%s' is left as it is: %s", path, why);
}

int64_t prune_bytes(const char *path, time_t *used)
{
    char log[PATH_BYTES];
    time_t last = 0;
    int64_t n = 0;
    struct stat st;
    snprintf(log, sizeof log, "%s-wal", path);
    if (stat(path, &st) == 0) {
        n = st.st_size;
        last = st.st_mtime;
    }
    if (stat(log, &st) == 0 && st.st_size) {
        n += st.st_size;
        last = st.st_mtime > last ? st.st_mtime : last;
    }
    if (used)
        *used = last;
    return n;
}

/* What any writer of the run changes. */
static char *marks_of(sqlite3 *db, const char *schema)
{
    static const char format[] =
        "SELECT coalesce(group_concat(id || ' ' || seq || ' ' || dict_n || ' '"
        " || state), '') || ' ' || (SELECT count(*) FROM \"%w\".clock)"
        " || ' ' || (SELECT count(*) || ' ' || total(last) FROM \"%w\".loss)"
        " FROM \"%w\".stream";
    char *sql = sqlite3_mprintf(format, schema, schema, schema), *text = NULL;
    sqlite3_stmt *s = NULL;
    if (sql && sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW)
        text = sqlite3_mprintf("%s", sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    sqlite3_free(sql);
    return text;
}

/* ---- what stays ---- */

/* The iterations of check's findings, of each attempt. */
static int mark_findings(struct prune *p)
{
    sqlite3_stmt *s = NULL;
    int code = 0;
    int rc = sqlite3_prepare_v2(p->fresh.db,
                                "SELECT DISTINCT attempt FROM old.stream", -1,
                                &s, NULL);
    while (code == 0 && rc == SQLITE_OK &&
           (rc = sqlite3_step(s)) == SQLITE_ROW) {
        struct check_result r = {0};
        struct scan *scan = NULL;
        char sql[96];
        rc = SQLITE_OK;
        code = scan_open(p->path, sqlite3_column_int64(s, 0), &scan);
        if (code == 0)
            code = check_run(scan, &r);
        for (size_t i = 0; code == 0 && i < r.n; i++) {
            snprintf(sql, sizeof sql,
                     "UPDATE seen SET odd = 1 WHERE iteration = %lld",
                     (long long)r.finding[i].at.iteration);
            if (fresh_exec(&p->fresh, sql) != SQLITE_OK)
                code = failed(p, "marking");
        }
        check_free(&r);
        scan_close(scan);
    }
    sqlite3_finalize(s);
    return code == 0 && rc != SQLITE_OK && rc != SQLITE_DONE
               ? failed(p, "reading")
               : code;
}

/* seen: the iterations; kept: those that stay. */
static int choose(struct prune *p)
{
    static const char seen[] =
        "CREATE TEMP TABLE seen(iteration INTEGER PRIMARY KEY, odd, n);"
        "CREATE TEMP TABLE kept(iteration INTEGER PRIMARY KEY);"
        "INSERT INTO seen SELECT iteration, max(nan > 0 OR pinf > 0 OR"
        " ninf > 0 OR coalesce(given, 0) > 0), count(*)"
        " FROM old.record GROUP BY iteration";
    static const char format[] =
        "INSERT INTO kept SELECT iteration FROM seen s WHERE iteration < 1"
        " OR (%lld > 0 AND (iteration - 1) %% max(%lld, 1) = 0)"
        " OR (%lld > 0 AND iteration > (SELECT max(iteration) FROM seen) -"
        " %lld) OR (%lld >= 0 AND EXISTS (SELECT 1 FROM seen o WHERE o.odd"
        " AND o.iteration BETWEEN s.iteration - %lld AND s.iteration + %lld))";
    const struct prune_rule *r = p->rule;
    char sql[1024];
    int code = 0;
    if (fresh_exec(&p->fresh, seen) != SQLITE_OK)
        return failed(p, "reading");
    if (r->around >= 0)
        code = mark_findings(p);
    if (code)
        return code;
    snprintf(sql, sizeof sql, format, (long long)r->every,
             (long long)r->every, (long long)r->last, (long long)r->last,
             (long long)r->around, (long long)r->around,
             (long long)r->around);
    if (fresh_exec(&p->fresh, sql) != SQLITE_OK)
        return failed(p, "choosing");
    p->records = run_file_ask(p->fresh.db, "SELECT total(n) FROM seen");
    p->out->records =
        run_file_ask(p->fresh.db, "SELECT total(n) FROM seen WHERE "
                                  "iteration NOT IN kept");
    p->out->iterations =
        run_file_ask(p->fresh.db, "SELECT count(*) FROM seen WHERE "
                                  "iteration NOT IN kept");
    return p->out->records ? 0 : CTL_NOTHING;
}

/* ---- the new file ---- */

static int copy_rows(struct fresh *f)
{
    static const char *const whole[] = {"meta", "stream", "object", "path",
                                        "shape", "note", "dict", "loss",
                                        "pruned", "clock"};
    int rc = SQLITE_OK;
    for (size_t i = 0; rc == SQLITE_OK && i < sizeof whole / sizeof *whole;
         i++)
        rc = fresh_copy(f, whole[i], NULL);
    if (rc == SQLITE_OK)
        rc = fresh_copy(f, "record", "iteration IN kept");
    if (rc == SQLITE_OK &&
        run_file_ask(f->db, "SELECT count(*) FROM old.extra") > 0)
        rc = fresh_exec(f, "INSERT INTO main.extra SELECT x.* FROM main.record"
                           " r CROSS JOIN old.extra x ON x.stream = r.stream"
                           " AND x.seq = r.seq");
    return rc;
}

static void on_range(void *context, int64_t stream, int64_t first,
                     int64_t last, const char *what)
{
    struct prune *p = context;
    char sql[160];
    if (strcmp(what, "missing") != 0) {
        p->twice++;
        return;
    }
    p->missing += last - first + 1;
    snprintf(sql, sizeof sql, "INSERT INTO hole VALUES(%lld, %lld, %lld)",
             (long long)stream, (long long)first, (long long)last);
    if (fresh_exec(&p->fresh, sql) != SQLITE_OK)
        p->twice++;
}

static void rule_text(const struct prune_rule *r, char out[RULE_BYTES])
{
    int n = 0;
    if (r->every)
        n += snprintf(out + n, (size_t)(RULE_BYTES - n), "every %lld",
                      (long long)r->every);
    if (r->last)
        n += snprintf(out + n, (size_t)(RULE_BYTES - n), "%slast %lld",
                      n ? ", " : "", (long long)r->last);
    if (r->around >= 0)
        snprintf(out + n, (size_t)(RULE_BYTES - n), "%saround %lld",
                 n ? ", " : "", (long long)r->around);
}

/* What is missing now is what was pruned; more than that was missing before,
 * and must not be called so. */
static int note_pruned(struct prune *p)
{
    char rule[RULE_BYTES], sql[512];
    struct timespec now;
    int rc = fresh_exec(&p->fresh,
                        "CREATE TEMP TABLE hole(stream, first, last)");
    if (rc == SQLITE_OK)
        rc = verify_seqs(p->fresh.db, on_range, p);
    if (rc != SQLITE_OK)
        return failed(p, "checking");
    if (p->twice || p->missing != p->out->records)
        return left(p->path, "its sequence numbers do not hold; 'tracectl "
                             "verify' tells more");
    clock_gettime(CLOCK_REALTIME, &now);
    rule_text(p->rule, rule);
    snprintf(sql, sizeof sql,
             "INSERT INTO pruned SELECT stream, first, last, '%s', %lld%09ld"
             " FROM hole;"
             "INSERT OR REPLACE INTO meta SELECT 'pruned',"
             " sum(last - seq + 1) FROM pruned",
             rule, (long long)now.tv_sec, now.tv_nsec);
    rc = fresh_exec(&p->fresh, sql);
    return rc == SQLITE_OK ? 0 : failed(p, "writing");
}

static int swap(struct prune *p)
{
    const char *why = NULL;
    int64_t before = prune_bytes(p->path, NULL);
    sqlite3 *db = run_take(p->path, &why);
    char *now = db ? marks_of(db, "main") : NULL;
    struct stat st;
    int code = 0, error;
    if (!db)
        return left(p->path, why);
    if (!now || strcmp(now, p->was) != 0)
        code = left(p->path, "it was written to meanwhile");
    else if (stat(p->path, &st) != 0 ||
             chmod(p->fresh.path, st.st_mode & 07777) != 0 ||
             (geteuid() == 0 &&
              chown(p->fresh.path, st.st_uid, st.st_gid) != 0))
        code = failed(p, "its owner and mode");
    else if ((error = fresh_rename(&p->fresh, 1)) != 0)
        code = ctl_fail(CTL_FAILED, "cannot prune '%s': renaming: %s", p->path,
                        ctl_errno(error));
    sqlite3_free(now);
    sqlite3_close(db);
    p->out->bytes = before - prune_bytes(p->path, NULL);
    return code;
}

static int make(struct prune *p)
{
    int code;
    p->was = marks_of(p->fresh.db, "old");
    if (!p->was || copy_rows(&p->fresh) != SQLITE_OK)
        return failed(p, "writing the new file");
    code = note_pruned(p);
    if (code == 0 && fresh_detach(&p->fresh) != SQLITE_OK)
        code = failed(p, "writing the new file");
    if (code == 0 && fresh_finish(&p->fresh) != SQLITE_OK)
        code = failed(p, "writing the new file");
    return code ? code : swap(p);
}

/* The connection is a reader's, and closed before the file is taken. */
const char *prune_kept(const char *path)
{
    sqlite3 *db = NULL;
    int alive;
    if (run_in_use(path))
        return "another program has it open";
    if (run_file_open(path, &db))
        return "it cannot be read";
    alive = run_is_written(db);
    sqlite3_close(db);
    return alive ? "a process that writes to it still runs" : NULL;
}

int prune_run(const char *path, const struct prune_rule *rule, int dry,
              struct prune_result *out)
{
    struct prune p = {.path = path, .rule = rule, .out = out};
    const char *why = prune_kept(path);
    int code;
    memset(out, 0, sizeof *out);
    if (why)
        return left(path, why);
    code = fresh_open(&p.fresh, path);
    if (code == 0 && fresh_attach(&p.fresh, path) != SQLITE_OK)
        code = failed(&p, "reading");
    if (code == 0)
        code = choose(&p);
    if (code == 0 && dry)
        out->bytes = (int64_t)((double)prune_bytes(path, NULL) *
                               (double)out->records / (double)p.records);
    else if (code == 0)
        code = make(&p);
    fresh_close(&p.fresh);
    sqlite3_free(p.was);
    return code;
}

const char *prune_remove(const char *path)
{
    static const char *const tails[] = {"", "-wal", "-shm", "-journal"};
    const char *why = prune_kept(path);
    char name[PATH_BYTES];
    sqlite3 *db = why ? NULL : run_take(path, &why);
    for (size_t i = 0; !why && i < sizeof tails / sizeof *tails; i++) {
        snprintf(name, sizeof name, "%s%s", path, tails[i]);
        if (unlink(name) != 0 && i == 0)
            why = ctl_errno(errno);
    }
    sqlite3_close(db);
    return why;
}
