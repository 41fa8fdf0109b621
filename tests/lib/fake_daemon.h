/* A daemon that says of its state what a test wants. */
#ifndef TESTS_LIB_FAKE_DAEMON_H
#define TESTS_LIB_FAKE_DAEMON_H

#include <stddef.h>
#include <sys/types.h>

struct fake_row {
    const char *key;
    const char *text; /* NULL: number is the value */
    long long number;
};

/* Answers every question in dir, which is made, with these rows; ready when
 * it returns. */
pid_t fake_daemon(const char *dir, const struct fake_row *rows, size_t n);
/* Ends it and removes what it left in dir. */
void fake_daemon_end(pid_t pid, const char *dir);

#endif
