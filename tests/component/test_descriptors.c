/* No descriptors left, in the daemon and in a client; descriptors and
 * out-of-band bytes that a peer sends along. */
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/place.h"
#include "tracerd/client.h"

static uint8_t bytes[RIG_FRAME_BYTES];

/* ---- the daemon ---- */

/* The limit that leaves so many descriptors free. */
static rlim_t limit_for(pid_t pid, unsigned left)
{
    char path[64], link[8];
    rlim_t n = 0;
    for (;; n++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%lu", (int)pid,
                 (unsigned long)n);
        if (readlink(path, link, sizeof link) < 0 && left-- == 0)
            return n;
    }
}

static void limit_descriptors(pid_t pid, rlim_t n)
{
    struct rlimit l;
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, NULL, &l), 0);
    l.rlim_cur = n;
    assert_int_equal(prlimit(pid, RLIMIT_NOFILE, &l, NULL), 0);
}

/* Clock ticks of processor time. */
static unsigned long used_ticks(pid_t pid)
{
    char path[64], line[1024], *p;
    unsigned long user = 0, system = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "r");
    p = f && fgets(line, sizeof line, f) ? strrchr(line, ')') : NULL;
    assert_non_null(p);
    assert_int_equal(sscanf(p + 1,
                            " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u "
                            "%lu %lu",
                            &user, &system),
                     2);
    fclose(f);
    return user + system;
}

enum { TRIES = 8, FREE_MAX = 20, WINDOW_MS = 100 };

/* Clients come; each is welcome, told to wait or hung up on. How many got
 * in, and they stay. */
static unsigned come(struct rig_client *c, uint32_t rank)
{
    struct hello h = rig_hello();
    unsigned in = 0;
    for (int i = 0; i < TRIES; i++) {
        memset(&c[i], 0, sizeof c[i]);
        h.rank = rank + (uint32_t)i;
        c[i].epoch = 1000 + h.rank;
        c[i].fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
        assert_true(c[i].fd >= 0);
        rig_write_any(c[i].fd, bytes,
                      rig_hello_frame(bytes, c[i].epoch, &h));
    }
    for (int i = 0; i < TRIES; i++) {
        if (rig_recv(&c[i]) && c[i].got.type == FRAME_WELCOME) {
            in++;
            continue;
        }
        if (c[i].got.type) {
            assert_int_equal(c[i].got.type, FRAME_REFUSE);
            assert_int_equal(c[i].refusal.reason, REASON_BUSY);
            assert_true(c[i].refusal.retry_ms > 0);
        }
        rig_close(&c[i]);
    }
    return in;
}

static void go(struct rig_client *c)
{
    for (int i = 0; i < TRIES; i++)
        rig_close(&c[i]);
}

static void test_descriptors__none_left_for_the_daemon(void **state)
{
    static struct rig_client c[TRIES];
    struct rlimit before;
    unsigned long ticks;
    uint64_t seq = 0;
    long long begun;
    int held;
    (void)state;
    oracle_start(&ingest.rig);
    assert_int_equal(prlimit(ingest.rig.pid, RLIMIT_NOFILE, NULL, &before), 0);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(++seq, 1);
    rig_durable(&ingest.c, seq);
    held = oracle_footprint(ingest.rig.pid).descriptors;
    ticks = used_ticks(ingest.rig.pid);
    begun = rig_now_ms();
    for (unsigned left = 0; left <= FREE_MAX; left++) {
        limit_descriptors(ingest.rig.pid, limit_for(ingest.rig.pid, left));
        (void)come(c, 100 + left * TRIES);
        /* who is in is served, and nobody spins */
        ingest_send_records(++seq, 1);
        rig_committed(&ingest.c, seq);
        usleep(WINDOW_MS * 1000);
        go(c);
        assert_true(rig_alive(&ingest.rig));
    }
    ticks = used_ticks(ingest.rig.pid) - ticks;
    begun = rig_now_ms() - begun;
    print_message("%ld ms of processor time in %lld ms\n",
                  (long)ticks * 1000 / sysconf(_SC_CLK_TCK), begun);
    assert_in_range((long)ticks * 1000 / sysconf(_SC_CLK_TCK), 0, begun / 2);
    /* some more, and some of them get in */
    rig_until(oracle_footprint(ingest.rig.pid).descriptors <= held);
    limit_descriptors(ingest.rig.pid, limit_for(ingest.rig.pid, 28));
    assert_in_range(come(c, 500), 1, TRIES - 1);
    go(c);
    limit_descriptors(ingest.rig.pid, before.rlim_cur);
    rig_until(come(c, 600) == TRIES || (go(c), false));
    go(c);
    ingest_send_records(++seq, 1);
    rig_send(&ingest.c, FRAME_BYE, seq, "", 0);
    rig_hung_up(ingest.c.fd);
    rig_stop(&ingest.rig);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), seq);
    oracle_run(&ingest.rig, "run");
    oracle_held(27, FREE_MAX + 1, "0 to 20 descriptors left to the daemon");
}

