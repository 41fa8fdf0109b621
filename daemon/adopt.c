/* Journals of dead processes: looking for them, and what becomes of the
 * file. Loop thread.
 *
 * One journal at a time is taken over (guest.c). The file is removed only
 * when all of it is durable; one that does not hold is renamed, so that it
 * is looked at once. One that cannot be taken now is tried again, each time
 * after twice as long, and never before one that has not failed: however
 * many fail, the others are taken at once. */
#include "daemon/adopt.h"

#include "daemon/guest.h"
#include "daemon/log.h"
#include "proto/point.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

enum {
    LOOK_MS = 3000,
    POKE_MS = 50,
    AGAIN_MS = 1000, /* the first time a journal is tried again; doubles */
    AGAIN_MAX_MS = 60000,
    FAILED_MAX = 512,  /* journals that are remembered to have failed */
    QUIET_MS = 1000,   /* a connection is alive while it says something */
    YOUNG_S = 5,       /* a journal is being made for at most so long */
    UNFINISHED_S = 60, /* and one that never was is removed after so long */
    DIR_BYTES = PATH_MAX
};

/* A journal that could not be taken. */
struct failed {
    char *name; /* NULL: this place is free */
    uint64_t next_ns;
    uint32_t wait_ms;
};

struct adopt {
    uv_loop_t *loop;
    struct hub *hub;
    char dir[DIR_BYTES];
    uv_timer_t timer;
    struct guest *guest;     /* NULL: nothing is under way */
    char name[NAME_MAX + 1]; /* of its file */
    int fd;
    struct failed failed[FAILED_MAX];
    bool closing;
    struct adopt_counters counters;
};

static void on_timer(uv_timer_t *timer);

static uint64_t now_ns(const struct adopt *a)
{
    return uv_now(a->loop) * MS;
}

static void look_in(struct adopt *a, uint64_t ms)
{
    if (!a->closing)
        uv_timer_start(&a->timer, on_timer, ms, 0);
}

/* ---- journals that failed ---- */

static struct failed *failed_get(struct adopt *a, const char *name)
{
    for (size_t i = 0; i < FAILED_MAX; i++) {
        if (a->failed[i].name && strcmp(a->failed[i].name, name) == 0)
            return &a->failed[i];
    }
    return NULL;
}

static void failed_forget(struct failed *f)
{
    if (!f)
        return;
    free(f->name);
    f->name = NULL;
}

/* A free place, else that of the one which is due first: it is tried soon,
 * and then it is here again. */
static struct failed *failed_place(struct adopt *a)
{
    struct failed *first = &a->failed[0];
    for (size_t i = 0; i < FAILED_MAX; i++) {
        if (!a->failed[i].name)
            return &a->failed[i];
        if (a->failed[i].next_ns < first->next_ns)
            first = &a->failed[i];
    }
    failed_forget(first);
    return first;
}

static void failed_add(struct adopt *a, const char *name)
{
    struct failed *f = failed_get(a, name);
    if (!f) {
        f = failed_place(a);
        f->name = strdup(name);
        f->wait_ms = AGAIN_MS / 2;
    }
    f->wait_ms *= 2;
    if (f->wait_ms > AGAIN_MAX_MS)
        f->wait_ms = AGAIN_MAX_MS;
    f->next_ns = now_ns(a) + f->wait_ms * MS;
}

/* The one that is due for longest; NULL: none. *ms is then when one is, at
 * most what it was. */
static struct failed *failed_due(struct adopt *a, uint64_t *ms)
{
    uint64_t now = now_ns(a);
    struct failed *due = NULL;
    for (size_t i = 0; i < FAILED_MAX; i++) {
        struct failed *f = &a->failed[i];
        if (!f->name)
            continue;
        if (f->next_ns <= now && (!due || f->next_ns < due->next_ns))
            due = f;
        if (f->next_ns > now && (f->next_ns - now) / MS < *ms)
            *ms = (f->next_ns - now) / MS + 1;
    }
    return due;
}

