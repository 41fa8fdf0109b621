/* A CUDA half without CUDA, for the client's side of it: device memory is
 * host memory, a launch computes at once, and the test says when results come
 * back. */
#ifndef TESTS_LIB_FAKE_HALF_H
#define TESTS_LIB_FAKE_HALF_H

#include <stdatomic.h>
#include <stdint.h>

enum { FAKE_DEVICES = 2 };

/* The library's second symbol, fake_half. */
struct fake_half {
    _Atomic int fail_open;   /* error of the next open */
    _Atomic int fail_launch; /* error of each launch */
    _Atomic int capturing;   /* launches go into a graph */
    _Atomic int replays;     /* runs the graph so often */
    _Atomic int hold;        /* results wait */
    _Atomic uint64_t drop;   /* so many results find no slot */
    _Atomic int opened, closed, launches;
    void *_Atomic stream;    /* of the last launch */
};

#endif
