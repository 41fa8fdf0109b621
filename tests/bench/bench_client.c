/* What tracing costs the training, and what the way to the store delivers.
 *
 *   bench_client submit    time of one trd_submit() without statistics
 *   bench_client latency   the same with daemons that are well, stopped, not
 *                          there, and on a full disk, block by block in turn
 *   bench_client memory    what a process holds over ten million records
 *   bench_client ingest    records/s from socket to committed row of 1, 4 and
 *                          8 clients, as a ratio to raw sorted inserts into
 *                          the same table; bytes a record; daemon's memory
 *   bench_client write DIR RANKS OBJECTS STEPS
 *                          records of such a run to the daemon of DIR, an
 *                          input and an output of each object and step; for
 *                          bench_scale.py
 *
 * Prints figures; judges nothing but growth. submit and write need no
 * TRD_TRACERD. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <sqlite3.h>

#include "proto/record.h"
#include "schema.h"
#include "tracerd/client.h"
#include "tracerd/stats.h"

enum { SUBMITS = 400000, OBJECTS = 1000, INGEST = 400000, ROWS = 20000 };

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_client: %s\n", what);
    exit(1);
}

struct source {
    struct trd_client *client;
    uint32_t site[2 * OBJECTS];
    struct trd_tensor tensor;
    struct trd_stats stats;
    uint8_t samples[64];
};

static const int64_t shape[3] = {16, 12, 4096};
static uint16_t halves[4096];
static uint32_t patience_ms; /* of a submit where the journal is full */

static void open_rank(struct source *s, const char *dir,
                      uint64_t journal_bytes, uint32_t rank, uint32_t world)
{
    struct trd_client_options o;
    trd_client_options_init(&o);
    o.block_ms = patience_ms;
    o.dir = dir;
    o.run = "bench";
    o.job = "bench";
    o.rank = rank;
    o.world = world;
    o.journal_bytes = journal_bytes;
    if (trd_client_open(&o, &s->client))
        die("cannot open the client");
    for (uint32_t i = 0; i < 2 * OBJECTS; i++) {
        char module[32];
        snprintf(module, sizeof module, "layers.%u", i / 2);
        struct trd_site site = {.pass = TRD_FORWARD,
                                .io = i % 2 ? TRD_OUTPUT : TRD_INPUT,
                                .instance = i / 2 + 1,
                                .class_name = "Linear",
                                .module = module,
                                .path = "0"};
        if (trd_site(s->client, &site, &s->site[i]))
            die("cannot intern a site");
    }
    for (unsigned i = 0; i < 4096; i++)
        halves[i] = (uint16_t)(i * 7919);
    const int64_t flat = 4096;
    struct trd_tensor t = {halves, TRD_F16, 1, &flat, NULL};
    trd_stats_cpu(&t, 16, &s->stats, s->samples);
    s->tensor = (struct trd_tensor){NULL, TRD_F16, 3, shape, NULL};
}

static void open_source_of(struct source *s, const char *dir,
                           uint64_t journal_bytes)
{
    open_rank(s, dir, journal_bytes, 0, 1);
}

static void open_source(struct source *s, const char *dir)
{
    open_source_of(s, dir, UINT64_C(1) << 28);
}

