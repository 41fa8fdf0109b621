/* Room on the data disk. Writer thread.
 *
 * A file in the data directory keeps some room. When the disk runs full it is
 * given up, so that what is in hand can still be stored, and from then on
 * clients get no credit: their journals keep what comes. When there is room
 * for the file again it is made again, and records are taken.
 * A quota is not seen by statvfs(), so whether there is room is decided by
 * making the file. It stays when the daemon ends: a start on a full disk
 * gives it up to have room for questions. */
#include "daemon/store_space.h"

#include "daemon/log.h"
#include "daemon/store_sqlite.h"
#include "proto/place.h"
#include "proto/point.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static bool is_no_space(int error)
{
    return error == ENOSPC || error == EDQUOT;
}

bool space_is_short(sqlite3 *db, int code)
{
    if ((code & 0xff) == SQLITE_FULL)
        return true;
    if ((code & 0xff) != SQLITE_IOERR && (code & 0xff) != SQLITE_CANTOPEN)
        return false;
    return db && is_no_space(sqlite3_system_errno(db));
}

bool space_is_full(const struct store *s)
{
    return atomic_load(&s->counters.disk_full) != 0;
}

/* Free bytes, and those of the whole disk; false: it does not tell. */
static bool disk_free(struct store *s, uint64_t *free_bytes, uint64_t *all)
{
    struct statvfs v;
    if (statvfs(s->data, &v) != 0)
        return false;
    *free_bytes = (uint64_t)v.f_bavail * v.f_frsize;
    *all = (uint64_t)v.f_blocks * v.f_frsize;
    atomic_store(&s->counters.disk_free_bytes, *free_bytes);
    return true;
}

/* 0 or errno. */
static int make_reserve(struct store *s)
{
    struct space *p = &s->space;
    int error;
    int fd = open(p->reserve, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return errno;
    error = posix_fallocate(fd, 0, (off_t)p->want);
    POINT(reserve_written);
    close(fd);
    if (error)
        unlink(p->reserve);
    else
        atomic_store(&s->counters.reserve_bytes, p->want);
    return error;
}

static void give_up(struct store *s)
{
    struct space *p = &s->space;
    if (unlink(p->reserve) != 0 && errno != ENOENT)
        log_error("reserve",
                  "file=\"%s\" error=\"%s\" then=\"it stays, though the disk "
                  "is full\"",
                  p->reserve, strerror(errno));
    atomic_store(&s->counters.reserve_bytes, 0);
    if (atomic_exchange(&s->counters.disk_full, 1))
        return;
    log_error("disk_full",
              "data=\"%s\" free=%llu needed=%llu then=\"clients keep their "
              "records in their journals until there is room\"",
              s->data,
              (unsigned long long)atomic_load(&s->counters.disk_free_bytes),
              (unsigned long long)(p->want + 2 * p->margin));
}

/* False: there is no room for it. */
static bool have_reserve(struct store *s)
{
    int error = make_reserve(s);
    if (!error || s->space.without)
        return !is_no_space(error);
    if (is_no_space(error))
        return false;
    s->space.without = true;
    log_warn("reserve",
             "file=\"%s\" error=\"%s\" then=\"stored without a reserve for a "
             "full disk\"",
             s->space.reserve, strerror(error));
    return true;
}

void space_open(struct store *s)
{
    struct space *p = &s->space;
    uint64_t free_bytes = UINT64_MAX, all = UINT64_MAX;

    snprintf(p->reserve, sizeof p->reserve, "%.*s/" PLACE_RESERVE,
             (int)sizeof p->reserve - 16, s->data);
    (void)disk_free(s, &free_bytes, &all);
    p->want = place_reserve(all, &p->margin);
    atomic_store(&s->counters.disk_needed_bytes, p->want + 2 * p->margin);
    if (free_bytes < p->margin || !have_reserve(s))
        give_up(s);
}

void space_spent(struct store *s)
{
    give_up(s);
}

void space_need(struct store *s, uint64_t bytes)
{
    uint64_t free_bytes, all;
    if (!space_is_full(s) && disk_free(s, &free_bytes, &all) &&
        free_bytes < s->space.margin + bytes)
        give_up(s);
}

void space_look(struct store *s)
{
    struct space *p = &s->space;
    uint64_t free_bytes = 0, all;
    if (!space_is_full(s)) {
        space_need(s, 0);
        return;
    }
    /* twice the margin, so that it is not given up again at once */
    if (disk_free(s, &free_bytes, &all) &&
        (free_bytes < p->want + 2 * p->margin || !have_reserve(s)))
        return;
    atomic_store(&s->counters.disk_full, 0);
    log_info("disk_room", "data=\"%s\" free=%llu then=\"records are taken\"",
             s->data, (unsigned long long)free_bytes);
}
