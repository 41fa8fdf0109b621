/* See proto/point.h. Linked into the builds that have points. */
#include "proto/point.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const point_name[POINT_N] = {
#define POINT_NAME(name) #name,
    POINTS(POINT_NAME)
#undef POINT_NAME
};

/* Of the armed one; POINT_N: none. */
static int armed = POINT_N;
static _Atomic long left;

/* Before main, so before there are threads. */
__attribute__((constructor)) static void arm(void)
{
    const char *text = getenv("TRACERD_POINT");
    char name[64];
    long n = 0;
    if (!text || sscanf(text, "%63s %ld", name, &n) != 2)
        return;
    for (armed = 0; armed < POINT_N; armed++)
        if (strcmp(point_name[armed], name) == 0)
            break;
    atomic_store(&left, n);
}

void point_reached(enum point p)
{
    if (armed == (int)p && atomic_fetch_sub(&left, 1) == 1)
        kill(getpid(), SIGKILL);
}
