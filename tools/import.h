/* Reading what is imported, and handing it to the daemon. */
#ifndef TOOLS_IMPORT_H
#define TOOLS_IMPORT_H

#include "tools/ingest.h"

struct import_options {
    const char *run;      /* NULL: as a journal says */
    int64_t rank, attempt; /* -1: as a journal says, else 0 */
    const char *date;     /* of the first line, YYYY-MM-DD; NULL: by mtime */
    uint32_t samples;     /* of the log's lines */
};

struct import_result {
    char run[TRD_MAX_RUN + 1];
    uint64_t rank, attempt;
    uint64_t records; /* good ones in the file */
    uint64_t fresh;   /* of them, not stored before */
    uint64_t bad;     /* lines, or holes of a journal */
};

/* dir is the daemon's. 0 or an exit code, told on stderr; bad lines are told
 * and counted only. */
int import_text(const char *path, const char *dir,
                const struct import_options *options,
                struct import_result *out);
int import_journal(const char *path, const char *dir,
                   const struct import_options *options,
                   struct import_result *out);
/* 1 journal, 0 another file, -1 it cannot be read (told). */
int import_is_journal(const char *path);

#endif
