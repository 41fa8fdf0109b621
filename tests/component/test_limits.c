/* Peers that are slow, silent, many, or do not listen: each costs little and
 * for a bounded time, and the others are served meanwhile. */
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/place.h"
#include "tracerd/client.h"

static uint8_t bytes[RIG_FRAME_BYTES];

static bool is_over(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char some[4096];
    while (poll(&p, 1, 0) > 0)
        if (read(fd, some, sizeof some) <= 0)
            return true;
    return false;
}

/* Most memory that a process ever had. */
static unsigned long peak_kb(pid_t pid)
{
    char path[64], line[256];
    unsigned long kb = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "VmHWM: %lu", &kb);
    if (f)
        fclose(f);
    return kb;
}

/* One that behaves: each call stores one more record. */
static void be_served(struct rig_client *c, uint64_t *seq)
{
    rig_fill_data(&ingest.e, ++*seq, 1);
    rig_send_data(c, &ingest.e, *seq);
    rig_committed(c, *seq);
}

/* ---- slow and silent ---- */

struct idler {
    const char *what, *socket;
    size_t first; /* bytes of a hello or a greeting that it says */
    bool greeted; /* all of the hello, and waits for the welcome */
    size_t then;  /* bytes of a frame behind it */
    int slow_ms;  /* goes on a byte at a time; 0: never */
    int min_ms;   /* may take so long */
    int fd;
    size_t said;
    long long begun_ms, said_ms, over_ms;
};

static struct idler idlers[] = {
    {"nothing", PLACE_INGEST, 0, false, 0, 0, HELLO_MS},
    {"half a head", PLACE_INGEST, 17, false, 0, 0, HELLO_MS},
    {"half a hello", PLACE_INGEST, 90, false, 0, 0, HELLO_MS},
    {"a slow hello", PLACE_INGEST, 1, false, 0, 50, HELLO_MS},
    {"nothing after the hello", PLACE_INGEST, 0, true, 0, 0,
     IDLE_MS *IDLE_MISSES},
    {"half a head for ever", PLACE_INGEST, 0, true, 9, 0, FRAME_MS},
    {"half a frame for ever", PLACE_INGEST, 0, true, 99, 0, FRAME_MS},
    {"a slow frame", PLACE_INGEST, 0, true, 1, 100, FRAME_MS},
    {"no greeting", PLACE_QUERY, 0, false, 0, 0, HELLO_MS},
    {"half a greeting", PLACE_QUERY, 5, false, 0, 0, HELLO_MS},
    {"half a question", PLACE_QUERY, 30, false, 0, 0, FRAME_MS},
};
enum { IDLERS = sizeof idlers / sizeof *idlers };

/* Bytes of a question that is not whole. */
static const uint8_t question[] = "\0SP\0\0\x30\0\0"
                                  "\1\0\0\0\0\0\0\0\x40\x80\0\0\0........";

static void idler_begin(struct idler *i, uint64_t epoch)
{
    struct hello h = rig_hello();
    struct rig_client c;
    h.rank = (uint32_t)epoch;
    i->over_ms = 0;
    i->begun_ms = i->said_ms = rig_now_ms();
    if (i->greeted) {
        assert_true(rig_greet(&ingest.rig, &c, epoch, &h));
        i->fd = c.fd;
        rig_fill_data(&ingest.e, 1, 3);
        rig_data_frame(bytes, epoch, &ingest.e, 1);
        rig_write(i->fd, bytes, i->then);
        i->said = i->then;
    } else {
        i->fd = rig_connect(ingest.rig.dir, i->socket);
        assert_true(i->fd >= 0);
        rig_hello_frame(bytes, epoch, &h);
        if (strcmp(i->socket, PLACE_QUERY) == 0)
            rig_write(i->fd, question, i->first);
        else
            rig_write(i->fd, bytes, i->first);
        i->said = i->first;
    }
}

static void idler_go_on(struct idler *i, uint64_t epoch)
{
    struct hello h = rig_hello();
    h.rank = (uint32_t)epoch;
    if (!i->slow_ms || rig_now_ms() - i->said_ms < i->slow_ms)
        return;
    if (i->greeted) {
        rig_fill_data(&ingest.e, 1, 3);
        rig_data_frame(bytes, epoch, &ingest.e, 1);
    } else {
        rig_hello_frame(bytes, epoch, &h);
    }
    i->said_ms = rig_now_ms();
    rig_write_any(i->fd, bytes + i->said++, 1);
}

