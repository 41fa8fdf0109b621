/* Reads the configuration. Loop thread (and before it runs); SIGHUP reads
 * the file again. Nothing here makes or changes a directory. */
#include "daemon/config.h"

#include "proto/place.h"
#include "tracerd/base.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* X(key, least, most): the keys that take a number. */
#define CONFIG_NUMBERS(X)                                                      \
    X(clients, 1, 16384)                                                       \
    X(memory_mb, 8, 65536)                                                     \
    X(query_seconds, 1, 86400)                                                 \
    X(queries, 1, 16)                                                          \
    X(keep_days, 1, 36500)                                                     \
    X(keep_mb, 1, UINT32_MAX)                                                  \
    X(store_queue_mb, 1, 1048576)

void config_init(struct config *c)
{
    memset(c, 0, sizeof *c);
    c->clients = 1024;
    c->memory_mb = 64;
    c->query_seconds = 30;
    c->queries = 4;
    c->store_queue_mb = 4096;
}

static char *trim(char *s)
{
    char *end = s + strlen(s);
    while (end > s && isspace((unsigned char)end[-1]))
        *--end = '\0';
    while (isspace((unsigned char)*s))
        s++;
    return s;
}

static const char *set_number(uint32_t *out, const char *text,
                              unsigned long least, unsigned long most)
{
    char *end;
    errno = 0;
    unsigned long v = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || v < least ||
        v > most)
        return "is not a number in the range of this key";
    *out = (uint32_t)v;
    return NULL;
}

static const char *set_path(char out[PATH_MAX], const char *text)
{
    if (*text != '/')
        return "is not an absolute path";
    if (strlen(text) >= PATH_MAX)
        return "is too long";
    memcpy(out, text, strlen(text) + 1);
    return NULL;
}

static const char *set_store(char out[512], const char *text)
{
    if (strlen(text) >= 512)
        return "is too long";
    memcpy(out, text, strlen(text) + 1);
    return NULL;
}

