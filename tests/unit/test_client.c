/* The client without a daemon: what it submits is in its journal, forks are
 * inert, losses are counted. */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/unit.h"

#include "client/client.h"
#include "client/sys.h"
#include "proto/frame.h"
#include "proto/journal.h"
#include "tracerd/client.h"
#include "tracerd/stats.h"

static char dir[64];
static int in_child;

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/trd-client-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

/* Path of the only journal in dir; 0 if there is none. */
static int find_journal(char *out, size_t cap)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int found = 0;
    while ((e = readdir(d)))
        if (strstr(e->d_name, JOURNAL_SUFFIX)) {
            snprintf(out, cap, "%s/%s", dir, e->d_name);
            found++;
        }
    closedir(d);
    return found;
}

static int remove_dir(void **state)
{
    (void)state;
    char path[512];
    while (find_journal(path, sizeof path))
        unlink(path);
    return rmdir(dir);
}

static struct trd_client *open_as(uint64_t journal_bytes,
                                  const struct trd_want *want)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    trd_client_options_init(&o);
    o.dir = dir;
    o.run = "unit";
    o.rank = 3;
    o.journal_bytes = journal_bytes;
    o.sampling = want->sampling;
    o.sampling_arg = want->sampling_arg;
    o.histogram = want->histogram;
#ifdef __SANITIZE_THREAD__
    o.no_thread = in_child; /* it cannot start one there */
#endif
    assert_int_equal(trd_client_open(&o, &c), 0);
    return c;
}

static struct trd_client *open_client(uint64_t journal_bytes)
{
    const struct trd_want nothing_more = {0};
    return open_as(journal_bytes, &nothing_more);
}

static uint32_t a_site(struct trd_client *c, const char *class_name)
{
    uint32_t id = 0;
    struct trd_site site = {.pass = TRD_FORWARD, .io = TRD_INPUT,
                            .instance = 1, .class_name = class_name,
                            .module = "m", .path = "0"};
    assert_int_equal(trd_site(c, &site, &id), 0);
    return id;
}

static int submit(struct trd_client *c, uint32_t site, uint64_t step)
{
    const float data[6] = {1, 2, 3, 4, 5, (float)step};
    const int64_t shape[2] = {2, 3};
    struct trd_tensor t = {data, TRD_F32, 2, shape, NULL};
    struct trd_when when = {.step = step, .iteration = 1, .microbatch = 1};
    return trd_submit_cpu(c, site, &when, &t, 16);
}

struct image {
    uint8_t *bytes;
    size_t n;
    struct journal_head head;
    struct journal_state state;
    struct journal_walk walk;
};

static struct image read_image(void)
{
    char path[512];
    struct image m;
    struct stat st;
    assert_int_equal(find_journal(path, sizeof path), 1);
    int fd = open(path, O_RDONLY);
    assert_int_equal(fstat(fd, &st), 0);
    m.n = (size_t)st.st_size;
    m.bytes = mmap(NULL, m.n, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    assert_int_equal(journal_head_get(m.bytes, m.n, &m.head), 0);
    assert_int_equal(journal_state_get(m.bytes, &m.state), 0);
    journal_walk_init(&m.walk, m.bytes, &m.head, &m.state);
    return m;
}

static void test_client__killed_process_leaves_all_it_submitted(void **state)
{
    (void)state;
    pid_t child = fork();
    if (!child) {
        struct trd_client *c = open_client(JOURNAL_MIN_BYTES);
        uint32_t site = a_site(c, "Linear");
        for (uint64_t i = 1; i <= 500; i++)
            submit(c, site, i);
        kill(getpid(), SIGKILL);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status));
    struct image m = read_image();
    struct entry e;
    struct wire_record r;
    struct hello h;
    uint64_t seq;
    assert_int_equal(journal_hello_get(m.bytes, &m.head, &h), 0);
    assert_slice(h.run, "unit");
    assert_int_equal(h.rank, 3);
    assert_int_equal(h.pid, child);
    assert_int_equal(m.state.clean, 0);
    for (uint64_t i = 1; i <= 500; i++) {
        assert_int_equal(journal_next(&m.walk, &e, &seq), JOURNAL_ENTRY);
        assert_int_equal(record_get(&e, &r), 0);
        assert_int_equal(r.when.step, i);
        assert_int_equal(r.stats.n, 6);
        float last;
        memcpy(&last, r.samples + 20, sizeof last);
        assert_true(last == (float)i);
    }
    assert_int_equal(journal_next(&m.walk, &e, &seq), JOURNAL_END);
    munmap(m.bytes, m.n);
}

