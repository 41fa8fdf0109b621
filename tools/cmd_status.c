/* tracectl status: key and value of the daemon and its clients, or of the
 * files. What the daemon calls a problem makes it end with 1, and so do losses
 * of clients that are there and those of the last ten minutes; of files, those
 * of runs that somebody still writes.
 *
 * The daemon tells of a client in one value of words, "run=r rank=0 ...".
 * Text shows the clients as a table; json and csv have a row for each word,
 * stream.1.run, stream.1.rank, ... */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/journal_use.h"
#include "tools/out.h"
#include "tools/source.h"

enum {
    WORDS_MAX = 20,
    WORD_BYTES = 512,
    SHOWN = 12,
    RECENT_S = 600, /* so long a loss of a process that is gone is trouble */
    KEY_MAX = 64,
    PATH_BYTES = 4096
};

/* What the daemon knows of one client. */
struct stream {
    char text[WORD_BYTES]; /* of the values */
    unsigned n;
    struct slice name[WORDS_MAX];
    struct cell value[WORDS_MAX];
};

struct streams {
    struct stream *at;
    size_t n, room;
};

/* What is taken up while the rows go by. */
struct taken {
    char dir[PATH_BYTES], data[PATH_BYTES]; /* "": nobody told */
    struct streams runs;  /* names of those that somebody writes */
    struct streams kept;  /* of a table for eyes */
    size_t streams_n;
    int over; /* the rows are of a file's run that nobody writes */
    int lost; /* some record, once */
    int old;  /* it was not lately, and the clients lost none */
    int unhealthy;
};

/* "lost", "run.x.lost", "run.x.lost.cause": a count of lost records. */
static int is_loss(struct slice key)
{
    for (size_t i = 0; i + 4 <= key.n; i++) {
        int starts = i == 0 || key.text[i - 1] == '.';
        int ends = i + 4 == key.n || key.text[i + 4] == '.';
        if (starts && ends && memcmp(key.text + i, "lost", 4) == 0)
            return 1;
    }
    return 0;
}

/* "run.x.open" of a file: how many of the run's processes may be at work. */
static int is_open(struct slice key)
{
    static const char head[] = "run.", tail[] = ".open";
    size_t n = sizeof tail - 1;
    return key.n > n + sizeof head - 1 &&
           memcmp(key.text, head, sizeof head - 1) == 0 &&
           memcmp(key.text + key.n - n, tail, n) == 0;
}

static int is(struct slice s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.text, word, s.n) == 0;
}

/* ---- clients ---- */

static struct cell text_cell(struct slice s)
{
    struct cell c = {.type = CELL_TEXT, .s = s};
    return c;
}

static struct cell int_cell(int64_t v)
{
    struct cell c = {.type = CELL_INT, .i = v, .s = {"", 0}};
    return c;
}

/* The words that are counts; names and epochs may be digits too. */
static struct cell value_of(struct slice name, struct slice s)
{
    static const char *const counts[] = {"attempt",  "rank",      "pid",
                                         "received", "committed", "durable",
                                         "lost"};
    int64_t v = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (!is(name, counts[i]) || s.n == 0 || s.n > 18)
            continue;
        for (size_t k = 0; k < s.n; k++) {
            if (s.text[k] < '0' || s.text[k] > '9')
                return text_cell(s);
            v = v * 10 + (s.text[k] - '0');
        }
        return int_cell(v);
    }
    return text_cell(s);
}

static struct cell word(const struct stream *t, const char *name)
{
    const struct cell none = {.type = CELL_NULL, .s = {"", 0}};
    for (unsigned i = 0; i < t->n; i++)
        if (is(t->name[i], name))
            return t->value[i];
    return none;
}

static void add_word(struct stream *t, const char *name, struct cell value)
{
    if (t->n == WORDS_MAX)
        return;
    t->name[t->n] = slice_of(name);
    t->value[t->n++] = value;
}

/* What the client's journal keeps, looked up there. */
static void add_use(const char *dir, struct stream *t)
{
    struct cell journal = word(t, "journal");
    struct journal_use use;
    char name[WORD_BYTES];
    if (!*dir || journal.type != CELL_TEXT)
        return;
    snprintf(name, sizeof name, "%.*s", (int)journal.s.n, journal.s.text);
    if (journal_use_read(dir, name, &use))
        return;
    add_word(t, "kept", int_cell((int64_t)use.records));
    add_word(t, "kept_bytes", int_cell((int64_t)use.bytes));
    add_word(t, "journal_bytes", int_cell((int64_t)use.ring_bytes));
}

/* The words of a client's value; what it sent and is not stored yet is its
 * lag. */
