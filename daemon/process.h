/* Whether a process still lives, and what is left to our own. Any thread. */
#ifndef DAEMON_PROCESS_H
#define DAEMON_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

struct process {
    uint32_t pid;
    uint64_t start_time; /* clock ticks since boot */
    uint8_t boot_id[16]; /* zero: unknown */
};

/* False when it is certain that it is gone: another boot, no such pid, a
 * zombie, or a pid that was given to somebody else. */
bool process_alive(const struct process *p);

/* This newest descriptor of ours is one of the last that the system allows:
 * it belongs to the files of runs, not to one more connection. */
bool process_short_of_descriptors(int fd);

bool process_same(const struct process *a, const struct process *b);

#endif
