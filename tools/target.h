/* The file that an export writes: there as a whole, or as it was before. */
#ifndef TOOLS_TARGET_H
#define TOOLS_TARGET_H

#include <stdio.h>

#include "tools/tracectl.h"

struct target;

/* path NULL or "-": stdout. 0 or an exit code, told. */
int target_open(const char *path, struct target **out);
FILE *target_file(const struct target *t);
/* keep: the file takes its name; else it goes, and what had the name stays.
 * 0 or CTL_FAILED, told. */
int target_close(struct target *t, int keep);

#endif
