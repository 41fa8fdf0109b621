/* What every command of tracectl has in hand. */
#ifndef TOOLS_TRACECTL_H
#define TOOLS_TRACECTL_H

#include <stddef.h>
#include <stdint.h>

/* Exit codes; a page's status is the same number. */
enum {
    CTL_FOUND = 0,   /* found, same, healthy */
    CTL_NOTHING = 1, /* nothing found, differs, unhealthy */
    CTL_BAD = 2,     /* usage or bad data */
    CTL_FAILED = 3   /* cannot reach the daemon or open the run */
};

/* The options before the command; NULL where one was not given. */
struct ctl {
    const char *dir;    /* -s: directory of the daemon's sockets */
    const char *db;     /* -d: a run's file or the daemon's data directory */
    const char *store;  /* --store: a ClickHouse */
    const char *run;    /* -r: name or .db file */
    const char *format; /* -o */
};

struct command {
    const char *name;
    const char *arguments; /* as the help prints them */
    const char *summary;
    const char *details;   /* options and examples */
    int (*go)(struct ctl *ctl, int argc, char **argv);
};
extern const struct command ctl_commands[];
/* NULL: no such. */
const struct command *ctl_command(const char *name);

int cmd_runs(struct ctl *ctl, int argc, char **argv);
int cmd_query(struct ctl *ctl, int argc, char **argv);
int cmd_status(struct ctl *ctl, int argc, char **argv);
int cmd_sql(struct ctl *ctl, int argc, char **argv);
int cmd_check(struct ctl *ctl, int argc, char **argv);
int cmd_compare(struct ctl *ctl, int argc, char **argv);
int cmd_report(struct ctl *ctl, int argc, char **argv);
int cmd_export(struct ctl *ctl, int argc, char **argv);
int cmd_import(struct ctl *ctl, int argc, char **argv);
int cmd_doctor(struct ctl *ctl, int argc, char **argv);
int cmd_merge(struct ctl *ctl, int argc, char **argv);
int cmd_prune(struct ctl *ctl, int argc, char **argv);
int cmd_verify(struct ctl *ctl, int argc, char **argv);
int cmd_completion(struct ctl *ctl, int argc, char **argv);
int cmd_help(struct ctl *ctl, int argc, char **argv);

/* One line "tracectl: ..." on stderr. The result is code. */
int ctl_fail(int code, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The words for errno: the system's, but short and in lower case. */
const char *ctl_errno(int error);

/* Reads options and words of a command, the global options among them, in
 * any order. The words are left in argv[0..*argc). 0, or CTL_BAD when told
 * so on stderr. A number not given stays as it is. */
enum option_kind {
    OPTION_END = 0,
    OPTION_TEXT,  /* to: const char * */
    OPTION_NUMBER, /* to: int64_t, not negative */
    OPTION_FLAG   /* to: int, 1 when given; it has no value */
};
struct option {
    enum option_kind kind;
    const char *name; /* with "--" */
    void *to;
};
int ctl_options(struct ctl *ctl, const struct option *options, int *argc,
                char **argv);

#endif