static void test_client__close_without_daemon_keeps_the_journal(void **state)
{
    (void)state;
    struct trd_client *c = open_client(JOURNAL_MIN_BYTES);
    assert_int_equal(submit(c, a_site(c, "Linear"), 1), 0);
    trd_client_close(c);
    struct image m = read_image();
    assert_int_equal(m.state.clean, 1);
    munmap(m.bytes, m.n);
}

static void test_client__nothing_submitted_leaves_nothing_behind(void **state)
{
    (void)state;
    char path[512];
    trd_client_close(open_client(JOURNAL_MIN_BYTES));
    assert_int_equal(find_journal(path, sizeof path), 0);
}

static void test_client__full_journal_drops_and_counts(void **state)
{
    (void)state;
    struct trd_client *c = open_client(JOURNAL_MIN_BYTES);
    uint32_t site = a_site(c, "Linear");
    struct trd_counters n;
    uint64_t accepted = 0, dropped = 0;
    while (dropped < 1000)
        if (submit(c, site, accepted + 1))
            dropped++;
        else
            accepted++;
    trd_counters(c, &n);
    assert_int_equal(n.lost[TRD_LOST_RING_FULL], dropped);
    assert_in_range(n.submitted, accepted, accepted + 1); /* or a loss */
    assert_int_equal(n.connected, 0);
    trd_client_close(c);
    /* what was dropped is told at the end, however full the ring is */
    struct image m = read_image();
    struct entry e;
    struct wire_loss l;
    uint64_t seq, records = 0, lost = 0;
    while (journal_next(&m.walk, &e, &seq) == JOURNAL_ENTRY) {
        records += e.kind == ENTRY_RECORD;
        if (e.kind != ENTRY_LOSS)
            continue;
        assert_int_equal(loss_get(&e, &l), 0);
        assert_int_equal(l.cause, TRD_LOST_RING_FULL);
        lost += l.count;
    }
    assert_int_equal(records, accepted);
    assert_int_equal(lost, dropped);
    munmap(m.bytes, m.n);
}

/* As a daemon that comes after slowly: one record is freed for two that are
 * submitted. */
static void test_client__losses_of_a_full_journal_come_together(void **state)
{
    (void)state;
    struct trd_client_options o;
    struct trd_client *c = NULL;
    struct trd__run run;
    uint64_t accepted = 0, dropped = 1, pos = 0;
    trd_client_options_init(&o);
    o.dir = dir;
    o.run = "unit";
    o.journal_bytes = JOURNAL_MIN_BYTES;
    o.no_thread = 1;
    assert_int_equal(trd_client_open(&o, &c), 0);
    uint32_t site = a_site(c, "Linear");
    while (submit(c, site, accepted + 1) == 0)
        accepted++;
    uint64_t start = trd__sys.mono_ns();
    for (int i = 0; i < 500; i++) {
        trd__journal_peek(&c->journal, &pos, 200, &run);
        c->journal.state.durable_pos = pos = run.end_pos;
        c->journal.state.durable_seq += run.records;
        trd__journal_publish(&c->journal);
        for (int k = 0; k < 2; k++) {
            int failed = submit(c, site, accepted + 1);
            accepted += !failed;
            dropped += failed != 0;
        }
    }
    assert_true(dropped > 100);
    uint64_t seconds = (trd__sys.mono_ns() - start) / 1000000000;
    assert_in_range(trd__journal_last(&c->journal) - accepted, 0,
                    2 + seconds);
    trd_client_close(c);
}

static void test_client__same_site_gives_the_same_number(void **state)
{
    (void)state;
    struct trd_client *c = open_client(JOURNAL_MIN_BYTES);
    uint32_t a = a_site(c, "Linear"), b = a_site(c, "ReLU"), note, again;
    assert_int_not_equal(a, b);
    assert_int_equal(a_site(c, "Linear"), a);
    assert_int_equal(trd_note(c, "nnz=3", &note), 0);
    assert_int_equal(trd_note(c, "nnz=3", &again), 0);
    assert_int_equal(note, again);
    trd_client_close(c);
}

