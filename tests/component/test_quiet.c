/* What a training does not notice: a submit makes no system call, whatever
 * the daemon does, and closing takes a moment, whatever it does. */
#include "tests/lib/trainee.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/place.h"

/* ---- no system call ---- */

enum { SUBMITS = 100000, CODE_OUT_OF_IT = 5 };

/* From now on any system call of this thread kills the process, but the one
 * that ends it, and reading the clock where the kernel has no other way. */
static bool forbid_calls(bool clock)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                 clock ? SYS_clock_gettime : SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) &&
           !syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static bool clock_is_called;

/* 0 when calls can be forbidden; learns how the clock is read. */
static int probe(void)
{
    int status;
    pid_t pid;
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct timespec t;
        if (!forbid_calls(false))
            syscall(SYS_exit_group, 1);
        clock_gettime(CLOCK_MONOTONIC, &t);
        syscall(SYS_exit_group, 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    clock_is_called = WIFSIGNALED(status);
    return WIFEXITED(status) && WEXITSTATUS(status);
}

static uint64_t submits_of_all; /* records, or EFULL when the ring is full */

static void *submit_without_calls(void *arg)
{
    struct trd_client *c = arg;
    const uint32_t at = trainee_site(c);
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    const struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    const struct trd_when when = {.step = 1, .iteration = 1};
    uint64_t accepted = 0, refused = 0;
    /* the first of a shape interns it */
    demand(!trd_submit_cpu(c, at, &when, &t, 4));
    accepted++;
    if (!forbid_calls(clock_is_called))
        trainee_fail(__LINE__);
    for (uint64_t i = 0; i < submits_of_all; i++) {
        int failed = i % 2 ? trainee_submit(c, at, 4)
                           : trd_submit_cpu(c, at, &when, &t, 4);
        if (failed)
            refused++;
        else
            accepted++;
    }
    trainee->accepted = accepted;
    trainee->refused = refused;
    syscall(SYS_exit_group, CODE_OUT_OF_IT);
    return NULL;
}

static void submit_quietly(struct trd_client *c)
{
    pthread_t t;
    demand(!pthread_create(&t, NULL, submit_without_calls, c));
    pthread_join(t, NULL);
}

static const struct trainee_how roomy = {.alone = true,
                                         .journal_bytes = 32 << 20};
static const struct trainee_how narrow = {.alone = true,
                                          .journal_bytes = 1 << 20};

/* It ends without a goodbye: the daemon takes its journal over. */
static pid_t quiet_training(const struct trainee_how *how)
{
    pid_t pid;
    if (probe()) {
        print_message("this kernel forbids no calls\n");
        skip();
    }
    if (clock_is_called)
        print_message("the clock is read by a system call here\n");
    submits_of_all = SUBMITS;
    pid = trainee_start(how, submit_quietly);
    trainee_ends(pid, CODE_OUT_OF_IT);
    assert_int_equal(trainee->accepted + trainee->refused, SUBMITS + 1);
    return pid;
}

static void check_accepted(pid_t pid)
{
    oracle_process(&ingest.rig, "run", pid, trainee->accepted, 0, UINT64_MAX);
    oracle_run(&ingest.rig, "run");
}

static void test_quiet__a_submit_with_a_healthy_daemon(void **state)
{
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = quiet_training(&roomy);
    assert_int_equal(trainee->refused, 0);
    check_accepted(pid);
    rig_stop(&ingest.rig);
}

static void test_quiet__a_submit_with_no_daemon(void **state)
{
    pid_t pid;
    (void)state;
    mkdir(ingest.rig.dir, 0700);
    pid = quiet_training(&roomy);
    assert_int_equal(trainee->refused, 0);
    rig_start(&ingest.rig);
    check_accepted(pid);
    rig_stop(&ingest.rig);
    oracle_held(7, SUBMITS, "C: submits without a system call, no daemon");
}

static void test_quiet__a_submit_with_a_stopped_daemon(void **state)
{
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    kill(ingest.rig.pid, SIGSTOP);
    pid = quiet_training(&roomy);
    kill(ingest.rig.pid, SIGCONT);
    assert_int_equal(trainee->refused, 0);
    check_accepted(pid);
    rig_stop(&ingest.rig);
    oracle_held(8, SUBMITS, "C: submits without a system call");
}

static void test_quiet__a_submit_with_a_full_journal(void **state)
{
    pid_t pid;
    (void)state;
    mkdir(ingest.rig.dir, 0700);
    pid = quiet_training(&narrow);
    assert_true(trainee->refused > SUBMITS / 2);
    rig_start(&ingest.rig);
    check_accepted(pid);
    rig_stop(&ingest.rig);
}

/* ---- closing ---- */

enum { TRIES = 3, CLOSE_MS = 1000 };

static void submit_and_close(struct trd_client *c)
{
    uint32_t at = trainee_site(c);
    for (int i = 0; i < 5000; i++)
        demand(!trainee_submit(c, at, 4));
    trainee->accepted = 5000;
    long long begin = rig_now_ms();
    trd_client_close(c);
    trainee->n[0] = (uint64_t)(rig_now_ms() - begin);
    _exit(0);
}

/* The best of some, for a loaded machine may add what it likes. */
static uint64_t close_ms(pid_t last[TRIES])
{
    static const struct trainee_how how = {.alone = true};
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        last[i] = trainee_start(&how, submit_and_close);
        trainee_ends(last[i], 0);
        if (trainee->n[0] < best)
            best = trainee->n[0];
    }
    return best;
}

