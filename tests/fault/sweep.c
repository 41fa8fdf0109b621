/* See sweep.h. */
#include "tests/fault/sweep.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

/* How each kind of call fails, besides its usual way once and from then on.
 * Not EINTR for ever: who calls again then is right. */
#define MORE_WAYS(X)                                                          \
    X(pwrite, EIO, 0, 12)                                                     \
    X(pwrite, EIO, FAULT_STICKY, 12)                                          \
    X(pwrite, 0, FAULT_SHORT, 13)                                             \
    X(pwrite, 0, FAULT_SHORT | FAULT_STICKY, 13)                              \
    X(pread, 0, FAULT_SHORT, 13)                                              \
    X(pread, 0, FAULT_SHORT | FAULT_STICKY, 13)                               \
    X(read, 0, FAULT_SHORT, 13)                                               \
    X(read, 0, FAULT_SHORT | FAULT_STICKY, 13)                                \
    X(write, 0, FAULT_SHORT, 13)                                              \
    X(write, 0, FAULT_SHORT | FAULT_STICKY, 13)                               \
    X(open, EINTR, 0, 13)                                                     \
    X(pread, EINTR, 0, 13)                                                    \
    X(pwrite, EINTR, 0, 13)                                                   \
    X(sync, EINTR, 0, 13)                                                     \
    X(ftruncate, EINTR, 0, 13)                                                \
    X(accept, EINTR, 0, 13)                                                   \
    X(read, EINTR, 0, 13)                                                     \
    X(write, EINTR, 0, 13)                                                    \
    X(accept, EAGAIN, 0, 13)                                                  \
    X(connect, EINTR, 0, 13)                                                  \
    X(connect, EAGAIN, 0, 13)                                                 \
    X(connect, EAGAIN, FAULT_STICKY, 13)                                      \
    X(read, EAGAIN, 0, 13)                                                    \
    X(read, EAGAIN, FAULT_STICKY, 13)                                         \
    X(write, EAGAIN, 0, 13)                                                   \
    X(write, EAGAIN, FAULT_STICKY, 13)

struct fault_page *sweep_page;

static char page_path[] = "/tmp/trd-fault-XXXXXX";
static const char *shim;
static uint64_t seed;