/* 128: it got ready and served; else its exit code. */
static int start_with(rlim_t n)
{
    struct rlimit l = {n, n};
    int status;
    pid_t child = fork();
    if (child == 0) {
        int rc;
        struct rig r = ingest.rig;
        if (prlimit(0, RLIMIT_NOFILE, &l, NULL))
            _exit(99);
        rc = rig_try(&r);
        if (rc != -1)
            _exit(rc);
        kill(r.pid, SIGTERM);
        waitpid(r.pid, &status, 0);
        _exit(status ? 98 : 128);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_descriptors__few_when_the_daemon_starts(void **state)
{
    enum { LEAST = 8, MOST = 48 };
    int code = 0;
    (void)state;
#ifdef RIG_SANITIZED
    skip(); /* a sanitizer wants descriptors of its own, at the end */
#endif
    for (rlim_t n = LEAST; n <= MOST; n++) {
        code = start_with(n);
        if (code != 3 && code != 128)
            fail_msg("%lu descriptors: exit code %d: %s", (unsigned long)n,
                     code, rig_log(&ingest.rig));
    }
    assert_int_equal(code, 128);
    oracle_held(27, MOST - LEAST + 1, "8 to 48 descriptors when it starts");
}

/* ---- a client ---- */

static int taken[4096];
static unsigned taken_n;

static void take_all(void)
{
    int fd;
    while (taken_n < 4096 && (fd = open("/dev/null", O_RDONLY)) >= 0)
        taken[taken_n++] = fd;
}

static void give_back(unsigned n)
{
    while (n-- && taken_n)
        close(taken[--taken_n]);
}

static int submit(struct trd_client *c, uint32_t site, uint64_t from,
                  uint64_t n)
{
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    for (uint64_t i = from; i < from + n; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        if (trd_submit_cpu(c, site, &when, &t, 16))
            return 1;
    }
    return 0;
}

/* Opens with so many descriptors free, writes 10 records, is given more,
 * writes 10 more. The exit code tells. */
static int starved_client(const char *dir, unsigned left, bool later)
{
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    struct rlimit l = {512, 512};
    struct trd_client_options o;
    struct trd_client *c;
    uint32_t site;
    if (setrlimit(RLIMIT_NOFILE, &l))
        return 1;
    trd_client_options_init(&o);
    o.dir = dir;
    o.run = "starved";
    o.job = "job";
    o.rank = left;
    o.journal_bytes = 1 << 20;
    if (!later) {
        take_all();
        give_back(left);
    }
    if (trd_client_open(&o, &c))
        return 2;
    if (later) {
        struct trd_counters n;
        do {
            rig_pause();
            trd_counters(c, &n);
        } while (!n.connected);
        take_all();
        give_back(left);
        if (write(STDOUT_FILENO, "k", 1) < 0) /* now the daemon goes */
            return 3;
        do {
            rig_pause();
            trd_counters(c, &n);
        } while (n.connected || n.last_error == TRD_ENODAEMON);
    }
    if (trd_site(c, &s, &site) || submit(c, site, 1, 10))
        return 4;
    usleep(100 * 1000);
    give_back(4096);
    if (submit(c, site, 11, 10))
        return 5;
    if (trd_flush(c, 30000))
        return 6;
    trd_client_close(c);
    return 0;
}

static void check_starved(unsigned left, bool later)
{
    int fds[2], status;
    char byte;
    pid_t child;
    assert_int_equal(pipe(fds), 0);
    child = fork();
    if (child == 0) {
        close(fds[0]);
        dup2(fds[1], STDOUT_FILENO);
        close(fds[1]);
        alarm(60);
        _exit(starved_client(ingest.rig.dir, left, later));
    }
    close(fds[1]);
    if (later) {
        assert_int_equal(read(fds[0], &byte, 1), 1);
        rig_stop(&ingest.rig);
        rig_start(&ingest.rig);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    close(fds[0]);
    if (status)
        fail_msg("%u left%s: status %x", left, later ? " later" : "",
                 (unsigned)status);
    oracle_process(&ingest.rig, "starved", child, 20, 0, 0);
}

static void test_descriptors__none_left_for_a_client(void **state)
{
    (void)state;
    oracle_start(&ingest.rig);
    for (unsigned left = 0; left < 7; left++)
        check_starved(left, false);
    for (unsigned left = 0; left < 2; left++)
        check_starved(left, true);
    rig_stop(&ingest.rig);
    oracle_run(&ingest.rig, "starved");
    oracle_held(27, 9, "0 to 6 descriptors left to a client, 0 to 1 later");
}

/* ---- what comes along ---- */

enum { PASSED = 200 }; /* the system takes 253 at once */

/* Sends n bytes with descriptors: ends of a pipe whose other end tells when
 * they are closed. */
static void pass(int to, const void *what, size_t n, int write_end)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(PASSED * sizeof(int))];
    } control;
    struct iovec part = {(void *)(uintptr_t)what, n};
    struct msghdr m = {.msg_iov = &part,
                       .msg_iovlen = 1,
                       .msg_control = &control,
                       .msg_controllen = sizeof control.room};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    int fd[PASSED];
    for (int i = 0; i < PASSED; i++)
        fd[i] = write_end;
    memset(&control, 0, sizeof control);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), fd, sizeof fd);
    m.msg_controllen = c->cmsg_len;
    /* the other side may have hung up already */
    if (sendmsg(to, &m, MSG_NOSIGNAL) < 0)
        assert_true(errno == EPIPE || errno == ECONNRESET);
}

