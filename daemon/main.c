/* tracerd: options, start, signals, stop. Loop thread.
 *
 * Start: directories, locks, store (with its self-test), sockets, threads,
 * "ready". Stop: no more accepting and reading, everything durable, last
 * acknowledgements, the writer ends, the loop runs dry. Whoever is still at
 * work then, on a question or a journal, is left behind. */
#include "daemon/dirs.h"
#include "daemon/forward.h"
#include "daemon/log.h"
#include "daemon/options.h"
#include "daemon/report.h"
#include "proto/place.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    STOP_MS = 20000,
    DRY_MS = 1500, /* from the writer's end to the loop's */
    WORKERS = 18   /* all questions at once, one short one, a journal */
};

struct daemon {
    struct options *options;
    struct config config;
    uv_loop_t loop;
    uv_async_t wake;
    uv_signal_t signals[3];
    uv_timer_t give_up;
    struct hub hub;
    struct store *store;
    struct server *server;
    struct answer *answer;
    struct adopt *adopt;
    int dir_lock, data_lock, ingest_fd, query_fd;
    uint64_t started_ns, started_mono_ns;
    bool stopping;
};

/* make: create what is missing. */
static int check_places(const struct config *c, bool make)
{
    char why[DIRS_WHY_BYTES];
    if (dirs_socket_name(c->dir, PLACE_INGEST, why) ||
        dirs_check(c->dir, DIRS_PRIVATE, make, false, why) ||
        dirs_check(c->data, c->data_shared ? DIRS_PRIVATE : DIRS_OWN, make,
                   c->data_default && !c->data_shared, why))
        return options_complain(EXIT_OPEN, "%s", why);
    if (c->data_shared && make)
        options_complain(0,
                         "HOME is no directory that can be written: runs are "
                         "stored in '%s'",
                         c->data);
    return 0;
}

/* ---- status ---- */

static uint64_t now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static void on_status(void *context, struct status *out)
{
    const struct daemon *d = context;
    const struct report r = {.config = &d->config,
                             .hub = &d->hub,
                             .server = d->server,
                             .answer = d->answer,
                             .adopt = d->adopt,
                             .started_ns = d->started_ns,
                             .started_mono_ns = d->started_mono_ns};
    report_fill(&r, out);
}

/* ---- stop ---- */

static void remove_sockets(const struct daemon *d)
{
    static const char *const names[] = {PLACE_INGEST, PLACE_QUERY};
    char path[PATH_MAX + 32];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", d->config.dir, names[i]);
        unlink(path); /* ours: we hold the lock of the directory */
    }
}

/* A worker cannot be ended, and may be in one long step that never looks
 * whether it should. All is stored and said: nobody needs it any more. */
static void on_dry_late(uv_timer_t *timer)
{
    struct daemon *d = timer->data;
    scribe_close(d->hub.scribe);
    remove_sockets(d);
    log_info("stopped", "pid=%ld left=\"a question or a journal under way\"",
             (long)getpid());
    log_close();
    _exit(EXIT_SUCCESS);
}

static void on_stopped(void *context)
{
    struct daemon *d = context;
    adopt_close(d->adopt);
    uv_close((uv_handle_t *)&d->wake, NULL);
    uv_timer_start(&d->give_up, on_dry_late, DRY_MS, 0);
    uv_unref((uv_handle_t *)&d->give_up); /* the loop may end before it */
}

/* All is durable: last words, then the writer may end. */
static void on_synced(void *context)
{
    struct daemon *d = context;
    adopt_close(d->adopt);
    server_close(d->server);
    answer_close(d->answer);
    hub_stop(&d->hub);
}

static void on_give_up(uv_timer_t *timer)
{
    (void)timer;
    /* what was acknowledged as committed survives this */
    log_error("stop", "error=\"the disk does not answer\" then=\"stopped "
                      "without making all durable\"");
    _exit(EXIT_FAILURE);
}

static void stop(struct daemon *d)
{
    if (d->stopping)
        return;
    d->stopping = true;
    for (size_t i = 0; i < sizeof d->signals / sizeof *d->signals; i++)
        uv_close((uv_handle_t *)&d->signals[i], NULL);
    uv_timer_start(&d->give_up, on_give_up, STOP_MS, 0);
    server_stop(d->server);
    hub_sync(&d->hub);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct daemon *d = handle->data;
    struct config c;

    if (number != SIGHUP) {
        log_info("stop", "signal=%d", number);
        stop(d);
        return;
    }
    if (options_config(d->options, &c)) {
        log_warn("reread", "error=\"the configuration does not hold\" "
                           "then=\"the old one stays\"");
        return;
    }
    if (strcmp(c.dir, d->config.dir) != 0 ||
        strcmp(c.data, d->config.data) != 0 ||
        strcmp(c.store, d->config.store) != 0)
        log_warn("reread", "error=\"dir, data and store cannot change\" "
                           "then=\"they stay until a restart\"");
    d->config.clients = c.clients;
    d->config.memory_mb = c.memory_mb;
    d->hub.limit = (size_t)c.memory_mb << 20;
    server_limit(d->server, c.clients);
    answer_limit(d->answer, c.query_seconds, c.queries);
    d->hub.ops->keep(d->store, c.keep_days, c.keep_mb);
    log_info("reread",
             "clients=%u memory_mb=%u query_seconds=%u queries=%u "
             "keep_days=%u keep_mb=%u",
             c.clients, c.memory_mb, c.query_seconds, c.queries, c.keep_days,
             c.keep_mb);
}

