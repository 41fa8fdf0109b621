/* See sweep.h. */
#include "tests/fault/sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/lib/unit.h"

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

void sweep_run(int op, int how, bool (*run_case)(int op, int64_t nth, int how))
{
    const char *asked = getenv("TRD_FAULT_CASES");
    uint64_t some = asked ? strtoull(asked, NULL, 10) : SOME;
    uint64_t calls, cases = 0, step;
    run_case(-1, 0, 0);
    calls = sweep_page->calls[op];
    step = calls <= some ? 1 : calls / some;
    for (uint64_t n = 1 + seed % step; n < 2 * calls + 8; n += step) {
        cases++;
        if (!run_case(op, (int64_t)n, how))
            break;
    }
    print_message("%s, %s: %llu calls, %llu cases\n", op_name[op],
                  how & FAULT_STICKY  ? "from then on"
                  : how & FAULT_SHORT ? "half"
                                      : "once",
                  (unsigned long long)calls, (unsigned long long)cases);
}

bool sweep_asked(int *op, int64_t *nth, int *how)
{
    const char *text = getenv("TRD_FAULT_CASE");
    char name[32];
    long long n;
    if (!text || sscanf(text, "%31s %lld %d", name, &n, how) != 3)
        return false;
    *nth = n;
    for (*op = 0; *op < FAULT_N && strcmp(op_name[*op], name);)
        ++*op;
    return *op < FAULT_N;
}
