/* The command line. */
#ifndef DAEMON_OPTIONS_H
#define DAEMON_OPTIONS_H

#include "daemon/config.h"

enum { EXIT_USAGE = 2, EXIT_OPEN = 3 };

struct options {
    struct config config;    /* as far as the command line says */
    const char *file;        /* --config */
    bool foreground, check;
    int ready_fd;            /* -1: none */
};

/* -1: go on; else the exit code, and what there was to say is said. */
int options_read(struct options *o, int argc, char **argv);

/* The file first, the command line over it, then the environment. 0, or the
 * exit code after it has complained. */
int options_config(const struct options *o, struct config *out);

/* A line on standard error; the result is code. */
__attribute__((format(printf, 2, 3))) int
options_complain(int code, const char *format, ...);

#endif