/* ---- start ---- */

static void on_wake_thread(void *context)
{
    struct daemon *d = context;
    uv_async_send(&d->wake);
}

static void on_wake(uv_async_t *wake)
{
    struct daemon *d = wake->data;
    hub_drain(&d->hub);
    if (d->stopping)
        return;
    server_room(d->server);
    adopt_room(d->adopt);
}

static void on_orphan(void *context)
{
    struct daemon *d = context;
    if (!d->stopping)
        adopt_poke(d->adopt);
}

/* Where runs go from here, if anywhere. */
static int open_store(struct daemon *d, char *why)
{
    struct forward_options o = {.place = d->config.place};
    if (!*d->config.store)
        return 0;
    return d->hub.ops->forward(d->store, &o,
                               (uint64_t)d->config.store_queue_mb << 20, why);
}

static int open_places(struct daemon *d)
{
    char why[DIRS_WHY_BYTES];
    int rc = check_places(&d->config, true);
    if (rc)
        return rc;
    if (dirs_lock(d->config.dir, &d->dir_lock, why) ||
        dirs_lock(d->config.data, &d->data_lock, why) ||
        d->hub.ops->open(d->config.data, &d->store, why, sizeof why) ||
        open_store(d, why) ||
        dirs_bind(d->config.dir, PLACE_INGEST, &d->ingest_fd, why) ||
        dirs_bind(d->config.dir, PLACE_QUERY, &d->query_fd, why))
        return options_complain(EXIT_OPEN, "%s", why);
    return 0;
}

static int open_loop(struct daemon *d)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    if (uv_loop_init(&d->loop) != 0 ||
        uv_async_init(&d->loop, &d->wake, on_wake) != 0 ||
        uv_timer_init(&d->loop, &d->give_up) != 0)
        return options_complain(EXIT_OPEN, "cannot make an event loop");
    d->wake.data = d->give_up.data = d;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        uv_signal_init(&d->loop, &d->signals[i]);
        d->signals[i].data = d;
        if (uv_signal_start(&d->signals[i], on_signal, numbers[i]) != 0)
            return options_complain(EXIT_OPEN, "cannot catch signals");
    }
    return 0;
}

static pthread_mutex_t trial = PTHREAD_MUTEX_INITIALIZER;

static void *try_thread(void *context)
{
    pthread_mutex_lock(&trial);
    pthread_mutex_unlock(&trial);
    return context;
}

static void no_work(uv_work_t *work)
{
    (void)work;
}

/* The workers of the loop are made here and not when there is work for them:
 * libuv ends the process where it cannot have one. So as many threads are
 * tried before, and a start says what is wrong. */
static int make_workers(struct daemon *d)
{
    static uv_work_t work;
    pthread_t thread[WORKERS];
    int n = 0;
    pthread_mutex_lock(&trial);
    while (n < WORKERS && !pthread_create(&thread[n], NULL, try_thread, NULL))
        n++;
    pthread_mutex_unlock(&trial);
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    if (n < WORKERS || uv_queue_work(&d->loop, &work, no_work, NULL) != 0)
        return options_complain(EXIT_OPEN, "cannot make %d threads",
                                (int)WORKERS);
    return 0;
}

static int open_parts(struct daemon *d)
{
    struct scribe_options w = {.ops = d->hub.ops,
                               .store = d->store,
                               .wake = on_wake_thread,
                               .context = d};
    struct server_options s = {.loop = &d->loop,
                               .hub = &d->hub,
                               .fd = d->ingest_fd,
                               .clients = d->config.clients,
                               .orphan = on_orphan,
                               .context = d};
    struct answer_options a = {.loop = &d->loop,
                               .fd = d->query_fd,
                               .data = d->config.data,
                               .seconds = d->config.query_seconds,
                               .at_once = d->config.queries,
                               .status = on_status,
                               .context = d};
    d->hub.store = d->store;
    d->hub.ops->keep(d->store, d->config.keep_days, d->config.keep_mb);
    d->hub.limit = (size_t)d->config.memory_mb << 20;
    d->hub.synced = on_synced;
    d->hub.stopped = on_stopped;
    d->hub.context = d;
    if (hub_init(&d->hub) || scribe_open(&w, &d->hub.scribe) ||
        adopt_open(&d->loop, &d->hub, d->config.dir, &d->adopt) ||
        server_open(&s, &d->server) || answer_open(&a, &d->answer))
        return options_complain(EXIT_OPEN,
                                "cannot start: out of memory, threads or "
                                "descriptors");
    return 0;
}

