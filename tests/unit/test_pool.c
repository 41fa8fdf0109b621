/* The threads that help with large tensors: how many, which, in what state,
 * and what a forked child finds. */
#include "tests/unit/stats_rig.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 540000, FEW = N / 4 }; /* N are more than 4 MiB */

static double *x;

static int make_elements(void **state)
{
    uint64_t rng = 21;

    (void)state;
    x = malloc(N * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < N; i++)
        x[i] = rng_uniform(&rng);
    return 0;
}

static int free_elements(void **state)
{
    (void)state;
    free(x);
    return 0;
}

static struct trd_stats stats_by(unsigned threads)
{
    int64_t shape = FEW;
    struct trd_tensor t = {x, TRD_F64, 1, &shape, NULL};
    struct trd_want want = {.samples = 0};
    struct trd_stats s;

    assert_int_equal(
        trd__stats_with(trd__kernel_best(), threads, &t, &want, &s, NULL, NULL),
        0);
    return s;
}

/* ---- work that waits until so many are at it ---- */

enum { MOST = 8 };

struct meeting {
    unsigned expected;
    _Atomic unsigned calls;
    pthread_t self[MOST];
    sigset_t mask[MOST];
    int rounding[MOST];
    bool subnormals[MOST]; /* are kept */
};

static bool keeps_subnormals(void)
{
    volatile float least = 0x1p-126f;
    volatile float half = least / 2;

    return half > 0 && half * 2 == least;
}

static void meet(void *arg)
{
    struct meeting *m = arg;
    unsigned i = atomic_fetch_add(&m->calls, 1);

    if (i < MOST) {
        m->self[i] = pthread_self();
        pthread_sigmask(SIG_BLOCK, NULL, &m->mask[i]);
        m->rounding[i] = fegetround();
        m->subnormals[i] = keeps_subnormals();
    }
    while (atomic_load(&m->calls) < m->expected)
        sched_yield();
}

static void run_meeting(struct meeting *m, unsigned threads, unsigned expected)
{
    memset(m, 0, sizeof *m);
    m->expected = expected;
    trd__pool_run(threads, meet, m);
}

/* Index of the caller among those that met. */
static unsigned own_index(const struct meeting *m)
{
    unsigned i = 0;

    while (i < m->calls && !pthread_equal(m->self[i], pthread_self()))
        i++;
    assert_true(i < m->calls);
    return i;
}

static void test_pool__one_thread_is_the_caller(void **state)
{
    struct meeting m;
    (void)state;
    run_meeting(&m, 1, 1);
    assert_int_equal(m.calls, 1);
    assert_int_equal(own_index(&m), 0);
    run_meeting(&m, 0, 1);
    assert_int_equal(m.calls, 1);
}

static void test_pool__as_many_as_asked_for_and_no_more(void **state)
{
    struct meeting m;
    (void)state;
    for (unsigned threads = 2; threads <= 4; threads++) {
        run_meeting(&m, threads, threads);
        assert_int_equal(m.calls, threads);
        own_index(&m);
        run_meeting(&m, threads, 1); /* waits for nobody */
        assert_true(m.calls >= 1 && m.calls <= threads);
    }
}

static void test_pool__helpers_are_started_once(void **state)
{
    pthread_t seen[MOST];
    unsigned n = 0;
    struct meeting m;
    (void)state;
    for (int round = 0; round < 50; round++) {
        run_meeting(&m, 4, 4);
        for (unsigned i = 0; i < 4; i++) {
            unsigned known = 0;
            while (known < n && !pthread_equal(seen[known], m.self[i]))
                known++;
            if (known == n) {
                assert_true(n < 4);
                seen[n++] = m.self[i];
            }
        }
    }
    assert_int_equal(n, 4);
    run_meeting(&m, 2, 2); /* some of them, when fewer are wanted */
    assert_int_equal(m.calls, 2);
}

/* A helper inherits the state of the thread that starts it, and keeps it
 * for all callers: so it must not be that one's. */
