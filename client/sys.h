/* The fault seam: every call that can fail for reasons outside this process
 * goes through one table, so that a test can make the n-th one fail. */
#ifndef CLIENT_SYS_H
#define CLIENT_SYS_H

#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

struct trd__sys {
    uint64_t (*mono_ns)(void);
    uint64_t (*real_ns)(void);
    int (*random)(void *bytes, size_t n); /* 0 or -1 */
    int (*open)(const char *path, int flags, mode_t mode);
    int (*allocate)(int fd, off_t n);     /* 0 or an errno */
    ssize_t (*pread)(int fd, void *bytes, size_t n, off_t at);
    ssize_t (*pwrite)(int fd, const void *bytes, size_t n, off_t at);
    int (*truncate)(int fd, off_t n);
    void *(*map)(size_t n, int flags, int fd); /* readable, writable */
    int (*unmap)(void *at, size_t n);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*mkdir)(const char *path, mode_t mode);
    int (*lstat)(const char *path, struct stat *st);
    int (*fstat)(int fd, struct stat *st);
    int (*close)(int fd);
    int (*socket)(void);                  /* unix stream, non-blocking */
    int (*connect)(int fd, const struct sockaddr *to, socklen_t n);
    int (*move_high)(int fd);             /* duplicate at 256 or above */
    ssize_t (*send)(int fd, const struct iovec *part, size_t n);
    ssize_t (*recv)(int fd, void *bytes, size_t n);
    int (*poll)(struct pollfd *set, nfds_t n, int ms);
    int (*event)(void);                   /* a socket that hears itself */
    int (*thread)(pthread_t *out, void *(*run)(void *), void *arg);
};

/* The real calls, unless a test has replaced them. */
extern struct trd__sys trd__sys;

/* Which file a descriptor is, for trd__is_still(): 0 or -1. */
int trd__remember(int fd, dev_t *dev, ino_t *ino);

/* 1 while a descriptor is what it was opened as. The application may have
 * closed it and got the number for something else, which is then not to be
 * read, written or closed. */
int trd__is_still(int fd, dev_t dev, ino_t ino);

/* Takes the POSIX lock that tells others that a file's owner lives; 0 or -1. */
int trd__lock_file(int fd);

/* Start time of a process in clock ticks since boot, 0 if it is gone. */
uint64_t trd__start_time(unsigned pid);

/* The id of this boot, zeros where the system does not tell. */
void trd__boot_id(uint8_t out[16]);

#endif