static void test_limits__slow_and_silent_peers(void **state)
{
    struct rig_client served;
    struct hello h = rig_hello();
    uint64_t seq = 0;
    int left = IDLERS;
    long long end;
    (void)state;
    oracle_start(&ingest.rig);
    h.run = slice_of("served");
    assert_true(rig_greet(&ingest.rig, &served, 5, &h));
    rig_fill_dict(&ingest.e);
    rig_send_dict(&served, &ingest.e, 1);
    for (uint32_t k = 0; k < IDLERS; k++)
        idler_begin(&idlers[k], 100 + k);
    end = rig_now_ms() + 60000;
    while (left) {
        be_served(&served, &seq);
        for (uint32_t k = 0; k < IDLERS; k++) {
            struct idler *i = &idlers[k];
            if (i->over_ms)
                continue;
            idler_go_on(i, 100 + k);
            if (is_over(i->fd)) {
                i->over_ms = rig_now_ms() - i->begun_ms;
                close(i->fd);
                left--;
            }
        }
        if (rig_now_ms() > end)
            fail_msg("%d silent peers stay", left);
        rig_pause();
    }
    for (uint32_t k = 0; k < IDLERS; k++) {
        print_message("%s: over after %lld ms\n", idlers[k].what,
                      idlers[k].over_ms);
        if (idlers[k].over_ms < idlers[k].min_ms - 300)
            fail_msg("%s: over after %lld ms", idlers[k].what,
                     idlers[k].over_ms);
    }
    rig_close(&served);
    rig_stop(&ingest.rig);
    assert_int_equal(ingest_ask("served", "SELECT count(*) FROM record"), seq);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 0);
    oracle_run(&ingest.rig, "served");
    oracle_run(&ingest.rig, "run");
    oracle_held(25, IDLERS, "ways to be slow or silent on both sockets");
}

static void test_limits__a_thousand_half_open_connections(void **state)
{
    enum { N = 1000 };
    static int fd[N];
    struct oracle_footprint before, after;
    struct hello h = rig_hello();
    uint64_t seq = 0;
    int over = 0;
    size_t n;
    (void)state;
    oracle_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    before = oracle_footprint(ingest.rig.pid);
    n = rig_hello_frame(bytes, 78, &h) / 2;
    for (int i = 0; i < N; i++) {
        fd[i] = rig_connect(ingest.rig.dir, PLACE_INGEST);
        assert_true(fd[i] >= 0);
        rig_write_any(fd[i], bytes, n);
        if (i % 100 == 99) { /* a newcomer among them, and an old one */
            struct rig_client other;
            assert_true(rig_greet(&ingest.rig, &other, 1000 + (uint64_t)i, &h));
            rig_close(&other);
            be_served(&ingest.c, &seq);
        }
    }
    while (over < N) {
        be_served(&ingest.c, &seq);
        for (int i = 0; i < N; i++) {
            if (fd[i] >= 0 && is_over(fd[i])) {
                close(fd[i]);
                fd[i] = -1;
                over++;
            }
        }
    }
    rig_until((after = oracle_footprint(ingest.rig.pid),
               after.descriptors <= before.descriptors));
    oracle_no_growth(&before, &after, RIG_GROWTH_KB(32 * 1024));
    rig_stop(&ingest.rig);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), seq);
    oracle_run(&ingest.rig, "run");
    oracle_held(25, N, "half a hello on as many connections");
}

/* ---- those who do not listen ---- */

static void serve_until_one_is_closed(uint64_t *seq)
{
    bool closed = false;
    for (long long end = rig_now_ms() + 60000; !closed;) {
        char *log = rig_log(&ingest.rig);
        closed = strstr(log, "silent for too long") != NULL;
        free(log);
        be_served(&ingest.c, seq);
        if (rig_now_ms() > end)
            fail_msg("nobody is closed for being silent");
        rig_pause();
    }
}

