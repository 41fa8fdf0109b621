/* Reading what is imported, and handing it to the daemon. */
#ifndef TOOLS_IMPORT_H
#define TOOLS_IMPORT_H

#include "proto/spool.h"
#include "tools/ingest.h"

struct import_options {
    const char *run;      /* NULL: as a journal says */
    int64_t rank, attempt; /* -1: as a journal says, else 0 */
    const char *date;     /* of the first line, YYYY-MM-DD; NULL: by mtime */
    uint32_t samples;     /* of the log's lines */
    int without_spool;    /* one that is not there is lost */
};

struct import_result {
    char run[TRD_MAX_RUN + 1];
    uint64_t rank, attempt;
    uint64_t records; /* good ones in the file */
    uint64_t fresh;   /* of them, not stored before */
    uint64_t bad;     /* lines, entries, or holes of a journal */
    uint64_t spool_last; /* the last number of a spool */
    int spool_cut;       /* it ends within an entry */
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
/* A dump of msprobe, or a folder of them; each rank is told to done(). */
int import_msprobe(const char *path, const struct import_daemon *daemon,
                   const struct import_options *options,
                   void (*done)(void *to, const struct import_result *r),
                   void *to);
/* Whether it looks like one, or is a folder. */
int import_is_msprobe(const char *path);
/* What is said otherwise of a hello, and that the daemon looks for no file. */
void import_apply(struct hello *h, const struct import_options *o);
/* What a walk found: an entry, or none that can be read (NULL), of seq up to
 * end. What the daemon has already is counted only; *last is moved on. */
int import_step(struct ingest *in, const struct entry *e, uint64_t seq,
                uint64_t end, uint64_t *last, struct import_result *out);
/* 1 journal or spool, 0 another file, -1 it cannot be read (told). */
int import_is_journal(const char *path);

/* A spool: alone, when its journal is gone, or before that. */
struct import_spool {
    const uint8_t *bytes; /* NULL: it is not there */
    uint64_t size;
    struct spool_head head;
};
int import_is_spool(const char *path);
int import_spool(const char *path, const struct import_daemon *daemon,
                 const struct import_options *options,
                 struct import_result *out);
/* The file of a stream; 0 or why it cannot be read, TRD_E. */
int import_spool_open(struct import_spool *m, const char *path);
void import_spool_close(struct import_spool *m);
/* Its records behind *last, which is moved on, and the gap before them; words:
 * its words, too. */
int import_spool_send(const struct import_spool *m, struct ingest *in,
                      int words, uint64_t *last, struct import_result *out);

#endif
