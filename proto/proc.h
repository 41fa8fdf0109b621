/* What tells one process from all others: pid, start time and boot. Client and
 * daemon read the same files of /proc and must read them alike; here is how.
 * Text only: the rooms open the files. */
#ifndef PROTO_PROC_H
#define PROTO_PROC_H

#include <stdint.h>

/* The text of /proc/PID/stat: state (field 3) and start time in clock ticks
 * since boot (field 22). TRD_ECORRUPT when the fields are not there. */
int proc_stat(const char *text, char *state, uint64_t *start_time);

/* The text of /proc/sys/kernel/random/boot_id; zeros for what is not there. */
void proc_boot_id(const char *text, uint8_t out[16]);

#endif