static void test_client__wrong_arguments_are_errors(void **state)
{
    (void)state;
    struct trd_client_options o;
    struct trd_client *c;
    char long_name[TRD_MAX_NAME + 2];
    uint32_t id;
    trd_client_options_init(&o);
    o.dir = dir;
    o.run = "a/b";
    assert_int_equal(trd_client_open(&o, &c), TRD_ENAME);
    o.run = "ok";
    o.journal_bytes = 3 << 20;
    assert_int_equal(trd_client_open(&o, &c), TRD_EINVAL);
    assert_int_equal(trd_client_open(NULL, &c), TRD_EINVAL);
    o.journal_bytes = JOURNAL_MIN_BYTES;
    o.sampling = TRD_EVERY; /* of distance 0 */
    assert_int_equal(trd_client_open(&o, &c), TRD_EINVAL);
    o.sampling = TRD_SAMPLING_COUNT;
    assert_int_equal(trd_client_open(&o, &c), TRD_EINVAL);
    o.sampling = TRD_RANDOM;
    o.histogram = TRD_HISTOGRAM_COUNT;
    assert_int_equal(trd_client_open(&o, &c), TRD_EINVAL);
    c = open_client(JOURNAL_MIN_BYTES);
    memset(long_name, 'x', sizeof long_name);
    long_name[TRD_MAX_NAME + 1] = 0;
    struct trd_site site = {.pass = TRD_FORWARD, .class_name = long_name,
                            .module = "", .path = ""};
    assert_int_equal(trd_site(c, &site, &id), TRD_ELIMIT);
    site.class_name = NULL;
    assert_int_equal(trd_site(c, &site, &id), TRD_EINVAL);
    assert_int_equal(submit(c, 0, 1), TRD_ELIMIT);
    assert_int_equal(submit(c, 12345, 1), TRD_EINVAL);
    struct trd_counters n;
    trd_counters(c, &n);
    assert_int_equal(n.lost[TRD_LOST_ERROR], 1);
    assert_int_equal(n.lost[TRD_LOST_QUOTA], 1);
    trd_client_close(c);
    trd_client_close(NULL);
}

/* What a reader would refuse must not get into the journal. */
static void test_client__records_that_nobody_could_read_are_refused(
    void **state)
{
    (void)state;
    struct trd_client *c = open_client(JOURNAL_MIN_BYTES);
    uint32_t site = a_site(c, "Linear");
    const int64_t shape[1] = {4};
    struct trd_tensor t = {NULL, TRD_F32, 1, shape, NULL};
    static const struct trd_histogram
        unknown = {.kind = TRD_HISTOGRAM_COUNT},
        too_many = {.kind = TRD_HISTOGRAM_EXACT, .n = 2, .count = {3, 2}},
        too_far = {TRD_HISTOGRAM_EXACT, 255, 2, {1, 1}},
        empty_end = {.kind = TRD_HISTOGRAM_EXACT, .n = 2, .count = {1}};
    const struct {
        struct trd_when when;
        struct trd_stats stats;
    } bad[] = {{{.step = UINT64_MAX}, {.n = 4}},
               {{.iteration = UINT64_C(1) << 63}, {.n = 4}},
               {{.note = 999}, {.n = 4}},
               {{.step = 1}, {.n = UINT64_C(1) << 63}},
               {{.step = 1}, {.n = 4, .nan = 5}},
               {{.step = 1}, {.n = 4, .subnormal = 5}},
               {{.step = 1}, {.n = 4, .has = 128}},
               {{.step = 1}, {.n = 4, .sample_n = 5}},
               {{.step = 1}, {.n = 4, .sampling = TRD_SAMPLING_COUNT}},
               {{.step = 1}, {.n = 4, .sampling = TRD_EVERY}},
               {{.step = 1},
                {.n = 4, .sample_n = 2, .sampling = TRD_EVERY,
                 .sampling_arg = 4}},
               {{.step = 1}, {.n = 4, .histogram = &unknown}},
               {{.step = 1}, {.n = 4, .histogram = &too_many}},
               {{.step = 1}, {.n = 4, .histogram = &too_far}},
               {{.step = 1}, {.n = 4, .histogram = &empty_end}}};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(trd_submit(c, site, &bad[i].when, &t, &bad[i].stats,
                                    ""),
                         TRD_EINVAL);
    struct trd_counters n;
    trd_counters(c, &n);
    assert_int_equal(n.lost[TRD_LOST_ERROR], 15);
    assert_int_equal(submit(c, site, 1), 0);
    trd_client_close(c);
}

