/* The first reading: the verdict, and what a page has room for. */
#include "tools/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TELL_EVERY = 65536 };

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- what a record says ---- */

double report_value(const struct report *r, const struct compare_pair *p,
                    const struct scan_row *a)
{
    if (!r->b)
        return report_nonfinite(a) ? INFINITY
               : a->side.has & TRD_HAS_L2 ? diff_rms(&a->side)
                                          : NAN;
    if (p->diff.kind == DIFF_BLIND)
        return NAN;
    return p->diff.error >= DIFF_ALL ? INFINITY : p->diff.error;
}

uint64_t report_nonfinite(const struct scan_row *row)
{
    const struct diff_side *s = &row->side;
    if (s->has & TRD_IS_GIVEN)
        return !(isfinite(s->mean) && isfinite(s->max) && isfinite(s->min));
    return s->has & TRD_HAS_COUNTS ? s->nan + s->pinf + s->ninf : 0;
}

bool report_given(const struct compare_pair *p)
{
    return p->io != TRD_INPUT;
}

size_t report_place_of(const struct report *r, const struct compare_pair *p)
{
    size_t object = p->object < r->objects ? p->object : r->objects;
    return object * REPORT_PASSES + (size_t)p->pass;
}

const struct compare_pair *report_must(const struct report *r, size_t i)
{
    const struct compare_result *c = &r->compare;
    if (!r->b)
        return i < r->check.n && i < REPORT_FINDINGS
                   ? &r->check.finding[i].at
                   : NULL;
    if (c->culprit.there && i-- == 0)
        return &c->culprit;
    if (c->first.there && i-- == 0)
        return &c->first;
    return i < c->ranked_n ? &c->ranked[i] : NULL;
}

/* ---- walking ---- */

struct walk {
    struct report *r;
    report_take *take;
    int code;
};

/* compare_runs() cannot be stopped: the rest is not looked at. */
static void take_pair(void *state, const struct compare_pair *p,
                      const struct scan_row *a, const struct scan_row *b)
{
    struct walk *w = state;
    if (!w->code)
        w->code = w->take(w->r, p, a, b);
}

static void tell(void *state, uint64_t done, uint64_t of)
{
    struct walk *w = state;
    if (w->r->progress)
        w->r->progress(w->r->state, done, of);
}

static int walk_pairs(struct walk *w, struct compare_result *result)
{
    struct compare_options o = *w->r->o;
    int code = scan_goto(w->r->a, INT64_MIN, INT64_MIN);
    o.pair = take_pair;
    o.progress = tell;
    o.state = w;
    if (!code)
        code = scan_goto(w->r->b, INT64_MIN, INT64_MIN);
    if (!code)
        code = compare_runs(w->r->a, w->r->b, &o, w->r->noise, NULL, result);
    return code ? code : w->code;
}

static int walk_records(struct walk *w)
{
    struct scan *s = w->r->a;
    const struct scan_row *row;
    uint64_t done = 0;
    int got = 0, code = scan_goto(s, INT64_MIN, INT64_MIN);
    while (!code && (got = scan_next(s, &row)) > 0) {
        struct compare_pair p = {
            .there = true, .pass = row->pass, .io = row->io,
            .step = row->step, .iteration = row->iteration,
            .microbatch = row->microbatch, .position = row->position,
            .seq = row->seq, .path = row->path, .rank = row->rank,
            .n = row->side.n, .object = scan_index(s, row->object),
            .before = -1};
        code = w->take(w->r, &p, row, NULL);
        if (++done % TELL_EVERY == 0)
            tell(w, done, scan_records(s));
    }
    return code ? code : got < 0 ? -got : 0;
}

int report_walk(struct report *r, report_take *take,
                struct compare_result *result)
{
    struct walk w = {r, take, 0};
    return r->b ? walk_pairs(&w, result) : walk_records(&w);
}

/* ---- the survey ---- */

