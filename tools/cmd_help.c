/* tracectl help [COMMAND], and of what records are called */
#include <stdio.h>
#include <string.h>

#include "tools/tracectl.h"

static const char head[] =
    "usage: tracectl [-s DIR | -d FILE.db|DATADIR] [-r RUN]\n"
    "                [-o text|json|csv] COMMAND ...\n"
    "\n";

static const char tail[] =
    "\n"
    "  -s DIR    directory of the daemon's sockets; else TRACERD_DIR, else\n"
    "            the private directory of the user\n"
    "  -d PATH   a run's file, or a directory of them; needs no daemon\n"
    "  -r RUN    name of the run, or its file; else the newest\n"
    "  -o FORM   text for eyes, json (an object a line) or csv\n"
    "  --store URL  clickhouse://user@host:port/database, where daemons store\n"
    "  --version\n"
    "\n"
    "exit: 0 found, 1 nothing found (a run that is not stored too), 2 usage\n"
    "or bad data, 3 cannot reach the daemon or open the file.\n"
    "Environment: TRACERD_DIR, NO_COLOR.\n";

static const char names[] =
    "names of records\n"
    "\n"
    "  forward-Class-N-STEP-IO    what went into and came out of a call: IO\n"
    "  backward-Class-N-STEP-IO   is input or output, and .POSITION behind it\n"
    "                             where that is not 0. Class-N is the n-th\n"
    "                             module of the class, STEP its count of\n"
    "                             forward calls\n"
    "  grad-PARAMETER-ITERATION   a parameter's gradient. Label final: as the\n"
    "                             optimizer finds it. Label local: what one\n"
    "                             backward call made of it in this rank; its\n"
    "                             micro-batch tells which\n"
    "  param-PARAMETER-ITERATION  a parameter\n"
    "  optim-PARAMETER.STATE-ITERATION  what the optimizer keeps of one\n"
    "  user-NAME-COUNT            your own t.record(NAME, tensor)\n"
    "\n"
    "A query may leave off the end, use * and ?, and say a module's path for\n"
    "Class-N. Labels say what the figures are not plainly:\n"
    "\n"
    "  tracectl sql \"SELECT name, microbatch, l2 FROM v_record\n"
    "                WHERE name LIKE 'grad-%' AND labels LIKE '%local%'\"\n";

static void one(const struct command *c)
{
    printf("usage: tracectl [-s DIR | -d PATH] [-r RUN] [-o FORM]\n"
           "  %s%s%s\n\n%s\n\n%s",
           c->name, *c->arguments ? " " : "", c->arguments, c->summary,
           c->details);
}

int cmd_help(struct ctl *ctl, int argc, char **argv)
{
    (void)ctl;
    if (argc > 1)
        return ctl_fail(CTL_BAD, "help takes one command");
    const struct command *named = argc == 1 ? ctl_command(argv[0]) : NULL;
    if (named) {
        one(named);
        return CTL_FOUND;
    }
    if (argc == 1 && strcmp(argv[0], "names") == 0)
        return fputs(names, stdout) < 0 ? CTL_FAILED : CTL_FOUND;
    if (argc == 1)
        return ctl_fail(CTL_BAD, "no command '%s'; see 'tracectl help'",
                        argv[0]);
    fputs(head, stdout);
    for (const struct command *c = ctl_commands; c->name; c++)
        printf("  %-10s %s\n", c->name, c->summary);
    fputs("\n  help names tells what records are called\n", stdout);
    fputs(tail, stdout);
    return CTL_FOUND;
}
