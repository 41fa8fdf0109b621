/* Signals of a training process, at any moment of a submit: handlers that
 * submit themselves, timers, a daemon that dies in the middle of a send, a
 * process that is stopped. Threads submit all the while. */
#include "tests/lib/trainee.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void check(pid_t pid)
{
    oracle_process(&ingest.rig, "run", pid, trainee->accepted, 0,
                   trainee->refused);
    oracle_run(&ingest.rig, "run");
}

/* ---- handlers that submit ---- */

enum { ALT_BYTES = 64 * 1024, TICK_US = 1000, SHAPES = 4000 };
enum { HANDLED, IN_HANDLER }; /* of trainee->n */

static struct trd_client *handled;
static uint32_t handled_site;

static void submit_in_handler(int signal_number)
{
    uint64_t n = trainee->n[HANDLED]++;
    (void)signal_number;
    if (!handled)
        return;
    /* often of a shape that is new, so that it must be interned here */
    if (trainee_submit(handled, handled_site,
                       n % 2 && n < SHAPES ? 10 + (int64_t)n : 4))
        trainee->refused++;
    else
        trainee->accepted++;
    trainee->n[IN_HANDLER]++;
}

/* No SA_RESTART: every call of the process may end early. */
static void install(void)
{
    struct sigaction a = {.sa_handler = submit_in_handler,
                          .sa_flags = SA_ONSTACK};
    sigaction(SIGALRM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    sigaction(SIGCHLD, &a, NULL);
    sigaction(SIGPROF, &a, NULL);
}

static void own_stack(void)
{
    stack_t s = {.ss_sp = malloc(ALT_BYTES), .ss_size = ALT_BYTES};
    demand(s.ss_sp && !sigaltstack(&s, NULL));
}

static void tick(int which)
{
    const struct itimerval t = {{0, TICK_US}, {0, TICK_US}};
    demand(!setitimer(which, &t, NULL));
}

static void tick_no_more(void)
{
    const struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    setitimer(ITIMER_PROF, &never, NULL);
    signal(SIGCHLD, SIG_DFL);
    handled = NULL;
}

static void spawn_and_wait(void)
{
    pid_t pid = fork();
    demand(pid >= 0);
    if (!pid)
        _exit(0);
    while (waitpid(pid, NULL, 0) < 0)
        continue; /* EINTR */
}

static void be_interrupted(struct trd_client *c)
{
    own_stack();
    handled_site = trainee_site(c);
    handled = c;
    tick(ITIMER_REAL);
    tick(ITIMER_PROF);
    while (trainee->n[IN_HANDLER] < 2 * SHAPES) {
        spawn_and_wait();
        kill(getpid(), SIGUSR1);
    }
    tick_no_more();
    trainee_nap_ms(20); /* for one that is just being handled */
}

static void test_signals__handlers_submit_at_any_moment(void **state)
{
    const struct trainee_how how = {
        .set_up = install, .thread = own_stack, .new_shapes = true};
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(&how, be_interrupted);
    trainee_ends(pid, 0);
    assert_true(trainee->n[IN_HANDLER] >= 2 * SHAPES);
    check(pid);
    rig_stop(&ingest.rig);
    oracle_held(31, trainee->n[IN_HANDLER],
                "C: submits in handlers: timers of 1 kHz, SIGCHLD, SIGUSR1, "
                "no SA_RESTART, own stacks");
}

/* ---- SIGPIPE ---- */

static void until_told(struct trd_client *c)
{
    (void)c;
    while (!trainee->n[0])
        trainee_nap_ms(1);
}

static void test_signals__the_daemon_dies_while_it_is_sent_to(void **state)
{
    enum { KILLS = 20 };
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(NULL, until_told); /* SIGPIPE has its default */
    for (int i = 0; i < KILLS; i++) {
        trainee_nap_ms(i * 3);
        rig_kill(&ingest.rig);
        rig_start(&ingest.rig);
    }
    trainee->n[0] = 1;
    trainee_ends(pid, 0);
    check(pid);
    rig_stop(&ingest.rig);
    oracle_held(31, KILLS, "C: SIGPIPE at its default, daemon killed");
}

/* ---- stopped ---- */

static void test_signals__it_is_stopped_and_goes_on(void **state)
{
    enum { STOPS = 30 };
    int status;
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(NULL, until_told);
    for (int i = 0; i < STOPS; i++) {
        trainee_nap_ms(10 + i);
        kill(pid, SIGSTOP);
        assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
        assert_true(WIFSTOPPED(status));
        trainee_nap_ms(i);
        kill(pid, SIGCONT);
    }
    trainee->n[0] = 1;
    trainee_ends(pid, 0);
    check(pid);
    rig_stop(&ingest.rig);
    oracle_held(31, STOPS, "C: SIGSTOP, SIGCONT");
}

/* ---- the client's thread ---- */

static unsigned long long blocked_of(const char *thread)
{
    char path[300], line[256];
    unsigned long long mask = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    f = fopen(path, "r");
    demand(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "SigBlk: %llx", &mask) == 1)
            break;
    fclose(f);
    return mask;
}

static void look_at_threads(struct trd_client *c)
{
    struct dirent *e;
    DIR *d = opendir("/proc/self/task");
    (void)c;
    demand(d);
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.' || atoi(e->d_name) == getpid())
            continue;
        trainee->n[0]++;
        unsigned long long mask = blocked_of(e->d_name);
        for (int i = 1; i < 32; i++)
            demand(i == SIGKILL || i == SIGSTOP || mask >> (i - 1) & 1);
    }
    closedir(d);
}

static void test_signals__none_is_handled_by_its_thread(void **state)
{
    const struct trainee_how how = {.alone = true};
    pid_t pid;
    (void)state;
    rig_start(&ingest.rig);
    pid = trainee_start(&how, look_at_threads);
    trainee_ends(pid, 0);
    assert_int_equal(trainee->n[0], 1);
    rig_stop(&ingest.rig);
    oracle_held(31, 29, "C: signals that the client's thread blocks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_signals__handlers_submit_at_any_moment),
        ingest_test(test_signals__the_daemon_dies_while_it_is_sent_to),
        ingest_test(test_signals__it_is_stopped_and_goes_on),
        ingest_test(test_signals__none_is_handled_by_its_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
