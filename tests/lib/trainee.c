/* See trainee.h. */
#include "tests/lib/trainee.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { END_MS = 120000, BURST = 32, PAUSE_MS = 8, NEW_SHAPE = 64 };

struct trainee *trainee;

static struct trd_client *client;
static const struct trainee_how *manner;
static _Atomic unsigned submitting;
static uint32_t site;

void trainee_nap_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&t, &t))
        continue;
}

void trainee_fail(int line)
{
    trainee->line = line;
    _exit(TRAINEE_FAILED);
}

/* ---- submitting ---- */

struct trd_client *trainee_client(uint64_t journal_bytes)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    trd_client_options_init(&o);
    o.dir = ingest.rig.dir;
    o.run = "run";
    o.job = "process";
    o.journal_bytes = journal_bytes ? journal_bytes : 16 << 20;
    return trd_client_open(&o, &c) ? NULL : c;
}

uint32_t trainee_site(struct trd_client *c)
{
    const struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT,
                               .instance = 1, .class_name = "Linear",
                               .module = "m", .path = "0"};
    uint32_t id = 0;
    return trd_site(c, &s, &id) ? 0 : id;
}

int trainee_submit(struct trd_client *c, uint32_t at, int64_t rows)
{
    static const float data[4] = {1, 2, 3, 4};
    static _Atomic uint64_t steps;
    const int64_t shape[1] = {rows};
    const struct trd_tensor t = {NULL, TRD_F32, 1, shape, NULL};
    const struct trd_stats s = {.n = (uint64_t)rows, .sample_n = 4};
    const uint64_t step = ++steps;
    const struct trd_when when = {.step = step, .iteration = step,
                                  .microbatch = 1};
    return trd_submit(c, at, &when, &t, &s, data);
}

static void count(int failed)
{
    if (failed)
        trainee->refused++;
    else
        trainee->accepted++;
}

static void *stream(void *arg)
{
    int64_t first = 1000000 * (int64_t)(uintptr_t)arg;
    if (manner->thread)
        manner->thread();
    for (uint64_t i = 0; !trainee->stop; i++) {
        int64_t rows = 4;
        if (manner->new_shapes && i % NEW_SHAPE == 0)
            rows = first + (int64_t)i;
        count(trainee_submit(client, site, rows));
        if (i == 0)
            submitting++;
        if (i % BURST == BURST - 1)
            trainee_nap_ms(PAUSE_MS);
    }
    return NULL;
}

/* ---- its life ---- */

static _Noreturn void live(void (*body)(struct trd_client *c))
{
    pthread_t thread[TRAINEE_THREADS];
    uintptr_t n = manner->alone ? 0 : TRAINEE_THREADS;
    for (int i = 1; i < NSIG; i++) /* what cmocka has set */
        signal(i, SIG_DFL);
    if (manner->set_up)
        manner->set_up();
    client = trainee_client(manner->journal_bytes);
    demand(client);
    site = trainee_site(client);
    for (uintptr_t i = 0; i < n; i++)
        demand(!pthread_create(&thread[i], NULL, stream, (void *)(i + 1)));
    while (submitting < n)
        trainee_nap_ms(1);
    body(client);
    trainee->stop = 1;
    for (uintptr_t i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    trd_client_close(client);
    _exit(0);
}

pid_t trainee_start(const struct trainee_how *how,
                    void (*body)(struct trd_client *c))
{
    static const struct trainee_how usual;
    pid_t pid;
    if (!trainee) {
        void *at = mmap(NULL, sizeof *trainee, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(at != MAP_FAILED);
        trainee = at;
    }
    memset(trainee, 0, sizeof *trainee);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    manner = how ? how : &usual;
    live(body);
}

int trainee_ended(pid_t pid)
{
    long long end = rig_now_ms() + END_MS;
    int status = 0;
    pid_t got;
    while ((got = waitpid(pid, &status, WNOHANG)) == 0) {
        if (rig_now_ms() > end) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
            fail_msg("the training does not end");
        }
        rig_pause();
    }
    assert_int_equal(got, pid);
    if (trainee->line)
        fail_msg("line %d failed in the training\n%s", trainee->line,
                 rig_log(&ingest.rig));
    return status;
}

void trainee_ends(pid_t pid, int code)
{
    int status = trainee_ended(pid);
    int got = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (got != code)
        fail_msg("the training ended with %d, not %d", got, code);
}