/* NULL or what is wrong. */
static const char *set_key(struct config *c, const char *key, const char *value)
{
    if (strcmp(key, "dir") == 0)
        return set_path(c->dir, value);
    if (strcmp(key, "data") == 0)
        return set_path(c->data, value);
    if (strcmp(key, "store") == 0)
        return set_store(c->store, value);
    if (strcmp(key, "store_password_file") == 0)
        return set_path(c->store_password_file, value);
#define CONFIG_SET(name, least, most)                                          \
    if (strcmp(key, #name) == 0)                                               \
        return set_number(&c->name, value, least, most);
    CONFIG_NUMBERS(CONFIG_SET)
#undef CONFIG_SET
    return "is not a key; the keys are dir, data, clients, memory_mb, "
           "query_seconds, queries, keep_days, keep_mb, store, "
           "store_password_file, store_queue_mb";
}

/* A path, its key, and some blanks; a longer line is none of a configuration
 * (a file without end, bytes that are no text). */
enum { CONFIG_LINE_BYTES = PATH_MAX + 256 };

static int read_line(struct config *c, char *line, const char *file,
                     unsigned number, char error[CONFIG_ERROR_BYTES])
{
    char *key = trim(line);
    char *value;
    const char *why;

    if (*key == '\0' || *key == '#')
        return 0;
    value = strchr(key, '=');
    if (!value) {
        snprintf(error, CONFIG_ERROR_BYTES, "%s:%u: no '=' in this line", file,
                 number);
        return TRD_EINVAL;
    }
    *value++ = '\0';
    key = trim(key);
    value = trim(value);
    why = set_key(c, key, value);
    if (!why)
        return 0;
    if (strncmp(why, "is not a key", 12) == 0)
        value = key;
    snprintf(error, CONFIG_ERROR_BYTES, "%s:%u: '%s' %s", file, number, value,
             why);
    return TRD_EINVAL;
}

int config_read(struct config *c, const char *file,
                char error[CONFIG_ERROR_BYTES])
{
    struct config fresh = *c;
    char line[CONFIG_LINE_BYTES];
    unsigned number = 0;
    int rc = 0;
    FILE *f = fopen(file, "re");

    if (!f) {
        snprintf(error, CONFIG_ERROR_BYTES, "cannot read '%s': %s", file,
                 strerror(errno));
        return TRD_EIO;
    }
    while (rc == 0 && fgets(line, sizeof line, f)) {
        number++;
        if (!strchr(line, '\n') && !feof(f)) {
            snprintf(error, CONFIG_ERROR_BYTES,
                     "%s:%u: this line has a NUL byte or more than %d bytes",
                     file, number, CONFIG_LINE_BYTES - 2);
            rc = TRD_EINVAL;
        } else {
            rc = read_line(&fresh, line, file, number, error);
        }
    }
    if (rc == 0 && ferror(f)) {
        snprintf(error, CONFIG_ERROR_BYTES, "cannot read '%s': %s", file,
                 strerror(errno));
        rc = TRD_EIO;
    }
    fclose(f);
    if (rc == 0)
        *c = fresh;
    return rc;
}

/* A trailing slash or dot would make lstat() follow a symbolic link. */
static void strip_tail(char *path)
{
    size_t n = strlen(path);
    for (;;) {
        if (n > 1 && path[n - 1] == '/')
            n--;
        else if (n > 2 && path[n - 1] == '.' && path[n - 2] == '/')
            n--;
        else
            break;
        path[n] = '\0';
    }
}

static int make_absolute(char path[PATH_MAX], char error[CONFIG_ERROR_BYTES])
{
    char whole[2 * PATH_MAX], cwd[PATH_MAX];

    strip_tail(path);
    if (path[0] == '/')
        return 0;
    if (!getcwd(cwd, sizeof cwd)) {
        snprintf(error, CONFIG_ERROR_BYTES,
                 "cannot tell the working directory: %s", strerror(errno));
        return TRD_EIO;
    }
    snprintf(whole, sizeof whole, "%s/%s", cwd, path);
    if (strlen(whole) >= PATH_MAX) {
        snprintf(error, CONFIG_ERROR_BYTES, "path too long: '%.200s...'",
                 whole);
        return TRD_ELIMIT;
    }
    memcpy(path, whole, strlen(whole) + 1);
    strip_tail(path);
    return 0;
}

/* The directory is there, or could be made. */
static bool usable(const char *dir, size_t parent_n)
{
    char parent[PATH_MAX];
    struct stat st;
    if (lstat(dir, &st) == 0)
        return true;
    if (parent_n >= sizeof parent)
        return false;
    memcpy(parent, dir, parent_n);
    parent[parent_n] = '\0';
    return access(parent_n ? parent : "/", W_OK | X_OK) == 0;
}

static int find_dir(struct config *c, char error[CONFIG_ERROR_BYTES])
{
    struct place_env env = {
        .tracerd_dir = getenv("TRACERD_DIR"),
        .xdg_runtime_dir = getenv("XDG_RUNTIME_DIR"),
        .uid = (unsigned long)geteuid(),
    };
    char path[PATH_MAX];
    size_t parent_n;

    c->dir_default = !(env.tracerd_dir && *env.tracerd_dir);
    for (unsigned i = 0;; i++) {
        int rc = place_dir(&env, i, path, sizeof path, &parent_n);
        if (rc) {
            snprintf(error, CONFIG_ERROR_BYTES,
                     "no place for the sockets (%s); name one by --dir",
                     trd_strerror(rc));
            return rc;
        }
        if (!c->dir_default || usable(path, parent_n))
            break;
    }
    memcpy(c->dir, path, strlen(path) + 1);
    return 0;
}

/* The directory is there, or the nearest one above it may be written. */
static bool could_be(const char *dir)
{
    char part[PATH_MAX];
    struct stat st;
    snprintf(part, sizeof part, "%s", dir);
    if (lstat(part, &st) == 0)
        return true;
    for (char *slash; (slash = strrchr(part, '/')) && slash > part;) {
        *slash = '\0';
        if (lstat(part, &st) == 0)
            return access(part, W_OK | X_OK) == 0;
    }
    return access("/", W_OK | X_OK) == 0;
}

static int find_data(struct config *c, char error[CONFIG_ERROR_BYTES])
{
    const char *home = getenv("HOME");
    struct place_env env = {
        .uid = (unsigned long)geteuid(),
        .tracerd_data = getenv("TRACERD_DATA"),
        .xdg_state_home = getenv("XDG_STATE_HOME"),
        .home = home && access(home, X_OK) == 0 ? home : NULL,
    };
    char path[PATH_MAX];
    int shared;

    c->data_default = !(env.tracerd_data && *env.tracerd_data);
    for (unsigned i = 0;; i++) {
        int rc = place_data(&env, i, path, sizeof path, &shared);
        if (rc == TRD_ELIMIT)
            snprintf(error, CONFIG_ERROR_BYTES, "the data path is too long");
        else if (rc)
            snprintf(error, CONFIG_ERROR_BYTES,
                     "no place for the runs: neither HOME nor /var/tmp nor "
                     "/tmp can be written; name one by --data");
        if (rc)
            return rc;
        if (!c->data_default || could_be(path))
            break;
    }
    c->data_shared = shared;
    memcpy(c->data, path, strlen(path) + 1);
    return 0;
}

int config_places(struct config *c, char error[CONFIG_ERROR_BYTES])
{
    int rc = 0;
    if (!*c->dir)
        rc = find_dir(c, error);
    if (!rc && !*c->data)
        rc = find_data(c, error);
    if (!rc)
        rc = make_absolute(c->dir, error);
    if (!rc)
        rc = make_absolute(c->data, error);
    return rc;
}