static int one(struct source *s, uint64_t i)
{
    struct trd_when when = {.step = i / (2 * OBJECTS) + 1,
                            .iteration = i / (2 * OBJECTS) + 1,
                            .microbatch = 1};
    return trd_submit(s->client, s->site[i % (2 * OBJECTS)], &when,
                      &s->tensor, &s->stats, s->samples);
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void bench_submit(void)
{
    static struct source s;
    static uint32_t took[SUBMITS];
    char dir[] = "/tmp/trd-bench-XXXXXX";
    if (!mkdtemp(dir))
        die("mkdtemp");
    open_source(&s, dir);
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < SUBMITS; i++) {
        uint64_t a = now_ns();
        if (one(&s, i))
            die("a record was dropped");
        took[i] = (uint32_t)(now_ns() - a);
    }
    double all = (double)(now_ns() - start);
    uint64_t clock_start = now_ns();
    for (unsigned i = 0; i < SUBMITS; i++)
        now_ns();
    double clock_ns = (double)(now_ns() - clock_start) / SUBMITS;
    qsort(took, SUBMITS, sizeof took[0], by_value);
    struct trd_counters n;
    trd_counters(s.client, &n);
    printf("submit, no statistics, no daemon, %d records of fp16 with 16 "
           "samples\n"
           "  ns: p50 %u  p99 %u  p99.99 %u  (each with one clock reading, "
           "%.0f ns)\n"
           "  mean %.0f ns; %.1f journal bytes a record\n",
           SUBMITS, took[SUBMITS / 2], took[SUBMITS / 100 * 99],
           took[SUBMITS - SUBMITS / 10000 - 1], clock_ns, all / SUBMITS,
           (double)n.journal_used_bytes / SUBMITS);
    trd_client_close(s.client);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command))
        die("rm");
}

/* ---- ingest ---- */

static pid_t start_daemon(const char *dir)
{
    int ready[2];
    char word[16];
    const char *path = getenv("TRD_TRACERD");
    if (!path || pipe(ready))
        die("TRD_TRACERD is not set");
    pid_t pid = fork();
    if (!pid) {
        char number[16], data[64];
        snprintf(number, sizeof number, "%d", ready[1]);
        snprintf(data, sizeof data, "%s/data", dir);
        close(ready[0]);
        execl(path, path, "--foreground", "--dir", dir, "--data", data,
              "--ready-fd", number, (char *)NULL);
        _exit(127);
    }
    close(ready[1]);
    if (read(ready[0], word, sizeof word) <= 0)
        die("tracerd did not start");
    close(ready[0]);
    return pid;
}

static void stop_daemon(pid_t pid)
{
    kill(pid, SIGCONT);
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}

/* ---- latency ---- */

enum {
    LATENCIES = 200000,
    BLOCK = 500,
    STATES = 4,
    LATENCY_JOURNAL = 64 << 20,
    DISK_MB = 160
};

struct state {
    const char *name;
    char dir[64];
    pid_t daemon; /* 0: none */
    struct source source;
    uint32_t took[LATENCIES];
    uint64_t refused;
};

/* Its data on a file system of its own that has no byte left; false where
 * nothing may be mounted. */
static int fill_disk(struct state *s)
{
    static char block[1 << 16];
    char path[128], size[32];
    snprintf(path, sizeof path, "%.63s/data", s->dir);
    snprintf(size, sizeof size, "size=%dm,mode=700", DISK_MB);
    if (mkdir(path, 0700) || mount("none", path, "tmpfs", 0, size))
        return 0;
    s->daemon = start_daemon(s->dir);
    snprintf(path, sizeof path, "%.63s/data/filler", s->dir);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    while (fd >= 0 && write(fd, block, sizeof block) > 0)
        continue;
    close(fd);
    return 1;
}

static int open_state(struct state *s, const char *base, unsigned i)
{
    static const char *const name[STATES] = {"healthy", "stopped", "absent",
                                             "disk full"};
    s->name = name[i];
    snprintf(s->dir, sizeof s->dir, "%s/%u", base, i);
    if (mkdir(s->dir, 0700))
        die("mkdir");
    if (i < 2)
        s->daemon = start_daemon(s->dir);
    if (i == 3 && !fill_disk(s))
        return 0;
    open_source_of(&s->source, s->dir, LATENCY_JOURNAL);
    if (trd_flush(s->source.client, 2000) && i < 2)
        die("no connection");
    if (i == 1)
        kill(s->daemon, SIGSTOP);
    return 1;
}

static void close_state(struct state *s)
{
    char path[128];
    trd_client_close(s->source.client);
    if (s->daemon)
        stop_daemon(s->daemon);
    snprintf(path, sizeof path, "%.63s/data", s->dir);
    umount(path);
}

