/* See oracle.h. */
#include "tests/lib/oracle.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/unit.h"

enum { WAIT_MS = 60000 };

/* One number, -1 when there is none. */
static int64_t ask(struct rig *r, const char *run, const char *sql)
{
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int64_t v = -1;
    snprintf(path, sizeof path, "%s/%s.db", r->data, run);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK) {
        sqlite3_busy_timeout(db, 10000);
        if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
            sqlite3_step(s) == SQLITE_ROW)
            v = sqlite3_column_int64(s, 0);
        sqlite3_finalize(s);
    }
    sqlite3_close(db);
    return v;
}

/* ---- runs ---- */

static const struct {
    const char *what, *sql; /* counts what must not be */
} rule[] = {
    {"streams whose numbers are not covered",
     "SELECT count(*) FROM stream s WHERE s.seq !="
     " (SELECT count(*) FROM record r WHERE r.stream = s.id)"
     " + (SELECT total(last - seq + 1) FROM loss l WHERE l.stream = s.id)"},
    {"records above their stream's mark",
     "SELECT count(*) FROM record r JOIN stream s ON s.id = r.stream"
     " WHERE r.seq > s.seq OR r.seq < 1"},
    {"records that are there twice",
     "SELECT count(*) - (SELECT count(*) FROM"
     " (SELECT DISTINCT stream, seq FROM record)) FROM record"},
    {"records that are lost, too",
     "SELECT count(*) FROM record r JOIN loss l ON l.stream = r.stream"
     " AND r.seq BETWEEN l.seq AND l.last"},
    {"losses that overlap",
     "SELECT count(*) FROM loss a JOIN loss b ON a.stream = b.stream"
     " AND a.seq < b.seq AND b.seq <= a.last"},
    {"damage",
     "SELECT integrity_check != 'ok' FROM pragma_integrity_check"},
};

void oracle_run(struct rig *r, const char *run)
{
    char path[2 * RIG_PATH];
    snprintf(path, sizeof path, "%s/%s.db", r->data, run);
    if (access(path, F_OK))
        return;
    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++) {
        int64_t n = ask(r, run, rule[i].sql);
        if (n)
            fail_msg("%s: %s: %" PRId64 "\n%s", run, rule[i].what, n,
                     rig_log(r));
    }
}

static int64_t of_pid(struct rig *r, const char *run, const char *what,
                      pid_t pid)
{
    char sql[512];
    snprintf(sql, sizeof sql, "SELECT %s FROM stream s WHERE s.pid = %d",
             what, (int)pid);
    return ask(r, run, sql);
}

/* Losses that a process reports are of submits that said no: they have
 * numbers of their own. Those that a daemon finds stand for accepted ones. */
#define REPORTED "('ring_full', 'no_space', 'oom', 'too_big', 'quota', 'error')"

void oracle_process(struct rig *r, const char *run, pid_t pid,
                    uint64_t accepted, uint64_t unsure, uint64_t refused)
{
    static const char kept[] =
        "total(s.seq - (SELECT total(last - seq + 1) FROM loss l WHERE"
        " l.stream = s.id AND l.cause IN " REPORTED "))";
    static const char told[] =
        "total((SELECT total(count) FROM loss l WHERE"
        " l.stream = s.id AND l.cause IN " REPORTED "))";
    long long end = rig_now_ms() + WAIT_MS;
    int64_t got;
    while ((got = of_pid(r, run, kept, pid)) < (int64_t)accepted &&
           rig_now_ms() < end)
        rig_pause();
    got = got < 0 ? 0 : got;
    if (got < (int64_t)accepted || got > (int64_t)(accepted + unsure))
        fail_msg("process %d: %" PRId64 " of %" PRIu64 " records\n%s",
                 (int)pid, got, accepted, rig_log(r));
    if (refused == UINT64_MAX)
        return;
    got = of_pid(r, run, told, pid);
    if (got != (int64_t)refused)
        fail_msg("process %d: %" PRId64 " of %" PRIu64 " losses told\n%s",
                 (int)pid, got, refused, rig_log(r));
}

/* ---- the daemon ---- */

void oracle_start(struct rig *r)
{
    long long begin = rig_now_ms();
    rig_start(r);
    begin = rig_now_ms() - begin;
    if (begin > ORACLE_READY_MS)
        fail_msg("ready after %lld ms", begin);
}

void oracle_verify(struct rig *r, int exit_code)
{
    const char *program = getenv("TRD_TRACECTL");
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, STDOUT_FILENO);
        dup2(nowhere, STDERR_FILENO);
        execl(program, program, "verify", r->data, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), exit_code);
}

/* ---- processes and files ---- */

static int count_in(const char *what, pid_t pid)
{
    char path[64];
    int n = 0;
    DIR *d;
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, what);
    d = opendir(path);
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 2; /* . and .. */
}

struct oracle_footprint oracle_footprint(pid_t pid)
{
    struct oracle_footprint f = {count_in("fd", pid), count_in("task", pid),
                                 0};
    char path[64];
    unsigned long pages = 0;
    FILE *file;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%*u %lu", &pages) != 1)
            pages = 0;
        fclose(file);
    }
    f.memory_kb = pages * (unsigned long)sysconf(_SC_PAGESIZE) / 1024;
    return f;
}

void oracle_no_growth(const struct oracle_footprint *before,
                      const struct oracle_footprint *after,
                      uint64_t memory_kb)
{
    if (after->descriptors > before->descriptors ||
        after->threads > before->threads ||
        after->memory_kb > before->memory_kb + memory_kb)
        fail_msg("descriptors %d to %d, threads %d to %d, memory %" PRIu64
                 " to %" PRIu64 " KB",
                 before->descriptors, after->descriptors, before->threads,
                 after->threads, before->memory_kb, after->memory_kb);
}

void oracle_file(struct oracle_file *f, const char *path)
{
    snprintf(f->path, sizeof f->path, "%s", path);
    assert_int_equal(lstat(path, &f->st), 0);
}

void oracle_untouched(const struct oracle_file *f)
{
    struct stat now;
    if (lstat(f->path, &now))
        fail_msg("%s is gone", f->path);
    if (now.st_ino != f->st.st_ino || now.st_mode != f->st.st_mode ||
        now.st_uid != f->st.st_uid || now.st_size != f->st.st_size ||
        now.st_mtim.tv_sec != f->st.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != f->st.st_mtim.tv_nsec)
        fail_msg("%s was touched", f->path);
}

/* ---- the table ---- */

void oracle_held(int fault, uint64_t cases, const char *how)
{
    const char *path = getenv("TRD_FAULTS_HELD");
    char line[512];
    int fd, n;
    print_message("fault %d: %" PRIu64 " cases: %s: held\n", fault, cases,
                  how);
    if (!path)
        return;
    n = snprintf(line, sizeof line, "%d\t%" PRIu64 "\t%s\n", fault, cases,
                 how);
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, line, (size_t)n), n);
    close(fd);
}