static void read_stream(const char *dir, struct slice s, struct stream *t)
{
    char *save = NULL;
    t->n = 0;
    snprintf(t->text, sizeof t->text, "%.*s", (int)s.n, s.text);
    for (char *w = strtok_r(t->text, " ", &save); w && t->n < WORDS_MAX;
         w = strtok_r(NULL, " ", &save)) {
        char *equal = strchr(w, '=');
        if (!equal)
            continue;
        *equal = '\0';
        add_word(t, w, value_of(slice_of(w), slice_of(equal + 1)));
    }
    struct cell received = word(t, "received");
    struct cell committed = word(t, "committed");
    if (received.type == CELL_INT && committed.type == CELL_INT)
        add_word(t, "lag", int_cell(received.i > committed.i
                                        ? received.i - committed.i
                                        : 0));
    add_use(dir, t);
}

static int keep_text(struct streams *l, struct slice s)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 16;
        struct stream *more = realloc(l->at, room * sizeof *more);
        if (!more)
            return ctl_fail(CTL_FAILED, "out of memory");
        l->at = more;
        l->room = room;
    }
    snprintf(l->at[l->n].text, WORD_BYTES, "%.*s", (int)s.n, s.text);
    l->n++;
    return 0;
}

static struct cell state_of(const struct stream *t)
{
    struct cell via = word(t, "via");
    if (via.type == CELL_TEXT && is(via.s, "socket"))
        return text_cell(slice_of("connected"));
    if (via.type == CELL_TEXT && is(via.s, "journal"))
        return text_cell(slice_of("taken over"));
    return via;
}

/* "3% of 64 MiB" */
static struct cell use_of(const struct stream *t, char text[KEY_MAX])
{
    struct cell bytes = word(t, "kept_bytes"), all = word(t, "journal_bytes");
    if (bytes.type != CELL_INT || all.type != CELL_INT || all.i < 1)
        return bytes;
    snprintf(text, KEY_MAX, "%d%% of %lld MiB",
             (int)(100.0 * (double)bytes.i / (double)all.i + 0.5),
             (long long)(all.i >> 20));
    return text_cell(slice_of(text));
}

/* A line for each client, under a line without anything. */
static int print_streams(const struct taken *k)
{
    static const char *const shown[SHOWN] = {
        "run",      "attempt",   "rank",    "pid",  "state",  "lag",
        "received", "committed", "durable", "lost", "kept", "journal"};
    const struct streams *l = &k->kept;
    struct slice head[SHOWN];
    struct cell row[SHOWN];
    char use[KEY_MAX];
    struct stream t;
    struct out o;
    if (l->n == 0)
        return 0;
    if (out_open(&o, NULL, stdout))
        return CTL_FAILED;
    for (int i = 0; i < SHOWN; i++)
        head[i] = slice_of(shown[i]);
    fputc('\n', stdout);
    out_table(&o, head, SHOWN);
    for (size_t i = 0; i < l->n; i++) {
        read_stream(k->dir, slice_of(l->at[i].text), &t);
        for (int c = 0; c < SHOWN; c++)
            row[c] = is(head[c], "state")     ? state_of(&t)
                     : is(head[c], "journal") ? use_of(&t, use)
                                              : word(&t, shown[c]);
        out_row(&o, row);
    }
    return out_close(&o);
}

static int has_lost(const char *dir, struct slice s)
{
    struct stream t;
    read_stream(dir, s, &t);
    struct cell lost = word(&t, "lost");
    return lost.type == CELL_INT && lost.i > 0;
}

static void put_stream(struct out *o, const char *dir, size_t number,
                       struct slice s)
{
    struct stream t;
    char key[KEY_MAX];
    read_stream(dir, s, &t);
    for (unsigned i = 0; i < t.n; i++) {
        snprintf(key, sizeof key, "stream.%zu.%.*s", number,
                 (int)t.name[i].n, t.name[i].text);
        const struct cell row[2] = {text_cell(slice_of(key)), t.value[i]};
        out_row(o, row);
    }
}

/* ---- the rows ---- */

/* For eyes: a moment as a local time, under its name without "_ns"; what is
 * zero is left out, where that is as it should be. */
static void print_row(struct out *o, const struct cell *cells)
{
    static const char *const always[] = {"clients", "records", "lost"};
    struct cell row[2] = {cells[0], cells[1]};
    char text[OUT_TIME_MAX];
    size_t n = row[0].s.n, i = 0;
    while (i < sizeof always / sizeof *always && !is(row[0].s, always[i]))
        i++;
    if (row[1].type == CELL_INT && row[1].i == 0 &&
        i == sizeof always / sizeof *always)
        return;
    if (n > 3 && memcmp(row[0].s.text + n - 3, "_ns", 3) == 0 &&
        row[1].type == CELL_INT && row[1].i > 0) {
        row[0].s.n -= 3;
        row[1] = out_time(&row[1], text);
    }
    out_row(o, row);
}