static void bench_latency(void)
{
    static struct state state[STATES];
    char dir[] = "/tmp/trd-bench-XXXXXX", command[128];
    unsigned n = 0;
    if (!mkdtemp(dir))
        die("mkdtemp");
    while (n < STATES && open_state(&state[n], dir, n))
        n++;
    for (uint64_t i = 0; i < LATENCIES; i += BLOCK) {
        for (unsigned k = 0; k < n; k++) {
            struct state *s = &state[k];
            for (uint64_t j = i; j < i + BLOCK; j++) {
                uint64_t a = now_ns();
                s->refused += one(&s->source, j) != 0;
                s->took[j] = (uint32_t)(now_ns() - a);
            }
        }
    }
    printf("submit by state of the daemon, %d records each, %d in turn, ns\n"
           "  %-10s %8s %8s %8s %8s   to healthy\n",
           LATENCIES, BLOCK, "", "p50", "p99", "p99.99", "refused");
    for (unsigned k = 0; k < n; k++) {
        uint32_t *t = state[k].took, *h = state[0].took;
        qsort(t, LATENCIES, sizeof t[0], by_value);
        printf("  %-10s %8u %8u %8u %8llu   %.2f %.2f %.2f\n", state[k].name,
               t[LATENCIES / 2], t[LATENCIES / 100 * 99],
               t[LATENCIES - LATENCIES / 10000 - 1],
               (unsigned long long)state[k].refused,
               (double)t[LATENCIES / 2] / h[LATENCIES / 2],
               (double)t[LATENCIES / 100 * 99] / h[LATENCIES / 100 * 99],
               (double)t[LATENCIES - LATENCIES / 10000 - 1] /
                   h[LATENCIES - LATENCIES / 10000 - 1]);
    }
    if (n < STATES)
        printf("  disk full: nothing can be mounted here\n");
    for (unsigned k = 0; k < n; k++)
        close_state(&state[k]);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command))
        die("rm");
}

/* ---- memory ---- */

enum { MILLION = 1000000, MILLIONS = 10, GROWTH_KB = 1024 };

struct held {
    int descriptors, threads;
    unsigned long kb;
};

static int entries_of(const char *path)
{
    int n = 0;
    DIR *d = opendir(path);
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 2;
}

static struct held held_now(void)
{
    struct held h = {entries_of("/proc/self/fd"),
                     entries_of("/proc/self/task"), 0};
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*u %lu", &pages) != 1)
        die("/proc");
    fclose(f);
    h.kb = pages * (unsigned long)sysconf(_SC_PAGESIZE) / 1024;
    return h;
}

static void hold(const char *dir, pid_t daemon)
{
    static struct source s;
    struct held first = {0, 0, 0};
    struct trd_counters n;
    open_source_of(&s, dir, LATENCY_JOURNAL);
    printf("held, daemon %s: million, descriptors, threads, KB\n",
           daemon ? "healthy" : "absent");
    for (uint64_t i = 1; i <= MILLIONS; i++) {
        for (uint64_t j = 0; j < MILLION; j++)
            one(&s, j);
        struct held h = held_now();
        printf("  %2u %d %d %lu\n", (unsigned)i, h.descriptors, h.threads,
               h.kb);
        if (i == 1)
            first = h;
        if (h.descriptors > first.descriptors || h.threads > first.threads ||
            h.kb > first.kb + GROWTH_KB)
            die("it grows");
    }
    trd_counters(s.client, &n);
    printf("  accepted %llu\n", (unsigned long long)n.submitted);
    trd_client_close(s.client);
}

static void bench_memory(void)
{
    char dir[] = "/tmp/trd-bench-XXXXXX", command[128];
    if (!mkdtemp(dir))
        die("mkdtemp");
    pid_t daemon = start_daemon(dir);
    hold(dir, daemon);
    stop_daemon(daemon);
    hold(dir, 0);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command))
        die("rm");
}

