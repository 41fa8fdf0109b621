/* tracectl completion SHELL, and the words that its script asks for.
 *
 * The scripts know nothing: at each Tab they call 'completion words' with
 * the words of the line, and here what may come next is read off the usage
 * of the commands, so that it cannot fall behind them. Nothing is printed
 * where a file may stand; shells complete files themselves. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tools/out.h"
#include "tools/source.h"

static const struct {
    const char *shell, *script;
} scripts[] = {
    {"bash",
     "# eval \"$(tracectl completion bash)\"\n"
     "_tracectl() {\n"
     "    mapfile -t COMPREPLY < <(tracectl completion words -- \\\n"
     "        \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null)\n"
     "    [[ ${COMPREPLY[0]} != *- ]] || compopt -o nospace\n"
     "}\n"
     "complete -o default -F _tracectl tracectl\n"},
    {"zsh",
     "#compdef tracectl\n"
     "# eval \"$(tracectl completion zsh)\"\n"
     "_tracectl() {\n"
     "    local -a found\n"
     "    found=(${(f)\"$(tracectl completion words -- \\\n"
     "        \"${(@)words[2,CURRENT]}\" 2>/dev/null)\"})\n"
     "    if (( ! $#found )); then\n"
     "        _files\n"
     "    elif [[ $found[1] == *- ]]; then\n"
     "        compadd -S '' -- $found\n"
     "    else\n"
     "        compadd -- $found\n"
     "    fi\n"
     "}\n"
     "compdef _tracectl tracectl\n"},
    {"fish",
     "# tracectl completion fish | source\n"
     "function _tracectl\n"
     "    set -l typed (commandline -ct)\n"
     "    set -l found (tracectl completion words -- \\\n"
     "        (commandline -opc)[2..] \"$typed\" 2>/dev/null)\n"
     "    if set -q found[1]\n"
     "        printf '%s\\n' $found\n"
     "    else\n"
     "        __fish_complete_path \"$typed\"\n"
     "    end\n"
     "end\n"
     "complete -c tracectl -f -a '(_tracectl)'\n"},
};

/* What has been typed of the word that is wanted. */
struct wanted {
    struct ctl *ctl;
    const char *start;
};

static void offer(const struct wanted *w, const char *word, size_t n)
{
    size_t typed = strlen(w->start);
    if (n >= typed && memcmp(word, w->start, typed) == 0)
        printf("%.*s\n", (int)n, word);
}

/* Each of "a|b|c". */
static void offer_each(const struct wanted *w, const char *choices, size_t n)
{
    const char *end = choices + n;
    while (choices < end) {
        const char *bar = memchr(choices, '|', (size_t)(end - choices));
        size_t length = (size_t)((bar ? bar : end) - choices);
        offer(w, choices, length);
        choices += length + 1;
    }
}

static void offer_commands(const struct wanted *w)
{
    for (const struct command *c = ctl_commands; c->name; c++)
        offer(w, c->name, strlen(c->name));
}

/* The first cells of an answer's rows, with before and after round them. */
static void offer_rows(const struct wanted *w, struct query *q,
                       const char *before, const char *after)
{
    char word[512];
    const struct cell *cells;
    struct source *s = NULL;
    if (source_open(w->ctl, NULL, &s) == 0 && source_ask(s, q) == 0)
        while (source_row(s, &cells) > 0) {
            int n = snprintf(word, sizeof word, "%s%.*s%s", before,
                             (int)cells[0].s.n, cells[0].s.text, after);
            if (n > 0 && (size_t)n < sizeof word)
                offer(w, word, (size_t)n);
        }
    source_close(s);
}

static void offer_runs(const struct wanted *w)
{
    struct query q;
    query_init(&q, QUERY_RUNS);
    offer_rows(w, &q, "", "");
}

/* A record's name: its pass, then the object. */
static void offer_names(const struct wanted *w)
{
    static const char *const passes[] = {"forward-", "backward-", "grad-",
                                         "local-",   "param-",    "optim-",
                                         "user-"};
    struct query q;
    for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
        if (strncmp(w->start, passes[i], strlen(passes[i])) != 0) {
            offer(w, passes[i], strlen(passes[i]));
            continue;
        }
        query_init(&q, QUERY_SQL);
        q.sql = slice_of(i < 2 ? "SELECT object FROM v_object ORDER BY id"
                               : "SELECT DISTINCT path FROM v_record "
                                 "WHERE step = 1 AND path <> '' ORDER BY 1");
        offer_rows(w, &q, passes[i], "-");
    }
}

