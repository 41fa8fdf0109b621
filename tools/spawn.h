/* A daemon of our own for one import, where none runs. */
#ifndef TOOLS_SPAWN_H
#define TOOLS_SPAWN_H

#include <sys/types.h>

#include "tools/tracectl.h"

struct spawned {
    char dir[64]; /* of its sockets, private */
    pid_t pid;    /* 0: none */
};

/* Starts tracerd, found beside this program or in PATH, storing into data,
 * and waits until it is ready. 0 or CTL_FAILED, told. */
int spawn_daemon(const char *data, struct spawned *out);
/* Stops it and waits; its directory is removed. 0, or CTL_FAILED when it did
 * not end well (told). */
int spawn_stop(struct spawned *s);

#endif
