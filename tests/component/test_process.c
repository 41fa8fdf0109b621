/* What a training process does to itself: it ends in every way, forks in
 * every way, closes what it did not open. It must come to no harm, and what
 * was accepted is stored once. Threads submit all the while. */
#include "tests/lib/trainee.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static unsigned journals(void)
{
    unsigned n = 0;
    struct dirent *e;
    DIR *d = opendir(ingest.rig.dir);
    while (d && (e = readdir(d)))
        n += strstr(e->d_name, ".journal") != NULL;
    if (d)
        closedir(d);
    return n;
}

/* All that it was told is accepted is there; unsure: as many threads may
 * have been about to count. Its journal goes. */
static void check(pid_t pid, uint64_t unsure)
{
    oracle_process(&ingest.rig, "run", pid, trainee->accepted, unsure,
                   unsure ? UINT64_MAX : trainee->refused);
    rig_until(journals() == 0);
    oracle_run(&ingest.rig, "run");
}

/* ---- ends ---- */

static void end_exit(struct trd_client *c)
{
    (void)c;
    exit(3);
}

static void end_exit_at_once(struct trd_client *c)
{
    (void)c;
    _exit(4);
}

static void end_abort(struct trd_client *c)
{
    (void)c;
    abort();
}

static void end_segv(struct trd_client *c)
{
    volatile char *nowhere =
        mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)c;
    *nowhere = 1;
}

static void end_term(struct trd_client *c)
{
    (void)c;
    kill(getpid(), SIGTERM);
    pause();
}

static void end_kill(struct trd_client *c)
{
    (void)c;
    kill(getpid(), SIGKILL);
}

static void end_exec(struct trd_client *c)
{
    (void)c;
    execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
}

static void *finish(void *arg)
{
    (void)arg;
    trainee_nap_ms(100);
    trainee->stop = 1;
    trainee_nap_ms(100);
    exit(8);
}

/* The process lives on, and /proc calls its leader a zombie. */
static void end_of_leader(struct trd_client *c)
{
    pthread_t t;
    (void)c;
    demand(!pthread_create(&t, NULL, finish, NULL));
    pthread_exit(NULL);
}

static const struct {
    const char *how;
    void (*body)(struct trd_client *c);
    int code;
} ending[] = {
    {"exit", end_exit, 3},
    {"_exit", end_exit_at_once, 4},
    {"abort", end_abort, -SIGABRT},
    {"SIGSEGV", end_segv, -SIGSEGV},
    {"SIGTERM", end_term, -SIGTERM},
    {"SIGKILL", end_kill, -SIGKILL},
    {"exec", end_exec, 7},
    {"pthread_exit in main", end_of_leader, 8},
};

static void test_process__ends_in_every_way_while_threads_submit(void **state)
{
    enum { ENDS = sizeof ending / sizeof *ending, ROUNDS = 3 };
    (void)state;
    rig_start(&ingest.rig);
    for (size_t i = 0; i < ENDS * ROUNDS; i++) {
        pid_t pid = trainee_start(NULL, ending[i % ENDS].body);
        trainee_ends(pid, ending[i % ENDS].code);
        check(pid, TRAINEE_THREADS);
    }
    rig_stop(&ingest.rig);
    oracle_held(3, ENDS * ROUNDS, "C: exit, _exit, abort, SIGSEGV, exec, "
                                  "leader's end, 4 threads submitting");
}

static void end_exec_for_long(struct trd_client *c)
{
    (void)c;
    trainee->child = getpid();
    execl("/bin/sleep", "sleep", "600", (char *)NULL);
}

/* Another program has the pid and the start time: its end is awaited. */
static void test_process__a_program_that_follows_is_left_alone(void **state)
{
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(NULL, end_exec_for_long);
    rig_until(trainee->child);
    trainee_nap_ms(300);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    kill(pid, SIGINT);
    trainee_ends(pid, -SIGINT);
    check(pid, TRAINEE_THREADS);
    rig_stop(&ingest.rig);
    oracle_held(3, 1, "C: exec of a program that stays");
}