static void is_short(const char *what, uint64_t ms)
{
    print_message("close, %s: %llu ms\n", what, (unsigned long long)ms);
    assert_true(ms < CLOSE_MS);
}

static void check_closed(const pid_t last[TRIES])
{
    for (int i = 0; i < TRIES; i++)
        oracle_process(&ingest.rig, "run", last[i], 5000, 0, 0);
    oracle_run(&ingest.rig, "run");
}

static void test_quiet__closing_with_a_healthy_daemon(void **state)
{
    pid_t last[TRIES];
    (void)state;
    rig_start(&ingest.rig);
    is_short("healthy daemon", close_ms(last));
    check_closed(last);
    rig_stop(&ingest.rig);
}

static void test_quiet__closing_with_a_stopped_daemon(void **state)
{
    pid_t last[TRIES];
    (void)state;
    rig_start(&ingest.rig);
    kill(ingest.rig.pid, SIGSTOP);
    is_short("stopped daemon", close_ms(last));
    kill(ingest.rig.pid, SIGCONT);
    check_closed(last);
    rig_stop(&ingest.rig);
    oracle_held(3, TRIES, "C: close with a stopped daemon, under a second");
}

static void test_quiet__closing_with_no_daemon(void **state)
{
    pid_t last[TRIES];
    (void)state;
    mkdir(ingest.rig.dir, 0700);
    is_short("no daemon", close_ms(last));
    rig_start(&ingest.rig);
    check_closed(last);
    rig_stop(&ingest.rig);
}

/* Nobody accepts, and the queue of those who wait is full. */
static void test_quiet__closing_where_nobody_accepts(void **state)
{
    enum { WAITING = 4 };
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int queue[WAITING], fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pid_t last[TRIES];
    (void)state;
    mkdir(ingest.rig.dir, 0700);
    assert_int_equal(place_socket(ingest.rig.dir, PLACE_INGEST, at.sun_path,
                                  sizeof at.sun_path),
                     0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 0), 0);
    for (int i = 0; i < WAITING; i++) {
        queue[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (connect(queue[i], (struct sockaddr *)&at, sizeof at))
            assert_int_equal(errno, EAGAIN);
    }
    is_short("nobody accepts", close_ms(last));
    for (int i = 0; i < WAITING; i++)
        close(queue[i]);
    close(fd);
    rig_start(&ingest.rig);
    check_closed(last);
    rig_stop(&ingest.rig);
}

/* ---- static destructors ---- */

static struct trd_client *forgotten;
static uint32_t forgotten_site;

/* The last to run: the client is closed, calls know NULL. */
static void call_after_close(void)
{
    struct trd_counters n;
    uint32_t id;
    char name[TRD_MAX_RUN + 1];
    const struct trd_site s = {.pass = TRD_FORWARD};
    demand(trainee_submit(forgotten, forgotten_site, 4) == TRD_ECLOSED);
    demand(trd_site(forgotten, &s, &id) == TRD_ECLOSED);
    demand(trd_note(forgotten, "n", &id) == TRD_ECLOSED);
    demand(trd_flush(forgotten, 10) == TRD_ECLOSED);
    trd_lost(forgotten, TRD_LOST_ERROR, 1);
    trd_run_name(forgotten, name, sizeof name);
    trd_counters(forgotten, &n);
    trd_client_close(forgotten);
    trainee->n[1] = n.last_error == TRD_ECLOSED;
}

static void close_at_exit(void)
{
    demand(!trainee_submit(forgotten, forgotten_site, 4));
    trd_client_close(forgotten);
    forgotten = NULL;
    trainee->accepted++;
}

static void end_with_handlers(struct trd_client *c)
{
    forgotten = c;
    forgotten_site = trainee_site(c);
    atexit(call_after_close);
    atexit(close_at_exit);
    exit(0);
}

static void test_quiet__closed_by_a_handler_of_exit(void **state)
{
    static const struct trainee_how how = {.alone = true};
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(&how, end_with_handlers);
    trainee_ends(pid, 0);
    assert_int_equal(trainee->n[1], 1);
    oracle_process(&ingest.rig, "run", pid, 1, 0, 0);
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
    oracle_held(32, 1, "C: submit, close and later calls in exit handlers");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_quiet__a_submit_with_a_healthy_daemon),
        ingest_test(test_quiet__a_submit_with_no_daemon),
        ingest_test(test_quiet__a_submit_with_a_stopped_daemon),
        ingest_test(test_quiet__a_submit_with_a_full_journal),
        ingest_test(test_quiet__closing_with_a_healthy_daemon),
        ingest_test(test_quiet__closing_with_a_stopped_daemon),
        ingest_test(test_quiet__closing_with_no_daemon),
        ingest_test(test_quiet__closing_where_nobody_accepts),
        ingest_test(test_quiet__closed_by_a_handler_of_exit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
