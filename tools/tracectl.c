/* tracectl: questions to tracerd and to its files.
 *
 * This file knows the command table, the global options and the exit codes;
 * a verb has a file of its own. One thread; the locale is never set, so that
 * every number is printed and read in the C locale. */
#include "tools/tracectl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tracerd/base.h"

const struct command ctl_commands[] = {
    {"runs", "", "list the stored runs",
     "Name, start, ranks, iterations, records, losses and state of each run,\n"
     "the one that started last at the end. Text marks the default by '*':\n"
     "the run that was stored last. json and csv say besides how long a\n"
     "record waits where a journal is full, and the limit of a spool.\n"
     "\n"
     "  tracectl runs\n"
     "  tracectl -d ~/.local/state/tracerd -o csv runs\n",
     cmd_runs},
    {"query",
     "NAME [--rank N] [--attempt N] [--iteration N] [--microbatch N]\n"
     "      [--as object|module] [--limit N]",
     "print the records of an object, a pass and a step",
     "NAME is a record's name, pass-Class-n-step-io[.position], with its end\n"
     "left off, * and ? anywhere, or a module's path instead of Class-n;\n"
     "grad-PARAMETER-ITERATION for gradients. It is read first as an object,\n"
     "then as a module or parameter; --as forces one. --limit 0 is no\n"
     "limit. Figures over finite elements stand apart where an element is\n"
     "not finite.\n"
     "\n"
     "  tracectl query forward-CustomLinear-1-2\n"
     "  tracectl -o json query 'backward-*-1-3-input' --rank 0\n"
     "  tracectl -d run.db query grad-layer1.weight --iteration 2\n",
     cmd_query},
    {"status", "", "the daemon, its clients, losses by cause",
     "A line for each client: records received, committed, durable, the lag\n"
     "(received but not committed), the lost, and what its journal keeps\n"
     "until it is durable. Ends with 1 while a client is there that lost a\n"
     "record, for ten minutes after any loss, and while something is wrong:\n"
     "each 'problem' is a sentence that says what to do.\n"
     "With -d it tells what the files of the runs say.\n"
     "\n"
     "  tracectl status\n"
     "  tracectl -d run.db status\n",
     cmd_status},
    {"sql", "'SELECT ...'", "read-only SQL on a stored run",
     "One statement over the views v_record, v_sample, v_histogram,\n"
     "v_object, v_run and v_loss. Nothing can be written. NaN is NULL there;\n"
     "absmax, absmin and finite_* are over finite elements. Records of a step\n"
     "are found soonest: of samples, say of_step. Ends with 1 when there is\n"
     "no row.\n"
     "\n"
     "  tracectl sql \"SELECT sample, value FROM v_sample WHERE of_step = 2\n"
     "                AND of_object = 'Linear-1'\"\n"
     "  tracectl sql 'SELECT name, std FROM v_record ORDER BY std DESC LIMIT "
     "5'\n"
     "  tracectl -d run.db -o csv sql 'SELECT * FROM v_loss'\n",
     cmd_sql},
    {"compare",
     "RUN_A RUN_B [--map FILE] [--rules FILE] [--noise RUN_C]\n"
     "      [--skip N] [--attempt N] [--attempt-b N] [--all] [--progress]",
     "where two runs part, and which module is to blame",
     "Says same, rounding, unsure or differs, the first record that is off\n"
     "and the culprit: the first module in the order of A that got what\n"
     "agrees and gave what does not. Errors are in units of rounding of the\n"
     "coarser dtype. Ends with 0 for same and rounding, else with 1.\n"
     "Ranks of other layouts (dp, tp, pp, FSDP) are paired as copies and as\n"
     "shards that are merged; what cannot be paired is counted, not blamed.\n"
     "--map: lines 'NAME_IN_A NAME_IN_B', of module paths or Class-n, with *,\n"
     "before each, if need be, pp=1 or rank=2: on those ranks. --progress: on\n"
     "stderr how far it is and what is off first, as on a terminal.\n"
     "--rules: lines 'PATTERN ignore|rtol=R|atol=A|noise=N'. --noise: a run\n"
     "that repeats A; what it shows is no guilt. --skip leaves the first N\n"
     "iterations out.\n"
     "\n"
     "  tracectl compare before after\n"
     "  tracectl -o json compare a.db b.db --skip 10\n",
     cmd_compare},
    {"check", "[RUN] [--attempt N]", "what is wrong inside one run",
     "Where NaN and infinities were born, numbers near the end of a dtype or\n"
     "lost below it, tensors that are always zero, norms that jump or grow\n"
     "without end, recomputed outputs with other bits, replicas that\n"
     "disagree, modules that give other bits for the same inputs. Each\n"
     "finding names its first record. Ends with 1 when there is one that is\n"
     "no note.\n"
     "\n"
     "  tracectl check\n"
     "  tracectl -o json check run.db\n",
     cmd_check},
    {"report",
     "RUN [RUN_B] --out FILE [--map FILE] [--rules FILE]\n"
     "       [--noise RUN_C] [--skip N] [--attempt N] [--attempt-b N]",
     "a page with pictures: where two runs part, or what is wrong in one",
     "One file for a browser, which asks nothing of any network: the verdict\n"
     "of compare, or of check for one run, the tree of modules, maps of\n"
     "modules by iterations, errors along the order of execution, histories\n"
     "and samples. Of millions of records the worst are there, and the page\n"
     "says how many of how many. The options are those of compare. FILE is\n"
     "replaced when all is written; - is stdout. Ends with 0 when the page\n"
     "is written, whatever it says.\n"
     "\n"
     "  tracectl report before after --out page.html\n"
     "  tracectl report run.db --out - > page.html\n",
     cmd_report},
    {"export",
     "[RUN] [--format seed|csv|json|parquet] [--out FILE] [--rank N]\n"
     "       [--attempt N]",
     "write a run as text or Parquet",
     "csv and json have the fields of query, parquet the columns of Python's\n"
     "tracerd.load(), with names and samples; a python3 writes it that can\n"
     "import tracerd and pyarrow (TRACERD_PYTHON, else python3). seed writes the log that the\n"
     "original script prints for the same training: its names, its counting,\n"
     "five decimals. Ranks follow one another: name one by --rank to import\n"
     "it again. FILE is replaced when all is written, and left alone when\n"
     "nothing is found.\n"
     "\n"
     "  tracectl export --format seed --rank 0 --out rank0.log\n"
     "  tracectl export run.db --format csv > run.csv\n"
     "  tracectl export night --format parquet --out night.parquet\n",
     cmd_export},
    {"import",
     "FILE... [--run NAME] [--rank N] [--attempt N] [--without-spool]\n"
     "       [--date YYYY-MM-DD] [--samples K] [--format text|journal|msprobe]",
     "store text logs of the original script, journals, dumps of msprobe",
     "Good lines are kept, bad ones are named as FILE:LINE:COLUMN and end the\n"
     "command with 2. Importing a file again stores nothing twice.\n"
     "--date is the day of the first line; without it the file's time of\n"
     "change is the time of the last. --samples is what the log was made\n"
     "with, 16. With -d DIRECTORY no running daemon is needed; it is made if\n"
     "the directory above it is there. A file without a good line makes no\n"
     "run. A log is of one rank: import each by itself, with --rank. Of a\n"
     "folder all dumps of msprobe are taken (step0/rank0/dump.json, ...).\n"
     "\n"
     "  tracectl import rank0.log --run before --rank 0\n"
     "  tracectl -d runs import *.journal\n"
     "  tracectl import dump_path --run theirs\n",
     cmd_import},
    {"verify", "[RUN|FILE.db|FILE.journal|DIRECTORY] [--repair]",
     "check stored runs and journals",
     "Structure, references, that each sequence number is stored once or\n"
     "lost, and that every record decodes; of a journal its head, words and\n"
     "records. A line for each finding, or one that says good. Without a\n"
     "word all runs of the daemon or of -d. Ends with 1 when something is\n"
     "damaged, 2 for a file of something else, 3 when it cannot be read.\n"
     "--repair copies what is left of one run into a new file that takes\n"
     "its place; what is missing stands in it as lost, and the damaged file\n"
     "is kept as FILE.db.damaged-TIME. No tracerd may serve it meanwhile.\n"
     "\n"
     "  tracectl verify\n"
     "  tracectl -o json verify run.db\n"
     "  tracectl verify --repair runs/run.db\n",
     cmd_verify},
    {"merge", "RUN RUN... --out FILE.db [--other-jobs]",
     "make one run of those of several nodes",
     "The runs are of one job, and no two have a rank of the same attempt.\n"
     "Clocks may be apart and dictionaries differ. FILE.db is verified before\n"
     "it is there, and is the same in whatever order the runs are named; they\n"
     "are only read. --other-jobs: they may be of several jobs.\n"
     "\n"
     "  tracectl merge node0.db node1.db --out night.db\n",
     cmd_merge},
    {"prune",
     "[RUN] [--keep-every N] [--keep-last N] [--keep-around N]\n"
     "      [--keep-days N] [--keep-mb N] [--dry-run]",
     "give the room of old records back",
     "Of one run those iterations stay that an option keeps: 1, 1+N, ...; the\n"
     "last N; N before and behind one with a value that is not finite or a\n"
     "finding of check. Without a run, whole runs go: those nobody wrote to\n"
     "for N days, and the longest unused until all take N MB. --dry-run says\n"
     "what would go and about how many bytes. A run that somebody has open,\n"
     "or whose process still runs, is left. What is gone is in v_pruned, and\n"
     "verify does not miss it.\n"
     "\n"
     "  tracectl prune night --keep-every 100 --keep-around 20\n"
     "  tracectl -d runs prune --keep-days 30 --keep-mb 50000 --dry-run\n",
     cmd_prune},
    {"doctor", "", "what is wrong with an installation, and how to mend it",
     "Looks at the directory of the sockets and journals, the sockets, the\n"
     "daemon and its version, the directory of the runs, free room, limits,\n"
     "the Python module and the GPU's half; changes nothing. Each 'bad' has\n"
     "the command that mends it. Ends with 1 when there is one.\n"
     "\n"
     "  tracectl doctor\n"
     "  tracectl -s /scratch/tracerd -o json doctor\n",
     cmd_doctor},
    {"completion", "bash|zsh|fish", "a shell's completion of this program",
     "Prints a script for the shell to read: commands, options, runs and the\n"
     "names of records are completed then.\n"
     "\n"
     "  eval \"$(tracectl completion bash)\"     # in ~/.bashrc; zsh likewise\n"
     "  tracectl completion fish | source       # in config.fish\n",
     cmd_completion},
    {"help", "[COMMAND]", "this text, or a command's",
     "  tracectl help query\n", cmd_help},
    {NULL, NULL, NULL, NULL, NULL},
};