/* ---- children ---- */

/* Every call says so and touches nothing. */
static void is_silent(struct trd_client *c)
{
    const struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT,
                               .instance = 9, .class_name = "Child",
                               .module = "c", .path = "0"};
    const float data[2] = {1, 2};
    const int64_t shape[1] = {2};
    const struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    const struct trd_when when = {.step = 1, .iteration = 1};
    struct trd_counters n;
    uint32_t id;
    char name[TRD_MAX_RUN + 1] = "x";
    demand(trainee_submit(c, 1, 4) == TRD_ECLOSED);
    demand(trd_submit_cpu(c, 1, &when, &t, 2) == TRD_ECLOSED);
    demand(trd_site(c, &s, &id) == TRD_ECLOSED);
    demand(trd_note(c, "child", &id) == TRD_ECLOSED);
    demand(trd_flush(c, 1000) == TRD_ECLOSED);
    trd_lost(c, TRD_LOST_ERROR, 1000);
    trd_run_name(c, name, sizeof name);
    demand(!name[0]);
    trd_counters(c, &n);
    demand(n.last_error == TRD_ECLOSED && !n.submitted);
    trd_client_close(c);
}

static int status_of(pid_t pid)
{
    int status = -1;
    demand(waitpid(pid, &status, 0) == pid);
    demand(!trainee->line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void fork_once(struct trd_client *c, unsigned way)
{
    static const int expected[] = {0, 5, -SIGABRT, -SIGSEGV, 6};
    pid_t pid = fork();
    demand(pid >= 0);
    if (!pid) {
        is_silent(c);
        switch (way) {
        case 0:
            exit(0);
        case 1:
            _exit(5);
        case 2:
            abort();
        case 3:
            end_segv(c);
            break;
        default:
            execl("/bin/sh", "sh", "-c", "exit 6", (char *)NULL);
        }
        _exit(1);
    }
    demand(status_of(pid) == expected[way]);
}

/* No handler of pthread_atfork() runs. */
static void clone_once(struct trd_client *c)
{
    pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    demand(pid >= 0);
    if (!pid) {
        is_silent(c);
        _exit(0);
    }
    demand(status_of(pid) == 0);
}

static void vfork_once(void)
{
    pid_t pid = vfork();
    if (!pid) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    demand(pid > 0 && status_of(pid) == 0);
}

static void spawn_once(void)
{
    char *const argv[] = {(char[]){"true"}, NULL};
    pid_t pid;
    demand(!posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ));
    demand(status_of(pid) == 0);
    demand(system("exit 3") == 3 << 8);
}

/* A daemon is born: its parent ends at once. */
static void fork_twice(struct trd_client *c)
{
    int done[2];
    char ok = 0;
    pid_t pid;
    demand(!pipe(done));
    pid = fork();
    demand(pid >= 0);
    if (!pid) {
        pid = fork();
        if (!pid) {
            setsid();
            is_silent(c);
            demand(write(done[1], "k", 1) == 1);
        }
        _exit(0);
    }
    demand(status_of(pid) == 0);
    close(done[1]);
    demand(read(done[0], &ok, 1) == 1 && ok == 'k');
    close(done[0]);
}

enum { CHILD_RECORDS = 10 };

/* A child that traces for itself is a stream of its own. */
static void fork_and_trace(struct trd_client *c)
{
    pid_t pid = fork();
    demand(pid >= 0);
    if (!pid) {
        struct trd_client *mine = trainee_client(1 << 20);
        uint32_t at = trainee_site(mine);
        is_silent(c);
        demand(mine && at);
        for (int i = 0; i < CHILD_RECORDS; i++)
            demand(!trainee_submit(mine, at, 4));
        trd_client_close(mine);
        _exit(0);
    }
    trainee->child = pid;
    trainee->n[0]++;
    demand(status_of(pid) == 0);
}

enum { FORKS = 60 };

static void fork_in_every_way(struct trd_client *c)
{
    for (unsigned i = 0; i < FORKS; i++) {
        fork_once(c, i % 5);
        switch (i % 5) {
        case 0:
            clone_once(c);
            break;
        case 1:
            vfork_once();
            break;
        case 2:
            spawn_once();
            break;
        case 3:
            fork_twice(c);
            break;
        default:
            fork_and_trace(c);
        }
    }
}

static void test_process__forks_in_every_way_while_threads_submit(void **state)
{
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(NULL, fork_in_every_way);
    trainee_ends(pid, 0);
    check(pid, 0);
    oracle_process(&ingest.rig, "run", trainee->child, CHILD_RECORDS, 0, 0);
    rig_until(ingest_ask("run", "SELECT count(*) FROM stream WHERE state = "
                                "'ended'") ==
              (int64_t)trainee->n[0] + 1);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream"),
                     trainee->n[0] + 1);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM object WHERE "
                                       "class = 'Child'"),
                     0);
    rig_stop(&ingest.rig);
    oracle_held(30, 2 * FORKS, "C: fork, vfork, clone, spawn, double fork; "
                               "child exits, aborts, crashes, execs, traces");
}