static double cpu_seconds(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (!f || !fgets(text, sizeof text, f))
        die("no /proc");
    fclose(f);
    unsigned long user, kernel;
    if (sscanf(strrchr(text, ')') + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
               &kernel) != 2)
        die("/proc");
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double bytes_of(const char *path)
{
    struct stat st;
    return stat(path, &st) ? 0 : (double)st.st_size;
}

static void sql(sqlite3 *db, const char *text)
{
    if (sqlite3_exec(db, text, NULL, NULL, NULL))
        die(sqlite3_errmsg(db));
}

/* The rows that the daemon stored, inserted again in clustered order. */
static double raw_inserts(const char *dir, const char *from)
{
    char path[256], text[512];
    sqlite3 *db;
    sqlite3_stmt *in, *out;
    snprintf(path, sizeof path, "%s/raw.db", dir);
    if (sqlite3_open(path, &db))
        die("raw.db");
    sql(db, "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL");
    sql(db, schema_sql);
    snprintf(text, sizeof text, "ATTACH '%s' AS s", from);
    sql(db, text);
    if (sqlite3_prepare_v2(db, "SELECT * FROM s.record ORDER BY step, object,"
                               " pass, stream, io, position, seq",
                           -1, &in, NULL) ||
        sqlite3_prepare_v2(db,
                           "INSERT INTO main.record VALUES(?,?,?,?,?,?,?,?,?,"
                           "?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                           -1, &out, NULL))
        die(sqlite3_errmsg(db));
    int columns = sqlite3_column_count(in), rows = 0;
    double spent = 0;
    /* the values are read first, so that only inserting is timed */
    sqlite3_value **kept =
        malloc(sizeof *kept * (size_t)columns * ROWS);
    while (1) {
        int n = 0;
        while (n < ROWS && sqlite3_step(in) == SQLITE_ROW) {
            for (int i = 0; i < columns; i++)
                kept[n * columns + i] =
                    sqlite3_value_dup(sqlite3_column_value(in, i));
            n++;
        }
        struct timespec a, b;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
        sql(db, "BEGIN");
        for (int r = 0; r < n; r++) {
            for (int i = 0; i < columns; i++)
                sqlite3_bind_value(out, i + 1, kept[r * columns + i]);
            if (sqlite3_step(out) != SQLITE_DONE)
                die(sqlite3_errmsg(db));
            sqlite3_reset(out);
        }
        sql(db, "COMMIT");
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
        spent += (double)(b.tv_sec - a.tv_sec) +
                 (double)(b.tv_nsec - a.tv_nsec) / 1e9;
        for (int i = 0; i < n * columns; i++)
            sqlite3_value_free(kept[i]);
        rows += n;
        if (n < ROWS)
            break;
    }
    free(kept);
    sqlite3_finalize(in);
    sqlite3_finalize(out);
    sqlite3_close(db);
    return rows / spent;
}

/* The most it ever held, in MB. */
static double most_mb(pid_t pid)
{
    char path[64], line[256];
    double kb = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0)
            kb = strtod(line + 6, NULL);
    if (f)
        fclose(f);
    return kb / 1024;
}

/* One process each; they begin together, when the pipe is closed. */
static void be_client(const char *dir, uint32_t rank, uint32_t world, int go)
{
    static struct source s;
    char byte;
    open_rank(&s, dir, LATENCY_JOURNAL, rank, world);
    if (trd_flush(s.client, 20000) || read(go, &byte, 1) != 0)
        die("no connection");
    for (uint64_t i = 0; i < INGEST / world; i++)
        if (one(&s, i))
            die("a record was dropped");
    if (trd_flush(s.client, 120000))
        die("the daemon did not commit in time");
    trd_client_close(s.client);
    _exit(0);
}

static void ingest_of(uint32_t world)
{
    char dir[] = "/tmp/trd-bench-XXXXXX", path[256], command[128];
    int go[2], status, bad = 0;
    pid_t client[8];
    if (!mkdtemp(dir) || pipe2(go, O_CLOEXEC))
        die("mkdtemp");
    pid_t daemon = start_daemon(dir);
    for (uint32_t i = 0; i < world; i++)
        if (!(client[i] = fork())) {
            close(go[1]);
            be_client(dir, i, world, go[0]);
        }
    sleep(1); /* until they are connected */
    double cpu = cpu_seconds(daemon);
    uint64_t start = now_ns();
    close(go[1]);
    for (uint32_t i = 0; i < world; i++)
        bad |= waitpid(client[i], &status, 0) < 0 || status;
    if (bad)
        die("a client failed");
    double seconds = (double)(now_ns() - start) / 1e9;
    cpu = cpu_seconds(daemon) - cpu;
    double mb = most_mb(daemon);
    close(go[0]);
    stop_daemon(daemon);
    snprintf(path, sizeof path, "%s/data/bench.db", dir);
    double raw = raw_inserts(dir, path);
    printf("  %u %9.0f %9.0f %9.0f %6.2f %8.1f %7.0f\n", world,
           INGEST / seconds / 1e3, INGEST / cpu / 1e3, raw / 1e3,
           INGEST / cpu / raw, bytes_of(path) / INGEST, mb);
    fflush(stdout);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command))
        die("rm");
}

