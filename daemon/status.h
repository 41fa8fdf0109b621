/* What the daemon tells of itself: keys and values. */
#ifndef DAEMON_STATUS_H
#define DAEMON_STATUS_H

#include "proto/query.h"

/* A key and a value of the status page. */
struct status_row {
    char key[48];
    char value[464];
    bool number; /* decimal digits: an integer on the page */
};
struct status {
    struct status_row *row;
    size_t n, cap;
};
/* Adds a row; out of memory leaves it out. A format that is one integer
 * makes the value one. */
__attribute__((format(printf, 3, 4))) void
status_add(struct status *s, const char *key, const char *format, ...);

/* The page: columns key and value. The result is its length. */
size_t status_page(const struct status *s, uint8_t *out, size_t cap);

#endif
