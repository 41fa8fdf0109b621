/* How the daemon's threads begin. */
#include "daemon/thread.h"

#include <signal.h>
#include <time.h>

#include "tracerd/base.h"

int thread_start(pthread_t *out, void *(*run)(void *), void *context)
{
    sigset_t all, old;
    int rc;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(out, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc ? TRD_EIO : 0;
}

void thread_cond(pthread_cond_t *out)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(out, &attr);
    pthread_condattr_destroy(&attr);
}