/* ---- files ---- */

static void path_of(const struct adopt *a, const char *name, char *out,
                    size_t cap)
{
    snprintf(out, cap, "%s/%s", a->dir, name);
}

/* Out of the way, so that it is not looked at again and again. */
static bool set_aside(struct adopt *a, const char *name, const char *why)
{
    bool done;
    char from[DIR_BYTES + NAME_MAX + 2], to[DIR_BYTES + NAME_MAX + 8];
    path_of(a, name, from, sizeof from);
    snprintf(to, sizeof to, "%s.bad", from);
    a->counters.bad++;
    done = rename(from, to) == 0;
    log_error("journal_bad", "file=\"%s\" why=\"%s\" then=\"%s\"", from, why,
              done ? "renamed to .bad" : "it stays, for it cannot be renamed");
    return done;
}

static bool is_locked(int fd)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_GETLK, &l) == 0 && l.l_type != F_UNLCK;
}

enum found { FOUND_OURS, FOUND_ALIVE, FOUND_BAD, FOUND_NEWER };

/* NULL, or what is wrong with the file as such. */
static const char *check_stat(const struct stat *st)
{
    if (!S_ISREG(st->st_mode))
        return "not a regular file";
    if (st->st_uid != geteuid() && geteuid() != 0)
        return "it belongs to another user";
    if (st->st_mode & 077)
        return "it is open to other users";
    if (st->st_size < JOURNAL_DICT_AT ||
        (uint64_t)st->st_size > 2 * JOURNAL_MAX_BYTES)
        return "its size is not that of a journal";
    return NULL;
}

/* Written within so many seconds, by a clock that may have been set since: a
 * file of tomorrow is as old as one of yesterday, or it would stay till then. */
static bool is_recent(const struct stat *st, time_t seconds)
{
    time_t now = time(NULL);
    return st->st_mtime > now - seconds && st->st_mtime <= now + seconds;
}

/* Its process lives, but has closed it and will not come back to it. */
static bool is_clean(const uint8_t *pages)
{
    struct journal_state state;
    return journal_state_get(pages, &state) == 0 && state.clean;
}

static enum found judge(int fd, struct stat *st, struct journal_head *head,
                        const char **why)
{
    uint8_t pages[3 * JOURNAL_PAGE];
    struct process owner;
    int rc = TRD_ETRUNC;

    if (fstat(fd, st) != 0)
        return FOUND_ALIVE; /* whatever it is, not now */
    *why = check_stat(st);
    if (!*why && is_locked(fd))
        return FOUND_ALIVE;
    if (!*why && pread(fd, pages, sizeof pages, 0) == (ssize_t)sizeof pages)
        rc = journal_head_get(pages, (uint64_t)st->st_size, head);
    if (rc == TRD_EVERSION)
        return FOUND_NEWER;
    if (rc) {
        if (!*why)
            *why = trd_strerror(rc);
        /* a client may be making it: it has no head yet, but soon will */
        return is_recent(st, YOUNG_S) ? FOUND_ALIVE : FOUND_BAD;
    }
    owner.pid = head->pid;
    owner.start_time = head->start_time;
    memcpy(owner.boot_id, head->boot_id, sizeof owner.boot_id);
    return process_alive(&owner) && !is_clean(pages) ? FOUND_ALIVE : FOUND_OURS;
}

/* ---- the end of a guest ---- */

/* The file goes, if it still is the one we read. */
static void remove_file(struct adopt *a)
{
    char path[DIR_BYTES + NAME_MAX + 2];
    struct stat mine, there;
    path_of(a, a->name, path, sizeof path);
    if (fstat(a->fd, &mine) == 0 && lstat(path, &there) == 0 &&
        mine.st_ino == there.st_ino && mine.st_dev == there.st_dev)
        unlink(path);
}

