/* See outage.h. */
#include "tests/lib/outage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/journal.h"
#include "proto/spool.h"

struct told *told;
char outage_dir[2 * RIG_PATH];

static const char *self;
static char told_path[] = "/tmp/trd-spool-XXXXXX";
static pid_t trainee;

/* ---- the training process ---- */

static void *map_told(const char *path)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    void *at = fd < 0 ? MAP_FAILED
                      : mmap(NULL, sizeof *told, PROT_READ | PROT_WRITE,
                             MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static struct trd_client *traced;
static uint32_t site_id;

void outage_nap_us(long us)
{
    const struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

static void close_spool(void)
{
    char link[64], path[RIG_PATH];
    for (int fd = 3; fd < 1024; fd++) {
        ssize_t n;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        n = readlink(link, path, sizeof path - 1);
        path[n < 0 ? 0 : n] = '\0';
        if (strstr(path, SPOOL_SUFFIX)) {
            dup2(open("/dev/null", O_RDWR), fd);
            return;
        }
    }
}

static void *submit_all(void *arg)
{
    static const int64_t shape[1] = {OUTAGE_ELEMENTS};
    float *data = calloc(OUTAGE_ELEMENTS, sizeof *data);
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    (void)arg;
    for (uint64_t i = 1; i <= told->records; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        data[i % OUTAGE_ELEMENTS] = (float)i;
        if (trd_submit_cpu(traced, site_id, &when, &t, OUTAGE_ELEMENTS))
            told->refused++;
        else
            told->accepted++;
        if (told->slow_us)
            outage_nap_us(told->slow_us);
        if (told->close_spool && i == told->records / 2)
            close_spool();
    }
    free(data);
    return NULL;
}

static int train(const char *path)
{
    struct trd_client_options o;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    pthread_t thread[OUTAGE_THREADS];
    told = map_told(path);
    if (!told)
        return 2;
    trd_client_options_init(&o);
    o.dir = told->dir;
    o.run = "run";
    o.job = "job";
    o.journal_bytes = OUTAGE_RING;
    o.spool_dir = told->spool;
    o.spool_bytes = told->spool_bytes;
    o.block_ms = told->block_ms;
    if (trd_client_open(&o, &traced) || trd_site(traced, &s, &site_id))
        return 3;
    for (uint32_t i = 1; i < told->threads; i++)
        if (pthread_create(&thread[i], NULL, submit_all, NULL))
            return 4;
    submit_all(NULL);
    for (uint32_t i = 1; i < told->threads; i++)
        pthread_join(thread[i], NULL);
    trd_counters(traced, &told->at_end);
    told->submitted = 1;
    while (told->stay && !told->go) {
        struct trd_counters n;
        outage_nap_us(1000);
        trd_counters(traced, &n);
        told->connected = n.connected;
    }
    if (told->stay)
        trd_flush(traced, OUTAGE_PATIENCE_MS);
    trd_client_close(traced);
    return 0;
}

/* ---- around it ---- */

int outage_set_up(void **state)
{
    ingest_set_up(state);
    snprintf(outage_dir, sizeof outage_dir, "%s/spool", ingest.rig.base);
    assert_int_equal(mkdir(outage_dir, 0700), 0);
    assert_true(mkdir(ingest.rig.dir, 0700) == 0 || errno == EEXIST);
    memset(told, 0, sizeof *told);
    snprintf(told->dir, sizeof told->dir, "%s", ingest.rig.dir);
    snprintf(told->spool, sizeof told->spool, "%s", outage_dir);
    told->spool_bytes = UINT64_C(1) << 30;
    told->block_ms = OUTAGE_PATIENCE_MS;
    told->records = OUTAGE_MANY;
    told->threads = 1;
    return 0;
}

int outage_tear_down(void **state)
{
    if (trainee) {
        kill(trainee, SIGKILL);
        waitpid(trainee, NULL, 0);
    }
    trainee = 0;
    if (ingest.rig.pid)
        kill(ingest.rig.pid, SIGCONT);
    umount2(outage_dir, MNT_DETACH);
    return ingest_tear_down(state);
}

void outage_start(const char *point)
{
    trainee = fork();
    assert_true(trainee >= 0);
    if (!trainee) {
        if (point)
            setenv("TRACERD_POINT", point, 1);
        execl(self, self, "train", told_path, (char *)NULL);
        _exit(127);
    }
}

int outage_end(void)
{
    int status = 0;
    outage_until(waitpid(trainee, &status, WNOHANG) == trainee);
    return status;
}

void outage_kill(void)
{
    kill(trainee, SIGKILL);
    outage_end();
}

const char *outage_find(const char *dir, const char *tail)
{
    static char path[4 * RIG_PATH];
    struct dirent *e;
    bool found = false;
    DIR *d = opendir(dir);
    while (d && !found && (e = readdir(d))) {
        size_t n = strlen(e->d_name), k = strlen(tail);
        found = n > k && strcmp(e->d_name + n - k, tail) == 0;
        if (found)
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
    }
    if (d)
        closedir(d);
    return found ? path : NULL;
}

const char *outage_spool(void)
{
    return outage_find(outage_dir, SPOOL_SUFFIX);
}

const char *outage_journal(void)
{
    return outage_find(ingest.rig.dir, JOURNAL_SUFFIX);
}

void outage_check(uint64_t unsure)
{
    pid_t pid = trainee;
    outage_until(!outage_journal());
    assert_null(outage_spool());
    oracle_process(&ingest.rig, "run", pid, told->accepted, unsure,
                   unsure ? UINT64_MAX : told->refused);
    oracle_run(&ingest.rig, "run");
    trainee = 0;
}

int64_t outage_lost(const char *cause)
{
    char sql[128];
    snprintf(sql, sizeof sql,
             "SELECT CAST(total(count) AS INTEGER) FROM loss"
             " WHERE cause = '%s'",
             cause);
    return ingest_ask("run", sql);
}

int outage_main(int argc, char **argv, const struct CMUnitTest *tests,
                size_t n)
{
    int fd, failed;
    if (argc == 3 && !strcmp(argv[1], "train"))
        return train(argv[2]);
    self = argv[0];
    fd = mkstemp(told_path);
    if (fd < 0 || ftruncate(fd, sizeof *told))
        return 1;
    close(fd);
    told = map_told(told_path);
    failed =
        told ? _cmocka_run_group_tests("tests", tests, n, NULL, NULL) : 1;
    unlink(told_path);
    return failed;
}
