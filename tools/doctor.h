/* What is wrong with an installation, and the command that mends it. */
#ifndef TOOLS_DOCTOR_H
#define TOOLS_DOCTOR_H

#include "tools/out.h"

enum { DOCTOR_PATH = 4096, DOCTOR_TEXT = 1024 };

enum doctor_state {
    DOCTOR_OK,
    DOCTOR_NOTE, /* something to know; nothing that must be mended */
    DOCTOR_BAD
};

struct doctor {
    struct out *o;
    const struct ctl *ctl;
    char dir[DOCTOR_PATH];  /* sockets and journals */
    char data[DOCTOR_PATH]; /* runs; "": nobody tells */
    int dir_good;           /* a daemon could serve it */
    int daemon;             /* one answers */
    int bad;                /* findings */
};

/* One finding. mend: the command that helps, "" for none. */
void doctor_say(struct doctor *d, const char *check, enum doctor_state state,
                const char *mend, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* In this order: each uses what the ones before found. */
void doctor_directory(struct doctor *d);
void doctor_sockets(struct doctor *d);
void doctor_daemon(struct doctor *d);
void doctor_data(struct doctor *d);
void doctor_room(struct doctor *d);
void doctor_limits(struct doctor *d);
void doctor_python(struct doctor *d);

/* Who holds the lock of a directory: a pid, 0 for nobody, -1: somebody. */
long doctor_lock_holder(const char *dir);

#endif
