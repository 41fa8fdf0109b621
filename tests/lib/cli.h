/* Running tracectl as a user would: a shell command and what it gave.
 *
 * In commands $T is tracectl, $CASES and $GOLDEN the test data, $DIR the
 * daemon's directory and $DATA its runs; the current directory is a new one
 * of the test program. Needs TRD_TRACECTL, TRD_TRACERD and TRD_TEST_DATA. */
#ifndef TESTS_LIB_CLI_H
#define TESTS_LIB_CLI_H

#include "tests/lib/unit.h"

struct cli {
    int code;
    char *out; /* both stay until the next command */
    char *err;
};

/* Group setup and teardown: directory, environment, and a running daemon. */
int cli_setup(void **state);
int cli_teardown(void **state);

const struct cli *cli_run(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
/* The same, and fails unless the exit code is code. */
const struct cli *cli_expect(int code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Fails, showing all of text, unless it holds part. */
void cli_has(const char *text, const char *part);
void cli_has_not(const char *text, const char *part);
/* Lines of text. */
size_t cli_lines(const char *text);

void cli_write_file(const char *name, const void *bytes, size_t n);
/* The file's bytes, NUL-terminated; free() them. */
char *cli_read_file(const char *name, size_t *n);

/* What one statement says of an SQLite file: its first value, -1 without a
 * row; and one that changes it. Both fail where SQLite does. */
int64_t cli_number(const char *file, const char *statement);
void cli_sql(const char *file, const char *statement);

/* The daemon's rig. */
struct rig *cli_rig(void);
/* Stops the daemon and starts it again. */
void cli_stop_daemon(void);
void cli_start_daemon(void);

#endif
