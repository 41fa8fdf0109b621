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

/* How the daemon is found, or made: asked only when there is something to
 * store. 0 and the directory of its sockets, or an exit code, told. */
struct import_daemon {
    int (*find)(void *context, const char **dir);
    void *context;
};

/* 0 or an exit code, told on stderr; bad lines are told and counted only. A
 * file without anything to store makes no run: then out->run is "". */
int import_text(const char *path, const struct import_daemon *daemon,
                const struct import_options *options,
                struct import_result *out);
int import_journal(const char *path, const struct import_daemon *daemon,
                   const struct import_options *options,
                   struct import_result *out);
/* 1 journal, 0 another file, -1 it cannot be read (told). */
int import_is_journal(const char *path);

#endif
