/* Power cuts: at any moment, what was not synced is gone, or there in part
 * and in another order. What was told to be durable is there after each, and
 * the rest comes again from who kept it: a client that is alive, or the
 * journal of one that is dead.
 *
 * A daemon is recorded at work (disk.c); then many disks are made of the
 * record (cut.h), each as a cut at another moment leaves it. The seed is
 * printed; TRD_SEED=N repeats one, TRD_FAULT_CASES=N makes N of each kind. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/journal.h"
#include "tests/fault/cut.h"
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include "tracerd/client.h"

enum {
    EPOCH = 77,
    BATCH = 40,
    BATCHES = 12,
    LIVES = 6,            /* of a daemon under real clients */
    RING = 8 << 20,
    LOG_BYTES = 16480032, /* a log of 4000 pages: it is copied next */
    MANY = 1000,          /* records at once that fill it */
    FAIL_SYNCS = 12       /* the first ones, each in turn */
};

static uint64_t rng;
static struct hello hello;
static bool connected;
static uint64_t sent; /* what the raw client has given a number */

static uint64_t random_below(uint64_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng % n;
}

static uint64_t cases(uint64_t some)
{
    const char *text = getenv("TRD_FAULT_CASES");
    return text ? strtoull(text, NULL, 10) : some;
}

static void nap_ms(uint64_t ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* ---- a raw client that keeps what is not durable ---- */

static uint64_t durable; /* it was told */

static void take_told(void)
{
    if (ingest.c.ack.durable_seq <= durable)
        return;
    durable = ingest.c.ack.durable_seq;
    cut_told(durable);
}

static void hang_up(void)
{
    rig_close(&ingest.c);
    connected = false;
}

/* Connects, and sends what the daemon has not. */
static void come_again(void)
{
    hello = rig_hello();
    hello.first_seq = durable + 1;
    while (!rig_greet(&ingest.rig, &ingest.c, EPOCH, &hello)) {
        hang_up();
        nap_ms(20);
    }
    connected = true;
    if (ingest.c.welcome.committed_seq < durable)
        fail_msg("%llu are told to be durable, %llu are there\n%s",
                 (unsigned long long)durable,
                 (unsigned long long)ingest.c.welcome.committed_seq,
                 rig_log(&ingest.rig));
    take_told();
    ingest_send_dict();
    for (uint64_t at = ingest.c.welcome.committed_seq + 1; at <= sent;) {
        uint64_t n = sent - at + 1 < MANY ? sent - at + 1 : MANY;
        ingest_send_records(at, (uint32_t)n);
        at += n;
    }
}

/* n more; again as often as the store fails, until they are durable, or only
 * committed. */
static void deliver(uint32_t n, bool to_disk)
{
    sent += n;
    if (connected)
        ingest_send_records(sent - n + 1, n);
    for (;;) {
        struct ack *a = &ingest.c.ack;
        if (!connected)
            come_again();
        if ((to_disk ? a->durable_seq : a->committed_seq) >= sent)
            return;
        if (!rig_recv(&ingest.c) || ingest.c.got.type == FRAME_NACK)
            hang_up();
        else
            take_told();
    }
}

/* Everything is durable at once, and the daemon hangs up. */
static void say_bye(void)
{
    if (!connected)
        come_again();
    rig_send(&ingest.c, FRAME_BYE, sent, "", 0);
    while (rig_recv(&ingest.c))
        take_told();
    hang_up();
}

static void begin_record(void)
{
    sent = durable = 0;
    connected = false;
    cut_begin(&ingest.rig);
    cut_record(&ingest.rig, true);
    rig_start(&ingest.rig);
    cut_record(&ingest.rig, false);
}

static void end_record(void)
{
    hang_up();
    rig_kill(&ingest.rig);
    cut_read();
}

/* A run is made, written, closed and opened again. */
static void work(void)
{
    for (int i = 0; i < BATCHES; i++) {
        deliver(BATCH, i % 4 == 1);
        if (i % 4 == 3)
            say_bye();
        if (i != BATCHES / 2)
            continue;
        hang_up();
        rig_stop(&ingest.rig); /* the log is copied and goes */
        cut_record(&ingest.rig, true);
        rig_start(&ingest.rig);
        cut_record(&ingest.rig, false);
    }
}

/* ---- after a cut ---- */

/* The file alone. */
static void check_file(size_t at)
{
    uint64_t told = cut_durable(at);
    int64_t have = ingest_ask("run", "SELECT max(seq) FROM stream");
    oracle_run(&ingest.rig, "run");
    if (told && have < (int64_t)told)
        fail_msg("cut at %zu: %llu are told to be durable, %lld are there",
                 at, (unsigned long long)told, (long long)have);
}

static void check_all(void)
{
    oracle_run(&ingest.rig, "run");
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), sent);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream"), 1);
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
}

/* The client lived through it. */
static void with_client(size_t at)
{
    uint64_t all = sent;
    durable = cut_durable(at);
    oracle_start(&ingest.rig);
    sent = all - BATCH;
    deliver(BATCH, true);
    say_bye();
    check_all();
}