static int64_t divisor(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* The step of a regular choice of iterations is that of the columns. */
static void see_time(struct report *r, const struct compare_pair *p)
{
    if (r->records == 0) {
        r->iteration_lo = r->iteration_hi = p->iteration;
        r->seq_lo = r->seq_hi = p->seq;
    }
    if (p->iteration < r->iteration_lo) {
        r->iteration_gcd =
            divisor(r->iteration_lo - p->iteration, r->iteration_gcd);
        r->iteration_lo = p->iteration;
    }
    r->iteration_gcd =
        divisor(p->iteration - r->iteration_lo, r->iteration_gcd);
    if (p->iteration > r->iteration_hi)
        r->iteration_hi = p->iteration;
    if (p->seq < r->seq_lo)
        r->seq_lo = p->seq;
    if (p->seq > r->seq_hi)
        r->seq_hi = p->seq;
}

static bool is_off(const struct report *r, const struct compare_pair *p)
{
    return r->b && p->diff.kind != DIFF_EQUAL && p->diff.kind != DIFF_BLIND;
}

static int see(struct report *r, const struct compare_pair *p,
               const struct scan_row *a, const struct scan_row *b)
{
    struct report_place *t = &r->place[report_place_of(r, p)];
    double value = report_value(r, p, a);
    bool odd = report_nonfinite(a) || (b && report_nonfinite(b));
    bool given = report_given(p);
    see_time(r, p);
    if (!t->records++ || p->seq < t->seq)
        t->seq = p->seq;
    t->off += is_off(r, p);
    t->nonfinite += odd;
    if (given && !isnan(value) && (isnan(t->worst) || value > t->worst)) {
        t->worst = value;
        t->at = (struct report_at){p->step, p->seq, p->rank};
    }
    if (p->rank < REPORT_RANKS) {
        struct report_rank *k = &r->rank[p->rank];
        if (p->rank >= r->ranks)
            r->ranks = p->rank + 1;
        if (!k->records++)
            k->worst = NAN;
        k->off += is_off(r, p);
        k->nonfinite += odd;
        if (given && !isnan(value) && (isnan(k->worst) || value > k->worst))
            k->worst = value;
    }
    r->records++;
    return 0;
}

static int open_places(struct report *r)
{
    size_t n;
    scan_objects(r->a, &r->objects);
    n = (r->objects + 1) * REPORT_PASSES;
    r->place = calloc(n, sizeof *r->place);
    r->order = calloc(n, sizeof *r->order);
    r->shown = calloc(r->objects + 1, sizeof *r->shown);
    if (!r->place || !r->order || !r->shown)
        return no_memory();
    for (size_t i = 0; i < n; i++) {
        struct report_place *p = &r->place[i];
        p->worst = NAN;
        p->row = p->nan_row = p->history = -1;
    }
    return 0;
}

/* ---- the plan ---- */

/* What weighs: an error; of one run only that there is no number. */
static double weight(const struct report *r, const struct report_place *p)
{
    if (isnan(p->worst))
        return -1;
    return r->b || isinf(p->worst) ? p->worst : 0;
}

static int by_weight(const void *x, const void *y, void *of)
{
    const struct report *r = of;
    const struct report_place *a = &r->place[*(const size_t *)x];
    const struct report_place *b = &r->place[*(const size_t *)y];
    double u = weight(r, a), v = weight(r, b);
    if (a->must != b->must)
        return a->must ? -1 : 1;
    if (u != v)
        return u > v ? -1 : 1;
    return a->seq != b->seq ? (a->seq < b->seq ? -1 : 1) : 0;
}

static void sort_places(struct report *r)
{
    const struct compare_pair *p;
    for (size_t i = 0; (p = report_must(r, i)); i++)
        r->place[report_place_of(r, p)].must = true;
    for (size_t i = 0; i < (r->objects + 1) * REPORT_PASSES; i++)
        if (r->place[i].records)
            r->order[r->places++] = i;
    qsort_r(r->order, r->places, sizeof *r->order, by_weight, r);
}

/* The objects of the tree get the order of the model back. */
static void choose_objects(struct report *r)
{
    int32_t n = 0;
    for (size_t i = 0; i < r->places; i++) {
        int32_t *shown = &r->shown[r->order[i] / REPORT_PASSES];
        if (*shown)
            continue;
        r->objects_seen++;
        if (r->objects_seen <= REPORT_OBJECTS)
            *shown = 1;
        else
            *shown = -1;
    }
    for (size_t i = 0; i <= r->objects; i++)
        r->shown[i] = r->shown[i] > 0 ? n++ : -1;
    r->objects_shown = (size_t)n;
}

static void choose_columns(struct report *r)
{
    int64_t step = r->iteration_gcd > 0 ? r->iteration_gcd : 1;
    int64_t n = (r->iteration_hi - r->iteration_lo) / step + 1;
    int64_t each = (n + REPORT_COLUMNS - 1) / REPORT_COLUMNS;
    r->columns.first = r->iteration_lo;
    r->columns.width = each * step;
    r->columns.n = r->records ? (size_t)((n + each - 1) / each) : 0;
}

static void choose_rows(struct report *r)
{
    size_t most = r->columns.n ? REPORT_CELLS / r->columns.n : 0;
    for (size_t i = 0; i < r->places; i++) {
        struct report_place *p = &r->place[r->order[i]];
        bool shown = r->shown[r->order[i] / REPORT_PASSES] >= 0;
        r->rows_of += !isnan(p->worst);
        r->nan_rows_of += p->nonfinite > 0;
        if (shown && !isnan(p->worst) && r->rows < most)
            p->row = (int32_t)r->rows++;
        if (shown && p->nonfinite && r->nan_rows < most / 4)
            p->nan_row = (int32_t)r->nan_rows++;
    }
    r->rank_rows = most / 4 < r->ranks ? most / 4 : r->ranks;
}

static void choose_details(struct report *r)
{
    int64_t n = r->iteration_hi - r->iteration_lo + 1;
    size_t used = 0;
    r->bin = (n + REPORT_EACH - 1) / REPORT_EACH;
    r->each = (size_t)((n + r->bin - 1) / r->bin);
    for (size_t i = 0; i < r->places; i++) {
        struct report_place *p = &r->place[r->order[i]];
        size_t most = p->records < REPORT_HISTORIES ? (size_t)p->records
                                                    : REPORT_HISTORIES;
        r->histories_of += most;
        if (r->shown[r->order[i] / REPORT_PASSES] < 0)
            continue;
        p->sampled = i < REPORT_SAMPLED;
        if (used + most * (r->each + REPORT_HEAD) <= REPORT_POINTS) {
            p->quota = (uint32_t)most;
            used += most * (r->each + REPORT_HEAD);
        }
    }
}

static void choose_focus(struct report *r)
{
    const struct compare_pair *p = report_must(r, 0);
    r->focus = r->iteration_lo;
    while (r->focus_rank < r->ranks && !r->rank[r->focus_rank].records)
        r->focus_rank++;
    if (p) {
        r->focus = p->iteration;
        r->focus_rank = p->rank;
    }
}

int report_survey(struct report *r)
{
    int code = open_places(r);
    if (!code && !r->b)
        code = check_run(r->a, &r->check);
    if (!code)
        code = report_walk(r, see, &r->compare);
    if (code)
        return code;
    sort_places(r);
    choose_objects(r);
    choose_columns(r);
    choose_rows(r);
    choose_details(r);
    choose_focus(r);
    return 0;
}

void report_free(struct report *r)
{
    compare_free(&r->compare);
    check_free(&r->check);
    free(r->place);
    free(r->order);
    free(r->shown);
    free(r->map);
    free(r->nan);
    free(r->rank_map);
    free(r->whole);
    free(r->close);
    free(r->history);
    free(r->moment);
    free(r->sampled);
}