static void
test_pool__helpers_block_signals_and_have_default_modes(void **state)
{
    static const int some[] = {SIGINT,  SIGTERM, SIGHUP,  SIGALRM,  SIGCHLD,
                               SIGUSR1, SIGUSR2, SIGPROF, SIGVTALRM};
    struct meeting m;
    sigset_t before, after;
    unsigned was, own;
    (void)state;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    was = flush_on();
    fesetround(FE_UPWARD);
    run_meeting(&m, 6, 6); /* two more than ever before */
    fesetround(FE_TONEAREST);
    flush_restore(was);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    own = own_index(&m);
    for (unsigned i = 0; i < 6; i++) {
        if (i == own)
            continue;
        for (size_t s = 0; s < sizeof some / sizeof *some; s++)
            assert_int_equal(sigismember(&m.mask[i], some[s]), 1);
        assert_int_equal(m.rounding[i], FE_TONEAREST);
        assert_true(m.subnormals[i]);
    }
    for (size_t s = 0; s < sizeof some / sizeof *some; s++)
        assert_int_equal(sigismember(&after, some[s]), some[s] == SIGUSR2);
    sigemptyset(&before);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- several callers ---- */

struct second {
    _Atomic unsigned calls;
    struct meeting inner;
};

static void *second_caller(void *arg)
{
    struct second *s = arg;

    run_meeting(&s->inner, 4, 1);
    own_index(&s->inner);
    return NULL;
}

/* The first of the first call's threads lets another one call. */
static void start_second(void *arg)
{
    struct second *s = arg;
    pthread_t thread;

    if (atomic_fetch_add(&s->calls, 1))
        return;
    assert_int_equal(pthread_create(&thread, NULL, second_caller, s), 0);
    pthread_join(thread, NULL);
}

static void test_pool__who_finds_it_busy_does_without(void **state)
{
    static struct second s;
    (void)state;
    trd__pool_run(4, start_second, &s);
    assert_int_equal(s.inner.calls, 1);
}

struct caller {
    pthread_t thread;
    struct trd_stats want;
    int same;
};

static void *compute_often(void *arg)
{
    struct caller *c = arg;

    c->same = 1;
    for (int round = 0; round < 6; round++) {
        struct trd_stats s = stats_by(2 + (unsigned)round % 3);
        c->same = c->same && !memcmp(&s, &c->want, sizeof s);
    }
    return NULL;
}

static void test_pool__several_callers_at_once(void **state)
{
    struct caller callers[4];
    struct trd_stats want = stats_by(1);
    (void)state;
    for (int i = 0; i < 4; i++) {
        callers[i].want = want;
        assert_int_equal(pthread_create(&callers[i].thread, NULL, compute_often,
                                        &callers[i]),
                         0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(callers[i].thread, NULL);
        assert_true(callers[i].same);
    }
}

/* ---- fork ---- */

static int child_is_right(const struct trd_stats *want)
{
    struct trd_stats alone = stats_by(1);
    struct trd_stats helped = stats_by(3);

    return !memcmp(&alone, want, sizeof alone) &&
           !memcmp(&helped, want, sizeof helped);
}

static void fork_and_check(const struct trd_stats *want)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (!child) {
        alarm(60); /* a child that waits for helpers it does not have */
        _exit(child_is_right(want) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

struct busy {
    _Atomic unsigned inside;
    _Atomic int done;
};

static void stay(void *arg)
{
    struct busy *b = arg;

    atomic_fetch_add(&b->inside, 1);
    while (!atomic_load(&b->done))
        sched_yield();
}

static void *keep_busy(void *arg)
{
    trd__pool_run(3, stay, arg);
    return NULL;
}

static void test_pool__fork_while_it_is_busy(void **state)
{
    static struct busy b;
    struct trd_stats want = stats_by(1), after;
    pthread_t thread;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, keep_busy, &b), 0);
    while (atomic_load(&b.inside) < 3)
        sched_yield();
    fork_and_check(&want);
    atomic_store(&b.done, 1);
    pthread_join(thread, NULL);
    assert_int_equal(b.inside, 3);
    after = stats_by(3); /* the parent's pool is as it was */
    assert_same(&after, &want);
}

static void test_pool__fork_while_it_sleeps(void **state)
{
    struct trd_stats want = stats_by(3);
    (void)state;
    for (int i = 0; i < 3; i++)
        fork_and_check(&want);
}

/* ---- the public call ---- */

static void test_pool__threads_from_1_to_64(void **state)
{
    static const unsigned good[] = {1, 2, 3, TRD_MAX_THREADS, 1};
    struct trd_stats want = stats_of(TRD_F64, x, N);
    (void)state;
    assert_int_equal(trd_stats_threads(0), TRD_EINVAL);
    assert_int_equal(trd_stats_threads(TRD_MAX_THREADS + 1), TRD_EINVAL);
    assert_int_equal(trd_stats_threads(UINT32_MAX), TRD_EINVAL);
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct trd_stats s;
        assert_int_equal(trd_stats_threads(good[i]), 0);
        s = stats_of(TRD_F64, x, N);
        assert_same(&s, &want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool__one_thread_is_the_caller),
        cmocka_unit_test(test_pool__as_many_as_asked_for_and_no_more),
        cmocka_unit_test(test_pool__helpers_are_started_once),
        cmocka_unit_test(
            test_pool__helpers_block_signals_and_have_default_modes),
        cmocka_unit_test(test_pool__who_finds_it_busy_does_without),
        cmocka_unit_test(test_pool__several_callers_at_once),
        cmocka_unit_test(test_pool__fork_while_it_is_busy),
        cmocka_unit_test(test_pool__fork_while_it_sleeps),
        cmocka_unit_test(test_pool__threads_from_1_to_64),
    };
    return cmocka_run_group_tests(tests, make_elements, free_elements);
}
