/* The command line, before anything runs; the configuration again at SIGHUP
 * (loop thread). */
#include "daemon/options.h"

#include "tracerd/base.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: tracerd [--dir DIR] [--data DIR] [--store URL] [--config FILE]\n"
    "               [--foreground] [--ready-fd N] [-n] [--version] [--help]\n"
    "\n"
    "  --dir DIR      sockets and journals; else TRACERD_DIR, else\n"
    "                 $XDG_RUNTIME_DIR/tracerd, else a private directory\n"
    "  --data DIR     stored runs, one RUN.db each; else TRACERD_DATA, else\n"
    "                 $XDG_STATE_HOME/tracerd, else ~/.local/state/tracerd,\n"
    "                 without a home /var/tmp/tracerd-UID\n"
    "  --store URL    clickhouse://user@host:port/database: where runs are\n"
    "                 kept; --data then has what is on its way there. Its\n"
    "                 password is in TRACERD_STORE_PASSWORD\n"
    "  --config FILE  'key = value' lines: dir, data, clients, memory_mb,\n"
    "                 query_seconds, queries, keep_days, keep_mb, store,\n"
    "                 store_password_file, store_queue_mb\n"
    "  --foreground   stay in the foreground and log to stderr\n"
    "  --ready-fd N   write \"ready\" to descriptor N when it serves\n"
    "  -n             check the configuration and say so\n"
    "\n"
    "examples:\n"
    "  tracerd                                in the background, defaults\n"
    "  tracerd --foreground --data /scratch/traces\n"
    "  tracerd -n --config /etc/tracerd.conf\n"
    "\n"
    "exit status: 0 well, 2 usage or configuration, 3 cannot open a\n"
    "directory, socket or store, or another tracerd serves them\n";

int options_complain(int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("tracerd: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return code;
}

enum {
    OPT_DIR = 256,
    OPT_DATA,
    OPT_STORE,
    OPT_CONFIG,
    OPT_FOREGROUND,
    OPT_READY_FD,
    OPT_VERSION,
    OPT_HELP
};

static const struct option long_options[] = {
    {"dir", required_argument, NULL, OPT_DIR},
    {"data", required_argument, NULL, OPT_DATA},
    {"store", required_argument, NULL, OPT_STORE},
    {"config", required_argument, NULL, OPT_CONFIG},
    {"foreground", no_argument, NULL, OPT_FOREGROUND},
    {"ready-fd", required_argument, NULL, OPT_READY_FD},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static int take_path(char out[PATH_MAX], const char *name, const char *value)
{
    if (!*value)
        return options_complain(EXIT_USAGE, "--%s is empty", name);
    if (strlen(value) >= PATH_MAX)
        return options_complain(EXIT_USAGE, "--%s is too long", name);
    memcpy(out, value, strlen(value) + 1);
    return 0;
}

static int take_ready_fd(int *out, const char *value)
{
    char *end;
    long fd = strtol(value, &end, 10);
    if (!*value || *end || fd < 0 || fd > 1 << 20 ||
        fcntl((int)fd, F_GETFD) < 0)
        return options_complain(EXIT_USAGE,
                                "--ready-fd: '%s' is not an open "
                                "descriptor",
                                value);
    *out = (int)fd;
    return 0;
}

static int take_store(struct config *c, const char *value)
{
    if (strlen(value) >= sizeof c->store)
        return options_complain(EXIT_USAGE, "--store is too long");
    memcpy(c->store, value, strlen(value) + 1);
    return 0;
}

/* What the store's address says; "sqlite" is none. */
static int read_store(struct config *c)
{
    char why[HOUSE_WHY_BYTES];
    if (strcmp(c->store, "sqlite") == 0)
        c->store[0] = '\0';
    if (!*c->store)
        return 0;
    if (*c->store_password_file)
        setenv("TRACERD_STORE_PASSWORD_FILE", c->store_password_file, 0);
    if (house_place_read(c->store, &c->place, why))
        return options_complain(EXIT_USAGE, "--store: %s", why);
    return 0;
}

/* -1: go on; else the exit code. */
static int take_option(struct options *o, int c)
{
    int rc = 0;
    switch (c) {
    case OPT_DIR:
        rc = take_path(o->config.dir, "dir", optarg);
        break;
    case OPT_DATA:
        rc = take_path(o->config.data, "data", optarg);
        break;
    case OPT_STORE:
        rc = take_store(&o->config, optarg);
        break;
    case OPT_CONFIG:
        o->file = optarg;
        break;
    case OPT_FOREGROUND:
        o->foreground = true;
        break;
    case OPT_READY_FD:
        rc = take_ready_fd(&o->ready_fd, optarg);
        break;
    case 'n':
        o->check = true;
        break;
    case OPT_VERSION:
        puts("tracerd " TRD_VERSION);
        return 0;
    case 'h':
    case OPT_HELP:
        fputs(usage, stdout);
        return 0;
    default:
        fputs("try 'tracerd --help'\n", stderr);
        return EXIT_USAGE;
    }
    return rc ? rc : -1;
}

int options_read(struct options *o, int argc, char **argv)
{
    int c, rc;
    config_init(&o->config);
    o->ready_fd = -1;
    while ((c = getopt_long(argc, argv, "nh", long_options, NULL)) != -1) {
        rc = take_option(o, c);
        if (rc >= 0)
            return rc;
    }
    if (optind < argc)
        return options_complain(EXIT_USAGE,
                                "'%s': tracerd takes no arguments; try "
                                "'tracerd --help'",
                                argv[optind]);
    return -1;
}

/* The file first, the command line over it. */
int options_config(const struct options *o, struct config *out)
{
    char error[CONFIG_ERROR_BYTES];
    struct config c;
    int rc;

    config_init(&c);
    if (o->file && config_read(&c, o->file, error))
        return options_complain(EXIT_USAGE, "%s", error);
    if (*o->config.dir)
        memcpy(c.dir, o->config.dir, sizeof c.dir);
    if (*o->config.data)
        memcpy(c.data, o->config.data, sizeof c.data);
    if (*o->config.store)
        memcpy(c.store, o->config.store, sizeof c.store);
    rc = config_places(&c, error);
    if (rc)
        return options_complain(rc == TRD_ELIMIT ? EXIT_USAGE : EXIT_OPEN, "%s",
                                error);
    rc = read_store(&c);
    if (rc)
        return rc;
    *out = c;
    return 0;
}
