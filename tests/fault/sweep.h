/* What both sweeps share: the page, the kinds of calls, the order of cases.
 *
 * A short run takes some cases of each kind, others for each seed (TRD_SEED);
 * TRD_FAULT_CASES=N takes about N; TRD_FAULT_CASE="OP NTH HOW ERROR"
 * takes one. */
#ifndef TESTS_FAULT_SWEEP_H
#define TESTS_FAULT_SWEEP_H

#include <stdbool.h>

#include "tests/fault/shim.h"

extern struct fault_page *sweep_page;

/* Maps the page and finds the shim: 0, or the exit code of the program. */
int sweep_init(void);
void sweep_fini(void);

/* The environment of a program that is started next has the shim in it. */
void sweep_preload(bool on);

/* From now on the nth call of op fails; op -1: none. */
void sweep_arm(int op, int64_t nth, int how);

/* One case: arms the fault, does what is tested, checks. It has a new rig. */
typedef void sweep_case(int op, int64_t nth, int how);

/* Starts a daemon with the shim in it; false where it did not get ready, but
 * ended by itself. */
struct rig;
bool sweep_start(struct rig *r);
/* Ends a daemon that may have ended already; no signal but ours. */
void sweep_end(struct rig *r);

struct sweep {
    sweep_case *run_case;
    const char *side;  /* who it is that the faults happen to */
    int fault;         /* of the table, 0: that of the call */
    uint64_t some;     /* cases of one kind in a short run */
};
/* The whole program: for each kind of call and each way to fail, cases n = 1,
 * 2, 3, ... until the fault does not come any more. Prints what was done, and
 * says in the table of faults that it held; the exit code. */
int sweep_main(const struct sweep *s);

#endif