/* A journal as the client left it: what was told to be durable is freed. */
static void free_journal(const char *name)
{
    char path[2 * RIG_PATH];
    struct journal_head head;
    struct journal_state state;
    struct journal_walk walk;
    struct entry e;
    uint64_t seq = 0;
    uint8_t *image;
    FILE *f;
    snprintf(path, sizeof path, "%s/%s" JOURNAL_SUFFIX, ingest.rig.dir, name);
    f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(journal_layout(2 * JOURNAL_MIN_BYTES, &head), 0);
    image = malloc(head.size);
    assert_non_null(image);
    assert_int_equal(fread(image, 1, head.size, f), head.size);
    assert_int_equal(journal_state_get(image, &state), 0);
    journal_walk_init(&walk, image, &head, &state);
    while (seq < durable)
        assert_int_equal(journal_next(&walk, &e, &seq), JOURNAL_ENTRY);
    state.generation++;
    state.durable_seq = state.committed_seq = durable;
    state.durable_pos = walk.pos;
    journal_state_put(image, &state);
    assert_int_equal(fseek(f, 2 * JOURNAL_PAGE, SEEK_SET), 0);
    assert_int_equal(fwrite(image, 1, JOURNAL_PAGE, f), JOURNAL_PAGE);
    fclose(f);
    free(image);
}

/* It did not, and its journal is taken over. */
static void with_journal(size_t at)
{
    char path[2 * RIG_PATH];
    durable = cut_durable(at);
    rig_journal(&ingest.rig, "left", EPOCH, (uint32_t)sent, 0, false);
    free_journal("left");
    snprintf(path, sizeof path, "%s/left" JOURNAL_SUFFIX, ingest.rig.dir);
    oracle_start(&ingest.rig);
    rig_until(access(path, F_OK) != 0);
    check_all();
}

typedef void after_cut(size_t at);

/* n cuts at moments from first on, every fourth at the end. */
static void cut_often(uint64_t n, size_t first, after_cut *after)
{
    size_t all = cut_read(), at;
    for (uint64_t i = 0; i < n; i++) {
        at = i % 4 ? first + random_below(all + 1 - first) : all;
        cut_make(ingest.rig.data, at, random_below(UINT32_MAX));
        after(at);
    }
}

/* ---- tests ---- */

static void test_power_cut__any_moment(void **state)
{
    size_t all;
    (void)state;
    begin_record();
    work();
    end_record();
    all = cut_read();
    for (size_t at = 0; at <= all; at++) {
        cut_make(ingest.rig.data, at, random_below(UINT32_MAX));
        check_file(at);
    }
    print_message("%zu moments\n", all + 1);
    oracle_held(15, all + 1, "each moment: the run's file");
}

static void test_power_cut__the_client_lives_on(void **state)
{
    (void)state;
    begin_record();
    work();
    end_record();
    cut_often(cases(40), 0, with_client);
    oracle_held(15, cases(40), "random moments: it comes from the client");
}

static void test_power_cut__the_client_is_dead(void **state)
{
    (void)state;
    begin_record();
    work();
    end_record();
    cut_often(cases(40), 0, with_journal);
    oracle_held(15, cases(40), "random moments: it comes from the journal");
}

/* A log that is long enough is copied into the file. */
static void fill_log(void)
{
    begin_record();
    for (uint64_t bytes = 0; bytes < LOG_BYTES; bytes += MANY * 128)
        deliver(MANY, false);
    deliver(MANY, true);
    deliver(MANY, true);
    end_record();
}

/* The first sync that failed; or where the log ends. */
static size_t find_failed(void)
{
    size_t at = 0;
    const struct disk_entry *e;
    while ((e = cut_entry(at)) && e->kind != DISK_NOT_SYNCED &&
           e->kind != DISK_DIR_NOT_SYNCED)
        at++;
    return at;
}

static void test_power_cut__while_the_log_is_copied(void **state)
{
    uint64_t n = cases(12);
    (void)state;
    fill_log();
    cut_often(n, cut_read() / 2, check_file);
    oracle_held(15, n, "while the log is copied");
}

/* ---- a sync that fails ---- */

/* What was written before it may never get there; later syncs do not help. */
static void test_power_cut__a_sync_failed_before(void **state)
{
    uint64_t n = cases(8), done = 0;
    char text[16];
    for (int nth = 1; nth <= FAIL_SYNCS; nth++) {
        size_t failed, all;
        snprintf(text, sizeof text, "%d", nth);
        setenv("TRD_DISK_FAIL_NTH", text, 1);
        begin_record();
        unsetenv("TRD_DISK_FAIL_NTH");
        work();
        end_record();
        all = cut_read();
        failed = find_failed();
        if (failed < all) {
            cut_often(n, failed, check_file);
            cut_often(1, failed, with_client);
            done++;
        }
        ingest_tear_down(state);
        cut_end();
        ingest_set_up(state);
    }
    assert_true(done > 0);
    oracle_held(12, done, "fsync fails once: durable is what a power cut "
                          "leaves");
}

