/* Threads of the daemon beside its loop. */
#ifndef DAEMON_THREAD_H
#define DAEMON_THREAD_H

#include <pthread.h>

/* Starts one to which no signal goes: they belong to the loop. 0, TRD_EIO. */
int thread_start(pthread_t *out, void *(*run)(void *), void *context);
/* A condition whose waits end by the monotonic clock. */
void thread_cond(pthread_cond_t *out);

#endif
