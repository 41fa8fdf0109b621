/* Whether a file is still what it was when something was remembered of it:
 * an inode alone may be used again, or written over in place. Pure. */
#ifndef DAEMON_FILE_KEY_H
#define DAEMON_FILE_KEY_H

#include <stdbool.h>
#include <sys/stat.h>

struct file_key {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec written, changed;
};

static inline struct file_key file_key_of(const struct stat *st)
{
    struct file_key k = {st->st_dev, st->st_ino, st->st_size, st->st_mtim,
                         st->st_ctim};
    return k;
}

static inline bool file_key_same(const struct file_key *a,
                                 const struct file_key *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
           a->written.tv_sec == b->written.tv_sec &&
           a->written.tv_nsec == b->written.tv_nsec &&
           a->changed.tv_sec == b->changed.tv_sec &&
           a->changed.tv_nsec == b->changed.tv_nsec;
}

#endif