static const char *const op_name[FAULT_N] = {
#define OP_NAME(name, code, fault) #name,
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

static int error; /* instead of the usual one of the kind that is swept */

void sweep_arm(int op, int64_t nth, int how)
{
    memset(sweep_page, 0, sizeof *sweep_page);
    sweep_page->how = how;
    sweep_page->error = error;
    sweep_page->countdown = nth;
    sweep_page->op = op;
}

bool sweep_start(struct rig *r)
{
    int code;
    sweep_preload(true);
    code = rig_try(r);
    sweep_preload(false);
    if (code == -1)
        return true;
    if (code >= 128 || code == 0)
        fail_msg("the daemon ended with %d:\n%s", code, rig_log(r));
    return false;
}

void sweep_end(struct rig *r)
{
    int status;
    if (!r->pid)
        return;
    kill(r->pid, SIGTERM);
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    r->pid = 0;
    if (!WIFEXITED(status))
        fail_msg("the daemon died of signal %d:\n%s", WTERMSIG(status),
                 rig_log(r));
}

/* ---- the program ---- */

static const struct sweep *the;
static bool in_case;
static int this_op;
static int64_t this_call;

/* One case in a rig of its own; whether the fault came. */
static bool run_one(int op, int64_t nth, int how)
{
    bool fired;
    ingest_set_up(NULL);
    in_case = true;
    this_op = op < 0 ? 0 : op;
    this_call = nth;
    the->run_case(op, nth, how);
    fired = sweep_page->fired > 0;
    ingest_tear_down(NULL);
    in_case = false;
    return fired;
}

/* A case that failed left its daemon and files. */
static int tear_down(void **state)
{
    if (in_case) {
        print_error("TRD_FAULT_CASE=\"%s %lld %d %d\"; the log:\n%s\n",
                    op_name[this_op], (long long)this_call,
                    sweep_page->how, error, rig_log(&ingest.rig));
        ingest_tear_down(state);
    }
    in_case = false;
    return 0;
}

struct kind {
    const char *name;
    int op, error, how;
    int fault; /* of the table */
};

static const struct kind kinds[] = {
#define USUAL_WAYS(name, code, fault)                                         \
    {#name " fails once", FAULT_##name, 0, 0, fault},                         \
    {#name " fails from then on", FAULT_##name, 0, FAULT_STICKY, fault},
    FAULT_OPS(USUAL_WAYS)
#undef USUAL_WAYS
#define ONE_WAY(name, code, how, fault)                                       \
    {#name " " #code " " #how, FAULT_##name, code, how, fault},
    MORE_WAYS(ONE_WAY)
#undef ONE_WAY
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static uint64_t calls_of[FAULT_N];

static const char *way(const struct kind *k, const char *call)
{
    static char text[96];
    bool sticky = k->how & FAULT_STICKY;
    snprintf(text, sizeof text, "%s: %s %s%s", the->side, call,
             k->how & FAULT_SHORT ? "does half its work"
             : k->error == EINTR  ? "says EINTR"
             : k->error == EAGAIN ? "says EAGAIN"
             : k->error == EIO    ? "says EIO"
                                  : "fails",
             sticky ? ", from then on" : ", once");
    return text;
}

/* How often a run without a fault calls each. */
static void count_calls(void **state)
{
    (void)state;
    error = 0;
    run_one(-1, 0, 0);
    for (int i = 0; i < FAULT_N; i++)
        calls_of[i] = sweep_page->calls[i];
}

static void test_faults(void **state)
{
    const struct kind *k = *state;
    const char *asked = getenv("TRD_FAULT_CASES");
    uint64_t some = asked ? strtoull(asked, NULL, 10) : the->some;
    uint64_t calls = calls_of[k->op], cases = 0, step;
    if (!calls) /* this side has no such call */
        return;
    error = k->error;
    step = calls <= some ? 1 : calls / some;
    for (uint64_t n = 1 + seed % step; n < 2 * calls + 8; n += step) {
        if (!run_one(k->op, (int64_t)n, k->how))
            break;
        cases++;
    }
    error = 0;
    print_message("%s: %llu calls, %llu cases\n", way(k, op_name[k->op]),
                  (unsigned long long)calls, (unsigned long long)cases);
    if (cases)
        oracle_held(the->fault ? the->fault : k->fault, cases,
                    way(k, "the n-th call"));
}

/* TRD_FAULT_CASE. */
static void test_faults__the_one_asked_for(void **state)
{
    char name[32];
    int how, op = 0;
    long long nth;
    (void)state;
    assert_true(sscanf(getenv("TRD_FAULT_CASE"), "%31s %lld %d %d", name, &nth,
                       &how, &error) >= 3);
    while (op < FAULT_N && strcmp(op_name[op], name))
        op++;
    assert_in_range(op, 0, FAULT_N - 1);
    print_message("fired: %d\n", run_one(op, nth, how));
}

int sweep_main(const struct sweep *s)
{
    static struct CMUnitTest tests[1 + KINDS];
    const struct CMUnitTest one[] = {
        cmocka_unit_test_teardown(test_faults__the_one_asked_for, tear_down)};
    int failed = sweep_init();
    if (failed)
        return failed;
    the = s;
    tests[0] = (struct CMUnitTest)cmocka_unit_test_teardown(count_calls,
                                                            tear_down);
    for (int i = 0; i < KINDS; i++)
        tests[1 + i] = (struct CMUnitTest){kinds[i].name, test_faults, NULL,
                                       tear_down,
                                       (void *)(uintptr_t)&kinds[i]};
    failed = getenv("TRD_FAULT_CASE")
                 ? cmocka_run_group_tests(one, NULL, NULL)
                 : cmocka_run_group_tests(tests, NULL, NULL);
    sweep_fini();
    return failed;
}