static void adopted(struct adopt *a, const struct guest_report *report)
{
    POINT(journal_adopted);
    remove_file(a);
    POINT(journal_removed);
    a->counters.adopted++;
    a->counters.records += report->records;
    log_info("journal_adopted",
             "file=\"%s\" run=%s attempt=%u rank=%u "
             "records=%llu state=%s",
             a->name, report->run, report->attempt, report->rank,
             (unsigned long long)report->records,
             report->clean ? "ended" : "dead");
}

static void on_over(void *context, const struct guest_report *report)
{
    struct adopt *a = context;
    bool failed = false;

    a->guest = NULL;
    if (report->fate == GUEST_ADOPTED) {
        adopted(a, report);
    } else if (report->fate == GUEST_BAD) {
        failed = !set_aside(a, a->name, report->why);
    } else if (!a->closing) {
        failed = true;
        log_warn("journal",
                 "file=\"%s\" why=\"%s\" then=\"it is tried "
                 "again\"",
                 a->name, report->why);
    }
    if (failed)
        failed_add(a, a->name);
    else
        failed_forget(failed_get(a, a->name));
    close(a->fd);
    look_in(a, 1);
}

static void begin(struct adopt *a, const char *name, int fd,
                  const struct stat *st)
{
    const struct failed *f = failed_get(a, name);
    struct guest_options o = {
        .loop = a->loop,
        .hub = a->hub,
        .fd = fd,
        .size = (uint64_t)st->st_size,
        .uid = st->st_uid,
        .patient = !f || f->wait_ms < AGAIN_MAX_MS,
        .over = on_over,
        .context = a,
    };
    a->fd = fd;
    snprintf(a->name, sizeof a->name, "%s", name);
    if (guest_open(&o, &a->guest)) {
        a->guest = NULL;
        close(fd);
        failed_add(a, a->name);
    }
}

/* ---- looking ---- */

/* Its process is gone, but the socket may still hold what it sent. */
static bool still_talks(const struct adopt *a, uint64_t epoch)
{
    const struct intake *i = intake_of(a->hub, epoch);
    return i && i->live && now_ns(a) - i->heard_ns < QUIET_MS * MS;
}

/* It stays for a daemon that can read it; said once. */
static void leave_newer(struct adopt *a, const char *name, int fd)
{
    uint8_t bytes[4] = {0};
    struct reader r = reader_of(bytes, sizeof bytes);
    if (!failed_get(a, name) &&
        pread(fd, bytes, sizeof bytes, 8) == (ssize_t)sizeof bytes)
        log_warn("journal",
                 "file=\"%s\" why=\"version %lu; this daemon reads version "
                 "1\" then=\"it stays for a newer tracerd\"",
                 name, (unsigned long)get_u32(&r));
    failed_add(a, name);
}

/* True when the journal is being taken over. */
static bool consider(struct adopt *a, const char *name, bool *soon)
{
    char path[DIR_BYTES + NAME_MAX + 2];
    struct journal_head head;
    struct stat st;
    const char *why = "";
    int fd;

    path_of(a, name, path, sizeof path);
    fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        if (errno == ELOOP && !set_aside(a, name, "a symbolic link"))
            failed_add(a, name);
        return false;
    }
    switch (judge(fd, &st, &head, &why)) {
    case FOUND_OURS:
        if (!still_talks(a, head.epoch)) {
            begin(a, name, fd, &st);
            return a->guest != NULL;
        }
        *soon = true;
        break;
    case FOUND_ALIVE:
        a->counters.waiting++;
        break;
    case FOUND_BAD:
        if (!set_aside(a, name, why))
            failed_add(a, name);
        break;
    case FOUND_NEWER:
        a->counters.waiting++;
        leave_newer(a, name, fd);
        break;
    }
    close(fd);
    return false;
}