/* As many descriptors as we may have: one for each client. */
static void raise_limits(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

/* An arena of each thread's own is 64 MiB of addresses that stay taken: under
 * a limit of them (ulimit -v) no journal could be mapped any more. No rate
 * tells one arena from many. */
static void share_heap(void)
{
#ifdef M_ARENA_MAX
    mallopt(M_ARENA_MAX, 1);
#endif
}

static void say_ready(const struct daemon *d)
{
    static const char word[] = "ready\n";
    log_info("ready", "version=%s pid=%ld dir=\"%s\" data=\"%s\"", TRD_VERSION,
             (long)getpid(), d->config.dir, d->config.data);
    if (d->options->ready_fd < 0)
        return;
    if (write(d->options->ready_fd, word, sizeof word - 1) < 0)
        log_warn("ready", "error=\"%s\" then=\"nobody was told\"",
                 strerror(errno));
    close(d->options->ready_fd);
}

static void close_all(struct daemon *d)
{
    remove_sockets(d);
    scribe_close(d->hub.scribe);
    hub_fini(&d->hub);
    d->hub.ops->close(d->store);
    server_free(d->server);
    answer_free(d->answer);
    adopt_free(d->adopt);
    uv_loop_close(&d->loop);
    uv_library_shutdown();
    close(d->dir_lock);
    close(d->data_lock);
}

/* Serves until told to stop. The result is the exit code. told is called
 * when clients can come. */
static int serve(struct daemon *d, void (*told)(struct daemon *))
{
    int rc = open_places(d);
    if (!rc)
        rc = open_loop(d);
    if (!rc)
        rc = make_workers(d);
    if (!rc)
        rc = open_parts(d);
    if (rc)
        return rc; /* the process ends: the system takes back the rest */
    d->started_ns = now_ns(CLOCK_REALTIME);
    d->started_mono_ns = now_ns(CLOCK_MONOTONIC);
    told(d);
    uv_run(&d->loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&d->give_up, NULL);
    uv_run(&d->loop, UV_RUN_DEFAULT);
    log_info("stopped", "pid=%ld", (long)getpid());
    close_all(d);
    log_close();
    return 0;
}

/* ---- in the background ---- */

static int parent_fd = -1;

/* Lets go of the terminal and of the parent, who exits 0 now. */
static void told_detached(struct daemon *d)
{
    char path[PATH_MAX + 32];
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    snprintf(path, sizeof path, "%s/tracerd.log", d->config.data);
    if (log_open(path) != 0)
        options_complain(0, "cannot write '%s'; nothing is logged", path);
    say_ready(d);
    if (null_fd >= 0) {
        dup2(null_fd, STDIN_FILENO);
        dup2(null_fd, STDOUT_FILENO);
        dup2(null_fd, STDERR_FILENO);
        close(null_fd);
    }
    if (write(parent_fd, "r", 1) < 0)
        log_warn("ready", "error=\"the parent is gone\" then=\"serving all "
                          "the same\"");
    close(parent_fd);
}

static void told_foreground(struct daemon *d)
{
    say_ready(d);
}

/* The parent: 0 when the child serves, else the child's exit code. */
static int wait_for_child(pid_t child, int fd)
{
    char byte;
    int status;
    ssize_t n;
    do {
        n = read(fd, &byte, 1);
    } while (n < 0 && errno == EINTR);
    if (n == 1)
        return 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    return options_complain(EXIT_OPEN,
                            "the daemon was killed while it started");
}

static int detach(struct daemon *d)
{
    int fds[2];
    pid_t child;
    if (pipe2(fds, O_CLOEXEC) != 0)
        return options_complain(EXIT_OPEN, "cannot make a pipe: %s",
                                strerror(errno));
    child = fork();
    if (child < 0)
        return options_complain(EXIT_OPEN, "cannot fork: %s", strerror(errno));
    if (child > 0) {
        close(fds[1]);
        return wait_for_child(child, fds[0]);
    }
    close(fds[0]);
    parent_fd = fds[1];
    setsid();
    if (chdir("/") != 0)
        return options_complain(EXIT_OPEN, "cannot enter '/': %s",
                                strerror(errno));
    return serve(d, told_detached);
}

int main(int argc, char **argv)
{
    static struct options options;
    static struct daemon d;
    char workers[16];
    int rc = options_read(&options, argc, argv);

    if (rc >= 0)
        return rc;
    d.options = &options;
    d.hub.ops = &store_sqlite;
    rc = options_config(&options, &d.config);
    if (rc)
        return rc;
    umask(077);
    if (options.check) {
        rc = check_places(&d.config, false);
        if (rc == 0)
            printf("tracerd: the configuration is good: dir=%s data=%s\n",
                   d.config.dir, d.config.data);
        return rc;
    }
    signal(SIGPIPE, SIG_IGN);
    raise_limits();
    share_heap();
    snprintf(workers, sizeof workers, "%d", (int)WORKERS);
    setenv("UV_THREADPOOL_SIZE", workers, 1);
    return options.foreground ? serve(&d, told_foreground) : detach(&d);
}
