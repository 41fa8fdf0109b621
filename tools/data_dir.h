/* Where the runs are. */
#ifndef TOOLS_DATA_DIR_H
#define TOOLS_DATA_DIR_H

#include "tools/tracectl.h"

/* -d, or what the daemon says; "" when it says none. 0 or an exit code,
 * told. */
int data_dir_find(const struct ctl *ctl, char *out, size_t cap);

#endif