int ctl_fail(int code, const char *format, ...)
{
    va_list args;
    fflush(stdout);
    fputs("tracectl: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    return code;
}

const char *ctl_errno(int error)
{
    switch (error) {
    case ENOENT:
        return "no such file";
    case ENOTDIR:
        return "not a directory";
    case EISDIR:
        return "it is a directory";
    case EACCES:
        return "permission denied";
    case ENOSPC:
        return "no space left on device";
    default:
        return strerror(error);
    }
}

/* A decimal number that is not negative. */
static int read_number(const char *text, int64_t *out)
{
    int64_t v = 0;
    if (!*text)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || v > (INT64_MAX - 9) / 10)
            return -1;
        v = v * 10 + (*text - '0');
    }
    *out = v;
    return 0;
}

static int set_option(const struct option *o, const char *value)
{
    if (o->kind == OPTION_TEXT) {
        *(const char **)o->to = value;
        return 0;
    }
    if (read_number(value, o->to))
        return ctl_fail(CTL_BAD, "%s needs a number, not '%s'", o->name,
                        value);
    return 0;
}

/* Does the word name the option, and is a value in the same word? */
static int names_option(const struct option *o, const char *word,
                        const char **value)
{
    size_t n = strlen(o->name);
    if (strncmp(word, o->name, n) != 0)
        return 0;
    *value = NULL;
    if (word[n] == '\0')
        return 1;
    if (o->name[1] != '-') { /* -ojson */
        *value = word + n;
        return 1;
    }
    if (word[n] != '=')
        return 0;
    *value = word + n + 1;
    return 1;
}

