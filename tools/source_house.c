/* Answering from a ClickHouse: what a question needs is fetched into a file,
 * which then is asked, so that an answer is the same from either store. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/missing.h"
#include "tools/house_fetch.h"
#include "tools/source.h"

enum have { HAVE_NOTHING, HAVE_HEAD, HAVE_SOME, HAVE_ALL };

struct house_state {
    struct fetch *fetch;
    char run[TRD_MAX_RUN + 1];
    int all;                      /* the heads of all runs are there */
    size_t heads;
    enum have have;               /* of the run */
    const struct source_ops *ops; /* of the files */
    void *files;
};

static void let_go(struct house_state *h)
{
    if (h->files)
        h->ops->close(h->files);
    h->files = NULL;
}

static int open_files(struct house_state *h)
{
    if (h->files)
        return 0;
    return source_db_open(fetch_dir(h->fetch), h->run, &h->ops, &h->files);
}

static int need_heads(struct house_state *h, int all)
{
    int code;
    if (h->all || (!all && h->have >= HAVE_HEAD))
        return 0;
    let_go(h);
    code = fetch_heads(h->fetch, all ? NULL : h->run, &h->heads);
    h->all = code == 0 && all;
    if (code == 0 && !all && h->heads) {
        h->have = HAVE_HEAD;
        snprintf(h->run, sizeof h->run, "%s", fetch_last(h->fetch));
    }
    return code;
}

/* As many records as the question needs; what is the same each time, and
 * nothing for the question that only wants the run's name. */
static int need_records(struct house_state *h, const struct query *q)
{
    int some = q->verb == QUERY_RECORDS;
    int code;
    if (h->have == HAVE_ALL || (some && h->have == HAVE_SOME) ||
        (q->verb == QUERY_SQL && q->sql.n == 8 &&
         memcmp(q->sql.text, "SELECT 1", 8) == 0))
        return 0;
    let_go(h);
    code = fetch_records(h->fetch, h->run, q, some ? FETCH_SOME : FETCH_ALL);
    if (code == 0)
        h->have = some ? HAVE_SOME : HAVE_ALL;
    return code;
}

static int is_nothing(const void *page, size_t n)
{
    struct page p;
    return page_get(page, n, &p) == 0 && p.status == PAGE_NOTHING;
}

static int house_answer(void *state, const struct query *q, void *page,
                        size_t cap, size_t *n)
{
    struct house_state *h = state;
    int all = q->verb == QUERY_RUNS || q->verb == QUERY_STATUS;
    int code = need_heads(h, all);
    if (code == 0 && !h->heads && !all) {
        struct page_writer p;
        char text[MISSING_BYTES];
        missing_run(h->run, fetch_shown(h->fetch), text);
        page_open(&p, page, cap, PAGE_NOTHING, slice_of(text));
        *n = page_close(&p, slice_of(""));
        return 0;
    }
    if (code == 0 && !all)
        code = need_records(h, q);
    if (code == 0)
        code = open_files(h);
    if (code == 0)
        code = h->ops->ask(h->files, q, page, cap, n);
    if (code || all || h->have != HAVE_SOME || !is_nothing(page, *n))
        return code;
    let_go(h);
    code = fetch_records(h->fetch, h->run, q, FETCH_NEAR);
    if (code == 0)
        code = open_files(h);
    return code ? code : h->ops->ask(h->files, q, page, cap, n);
}

static void house_end(void *state)
{
    struct house_state *h = state;
    let_go(h);
    fetch_close(h->fetch);
    free(h);
}

int source_house_open(const char *url, const char *run,
                      const struct source_ops **ops, void **state)
{
    static const struct source_ops house_ops = {house_answer, house_end};
    struct house_state *h = calloc(1, sizeof *h);
    int code;
    if (!h)
        return ctl_fail(CTL_FAILED, "out of memory");
    code = fetch_open(url, &h->fetch);
    if (code) {
        free(h);
        return code;
    }
    snprintf(h->run, sizeof h->run, "%s", run);
    *ops = &house_ops;
    *state = h;
    return 0;
}

int source_house_path(const char *url, const char *run, char **out)
{
    struct fetch *f = NULL;
    size_t n = 0, length;
    int code = fetch_open(url, &f);
    *out = NULL;
    if (code == 0)
        code = fetch_heads(f, run, &n);
    if (code == 0 && !n) {
        char text[MISSING_BYTES];
        missing_run(run, fetch_shown(f), text);
        code = ctl_fail(CTL_FAILED, "%s", text);
    }
    if (code == 0) {
        char name[TRD_MAX_RUN + 1];
        snprintf(name, sizeof name, "%s", fetch_last(f));
        code = fetch_records(f, name, NULL, FETCH_ALL);
        length = strlen(fetch_dir(f)) + strlen(name) + 8;
        if (code == 0 && (*out = malloc(length)))
            snprintf(*out, length, "%s/%s.db", fetch_dir(f), name);
    }
    fetch_close(f);
    return code;
}
