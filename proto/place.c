/* Candidate directories and socket paths, as text. Pure. */
#include "proto/place.h"

#include <stdio.h>
#include <string.h>

#include "proto/wire.h"

enum {
    RESERVE_BYTES = 64 * 1024 * 1024,
    RESERVE_PART = 16, /* at most this part of a small disk */
    MARGIN_PART = 4    /* of the reserve: free bytes that must be left */
};

static int given(const char *text)
{
    return text && *text;
}

/* Length of the parent's path: up to the last slash that has a name behind
 * it. */
static size_t parent_length(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    return n > 1 ? n - 1 : n;
}

int place_dir(const struct place_env *env, unsigned i, char *out, size_t cap,
              size_t *parent_n)
{
    int n = -1;
    if (given(env->tracerd_dir)) {
        if (i == 0)
            n = snprintf(out, cap, "%s", env->tracerd_dir);
    } else {
        /* XDG_RUNTIME_DIR comes first where it is set */
        unsigned k = given(env->xdg_runtime_dir) ? i : i + 1;
        if (k == 0)
            n = snprintf(out, cap, "%s/tracerd", env->xdg_runtime_dir);
        else if (k == 1)
            n = snprintf(out, cap, "/run/user/%lu/tracerd", env->uid);
        else if (k == 2)
            n = snprintf(out, cap, "/dev/shm/tracerd-%lu", env->uid);
        else if (k == 3)
            n = snprintf(out, cap, "/tmp/tracerd-%lu", env->uid);
    }
    if (n < 0)
        return TRD_ENOTFOUND;
    if ((size_t)n >= cap)
        return TRD_ELIMIT;
    *parent_n = parent_length(out);
    return 0;
}

int place_data(const struct place_env *env, unsigned i, char *out, size_t cap,
               int *shared)
{
    int n = -1;
    *shared = 0;
    if (given(env->tracerd_data)) {
        if (i == 0)
            n = snprintf(out, cap, "%s", env->tracerd_data);
    } else {
        int state = given(env->xdg_state_home) && *env->xdg_state_home == '/';
        int home = given(env->home) && *env->home == '/';
        unsigned k = state || home ? i : i + 1;
        *shared = k > 0;
        if (k == 0 && state)
            n = snprintf(out, cap, "%s/tracerd", env->xdg_state_home);
        else if (k == 0)
            n = snprintf(out, cap, "%s/.local/state/tracerd", env->home);
        else if (k == 1)
            n = snprintf(out, cap, "/var/tmp/tracerd-%lu", env->uid);
        else if (k == 2)
            n = snprintf(out, cap, "/tmp/tracerd-%lu-runs", env->uid);
    }
    if (n < 0)
        return TRD_ENOTFOUND;
    return (size_t)n < cap ? 0 : TRD_ELIMIT;
}

int place_socket(const char *dir, const char *name, char *out, size_t cap)
{
    int n = snprintf(out, cap, "%s/%s", dir, name);
    if (n < 0 || (size_t)n >= cap || n > SOCKET_PATH_MAX)
        return TRD_EPATH;
    return 0;
}

uint64_t place_reserve(uint64_t all, uint64_t *margin)
{
    uint64_t reserve = RESERVE_BYTES;
    if (reserve > all / RESERVE_PART)
        reserve = all / RESERVE_PART;
    *margin = reserve / MARGIN_PART;
    return reserve;
}

int place_run_ok(const char *name, size_t n)
{
    if (n < 1 || n > TRD_MAX_RUN || name[0] == '.')
        return 0;
    for (size_t i = 0; i < n; i++) {
        char c = name[i];
        int letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        int digit = c >= '0' && c <= '9';
        if (!letter && !digit && c != '.' && c != '_' && c != '-')
            return 0;
    }
    return 1;
}