/* Reads the option at argv[*at]; *at then is at its last word. */
static int take_option(const struct option *options, int argc, char **argv,
                       int *at, int *taken)
{
    const char *value;
    *taken = 0;
    for (const struct option *o = options; o->kind != OPTION_END; o++) {
        if (!names_option(o, argv[*at], &value))
            continue;
        *taken = 1;
        if (o->kind == OPTION_FLAG && !value)
            return *(int *)o->to = 1, 0;
        if (o->kind == OPTION_FLAG)
            return ctl_fail(CTL_BAD, "%s has no value", o->name);
        if (!value && *at + 1 >= argc)
            return ctl_fail(CTL_BAD, "%s needs a value", o->name);
        if (!value)
            value = argv[++*at];
        return set_option(o, value);
    }
    return 0;
}

/* With first_word set the reading stops before the first word. */
static int read_options(struct ctl *ctl, const struct option *options,
                        int *argc, char **argv, int first_word)
{
    const struct option global[] = {
        {OPTION_TEXT, "-s", &ctl->dir},      {OPTION_TEXT, "-d", &ctl->db},
        {OPTION_TEXT, "-r", &ctl->run},      {OPTION_TEXT, "-o", &ctl->format},
        {OPTION_TEXT, "--store", &ctl->store}, {OPTION_END, NULL, NULL}};
    int words = 0, only_words = 0, i;
    for (i = 0; i < *argc; i++) {
        int taken, bad;
        if (only_words || argv[i][0] != '-' || argv[i][1] == '\0') {
            if (first_word)
                break;
            argv[words++] = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--") == 0) {
            only_words = 1;
            continue;
        }
        bad = take_option(global, *argc, argv, &i, &taken);
        if (!bad && !taken)
            bad = take_option(options, *argc, argv, &i, &taken);
        if (bad)
            return bad;
        if (!taken)
            return ctl_fail(CTL_BAD, "no option '%s'; see 'tracectl help'",
                            argv[i]);
    }
    for (; i < *argc; i++)
        argv[words++] = argv[i];
    *argc = words;
    if (ctl->store && (ctl->dir || ctl->db))
        return ctl_fail(CTL_BAD, "--store asks a ClickHouse: leave -s and -d "
                                 "out");
    if (ctl->dir && ctl->db)
        return ctl_fail(CTL_BAD, "-s asks a daemon and -d reads files: give "
                                 "one of them");
    return 0;
}