static void leave_a_child(struct trd_client *c)
{
    pid_t pid = fork();
    demand(pid >= 0);
    if (!pid) {
        is_silent(c);
        trainee->child = getpid();
        for (;;)
            pause();
    }
    while (!trainee->child)
        trainee_nap_ms(1);
    kill(getpid(), SIGKILL);
}

/* It holds the socket, so the daemon sees no end of the stream. */
static void test_process__a_child_outlives_it(void **state)
{
    pid_t pid, child;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(NULL, leave_a_child);
    trainee_ends(pid, -SIGKILL);
    check(pid, TRAINEE_THREADS);
    rig_until(ingest_ask("run", "SELECT state = 'dead' FROM stream") == 1);
    child = trainee->child;
    assert_int_equal(waitpid(child, NULL, WNOHANG), 0);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    rig_stop(&ingest.rig);
    oracle_held(30, 1, "C: a child that outlives the training");
}

/* ---- descriptors ---- */

enum { FIRST = 3, LAST = 320, PARTNER = 400, BEHIND = 800, KINDS = 5 };

static int kind_of(int fd)
{
    return fd % KINDS;
}

static void put_at(int fd, int from)
{
    int aside = fcntl(from, F_DUPFD, BEHIND); /* from may be fd */
    demand(aside >= 0);
    close(from);
    demand(dup2(aside, fd) == fd);
    close(aside);
}

/* Numbers FIRST to LAST are the application's; the other ends are behind
 * PARTNER. */
static void occupy(void)
{
    for (int fd = FIRST; fd <= LAST; fd++) {
        int two[2];
        switch (kind_of(fd)) {
        case 0: /* a file */
            put_at(fd, memfd_create("mine", 0));
            break;
        case 1: /* read end */
            demand(!pipe2(two, O_NONBLOCK));
            put_at(PARTNER + fd, two[1]);
            put_at(fd, two[0]);
            break;
        case 2: /* write end */
            demand(!pipe2(two, O_NONBLOCK));
            put_at(PARTNER + fd, two[0]);
            put_at(fd, two[1]);
            break;
        default: /* sockets, of both kinds that we use */
            demand(!socketpair(AF_UNIX,
                               (kind_of(fd) == 3 ? SOCK_STREAM : SOCK_DGRAM) |
                                   SOCK_NONBLOCK,
                               0, two));
            put_at(PARTNER + fd, two[0]);
            put_at(fd, two[1]);
        }
    }
}

/* Something to read in each, that must stay there. */
static void fill(void)
{
    for (int fd = FIRST; fd <= LAST; fd++)
        if (kind_of(fd) != 0 && kind_of(fd) != 2)
            demand(write(PARTNER + fd, "mine", 4) == 4);
}

