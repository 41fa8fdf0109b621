/* See sweep.h. */
#include "tests/fault/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/ingest.h"

enum { SOME = 5 /* cases of one kind in a short run */ };

struct fault_page *sweep_page;

static char page_path[] = "/tmp/trd-fault-XXXXXX";
static const char *shim;
static uint64_t seed;

static const char *const op_name[FAULT_N] = {
#define OP_NAME(name, code) #name,
    FAULT_OPS(OP_NAME)
#undef OP_NAME
};

int sweep_init(void)
{
    const char *text = getenv("TRD_SEED");
    int fd;
    shim = getenv("TRD_SHIM");
    if (!shim)
        return 77;
    seed = text ? strtoull(text, NULL, 10) : (uint64_t)getpid();
    print_message("TRD_SEED=%llu\n", (unsigned long long)seed);
    fd = mkstemp(page_path);
    if (fd < 0 || ftruncate(fd, sizeof *sweep_page))
        return 1;
    sweep_page = mmap(NULL, sizeof *sweep_page, PROT_READ | PROT_WRITE,
                      MAP_SHARED, fd, 0);
    close(fd);
    return sweep_page == MAP_FAILED;
}

void sweep_fini(void)
{
    unlink(page_path);
}

void sweep_preload(bool on)
{
    if (on) {
        setenv("LD_PRELOAD", shim, 1);
        setenv("TRD_FAULT_PAGE", page_path, 1);
    } else {
        unsetenv("LD_PRELOAD");
        unsetenv("TRD_FAULT_PAGE");
    }
}

void sweep_arm(int op, int64_t nth, int how)
{
    memset(sweep_page, 0, sizeof *sweep_page);
    sweep_page->how = how;
    sweep_page->countdown = nth;
    sweep_page->op = op;
}

/* ---- the program ---- */

static sweep_case *run_case;
static bool in_case;
static int64_t this_call;

/* One case in a rig of its own; whether the fault came. */
static bool run_one(int op, int64_t nth, int how)
{
    bool fired;
    ingest_set_up(NULL);
    in_case = true;
    this_call = nth;
    run_case(op, nth, how);
    fired = sweep_page->fired > 0;
    ingest_tear_down(NULL);
    in_case = false;
    return fired;
}

/* A case that failed left its daemon and files. */
static int tear_down(void **state)
{
    if (in_case) {
        print_error("call %lld of them; the log:\n%s\n",
                    (long long)this_call, rig_log(&ingest.rig));
        ingest_tear_down(state);
    }
    in_case = false;
    return 0;
}

static void sweep(int op, int how)
{
    const char *asked = getenv("TRD_FAULT_CASES");
    uint64_t some = asked ? strtoull(asked, NULL, 10) : SOME;
    uint64_t calls, cases = 0, step;
    run_one(-1, 0, 0);
    calls = sweep_page->calls[op];
    step = calls <= some ? 1 : calls / some;
    for (uint64_t n = 1 + seed % step; n < 2 * calls + 8; n += step) {
        cases++;
        if (!run_one(op, (int64_t)n, how))
            break;
    }
    print_message("%s, %s: %llu calls, %llu cases\n", op_name[op],
                  how & FAULT_STICKY  ? "from then on"
                  : how & FAULT_SHORT ? "half"
                                      : "once",
                  (unsigned long long)calls, (unsigned long long)cases);
}

#define SWEEP(name, code)                                                     \
    static void test_faults__##name##_fails_once(void **state)                \
    {                                                                         \
        (void)state;                                                          \
        sweep(FAULT_##name, 0);                                               \
    }                                                                         \
    static void test_faults__##name##_fails_from_then_on(void **state)        \
    {                                                                         \
        (void)state;                                                          \
        sweep(FAULT_##name, FAULT_STICKY);                                    \
    }
FAULT_OPS(SWEEP)
#undef SWEEP

static void test_faults__a_write_does_half_its_work(void **state)
{
    (void)state;
    sweep(FAULT_pwrite, FAULT_SHORT);
}

/* TRD_FAULT_CASE. */
static void test_faults__the_one_asked_for(void **state)
{
    char name[32];
    int how, op = 0;
    long long nth;
    (void)state;
    assert_int_equal(sscanf(getenv("TRD_FAULT_CASE"), "%31s %lld %d", name,
                            &nth, &how),
                     3);
    while (op < FAULT_N && strcmp(op_name[op], name))
        op++;
    assert_in_range(op, 0, FAULT_N - 1);
    print_message("fired: %d\n", run_one(op, nth, how));
}

int sweep_main(sweep_case *the_case, bool halves)
{
    const struct CMUnitTest tests[] = {
#define TESTS(name, code)                                                     \
    cmocka_unit_test_teardown(test_faults__##name##_fails_once, tear_down),   \
        cmocka_unit_test_teardown(test_faults__##name##_fails_from_then_on,   \
                                  tear_down),
        FAULT_OPS(TESTS)
#undef TESTS
    };
    const struct CMUnitTest half[] = {cmocka_unit_test_teardown(
        test_faults__a_write_does_half_its_work, tear_down)};
    const struct CMUnitTest one[] = {
        cmocka_unit_test_teardown(test_faults__the_one_asked_for, tear_down)};
    int failed = sweep_init();
    if (failed)
        return failed;
    run_case = the_case;
    if (getenv("TRD_FAULT_CASE")) {
        failed = cmocka_run_group_tests(one, NULL, NULL);
    } else {
        failed = cmocka_run_group_tests(tests, NULL, NULL);
        if (halves)
            failed += cmocka_run_group_tests(half, NULL, NULL);
    }
    sweep_fini();
    return failed;
}
