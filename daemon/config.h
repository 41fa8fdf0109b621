/* What the daemon is told: defaults, a file, the environment, options. */
#ifndef DAEMON_CONFIG_H
#define DAEMON_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/clickhouse/house.h"

struct config {
    char dir[PATH_MAX];     /* sockets and journals; "" until decided */
    char data[PATH_MAX];    /* stored runs */
    bool dir_default;       /* nobody named it: parents are our choice */
    bool data_default;
    bool data_shared;       /* for want of a home: others may write above */
    uint32_t clients;       /* connections at once, ingest */
    uint32_t memory_mb;     /* received and not yet committed */
    uint32_t query_seconds; /* time limit of a question */
    uint32_t queries;       /* questions at once */
    uint32_t keep_days;     /* runs unused for longer go; 0: none does */
    uint32_t keep_mb;       /* of runs, at the most; 0: no limit */
    char store[512];        /* where runs are kept; "": in data */
    struct house_place place; /* of store */
    char store_password_file[PATH_MAX];
    uint32_t store_queue_mb; /* what may wait for the store */
};

enum { CONFIG_ERROR_BYTES = PATH_MAX + 256 };

void config_init(struct config *c);

/* Reads `key = value` lines over what c holds. TRD_EIO or TRD_EINVAL, with
 * error naming file and line. */
int config_read(struct config *c, const char *file,
                char error[CONFIG_ERROR_BYTES]);

/* Fills dir and data, where still empty, from the environment (what it names
 * is looked for, nothing is made) and makes them absolute and free of a
 * trailing slash. TRD_EIO, TRD_ELIMIT or
 * TRD_ENOTFOUND with error. */
int config_places(struct config *c, char error[CONFIG_ERROR_BYTES]);

#endif