static void all_closed(int read_end)
{
    struct pollfd p = {.fd = read_end, .events = POLLIN};
    char byte;
    if (poll(&p, 1, RIG_WAIT_MS) == 0)
        fail_msg("passed descriptors stay open");
    assert_int_equal(read(read_end, &byte, 1), 0);
}

static void test_descriptors__passed_ones_are_closed(void **state)
{
    enum { ROUNDS = 50 };
    static const char greeting[] = "\0SP\0\0\x30\0\0";
    struct oracle_footprint before, after;
    uint64_t seq = 0;
    (void)state;
    oracle_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(++seq, 1);
    rig_committed(&ingest.c, seq);
    before = oracle_footprint(ingest.rig.pid);
    for (int i = 0; i < ROUNDS; i++) {
        struct hello h = rig_hello();
        size_t n = rig_hello_frame(bytes, 78, &h);
        int fds[2], stranger, asker;
        assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
        /* before the hello, in a question, and with records */
        stranger = rig_connect(ingest.rig.dir, PLACE_INGEST);
        pass(stranger, bytes, i % 2 ? 1 : n / 2, fds[1]);
        asker = rig_connect(ingest.rig.dir, PLACE_QUERY);
        pass(asker, greeting, sizeof greeting - 1, fds[1]);
        pass(asker, "\1\0\0", 3, fds[1]);
        rig_fill_data(&ingest.e, ++seq, 1);
        n = rig_data_frame(bytes, 77, &ingest.e, seq);
        pass(ingest.c.fd, bytes, 1, fds[1]);
        pass(ingest.c.fd, bytes + 1, n - 1, fds[1]);
        rig_committed(&ingest.c, seq);
        close(fds[1]);
        close(stranger);
        close(asker);
        all_closed(fds[0]);
        close(fds[0]);
    }
    rig_until((after = oracle_footprint(ingest.rig.pid),
               after.descriptors <= before.descriptors));
    oracle_no_growth(&before, &after, RIG_GROWTH_KB(8 * 1024));
    rig_stop(&ingest.rig);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), seq);
    oracle_run(&ingest.rig, "run");
    oracle_held(28, ROUNDS * 5 * PASSED, "descriptors passed with bytes");
}

/* Urgent bytes are of no protocol here: they are not seen, or end their own
 * connection. */
static void test_descriptors__out_of_band_bytes(void **state)
{
    enum { ROUNDS = 50 };
    struct oracle_footprint before, after;
    struct hello h = rig_hello();
    uint64_t seq = 0;
    (void)state;
    oracle_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(++seq, 1);
    rig_committed(&ingest.c, seq);
    before = oracle_footprint(ingest.rig.pid);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        size_t n, cut;
        int fd =
            rig_connect(ingest.rig.dir, i % 2 ? PLACE_QUERY : PLACE_INGEST);
        if (send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL) < 0) {
            close(fd);
            rig_stop(&ingest.rig);
            print_message("this system has no urgent bytes here\n");
            skip();
        }
        h.rank = i;
        n = rig_hello_frame(bytes, 1000 + i, &h);
        cut = i * n / ROUNDS;
        rig_write_any(fd, bytes, cut);
        send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL);
        rig_write_any(fd, bytes + cut, n - cut);
        shutdown(fd, SHUT_WR);
        rig_hung_up(fd);
        close(fd);
        ingest_send_records(++seq, 1);
        rig_committed(&ingest.c, seq);
    }
    rig_until((after = oracle_footprint(ingest.rig.pid),
               after.descriptors <= before.descriptors));
    oracle_no_growth(&before, &after, RIG_GROWTH_KB(8 * 1024));
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
    oracle_run(&ingest.rig, "run");
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), seq);
    oracle_held(28, ROUNDS * 2, "urgent bytes in a hello and a question");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_descriptors__none_left_for_the_daemon),
        ingest_test(test_descriptors__few_when_the_daemon_starts),
        ingest_test(test_descriptors__none_left_for_a_client),
        ingest_test(test_descriptors__passed_ones_are_closed),
        ingest_test(test_descriptors__out_of_band_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