int ctl_options(struct ctl *ctl, const struct option *options, int *argc,
                char **argv)
{
    return read_options(ctl, options, argc, argv, 0);
}

static int asks_help(int argc, char **argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return 1;
    return 0;
}

const struct command *ctl_command(const char *name)
{
    for (const struct command *c = ctl_commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static int run_command(struct ctl *ctl, int argc, char **argv)
{
    const struct command *c = ctl_command(argv[0]);
    if (!c)
        return ctl_fail(CTL_BAD, "no command '%s'; see 'tracectl help'",
                        argv[0]);
    if (asks_help(argc - 1, argv + 1))
        return cmd_help(ctl, 1, argv);
    int code = c->go(ctl, argc - 1, argv + 1);
    if (fflush(stdout) || ferror(stdout))
        return ctl_fail(CTL_FAILED, "cannot write: %s", ctl_errno(errno));
    return code;
}

int main(int argc, char **argv)
{
    static const struct option none[] = {{OPTION_END, NULL, NULL}};
    struct ctl ctl = {0};
    argc -= argc > 0;
    argv++;
    if (argc > 0 && strcmp(argv[0], "--version") == 0) {
        printf("tracectl %s\n", trd_version());
        return CTL_FOUND;
    }
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 ||
                     strcmp(argv[0], "-h") == 0))
        return cmd_help(&ctl, 0, argv);
    if (read_options(&ctl, none, &argc, argv, 1))
        return CTL_BAD;
    if (argc == 0)
        return ctl_fail(CTL_BAD, "no command; see 'tracectl help'");
    return run_command(&ctl, argc, argv);
}
