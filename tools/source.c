/* Choosing a source, and walking over its pages.
 *
 * One page is held at a time, so memory does not grow with the answer. */
#include "tools/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/run_file.h"

enum { PATH_BYTES = 4096 };

struct source {
    const struct source_ops *ops;
    void *state;
    struct query q;
    uint64_t left;          /* rows still wanted, UINT64_MAX: all */
    struct page page;
    uint8_t *bytes;         /* of the page */
    uint8_t cursor[1024];   /* of the page, kept while the next is made */
    struct cell cell[PAGE_MAX_COLUMNS];
    char run[TRD_MAX_RUN + 1];
    int named;              /* 1: run is final */
    int live;               /* 1: asks the daemon */
};

static int is_file_name(const char *run)
{
    size_t n = strlen(run);
    return n > 3 && strcmp(run + n - 3, ".db") == 0;
}

/* Whether the daemon has a run of that name, which ends in a digit: whether
 * it is the first behind what sorts just before it. */
static int is_stored(struct source *s, const char *run)
{
    char before[TRD_MAX_RUN + 16];
    struct cell cell[PAGE_MAX_COLUMNS];
    struct query q;
    size_t n = strlen(run), got = 0;
    snprintf(before, sizeof before, "%s\x7f", run);
    before[n - 1]--;
    query_init(&q, QUERY_RUNS);
    q.limit = 1;
    q.cursor = slice_of(before);
    return s->ops->ask(s->state, &q, s->bytes, SP_MAX_BYTES, &got) == 0 &&
           page_get(s->bytes, got, &s->page) == 0 &&
           s->page.status == PAGE_OK && page_row(&s->page, cell) &&
           cell[0].type == CELL_TEXT && cell[0].s.n == n &&
           memcmp(cell[0].s.text, run, n) == 0;
}

/* Other jobs of the same name have been traced since: says which run is
 * meant. data: where the runs are; NULL: the daemon is asked. */
static void hint_later(struct source *s, const char *data, const char *run)
{
    char name[TRD_MAX_RUN + 16], path[PATH_BYTES];
    int k = 1, more = *run != '\0';
    while (more) {
        snprintf(name, sizeof name, "%s-%d", run, ++k);
        snprintf(path, sizeof path, "%s/%s.db", data ? data : "", name);
        more = strlen(name) <= TRD_MAX_RUN &&
               (data ? access(path, F_OK) == 0 : is_stored(s, name));
    }
    if (k > 2)
        ctl_fail(0, "'%s' is the first of %d runs of this name; the last is "
                    "-r %s-%d", run, k - 1, run, k - 1);
}

int source_open(const struct ctl *ctl, const char *run, struct source **out)
{
    struct source *s = NULL;
    int code;
    run = run ? run : ctl->run ? ctl->run : "";
    s = calloc(1, sizeof *s);
    if (s)
        s->bytes = malloc(SP_MAX_BYTES);
    if (!s || !s->bytes) {
        code = ctl_fail(CTL_FAILED, "out of memory");
        goto out;
    }
    if (is_file_name(run)) {
        code = source_db_open(run, "", &s->ops, &s->state);
    } else if (strlen(run) > TRD_MAX_RUN) {
        code = ctl_fail(CTL_BAD, "the run's name is longer than %d bytes",
                        TRD_MAX_RUN);
    } else if (ctl->store) {
        code = source_house_open(ctl->store, run, &s->ops, &s->state);
    } else if (ctl->db) {
        code = source_db_open(ctl->db, run, &s->ops, &s->state);
        if (code == 0)
            hint_later(s, ctl->db, run);
    } else {
        snprintf(s->run, sizeof s->run, "%s", run);
        s->named = *run != '\0';
        s->live = 1;
        code = source_live_open(ctl->dir, &s->ops, &s->state);
        if (code == 0)
            hint_later(s, NULL, run);
    }
    if (code == 0) {
        *out = s;
        return 0;
    }
out:
    source_close(s);
    return code;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    if (s->ops && s->state)
        s->ops->close(s->state);
    free(s->bytes);
    free(s);
}

/* One page into s->page. */
static int ask_page(struct source *s, const struct query *q)
{
    size_t n = 0;
    int code = s->ops->ask(s->state, q, s->bytes, SP_MAX_BYTES, &n);
    if (code)
        return code;
    int bad = page_get(s->bytes, n, &s->page);
    if (bad == TRD_EVERSION)
        return ctl_fail(CTL_FAILED, "the daemon speaks another version");
    if (bad)
        return ctl_fail(CTL_FAILED, "the daemon's answer is damaged: %s",
                        trd_strerror(bad));
    if (s->page.status >= PAGE_BAD) {
        if (s->page.message.n)
            ctl_fail(0, "%.*s", (int)s->page.message.n,
                     s->page.message.text);
        else
            ctl_fail(0, "the run cannot be read");
        return (int)s->page.status;
    }
    if (s->page.columns == 0)
        s->page.rows = 0;
    return 0;
}