/* Says what must be answered, and reads nothing. */
static void test_limits__a_client_that_never_reads(void **state)
{
    struct oracle_footprint before, after;
    struct rig_client deaf;
    struct hello h = rig_hello();
    uint64_t seq = 0, said = 0;
    size_t n;
    (void)state;
    oracle_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    be_served(&ingest.c, &seq);
    h.rank = 1;
    assert_true(rig_greet(&ingest.rig, &deaf, 78, &h));
    rig_fill_dict(&ingest.e);
    rig_send_dict(&deaf, &ingest.e, 1);
    rig_fill_data(&ingest.e, 1, 1);
    rig_send_data(&deaf, &ingest.e, 1);
    rig_committed(&deaf, 1);
    before = oracle_footprint(ingest.rig.pid);
    n = rig_data_frame(bytes, 78, &ingest.e, 1);
    for (; said < 20000; said++) { /* 72 bytes of answer each */
        rig_write(deaf.fd, bytes, n);
        if (said % 1000 == 0)
            be_served(&ingest.c, &seq);
    }
    be_served(&ingest.c, &seq);
    after = oracle_footprint(ingest.rig.pid);
    oracle_no_growth(&before, &after, RIG_GROWTH_KB(8 * 1024));
    /* it goes silent, and is closed for that; what is unread it may read */
    serve_until_one_is_closed(&seq);
    while (rig_recv(&deaf))
        continue;
    rig_close(&deaf);
    be_served(&ingest.c, &seq);
    rig_stop(&ingest.rig);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), seq + 1);
    oracle_run(&ingest.rig, "run");
    oracle_held(9, said, "frames of a client that reads no answer");
}

/* Writes n records, a millisecond apart; the exit code tells. first_ms: how
 * long it took until the first was stored, or NULL. */
static int stream_records(const char *dir, const char *run, uint32_t rank,
                          uint64_t n, long long *first_ms)
{
    long long begun = rig_now_ms();
    const struct timespec pause = {.tv_nsec = 1000000};
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    struct trd_client_options o;
    struct trd_client *c;
    uint32_t site;
    trd_client_options_init(&o);
    o.dir = dir;
    o.run = run;
    o.job = "job";
    o.rank = rank;
    o.journal_bytes = 1 << 20;
    if (trd_client_open(&o, &c) || trd_site(c, &s, &site))
        return 1;
    for (uint64_t i = 1; i <= n; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        if (trd_submit_cpu(c, site, &when, &t, 16))
            return 2;
        if (i == 1 && first_ms && trd_flush(c, 60000))
            return 3;
        if (i == 1 && first_ms)
            *first_ms = rig_now_ms() - begun;
        nanosleep(&pause, NULL);
    }
    if (trd_flush(c, 60000))
        return 3;
    trd_client_close(c);
    return 0;
}

static void test_limits__a_stopped_client_comes_back(void **state)
{
    enum { N = 1500 };
    uint64_t seq = 0;
    int status;
    pid_t child;
    (void)state;
    oracle_start(&ingest.rig);
    child = fork();
    if (child == 0)
        _exit(stream_records(ingest.rig.dir, "stopped", 0, N, NULL));
    rig_until(ingest_ask("stopped", "SELECT seq FROM stream") > 10);
    kill(child, SIGSTOP);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    serve_until_one_is_closed(&seq);
    kill(child, SIGCONT);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    oracle_process(&ingest.rig, "stopped", child, N, 0, 0);
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
    oracle_run(&ingest.rig, "stopped");
    oracle_run(&ingest.rig, "run");
    oracle_held(9, 1, "SIGSTOP of a client until it is closed, then SIGCONT");
}

/* ---- many ---- */

struct guest {
    struct rig_client c;
    enum { WAITING, ASKED, SERVED } at;
};

/* Says hello, dictionary and a record, for whom there is room. */
static void guest_ask(struct guest *g, uint32_t rank)
{
    struct hello h = rig_hello();
    memset(&g->c, 0, sizeof g->c);
    g->c.epoch = 10000 + rank;
    g->c.fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
    assert_true(g->c.fd >= 0);
    h.rank = rank;
    rig_write_any(g->c.fd, bytes, rig_hello_frame(bytes, g->c.epoch, &h));
    g->at = ASKED;
}

static bool guest_is_in(struct guest *g)
{
    if (!rig_recv(&g->c))
        fail_msg("hung up without a word");
    if (g->c.got.type == FRAME_WELCOME) {
        rig_fill_dict(&ingest.e);
        rig_send_dict(&g->c, &ingest.e, 1);
        rig_fill_data(&ingest.e, 1, 1);
        rig_send_data(&g->c, &ingest.e, 1);
        return true;
    }
    assert_int_equal(g->c.got.type, FRAME_REFUSE);
    assert_int_equal(g->c.refusal.reason, REASON_BUSY);
    assert_true(g->c.refusal.retry_ms > 0);
    rig_close(&g->c);
    g->at = WAITING;
    return false;
}