static bool is_journal(const char *name)
{
    size_t n = strlen(name), tail = strlen(JOURNAL_SUFFIX);
    return n > tail && strcmp(name + n - tail, JOURNAL_SUFFIX) == 0;
}

/* What a client was making when it was killed: it is called .journal only
 * when it is whole. */
static bool is_unfinished(const char *name)
{
    static const char tail[] = JOURNAL_SUFFIX ".new";
    size_t n = strlen(name);
    return n >= sizeof tail && strcmp(name + n + 1 - sizeof tail, tail) == 0;
}

static void clean(struct adopt *a, const char *name)
{
    char path[DIR_BYTES + NAME_MAX + 2];
    struct stat st;
    int fd;

    path_of(a, name, path, sizeof path);
    fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
        !is_recent(&st, UNFINISHED_S) && !is_locked(fd) && unlink(path) == 0)
        log_info("journal_removed", "file=\"%s\" why=\"never finished\"", name);
    close(fd);
}

/* Those that have not failed. True: one is being taken over. */
static bool look_at_new(struct adopt *a, bool *soon)
{
    struct dirent *e;
    bool taken = false;
    DIR *d = opendir(a->dir);

    a->counters.waiting = 0;
    while (d && !taken && (e = readdir(d))) {
        if (is_unfinished(e->d_name))
            clean(a, e->d_name);
        if (is_journal(e->d_name) && !failed_get(a, e->d_name))
            taken = consider(a, e->d_name, soon);
    }
    if (d)
        closedir(d);
    return taken;
}

/* Of those that have failed the one that is due, one at a time, so that what
 * has come meanwhile goes before the next. False: none is. */
static bool look_again(struct adopt *a, bool *soon, uint64_t *ms)
{
    char name[NAME_MAX + 1];
    struct failed *f = failed_due(a, ms);

    if (!f)
        return false;
    snprintf(name, sizeof name, "%s", f->name);
    /* when it comes to nothing, as for a file that is gone, it is new again */
    f->next_ns = UINT64_MAX;
    if (!consider(a, name, soon) && f->next_ns == UINT64_MAX)
        failed_forget(f);
    return true;
}

static void look(struct adopt *a)
{
    bool soon = false;
    uint64_t ms = LOOK_MS;

    if (!look_at_new(a, &soon) && look_again(a, &soon, &ms))
        ms = POKE_MS;
    look_in(a, soon && ms > QUIET_MS / 4 ? QUIET_MS / 4 : ms);
}

static void on_timer(uv_timer_t *timer)
{
    struct adopt *a = timer->data;
    if (!a->guest && !hub_is_full(a->hub)) /* else they stay where they are */
        look(a);
    else
        look_in(a, LOOK_MS);
}

int adopt_open(uv_loop_t *loop, struct hub *hub, const char *dir,
               struct adopt **out)
{
    struct adopt *a = calloc(1, sizeof *a);
    if (!a)
        return TRD_ENOMEM;
    a->loop = loop;
    a->hub = hub;
    snprintf(a->dir, sizeof a->dir, "%s", dir);
    uv_timer_init(loop, &a->timer);
    a->timer.data = a;
    look_in(a, 0);
    *out = a;
    return 0;
}

void adopt_poke(struct adopt *a)
{
    if (!a->guest && uv_timer_get_due_in(&a->timer) > POKE_MS)
        look_in(a, POKE_MS);
}

void adopt_room(struct adopt *a)
{
    if (a->guest)
        guest_feed(a->guest);
}

const struct adopt_counters *adopt_counters(const struct adopt *a)
{
    return &a->counters;
}

void adopt_close(struct adopt *a)
{
    if (a->closing)
        return;
    a->closing = true;
    uv_close((uv_handle_t *)&a->timer, NULL);
    if (a->guest)
        guest_give_up(a->guest);
}

void adopt_free(struct adopt *a)
{
    for (size_t i = 0; i < FAILED_MAX; i++)
        failed_forget(&a->failed[i]);
    free(a);
}
