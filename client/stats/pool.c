/* Threads that help with large tensors. [any thread -> helpers]
 *
 * One call at a time has helpers; they sleep in between. A helper that does
 * not come in time is not waited for: the caller takes its share back.
 *
 * Invariants: helpers touch the call's argument between joining and leaving
 * only, and the caller returns when all that joined have left. A forked child
 * finds an empty pool and starts its own. */
#include "client/stats/kernel.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t come, gone;
    unsigned started;      /* helpers that exist */
    unsigned wanted;       /* of them, may still join this call */
    unsigned inside;       /* have joined and not left */
    int busy;              /* a call has the pool */
    void (*work)(void *);
    void *arg;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .come = PTHREAD_COND_INITIALIZER,
          .gone = PTHREAD_COND_INITIALIZER};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void in_child(void)
{
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.come, NULL);
    pthread_cond_init(&pool.gone, NULL);
    pool.started = pool.wanted = pool.inside = 0;
    pool.busy = 0;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, in_child);
}

static void *help(void *unused)
{
    trd__modes caller;

    (void)unused;
    fesetenv(FE_DFL_ENV); /* those of who started it go for all units */
    trd__modes_enter(&caller);
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.wanted)
            pthread_cond_wait(&pool.come, &pool.lock);
        pool.wanted--;
        pool.inside++;
        pthread_mutex_unlock(&pool.lock);
        pool.work(pool.arg);
        pthread_mutex_lock(&pool.lock);
        if (!--pool.inside)
            pthread_cond_signal(&pool.gone);
    }
    return NULL;
}

/* With every signal blocked: they are the application's. */
static int start_one(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    sigset_t all, before;
    int failed;

    if (pthread_attr_init(&attr))
        return -1;
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    failed = pthread_create(&thread, &attr, help, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failed;
}

void trd__pool_run(unsigned threads, void (*work)(void *arg), void *arg)
{
    int ours = 0;

    if (threads > 1) {
        pthread_once(&once, watch_forks);
        pthread_mutex_lock(&pool.lock);
        ours = !pool.busy;
        if (ours) {
            pool.busy = 1;
            while (pool.started + 1 < threads && !start_one())
                pool.started++;
            pool.work = work;
            pool.arg = arg;
            pool.wanted =
                threads - 1 < pool.started ? threads - 1 : pool.started;
            pthread_cond_broadcast(&pool.come);
        }
        pthread_mutex_unlock(&pool.lock);
    }
    work(arg);
    if (!ours)
        return;
    pthread_mutex_lock(&pool.lock);
    pool.wanted = 0;
    while (pool.inside)
        pthread_cond_wait(&pool.gone, &pool.lock);
    pool.busy = 0;
    pthread_mutex_unlock(&pool.lock);
}