static void keep_path(char out[PATH_BYTES], struct slice s)
{
    if (s.n < PATH_BYTES)
        snprintf(out, PATH_BYTES, "%.*s", (int)s.n, s.text);
}

/* Of a client's value the run, once. */
static int keep_run(struct streams *l, struct slice s)
{
    static const char word[] = "run=";
    const char *end = memchr(s.text, ' ', s.n);
    if (s.n < sizeof word || memcmp(s.text, word, sizeof word - 1) != 0 ||
        !end)
        return 0;
    s.text += sizeof word - 1;
    s.n = (size_t)(end - s.text);
    for (size_t i = 0; i < l->n; i++)
        if (is(s, l->at[i].text))
            return 0;
    return keep_text(l, s);
}

/* What the files of the runs take that are being written. */
static void put_sizes(struct out *o, const struct taken *k)
{
    static const struct {
        const char *tail, *key;
    } files[] = {{".db", "bytes"}, {".db-wal", "wal_bytes"}};
    char path[PATH_BYTES + WORD_BYTES + 16], key[WORD_BYTES + 32];
    struct stat st;
    for (size_t i = 0; *k->data && i < k->runs.n; i++)
        for (size_t f = 0; f < 2; f++) {
            const char *run = k->runs.at[i].text;
            snprintf(path, sizeof path, "%s/%s%s", k->data, run,
                     files[f].tail);
            if (stat(path, &st) != 0)
                continue;
            snprintf(key, sizeof key, "run.%s.%s", run, files[f].key);
            const struct cell row[2] = {text_cell(slice_of(key)),
                                        int_cell((int64_t)st.st_size)};
            out_row(o, row);
        }
}

static int take_rows(struct source *s, struct out *o, struct taken *k)
{
    const struct cell *cells;
    int got, text = o->format == &out_text;
    while ((got = source_row(s, &cells)) > 0) {
        struct slice key = cells[0].s;
        if (is(key, "stream") && cells[1].type == CELL_TEXT) {
            if (!text)
                put_stream(o, k->dir, ++k->streams_n, cells[1].s);
            else if (keep_text(&k->kept, cells[1].s))
                return CTL_FAILED;
            k->unhealthy |= has_lost("", cells[1].s);
            if (keep_run(&k->runs, cells[1].s))
                return CTL_FAILED;
            continue;
        }
        if (is(key, "dir"))
            keep_path(k->dir, cells[1].s);
        if (is(key, "data"))
            keep_path(k->data, cells[1].s);
        if (text)
            print_row(o, cells);
        else
            out_row(o, cells);
        if (is_open(key))
            k->over = cells[1].type == CELL_INT && cells[1].i == 0;
        if (cells[1].type == CELL_INT && cells[1].i > 0)
            k->lost |= is_loss(key) && !k->over;
        if (is(key, "lost_ago_s")) /* no older daemon says so */
            k->old = cells[1].type == CELL_INT && cells[1].i > RECENT_S;
        k->unhealthy |= is(key, "problem");
    }
    k->unhealthy |= k->lost && !k->old;
    return got < 0 ? -got : CTL_FOUND;
}

int cmd_status(struct ctl *ctl, int argc, char **argv)
{
    static const struct option none[] = {{OPTION_END, NULL, NULL}};
    static const struct slice names[] = {{"key", 3}, {"value", 5}};
    static struct taken k;
    struct source *s = NULL;
    struct query q;
    struct out o;
    if (ctl_options(ctl, none, &argc, argv) ||
        out_open(&o, ctl->format, stdout))
        return CTL_BAD;
    if (argc)
        return ctl_fail(CTL_BAD, "status takes no words");
    query_init(&q, QUERY_STATUS);
    int code = source_open(ctl, NULL, &s);
    if (code == 0)
        code = source_ask(s, &q);
    if (code == 0 && source_columns(s) >= 2) {
        out_table(&o, names, 2);
        code = take_rows(s, &o, &k);
        put_sizes(&o, &k);
        if (out_close(&o) || print_streams(&k))
            code = CTL_FAILED;
    }
    free(k.kept.at);
    free(k.runs.at);
    source_close(s);
    if (code == CTL_FOUND && (k.unhealthy || o.n == 0))
        return CTL_NOTHING;
    return code;
}