static void test_power_cut__a_sync_failed_while_the_log_was_copied(void **state)
{
    uint64_t n = cases(12);
    size_t failed;
    char text[16];
    (void)state;
    snprintf(text, sizeof text, "%d", LOG_BYTES);
    setenv("TRD_DISK_FAIL_WAL", text, 1);
    fill_log();
    unsetenv("TRD_DISK_FAIL_WAL");
    failed = find_failed();
    assert_non_null(cut_entry(failed));
    cut_often(n, failed, check_file);
    oracle_held(12, n, "fsync of a long log fails once");
}

/* ---- real clients ---- */

struct told {
    _Atomic uint64_t accepted, refused;
    _Atomic int stop;
};
static struct told *told; /* LIVES + 1 */

static void stream(struct told *me)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    const int64_t shape[1] = {4};
    uint32_t id = 0;
    trd_client_options_init(&o);
    o.dir = ingest.rig.dir;
    o.run = "run";
    o.job = "job";
    o.journal_bytes = RING;
    if (trd_client_open(&o, &c) || trd_site(c, &s, &id))
        _exit(3);
    for (uint64_t i = 1; !me->stop; i++) {
        const float data[4] = {1, 2, 3, (float)i};
        struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        if (trd_submit_cpu(c, id, &when, &t, 4))
            me->refused++;
        else
            me->accepted++;
        if (i % 16 == 0)
            nap_ms(4);
    }
    trd_client_close(c);
    _exit(0);
}

static pid_t start_client(struct told *t)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        stream(t);
    return pid;
}

static void end_client(pid_t pid, struct told *t, bool by_kill)
{
    int status;
    t->stop = 1;
    if (by_kill)
        kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(by_kill || status == 0);
}

/* The daemon works for a while, and then its disk is what a cut left. */
static void one_life(uint64_t ms)
{
    cut_begin(&ingest.rig);
    cut_record(&ingest.rig, true);
    rig_start(&ingest.rig);
    cut_record(&ingest.rig, false);
    nap_ms(ms);
    rig_kill(&ingest.rig);
}

static void cut_now(void)
{
    cut_make(ingest.rig.data, cut_read(), random_below(UINT32_MAX));
    cut_end();
}

static void check_clients(const pid_t *pid, int n, bool killed)
{
    for (int i = 0; i < n; i++)
        oracle_process(&ingest.rig, "run", pid[i], told[i].accepted,
                       killed && i < n - 1,
                       killed && i < n - 1 ? UINT64_MAX : told[i].refused);
    oracle_run(&ingest.rig, "run");
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss WHERE"
                                       " cause = 'store_lost'"),
                     0);
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
}

static void lives(int n, bool kill_clients)
{
    pid_t pid[LIVES + 1];
    int clients = 1;
    memset(told, 0, (LIVES + 1) * sizeof *told);
    pid[0] = start_client(&told[0]);
    for (int i = 0; i < n; i++) {
        one_life(150 + random_below(1000));
        if (kill_clients)
            end_client(pid[clients - 1], &told[clients - 1], true);
        cut_now();
        if (!kill_clients)
            continue;
        pid[clients] = start_client(&told[clients]);
        clients++;
    }
    oracle_start(&ingest.rig);
    end_client(pid[clients - 1], &told[clients - 1], false);
    check_clients(pid, clients, kill_clients);
}

static void test_power_cut__under_a_real_client(void **state)
{
    (void)state;
    lives(LIVES, false);
    oracle_held(15, LIVES, "again and again, under one real client");
}

static void test_power_cut__with_its_real_client(void **state)
{
    (void)state;
    lives(LIVES, true);
    oracle_held(15, LIVES, "the client killed too, its journal left");
}

static int tear_down(void **state)
{
    for (int i = 0; i <= LIVES; i++)
        told[i].stop = 1; /* for one that a failure has left */
    cut_end();
    unsetenv("LD_PRELOAD");
    return ingest_tear_down(state);
}

int main(void)
{
#define CUT(name)                                                             \
    cmocka_unit_test_setup_teardown(name, ingest_set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CUT(test_power_cut__any_moment),
        CUT(test_power_cut__the_client_lives_on),
        CUT(test_power_cut__the_client_is_dead),
        CUT(test_power_cut__while_the_log_is_copied),
        CUT(test_power_cut__a_sync_failed_before),
        CUT(test_power_cut__a_sync_failed_while_the_log_was_copied),
        CUT(test_power_cut__under_a_real_client),
        CUT(test_power_cut__with_its_real_client),
    };
    const char *text = getenv("TRD_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : (uint64_t)getpid();
    void *shared = mmap(NULL, (LIVES + 1) * sizeof *told,
                        PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                        -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    told = shared;
    print_message("TRD_SEED=%llu\n", (unsigned long long)seed);
    rng = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
