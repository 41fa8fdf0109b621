/* Directories, locks and sockets: made, checked and refused. */
#ifndef DAEMON_DIRS_H
#define DAEMON_DIRS_H

#include <stdbool.h>
#include <stddef.h>

enum { DIRS_WHY_BYTES = 4096 + 512 };

enum dirs_kind {
    DIRS_PRIVATE, /* sockets: no symbolic link, no access for others */
    DIRS_OWN      /* data: nobody else may write */
};

/* Makes sure of a directory. make: create the last component; make_parents:
 * the others too. With neither, only checks that it is or could be there.
 * TRD_EACCES or TRD_EIO, and why names the directory and the remedy. */
int dirs_check(const char *path, enum dirs_kind kind, bool make,
               bool make_parents, char why[DIRS_WHY_BYTES]);

/* Syncs the directory that holds path, so that what was made or renamed there
 * survives a power cut. 0, or -1 with errno. */
int dirs_sync_above(const char *path);

/* Locks dir/tracerd.lock and puts our process id in it. *fd keeps the lock.
 * TRD_EBUSY when another tracerd holds it, TRD_EIO. */
int dirs_lock(const char *dir, int *fd, char why[DIRS_WHY_BYTES]);

/* A bound, not yet listening socket dir/name, mode 0600. The lock of dir is
 * held. A socket nobody answers on is replaced; anything else is left alone.
 * TRD_EPATH, TRD_EBUSY, TRD_EACCES, TRD_EIO. */
int dirs_bind(const char *dir, const char *name, int *fd,
              char why[DIRS_WHY_BYTES]);

/* Only whether the name is short enough. TRD_EPATH. */
int dirs_socket_name(const char *dir, const char *name,
                     char why[DIRS_WHY_BYTES]);

#endif