/* The name of the newest run, so that all pages are of the same one. */
static int find_name(struct source *s)
{
    struct query q;
    struct slice name;
    int code;
    if (s->named)
        return 0;
    query_init(&q, QUERY_SQL);
    q.sql = slice_of("SELECT 1");
    code = ask_page(s, &q);
    name = s->page.message; /* of a good page: the run it is about */
    if (code == 0 && name.n && name.n <= TRD_MAX_RUN) {
        memcpy(s->run, name.text, name.n);
        s->run[name.n] = '\0';
        s->named = 1;
    }
    return code;
}

/* The data directory, from the daemon's status; 0 if it does not tell. */
static int find_data(struct source *s, char *out, size_t cap)
{
    struct query q;
    struct cell cell[PAGE_MAX_COLUMNS];
    query_init(&q, QUERY_STATUS);
    if (ask_page(s, &q) || s->page.columns != 2)
        return 0;
    while (page_row(&s->page, cell))
        if (cell[0].type == CELL_TEXT && cell[1].type == CELL_TEXT &&
            cell[0].s.n == 4 && memcmp(cell[0].s.text, "data", 4) == 0 &&
            cell[1].s.n < cap) {
            memcpy(out, cell[1].s.text, cell[1].s.n);
            out[cell[1].s.n] = '\0';
            return 1;
        }
    return 0;
}

/* The file of the run that the daemon is asked about; *path "" where it does
 * not tell, or the file cannot be read here. */
static int find_file(struct source *s, char *path, size_t cap)
{
    char data[PATH_BYTES];
    int code = find_name(s);
    *path = '\0';
    if (code || !*s->run || !find_data(s, data, sizeof data))
        return code;
    snprintf(path, cap, "%s/%s.db", data, s->run);
    if (access(path, R_OK) != 0)
        *path = '\0';
    return 0;
}

int source_use_file(struct source *s)
{
    char path[PATH_BYTES + TRD_MAX_RUN + 8];
    const struct source_ops *ops;
    void *state;
    int code = s->live ? find_file(s, path, sizeof path) : 0;
    if (code || !s->live || !*path)
        return code; /* the daemon answers, or says what is missing */
    code = source_db_open(path, "", &ops, &state);
    if (code)
        return code;
    s->ops->close(s->state);
    s->ops = ops;
    s->state = state;
    s->live = 0;
    return 0;
}

int source_path(const struct ctl *ctl, const char *run, char **out)
{
    char path[PATH_BYTES + TRD_MAX_RUN + 8] = "";
    struct source *s = NULL;
    struct stat st;
    int code = 0;
    *out = NULL;
    if (is_file_name(run)) {
        *out = strdup(run);
    } else if (ctl->store) {
        code = source_house_path(ctl->store, run, out);
    } else if (ctl->db && (stat(ctl->db, &st) || !S_ISDIR(st.st_mode))) {
        return ctl_fail(CTL_BAD, "-d '%s' is no directory of runs: name the "
                                 "file of '%s' instead", ctl->db, run);
    } else if (ctl->db) {
        code = run_dir_find(ctl->db, run, out);
    } else {
        code = source_open(ctl, run, &s);
        if (code == 0 && s)
            code = find_file(s, path, sizeof path);
        *out = code == 0 && *path ? strdup(path) : NULL;
    }
    source_close(s);
    if (code == 0 && !*out)
        code = ctl_fail(CTL_FAILED, "there is no run '%s' whose file can be "
                                    "read here", run);
    return code;
}

int source_ask(struct source *s, struct query *q)
{
    if (q->verb == QUERY_RECORDS || q->verb == QUERY_SQL) {
        int code = find_name(s);
        if (code)
            return code;
        q->run = slice_of(s->run);
    }
    s->q = *q;
    s->left = q->limit ? q->limit : UINT64_MAX;
    int code = ask_page(s, &s->q);
    if (code == 0 && s->page.status == PAGE_NOTHING && s->page.message.n)
        ctl_fail(0, "%.*s", (int)s->page.message.n, s->page.message.text);
    return code;
}

int source_row(struct source *s, const struct cell **cells)
{
    while (s->left && s->page.rows == 0 && s->page.cursor.n) {
        if (s->page.cursor.n > sizeof s->cursor)
            return -ctl_fail(CTL_FAILED, "the daemon's answer is damaged");
        memcpy(s->cursor, s->page.cursor.text, s->page.cursor.n);
        s->q.cursor.text = (const char *)s->cursor;
        s->q.cursor.n = s->page.cursor.n;
        if (s->left != UINT64_MAX)
            s->q.limit = s->left;
        int code = ask_page(s, &s->q);
        if (code)
            return -code;
    }
    if (!s->left || !page_row(&s->page, s->cell))
        return 0;
    if (s->left != UINT64_MAX)
        s->left--;
    *cells = s->cell;
    return 1;
}

uint32_t source_columns(const struct source *s)
{
    return s->page.columns;
}

const struct slice *source_column_names(const struct source *s)
{
    return s->page.name;
}

const char *source_run(const struct source *s)
{
    return s->run;
}

const char *source_newest(struct source *s)
{
    return find_name(s) == 0 ? s->run : "";
}

int source_status(const struct source *s)
{
    return (int)s->page.status;
}