/* ---- the usage of a command ---- */

/* The next word of a usage, without brackets; 0 at its end. */
static size_t usage_word(const char **at)
{
    *at += strspn(*at, " \n[]");
    return strcspn(*at, " \n[]");
}

/* What stands behind an option in the usage; empty: nothing, or no such. */
static struct slice value_of(const char *usage, const char *option)
{
    size_t n;
    for (const char *at = usage; (n = usage_word(&at)) != 0; at += n)
        if (n == strlen(option) && memcmp(at, option, n) == 0) {
            at += n;
            n = *at == ' ' ? usage_word(&at) : 0;
            return (struct slice){at, *at == '-' ? 0 : n};
        }
    return (struct slice){"", 0};
}

static bool begins(struct slice s, const char *with)
{
    return s.n >= strlen(with) && memcmp(s.text, with, strlen(with)) == 0;
}

/* What the usage has in the place of a word: runs, choices or names. */
static void offer_like(const struct wanted *w, struct slice s)
{
    if (begins(s, "RUN"))
        offer_runs(w);
    else if (begins(s, "COMMAND"))
        offer_commands(w);
    else if (begins(s, "NAME"))
        offer_names(w);
    else if (s.n && s.text[0] >= 'a' && s.text[0] <= 'z')
        offer_each(w, s.text, s.n);
}

static void offer_options(const struct wanted *w, const char *usage)
{
    size_t n;
    for (const char *at = usage; (n = usage_word(&at)) != 0; at += n)
        if (at[0] == '-')
            offer(w, at, n);
}

static const char global[] =
    "-s DIR -d PATH -r RUN -o text|json|csv --store URL --version --help";

static void set_global(struct ctl *ctl, const char *option, const char *value)
{
    const struct {
        const char *name, **to;
    } of[] = {{"-s", &ctl->dir},
              {"-d", &ctl->db},
              {"-r", &ctl->run},
              {"--store", &ctl->store}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (strcmp(option, of[i].name) == 0)
            *of[i].to = value;
}

/* Reads the words before the wanted one: global options into ctl, and the
 * command. Its usage, or that of what may stand before a command; *value is
 * what the last word wants behind it. */
static const char *read_line(struct ctl *ctl, int n, char **word,
                             struct slice *value)
{
    const char *usage = global;
    *value = (struct slice){"", 0};
    for (int i = 0; i < n; i++) {
        const struct command *c = ctl_command(word[i]);
        *value = value_of(global, word[i]);
        if (usage != global && !value->n)
            *value = value_of(usage, word[i]);
        if (value->n && i + 1 < n) {
            set_global(ctl, word[i], word[i + 1]);
            i++;
            *value = (struct slice){"", 0};
            continue;
        }
        if (usage == global && !value->n && c)
            usage = c->arguments;
    }
    return usage;
}

static int words(struct ctl *ctl, int n, char **word)
{
    struct wanted w = {ctl, n > 0 ? word[n - 1] : ""};
    struct slice value;
    const char *usage = read_line(ctl, n - 1, word, &value);
    if (value.n)
        offer_like(&w, value);
    else if (w.start[0] == '-')
        offer_options(&w, usage);
    else if (usage == global)
        offer_commands(&w);
    else {
        size_t first = usage_word(&usage);
        offer_like(&w, (struct slice){usage, first});
    }
    return CTL_FOUND;
}

int cmd_completion(struct ctl *ctl, int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[0], "words") == 0 &&
        strcmp(argv[1], "--") == 0)
        return words(ctl, argc - 2, argv + 2);
    for (size_t i = 0; argc == 1 && i < sizeof scripts / sizeof *scripts; i++)
        if (strcmp(argv[0], scripts[i].shell) == 0)
            return fputs(scripts[i].script, stdout) < 0 ? CTL_FAILED
                                                        : CTL_FOUND;
    return ctl_fail(CTL_BAD, "completion takes a shell: bash, zsh or fish");
}