static void bench_ingest(void)
{
    static const uint32_t worlds[] = {1, 4, 8};
    printf("ingest, %d records of fp16 with 16 samples, in thousands a second "
           "by the clock,\na CPU second of the daemon, and one of raw sorted "
           "inserts\n"
           "  clients clock    daemon       raw  ratio bytes/record   MB\n",
           INGEST);
    fflush(stdout);
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
        ingest_of(worlds[i]);
}

/* ---- write ---- */

static void write_rank(const char *dir, uint32_t rank, uint32_t world,
                       uint32_t objects, uint64_t steps)
{
    static struct source s;
    open_rank(&s, dir, LATENCY_JOURNAL, rank, world);
    const double mean = s.stats.mean;
    for (uint64_t step = 1; step <= steps; step++)
        for (uint32_t i = 0; i < 2 * objects; i++) {
            struct trd_when when = {
                .step = step, .iteration = step, .microbatch = 1};
            /* an input is the output before it */
            uint64_t value = step * 2 * OBJECTS + (i + 1) / 2;
            s.stats.hash = value * UINT64_C(0x9e3779b97f4a7c15);
            s.stats.mean = mean + (double)(value % 1009) * 1e-3;
            if (trd_submit(s.client, s.site[i], &when, &s.tensor, &s.stats,
                           s.samples))
                die("a record was dropped");
        }
    if (trd_flush(s.client, 120000))
        die("the daemon did not commit in time");
    trd_client_close(s.client);
}

static uint64_t number(const char *text, uint64_t most)
{
    char *end;
    unsigned long long n = strtoull(text, &end, 10);
    if (*end || !n || n > most)
        die("a number is not as it should be");
    return n;
}

static void bench_write(char **of)
{
    const uint32_t ranks = (uint32_t)number(of[1], 64);
    const uint32_t objects = (uint32_t)number(of[2], OBJECTS);
    const uint64_t steps = number(of[3], UINT32_MAX);
    int status, bad = 0;
    patience_ms = 60000;
    for (uint32_t i = 0; i < ranks; i++)
        if (!fork()) {
            write_rank(of[0], i, ranks, objects, steps);
            _exit(0);
        }
    for (uint32_t i = 0; i < ranks; i++)
        bad |= wait(&status) < 0 || status;
    if (bad)
        die("a client failed");
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "submit"))
        bench_submit();
    else if (argc == 2 && !strcmp(argv[1], "ingest"))
        bench_ingest();
    else if (argc == 2 && !strcmp(argv[1], "latency"))
        bench_latency();
    else if (argc == 2 && !strcmp(argv[1], "memory"))
        bench_memory();
    else if (argc == 6 && !strcmp(argv[1], "write"))
        bench_write(argv + 2);
    else
        die("usage: bench_client submit|latency|memory|ingest\n"
            "       bench_client write DIR RANKS OBJECTS STEPS");
    return 0;
}
