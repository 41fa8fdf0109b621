/* Where the programs meet: directories and socket names, as text only.
 * The rooms check what is there. See FORMAT.md, "Directories". */
#ifndef PROTO_PLACE_H
#define PROTO_PLACE_H

#include <stddef.h>
#include <stdint.h>

#define PLACE_INGEST "ingest.sock"
#define PLACE_QUERY "query.sock"
#define PLACE_LOCK "tracerd.lock"
#define PLACE_RESERVE ".reserve"

/* What of the environment decides; NULL or "" where unset. */
struct place_env {
    const char *tracerd_dir;     /* TRACERD_DIR */
    const char *xdg_runtime_dir; /* XDG_RUNTIME_DIR */
    unsigned long uid;           /* effective */
    /* for the runs */
    const char *tracerd_data;    /* TRACERD_DATA */
    const char *xdg_state_home;  /* XDG_STATE_HOME */
    const char *home;            /* HOME, where there is such a directory */
};

/* The candidates for the directory, best first: i = 0, 1, ...; the first
 * that is there, or whose parent may be written, is taken (an explicit
 * directory, i.e. TRACERD_DIR, is the only candidate). *parent_n is the
 * length of the parent's path in out. 0, TRD_ENOTFOUND behind the last
 * candidate, or TRD_ELIMIT when cap is too small. */
int place_dir(const struct place_env *env, unsigned i, char *out, size_t cap,
              size_t *parent_n);

/* The same for the directory of the runs: TRACERD_DATA alone, else one below
 * the user's, and for users without a home that can be written those with
 * the uid in their names, in directories that all share: *shared. */
int place_data(const struct place_env *env, unsigned i, char *out, size_t cap,
               int *shared);

/* dir and name joined; TRD_EPATH when over SOCKET_PATH_MAX bytes or cap. */
int place_socket(const char *dir, const char *name, char *out, size_t cap);

/* Bytes that a daemon keeps in reserve on the disk of the runs, which has all
 * bytes; with fewer free than *margin besides it takes nothing. */
uint64_t place_reserve(uint64_t all, uint64_t *margin);

/* 1 if name may name a run: letters digits . _ - , not starting with a dot,
 * 1 to TRD_MAX_RUN bytes. */
int place_run_ok(const char *name, size_t n);

#endif
