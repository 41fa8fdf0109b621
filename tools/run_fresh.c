/* Making the file of a run beside its place. No journal is kept meanwhile:
 * what a crash leaves is no run, and says so by its name. */
#include "tools/run_fresh.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "schema.h"
#include "tools/tracectl.h"

static int cannot(const struct fresh *f, const char *why)
{
    return ctl_fail(CTL_FAILED, "cannot make '%s': %s", f->path, why);
}

int fresh_exec(struct fresh *f, const char *sql)
{
    return sqlite3_exec(f->db, sql, NULL, NULL, NULL);
}

int fresh_open(struct fresh *f, const char *name)
{
    int rc;
    f->name = name;
    f->db = NULL;
    f->fd = -1;
    if (snprintf(f->path, sizeof f->path, "%s.new", name) >=
        (int)sizeof f->path - 8)
        return ctl_fail(CTL_BAD, "the path is too long");
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (f->fd < 0)
        return cannot(f, ctl_errno(errno));
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0) {
        close(f->fd);
        f->fd = -1;
        return cannot(f, "another program is at it");
    }
    if (ftruncate(f->fd, 0) != 0)
        return cannot(f, ctl_errno(errno));
    rc = sqlite3_open_v2(f->path, &f->db, SQLITE_OPEN_READWRITE, NULL);
    if (rc == SQLITE_OK)
        rc = fresh_exec(f, "PRAGMA journal_mode = OFF;"
                           "PRAGMA synchronous = OFF;"
                           "PRAGMA cache_size = -32768");
    /* old may be a live run: its log is the daemon's business */
    if (rc == SQLITE_OK)
        rc = sqlite3_db_config(f->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1,
                               NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_db_config(f->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    if (rc == SQLITE_OK)
        rc = fresh_exec(f, schema_sql);
    return rc == SQLITE_OK ? 0 : cannot(f, sqlite3_errstr(rc));
}

int fresh_attach(struct fresh *f, const char *path)
{
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(f->db, "ATTACH ?1 AS old", -1, &s, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_bind_text(s, 1, path, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_DONE)
        rc = SQLITE_OK;
    sqlite3_finalize(s);
    if (rc == SQLITE_OK)
        rc = fresh_exec(f, "BEGIN");
    return rc == SQLITE_OK ? fresh_exec(f, "SELECT 1 FROM old.meta") : rc;
}

int fresh_detach(struct fresh *f)
{
    int rc = fresh_exec(f, "COMMIT");
    return rc == SQLITE_OK ? fresh_exec(f, "DETACH old") : rc;
}

/* The columns of a table in old, quoted; NULL: it has no such table. */
static char *columns(struct fresh *f, const char *table)
{
    static const char sql[] =
        "SELECT group_concat('\"' || replace(name, '\"', '\"\"') || '\"')"
        " FROM pragma_table_info(?1, 'old')";
    sqlite3_stmt *s = NULL;
    char *text = NULL;
    if (sqlite3_prepare_v2(f->db, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_bind_text(s, 1, table, -1, SQLITE_STATIC) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW && sqlite3_column_text(s, 0))
        text = sqlite3_mprintf("%s", sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    return text;
}

int fresh_copy(struct fresh *f, const char *table, const char *condition)
{
    char *names = columns(f, table), *sql;
    int rc = SQLITE_NOMEM;
    if (!names)
        return SQLITE_OK;
    sql = sqlite3_mprintf("INSERT INTO main.%s(%s) SELECT %s FROM old.%s %s%s",
                          table, names, names, table,
                          condition ? "WHERE " : "",
                          condition ? condition : "");
    if (sql)
        rc = fresh_exec(f, sql);
    sqlite3_free(sql);
    sqlite3_free(names);
    return rc;
}

int fresh_finish(struct fresh *f)
{
    int rc = sqlite3_db_config(f->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0,
                               NULL);
    if (rc == SQLITE_OK)
        rc = fresh_exec(f, "PRAGMA journal_mode = WAL");
    if (rc == SQLITE_OK)
        rc = sqlite3_close(f->db);
    if (rc != SQLITE_OK)
        return rc;
    f->db = NULL;
    return fsync(f->fd) == 0 ? SQLITE_OK : SQLITE_IOERR_FSYNC;
}

static int is_ours(const struct fresh *f)
{
    struct stat ours, named;
    return fstat(f->fd, &ours) == 0 && stat(f->path, &named) == 0 &&
           ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
}

static int sync_dir(const char *path)
{
    char dir[PATH_MAX];
    const char *slash = strrchr(path, '/');
    int fd, rc;
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    rc = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return rc;
}

int fresh_rename(struct fresh *f, int replace)
{
    if (!is_ours(f))
        return ENOENT; /* a tracerd that was started took it away */
    if (!replace && link(f->path, f->name) != 0)
        return errno;
    if (replace ? rename(f->path, f->name) != 0 : unlink(f->path) != 0)
        return errno;
    close(f->fd);
    f->fd = -1;
    return sync_dir(f->name);
}

void fresh_close(struct fresh *f)
{
    static const char *const tails[] = {"-journal", "-wal", "-shm"};
    char beside[PATH_MAX + 24];
    sqlite3_close(f->db);
    f->db = NULL;
    if (f->fd < 0)
        return;
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        snprintf(beside, sizeof beside, "%s%s", f->path, tails[i]);
        unlink(beside);
    }
    if (is_ours(f))
        unlink(f->path);
    close(f->fd);
    f->fd = -1;
}
