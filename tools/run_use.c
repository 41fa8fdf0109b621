/* Locks of a run's file, and the processes of its streams. */
#include "tools/run_use.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/proc.h"

enum {
    LOCK_AT = 0x40000000, /* where SQLite locks, 512 bytes */
    LOCK_BYTES = 512
};

int run_in_use(const char *path)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET,
                      .l_start = LOCK_AT, .l_len = LOCK_BYTES};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int locked = fd >= 0 && fcntl(fd, F_GETLK, &l) == 0 &&
                 l.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return locked;
}

static int read_text(const char *path, char *out, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, cap - 1);
    if (fd >= 0)
        close(fd);
    out[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* As this system calls its boot, in the form of the stream's row. */
static void boot_text(char out[33])
{
    char text[64];
    uint8_t id[16];
    read_text("/proc/sys/kernel/random/boot_id", text, sizeof text);
    proc_boot_id(text, id);
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", id[i]);
}

static int is_alive(int64_t pid, uint64_t start_time)
{
    char path[64], text[1024], state;
    uint64_t started;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    return pid > 0 && read_text(path, text, sizeof text) &&
           proc_stat(text, &state, &started) == 0 && state != 'Z' &&
           state != 'X' && (!start_time || started == start_time);
}

int run_is_written(sqlite3 *db)
{
    static const char sql[] = "SELECT pid, start_time FROM stream WHERE state "
                              "= 'open' AND boot_id IN (?1, '', ?2)";
    static const char unknown[] = "00000000000000000000000000000000";
    sqlite3_stmt *s = NULL;
    char boot[33];
    int alive = 0;
    boot_text(boot);
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK)
        return 0;
    sqlite3_bind_text(s, 1, boot, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, unknown, -1, SQLITE_STATIC);
    while (!alive && sqlite3_step(s) == SQLITE_ROW)
        alive = is_alive(sqlite3_column_int64(s, 0),
                         (uint64_t)sqlite3_column_int64(s, 1));
    sqlite3_finalize(s);
    return alive;
}

static const char *why_not(sqlite3 *db, int rc)
{
    if ((rc & 0xff) == SQLITE_BUSY)
        return "another program has it open";
    return db && rc != SQLITE_DONE ? sqlite3_errstr(rc) : "out of memory";
}

/* The lock stays behind the pragma: with a log SQLite lets go of it only
 * when the connection is closed. */
sqlite3 *run_take(const char *path, const char **why)
{
    sqlite3_stmt *s = NULL;
    sqlite3 *db = NULL;
    int rc = sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, "PRAGMA locking_mode = EXCLUSIVE", NULL, NULL,
                          NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(db, "PRAGMA journal_mode = DELETE", -1, &s,
                                NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(s)) == SQLITE_ROW)
        rc = strcmp((const char *)sqlite3_column_text(s, 0), "delete") == 0
                 ? SQLITE_OK
                 : SQLITE_BUSY;
    sqlite3_finalize(s);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        return db;
    *why = why_not(db, rc);
    sqlite3_close(db);
    return NULL;
}