/* Nothing came, nothing went, nothing is closed. */
static void check_occupied(bool filled)
{
    char got[64];
    for (int fd = FIRST; fd <= LAST; fd++) {
        struct stat st;
        int kind = kind_of(fd);
        demand(!fstat(fd, &st));
        demand(kind != 0 || (st.st_size == 0 && !lseek(fd, 0, SEEK_CUR)));
        demand(kind == 0 || kind == 1 ||
               (read(PARTNER + fd, got, sizeof got) < 0 && errno == EAGAIN));
        if (kind == 0 || kind == 2)
            continue;
        if (filled)
            demand(read(fd, got, sizeof got) == 4 && !memcmp(got, "mine", 4));
        demand(read(fd, got, sizeof got) < 0 && errno == EAGAIN);
    }
}

static void connected_again(struct trd_client *c)
{
    struct trd_counters n;
    long long end = rig_now_ms() + RIG_WAIT_MS;
    do {
        trainee_nap_ms(5);
        trd_counters(c, &n);
    } while (!n.connected && rig_now_ms() < end);
    demand(n.connected);
}

/* A pause of the sender: between looking at a descriptor and using it, it
 * cannot notice that the number was taken. */
static void quiesce(struct trd_client *c)
{
    connected_again(c);
    demand(!trd_flush(c, 60000));
    trainee_nap_ms(200);
}

static void submit_some(struct trd_client *c)
{
    uint32_t at = trainee_site(c);
    for (int i = 0; i < 1000; i++) {
        if (trainee_submit(c, at, 4))
            trainee->refused++;
        else
            trainee->accepted++;
    }
}

static void close_and_reuse(struct trd_client *c)
{
    submit_some(c);
    for (int round = 0; round < 3; round++) {
        quiesce(c);
        demand(!syscall(SYS_close_range, 3u, ~0u, 0u));
        occupy();
        fill();
        submit_some(c);
        /* wakes the sender by a number that is not its own */
        trd_flush(c, 1);
        connected_again(c);
        demand(!trd_flush(c, 60000));
        check_occupied(true);
    }
    occupy();
    trd_client_close(c);
    check_occupied(false);
    _exit(0);
}

static void test_process__its_numbers_are_closed_and_used_again(void **state)
{
    static const struct trainee_how how = {.alone = true};
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(&how, close_and_reuse);
    trainee_ends(pid, 0);
    assert_int_equal(trainee->accepted, 4000);
    check(pid, 0);
    rig_stop(&ingest.rig);
    oracle_held(29, 3 * (LAST - FIRST + 1),
                "C: all closed, each number a file, pipe or socket; no byte "
                "there, none taken, none closed");
}

static void dup_over(struct trd_client *c)
{
    submit_some(c);
    quiesce(c);
    occupy(); /* over those that are open */
    submit_some(c);
    connected_again(c);
    demand(!trd_flush(c, 60000));
    check_occupied(false);
}

static void test_process__others_are_put_over_its_numbers(void **state)
{
    static const struct trainee_how how = {.alone = true};
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(&how, dup_over);
    trainee_ends(pid, 0);
    check(pid, 0);
    rig_stop(&ingest.rig);
    oracle_held(29, LAST - FIRST + 1, "C: dup2 over each number");
}

static void close_again_and_again(struct trd_client *c)
{
    (void)c;
    for (int i = 0; i < 100; i++) {
        trainee_nap_ms(i % 8);
        demand(!syscall(SYS_close_range, 3u, ~0u, 0u));
    }
}

static void test_process__all_is_closed_while_threads_submit(void **state)
{
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(NULL, close_again_and_again);
    trainee_ends(pid, 0);
    check(pid, 0);
    rig_stop(&ingest.rig);
    oracle_held(29, 100, "C: all closed while 4 threads submit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_process__ends_in_every_way_while_threads_submit),
        ingest_test(test_process__a_program_that_follows_is_left_alone),
        ingest_test(test_process__forks_in_every_way_while_threads_submit),
        ingest_test(test_process__a_child_outlives_it),
        ingest_test(test_process__its_numbers_are_closed_and_used_again),
        ingest_test(test_process__others_are_put_over_its_numbers),
        ingest_test(test_process__all_is_closed_while_threads_submit),
    };
    /* children of a training that is gone come to this process */
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
