/* Room on the data disk. Writer thread. */
#ifndef DAEMON_STORE_SPACE_H
#define DAEMON_STORE_SPACE_H

#include <limits.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdint.h>

struct store;

struct space {
    char reserve[PATH_MAX];
    uint64_t want;     /* bytes of the reserve */
    uint64_t margin;   /* with less free nothing is taken */
    bool without;      /* this file system gives no reserve; told */
};

/* Makes the reserve, or finds out that the disk is full. */
void space_open(struct store *s);
/* Before bytes are written: gives the reserve up if they would not fit. */
void space_need(struct store *s, uint64_t bytes);
/* Once a second: takes records again when there is room for the reserve. */
void space_look(struct store *s);
/* Something did not fit. */
void space_spent(struct store *s);
bool space_is_full(const struct store *s);
/* Whether a connection failed because the disk is full, or a quota. */
bool space_is_short(sqlite3 *db, int code);

#endif
