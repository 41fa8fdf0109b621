/* The dumps of msprobe below a folder: step0/rank1/dump.json and its like. */
#ifndef TOOLS_MSPROBE_FILES_H
#define TOOLS_MSPROBE_FILES_H

#include <stddef.h>
#include <stdint.h>

enum { MSPROBE_MAX_FILES = 1 << 20 };

struct msprobe_file {
    char *path;
    int64_t step;      /* from 0, as its folder says; 0 where it does not */
    int64_t rank;
    int64_t proc;      /* of the folder of a process without a rank, or -1 */
};

struct msprobe_files {
    struct msprobe_file *at; /* by rank, then by step */
    size_t n;
};

/* path: a folder, or one dump.json, whose step and rank are those of the
 * folders it lies in. Processes without a rank get 0, 1, ... by their ids. 0
 * or an exit code, told. */
int msprobe_files_find(const char *path, struct msprobe_files *out);
void msprobe_files_free(struct msprobe_files *f);

#endif