static void test_client__forked_child_is_inert(void **state)
{
    (void)state;
    struct trd_client *c = open_client(JOURNAL_MIN_BYTES);
    uint32_t site = a_site(c, "Linear");
    assert_int_equal(submit(c, site, 1), 0);
    pid_t child = fork();
    if (!child) {
        uint32_t id;
        struct trd_site s = {.pass = TRD_FORWARD, .class_name = "X",
                             .module = "", .path = ""};
        int wrong = submit(c, site, 2) != TRD_ECLOSED ||
                    trd_site(c, &s, &id) != TRD_ECLOSED ||
                    trd_flush(c, 10) != TRD_ECLOSED;
        trd_client_close(c);
        _exit(wrong);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(submit(c, site, 2), 0);
    struct trd_counters n;
    trd_counters(c, &n);
    assert_int_equal(n.submitted, 2);
    trd_client_close(c);
}

static void test_client__child_may_trace_on_its_own(void **state)
{
    (void)state;
    struct trd_client *c = open_client(JOURNAL_MIN_BYTES);
    pid_t child = fork();
    if (!child) {
        in_child = 1;
        struct trd_client *own = open_client(JOURNAL_MIN_BYTES);
        int failed = submit(own, a_site(own, "Linear"), 1);
        trd_client_close(own);
        _exit(failed != 0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    trd_client_close(c);
    struct image m = read_image();
    assert_int_equal(m.head.pid, child);
    munmap(m.bytes, m.n);
}

static void test_client__directory_of_others_is_refused(void **state)
{
    (void)state;
    char path[512];
    assert_int_equal(chmod(dir, 0755), 0);
    struct trd_client *c = open_client(JOURNAL_MIN_BYTES);
    struct trd_counters n;
    trd_counters(c, &n);
    assert_int_equal(n.last_error, TRD_EACCES);
    assert_int_equal(submit(c, a_site(c, "Linear"), 1), 0);
    trd_client_close(c);
    assert_int_equal(find_journal(path, sizeof path), 0);
}

static void test_client__unreadable_tensor_is_kept_as_shape(void **state)
{
    (void)state;
    struct trd_client *c = open_client(JOURNAL_MIN_BYTES);
    const int64_t shape[1] = {4};
    struct trd_tensor t = {NULL, TRD_F32, 1, shape, NULL};
    struct trd_when when = {.step = 1};
    assert_int_equal(trd_submit_cpu(c, a_site(c, "L"), &when, &t, 16), 0);
    trd_client_close(c);
    struct image m = read_image();
    struct entry e;
    struct wire_record r;
    uint64_t seq;
    assert_int_equal(journal_next(&m.walk, &e, &seq), JOURNAL_ENTRY);
    assert_int_equal(record_get(&e, &r), 0);
    assert_int_equal(r.when.labels, TRD_L_NODATA);
    assert_int_equal(r.stats.has, 0);
    munmap(m.bytes, m.n);
}

/* What was asked for at the start holds for every tensor. */
static void test_client__rule_and_histogram_of_the_options(void **state)
{
    (void)state;
    const struct trd_want want = {.sampling = TRD_EVERY, .sampling_arg = 4,
                                  .histogram = TRD_HISTOGRAM_EXACT};
    struct trd_client *c = open_as(JOURNAL_MIN_BYTES, &want);
    const int64_t shape[1] = {4};
    struct trd_tensor unreadable = {NULL, TRD_F32, 1, shape, NULL};
    struct trd_when when = {.step = 8};
    uint32_t site = a_site(c, "L");
    assert_int_equal(submit(c, site, 7), 0);
    assert_int_equal(trd_submit_cpu(c, site, &when, &unreadable, 16), 0);
    trd_client_close(c);
    struct image m = read_image();
    struct entry e;
    struct wire_record r;
    uint64_t seq;
    float sample[2];
    assert_int_equal(journal_next(&m.walk, &e, &seq), JOURNAL_ENTRY);
    assert_int_equal(record_get(&e, &r), 0);
    assert_int_equal(r.stats.sampling, TRD_EVERY);
    assert_int_equal(r.stats.sampling_arg, 4);
    assert_int_equal(r.stats.sample_n, 2); /* of 1, 2, 3, 4, 5, 7 */
    memcpy(sample, r.samples, sizeof sample);
    assert_true(sample[0] == 1 && sample[1] == 5);
    assert_int_equal(r.histogram.kind, TRD_HISTOGRAM_EXACT);
    assert_int_equal(r.histogram.first, 127); /* 1; 2, 3; 4, 5, 7 */
    assert_int_equal(r.histogram.n, 3);
    assert_memory_equal(r.histogram.counts.text, "\1\2\3", 3);
    assert_int_equal(journal_next(&m.walk, &e, &seq), JOURNAL_ENTRY);
    assert_int_equal(record_get(&e, &r), 0);
    assert_int_equal(r.stats.sampling, TRD_EQUIDISTANT);
    assert_int_equal(r.histogram.kind, TRD_HISTOGRAM_NONE);
    assert_int_equal(r.when.labels, TRD_L_NODATA);
    munmap(m.bytes, m.n);
}

/* No record that trd_submit() takes is longer than an entry may be. */
static void test_client__the_longest_record_is_taken(void **state)
{
    (void)state;
    static uint8_t samples[16 * TRD_MAX_SAMPLES];
    static struct trd_histogram h;
    struct trd_client *c = open_client(JOURNAL_MIN_BYTES);
    const int64_t shape[1] = {INT64_MAX};
    struct trd_tensor t = {NULL, TRD_C128, 1, shape, NULL};
    struct trd_when when = {INT64_MAX, INT64_MAX, UINT32_MAX, UINT32_MAX, 0};
    struct trd_stats s = {
        .n = INT64_MAX, .nan = INT64_MAX, .pinf = INT64_MAX,
        .ninf = INT64_MAX, .zero = INT64_MAX, .subnormal = INT64_MAX,
        .has = TRD_HAS_ALL, .sample_n = TRD_MAX_SAMPLES,
        .sampling = TRD_RANDOM, .sampling_arg = UINT64_MAX, .histogram = &h};
    h.kind = TRD_HISTOGRAM_EXACT;
    h.n = TRD_MAX_BINS;
    for (uint32_t i = 0; i < h.n; i++)
        h.count[i] = INT64_MAX / TRD_MAX_BINS;
    for (size_t i = 0; i < sizeof samples; i++)
        samples[i] = (uint8_t)i;
    uint32_t site = a_site(c, "L");
    for (int i = 0; i < 5; i++)
        assert_int_equal(trd_submit(c, site, &when, &t, &s, samples), 0);
    trd_client_close(c);
    struct image m = read_image();
    struct entry e;
    struct wire_record r;
    uint64_t seq;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(journal_next(&m.walk, &e, &seq), JOURNAL_ENTRY);
        assert_int_equal(record_get(&e, &r), 0);
        assert_int_equal(r.histogram.n, TRD_MAX_BINS);
        assert_memory_equal(r.samples, samples, sizeof samples);
    }
    munmap(m.bytes, m.n);
}

int main(void)
{
#define DIR_TEST(name)                                                        \
    cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        DIR_TEST(test_client__killed_process_leaves_all_it_submitted),
        DIR_TEST(test_client__close_without_daemon_keeps_the_journal),
        DIR_TEST(test_client__nothing_submitted_leaves_nothing_behind),
        DIR_TEST(test_client__full_journal_drops_and_counts),
        DIR_TEST(test_client__losses_of_a_full_journal_come_together),
        DIR_TEST(test_client__same_site_gives_the_same_number),
        DIR_TEST(test_client__wrong_arguments_are_errors),
        DIR_TEST(
            test_client__records_that_nobody_could_read_are_refused),
        DIR_TEST(test_client__forked_child_is_inert),
        DIR_TEST(test_client__child_may_trace_on_its_own),
        DIR_TEST(test_client__directory_of_others_is_refused),
        DIR_TEST(test_client__unreadable_tensor_is_kept_as_shape),
        DIR_TEST(test_client__rule_and_histogram_of_the_options),
        DIR_TEST(test_client__the_longest_record_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
