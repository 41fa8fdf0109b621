/* Whether a process still lives, by /proc. A closed socket is no proof: a
 * forked child may hold it. */
#include "daemon/process.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "proto/proc.h"

enum { SPARE_DESCRIPTORS = 24 }; /* runs being opened, questions, journals */

static ssize_t read_file(const char *path, char *out, size_t cap)
{
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    n = read(fd, out, cap - 1);
    close(fd);
    if (n >= 0)
        out[n] = '\0';
    return n;
}

static bool read_stat(uint32_t pid, char *state, uint64_t *start_time)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%lu/stat", (unsigned long)pid);
    return read_file(path, line, sizeof line) > 0 &&
           proc_stat(line, state, start_time) == 0;
}

static void read_boot_id(uint8_t out[16])
{
    char text[64];
    if (read_file("/proc/sys/kernel/random/boot_id", text, sizeof text) < 0)
        text[0] = '\0';
    proc_boot_id(text, out);
}

static bool boot_known(const uint8_t id[16])
{
    static const uint8_t none[16];
    return memcmp(id, none, sizeof none) != 0;
}

bool process_same(const struct process *a, const struct process *b)
{
    return a->pid == b->pid && a->start_time == b->start_time &&
           memcmp(a->boot_id, b->boot_id, sizeof a->boot_id) == 0;
}

bool process_alive(const struct process *p)
{
    uint8_t boot_id[16];
    uint64_t start_time;
    char state;

    read_boot_id(boot_id);
    if (boot_known(p->boot_id) && boot_known(boot_id) &&
        memcmp(p->boot_id, boot_id, sizeof boot_id) != 0)
        return false;
    if (p->pid == 0 || !read_stat(p->pid, &state, &start_time))
        return false;
    if (p->start_time && p->start_time != start_time)
        return false;
    return state != 'Z' && state != 'X' && state != 'x';
}

/* The system gives the lowest that is free, so its number tells how many are
 * taken. */
bool process_short_of_descriptors(int fd)
{
    struct rlimit l;
    return getrlimit(RLIMIT_NOFILE, &l) == 0 &&
           (rlim_t)fd + SPARE_DESCRIPTORS >= l.rlim_cur;
}