static void test_limits__four_thousand_clients_at_once(void **state)
{
    enum { N = 4096 };
    struct guest *g = calloc(N, sizeof *g);
    struct rlimit l;
    unsigned served = 0, refused = 0, rounds = 0, n = N;
    (void)state;
    assert_non_null(g);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &l), 0);
    l.rlim_cur = l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l);
#ifdef __SANITIZE_THREAD__ /* so slow that peers would seem silent */
    n = 1100;
#endif
    if (l.rlim_cur < n + 100)
        n = (unsigned)l.rlim_cur - 100;
    oracle_start(&ingest.rig);
    while (served < n) {
        unsigned in = 0;
        for (uint32_t i = 0; i < n; i++)
            if (g[i].at == WAITING)
                guest_ask(&g[i], i);
        for (uint32_t i = 0; i < n; i++)
            if (g[i].at == ASKED)
                in += guest_is_in(&g[i]);
        for (uint32_t i = 0; i < n; i++) {
            if (g[i].at != ASKED)
                continue;
            rig_committed(&g[i].c, 1);
            rig_close(&g[i].c);
            g[i].at = SERVED;
        }
        served += in;
        refused += n - served;
        if (++rounds > 100)
            fail_msg("%u of %u were served", served, n);
    }
    print_message("%u clients in %u rounds, %u refusals, peak %lu KB\n", n,
                  rounds, refused, peak_kb(ingest.rig.pid));
    assert_true(peak_kb(ingest.rig.pid) < RIG_GROWTH_KB(256 * 1024));
    assert_true(rounds > 1);
    rig_stop(&ingest.rig);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream"), n);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), n);
    oracle_run(&ingest.rig, "run");
    free(g);
    oracle_held(26, n, "raw clients at once, refused busy, served later");
}

static int by_value(const void *a, const void *b)
{
    long long x = *(const long long *)a, y = *(const long long *)b;
    return x < y ? -1 : x > y;
}

/* Real clients, with a journal and a thread each, in as many processes. */
static void test_limits__a_storm_of_real_clients(void **state)
{
    enum { N = 256, RECORDS = 20 };
    static pid_t child[N];
    static long long first_ms[N];
    long long begun = rig_now_ms();
    int go[2], back[2];
    (void)state;
    oracle_start(&ingest.rig);
    assert_int_equal(pipe(go), 0);
    assert_int_equal(pipe(back), 0);
    for (uint32_t i = 0; i < N; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            long long at;
            char byte;
            close(go[1]);
            if (read(go[0], &byte, 1) < 0) /* until the parent lets go */
                _exit(9);
            if (stream_records(ingest.rig.dir, "storm", i, RECORDS, &at))
                _exit(8);
            _exit(write(back[1], &at, sizeof at) != sizeof at);
        }
    }
    close(go[0]);
    close(go[1]);
    for (uint32_t i = 0; i < N; i++)
        assert_int_equal(read(back[0], &first_ms[i], sizeof *first_ms),
                         sizeof *first_ms);
    close(back[0]);
    close(back[1]);
    for (uint32_t i = 0; i < N; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
        oracle_process(&ingest.rig, "storm", child[i], RECORDS, 0, 0);
    }
    qsort(first_ms, N, sizeof *first_ms, by_value);
    print_message("first acknowledgement: median %lld ms, p99 %lld ms; all "
                  "after %lld ms; peak %lu KB\n",
                  first_ms[N / 2], first_ms[N * 99 / 100],
                  rig_now_ms() - begun, peak_kb(ingest.rig.pid));
    assert_true(peak_kb(ingest.rig.pid) < RIG_GROWTH_KB(256 * 1024));
    rig_stop(&ingest.rig);
    oracle_run(&ingest.rig, "storm");
    oracle_held(26, N, "clients that start at the same moment");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_limits__slow_and_silent_peers),
        ingest_test(test_limits__a_thousand_half_open_connections),
        ingest_test(test_limits__a_client_that_never_reads),
        ingest_test(test_limits__a_stopped_client_comes_back),
        ingest_test(test_limits__four_thousand_clients_at_once),
        ingest_test(test_limits__a_storm_of_real_clients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
