/* Opening the file of a run, read-only, and saying what is wrong with one
 * that is none. */
#include "tools/run_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/tracectl.h"

enum {
    APPLICATION_ID = 1414677316, /* "TRCD", see schema.sql */
    USER_VERSION = 1,
    BUSY_MS = 10000
};

int run_file_bad(const char *path, const char *why)
{
    return ctl_fail(CTL_FAILED, "cannot open '%s': %s", path, why);
}

static int not_a_run(const char *path, const char *why)
{
    return ctl_fail(CTL_FAILED, "'%s' is not a run of tracerd: %s", path,
                    why);
}

/* Looks at the file's head before SQLite does, for clear words. */
static int check_head(const char *path)
{
    static const char magic[16] = "SQLite format 3";
    char head[sizeof magic];
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return run_file_bad(path, ctl_errno(errno));
    int known = fstat(fd, &st);
    ssize_t n = read(fd, head, sizeof head);
    int error = errno;
    close(fd);
    if (known == 0 && S_ISDIR(st.st_mode))
        return run_file_bad(path, "it is a directory");
    if (known != 0 || n < 0)
        return run_file_bad(path, ctl_errno(error));
    if (n != (ssize_t)sizeof head || memcmp(head, magic, sizeof magic) != 0)
        return not_a_run(path, "not an SQLite file");
    return 0;
}

static int pragma(sqlite3 *db, const char *sql, int64_t *out)
{
    sqlite3_stmt *s;
    int code = sqlite3_prepare_v2(db, sql, -1, &s, NULL);
    if (code == SQLITE_OK && (code = sqlite3_step(s)) == SQLITE_ROW)
        *out = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return code == SQLITE_ROW ? SQLITE_OK : code;
}

/* The file as a URI; an immutable one is read without locks. */
static char *file_uri(const char *path, int immutable)
{
    static const char tail[] = "?immutable=1";
    char *uri = malloc(3 * strlen(path) + sizeof "file://" + sizeof tail);
    char *to = uri;
    if (!uri)
        return NULL;
    to += sprintf(to, *path == '/' ? "file://" : "file:");
    for (; *path; path++)
        if (strchr("%?#", *path))
            to += sprintf(to, "%%%02X", (unsigned char)*path);
        else
            *to++ = *path;
    strcpy(to, immutable ? tail : "");
    return uri;
}

static int has_log(const char *path)
{
    char name[4200];
    snprintf(name, sizeof name, "%s-wal", path);
    return access(name, F_OK) == 0;
}

static int open_with(const char *path, int immutable, sqlite3 **out,
                     int64_t *id)
{
    char *uri = file_uri(path, immutable);
    if (!uri)
        return SQLITE_NOMEM;
    /* one thread: a lock at each column would be a fifth of the time */
    int code = sqlite3_open_v2(uri, out,
                               SQLITE_OPEN_READONLY | SQLITE_OPEN_URI |
                                   SQLITE_OPEN_NOMUTEX,
                               NULL);
    free(uri);
    if (code == SQLITE_OK) {
        sqlite3_busy_timeout(*out, BUSY_MS);
        /* it may come from anywhere */
        sqlite3_db_config(*out, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
        sqlite3_db_config(*out, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
        sqlite3_limit(*out, SQLITE_LIMIT_ATTACHED, 0);
        code = pragma(*out, "PRAGMA application_id", id);
    }
    return code;
}

/* Opens and checks the file. On a medium where SQLite cannot make its
 * shared memory, a file without a log is read as it stands. */
int run_file_open(const char *path, sqlite3 **out)
{
    int64_t id = 0, version = 0;
    sqlite3 *db = NULL;
    int code = check_head(path);
    if (code)
        return code;
    code = open_with(path, 0, &db, &id);
    if ((code == SQLITE_CANTOPEN || code == SQLITE_READONLY) &&
        !has_log(path)) {
        sqlite3_close(db);
        code = open_with(path, 1, &db, &id);
    }
    if (code == SQLITE_OK)
        code = pragma(db, "PRAGMA user_version", &version);
    if (code == SQLITE_NOTADB)
        code = not_a_run(path, "not an SQLite file");
    else if (code != SQLITE_OK)
        code = run_file_bad(path, db ? sqlite3_errmsg(db) : "out of memory");
    else if (id != APPLICATION_ID)
        code = not_a_run(path, "an SQLite file of another program");
    else if (version > USER_VERSION || version < 1)
        code = ctl_fail(CTL_FAILED,
                        "'%s' has format %lld, this tracectl reads format "
                        "%d; use a newer one",
                        path, (long long)version, USER_VERSION);
    if (code) {
        sqlite3_close(db);
        return CTL_FAILED;
    }
    sqlite3_exec(db, "PRAGMA query_only = 1", NULL, NULL, NULL);
    *out = db;
    return 0;
}

/* When the run of a file began; one that cannot be opened is the oldest. */
int64_t run_file_created(const char *path)
{
    static const char sql[] =
        "SELECT value FROM meta WHERE key = 'created_ns'";
    int64_t ns = INT64_MIN, id = 0;
    sqlite3 *db = NULL;
    if (open_with(path, 0, &db, &id) == SQLITE_OK && id == APPLICATION_ID)
        pragma(db, sql, &ns);
    sqlite3_close(db);
    return ns;
}

int64_t run_file_ask(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *s = NULL;
    int64_t v = 0;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW)
        v = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return v;
}
