/* The second reading: maps, curves, histories and samples. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/figures.h"
#include "tools/report.h"

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- what stays ---- */

static bool is_same(const struct compare_pair *x, const struct compare_pair *y)
{
    return x->seq == y->seq && x->rank == y->rank && x->step == y->step &&
           x->object == y->object && x->pass == y->pass;
}

/* Is it one of the records that stay? */
static bool is_must(const struct report *r, const struct compare_pair *p)
{
    const struct compare_pair *m;
    if (!r->place[report_place_of(r, p)].must)
        return false;
    for (size_t i = 0; (m = report_must(r, i)); i++)
        if (is_same(m, p))
            return true;
    return false;
}

/* ---- maps ---- */

static float *open_map(size_t cells)
{
    float *m = malloc((cells ? cells : 1) * sizeof *m);
    if (!m)
        return NULL;
    for (size_t i = 0; i < cells; i++)
        m[i] = NAN;
    return m;
}

static void put_cell(float *cell, double value)
{
    if (!isnan(value) && (isnan(*cell) || value > (double)*cell))
        *cell = (float)value;
}

static void fill_maps(struct report *r, const struct compare_pair *p,
                      const struct scan_row *a, const struct scan_row *b,
                      double value)
{
    const struct report_place *t = &r->place[report_place_of(r, p)];
    size_t n = r->columns.n;
    int64_t at = (p->iteration - r->columns.first) / r->columns.width;
    size_t column = (size_t)at;
    if (p->iteration < r->columns.first || column >= n)
        return;
    if (report_given(p) && t->row >= 0)
        put_cell(&r->map[(size_t)t->row * n + column], value);
    if (report_given(p) && p->rank < r->rank_rows)
        put_cell(&r->rank_map[(size_t)p->rank * n + column], value);
    if (t->nan_row >= 0) {
        float *cell = &r->nan[((size_t)t->nan_row * n + column) * 2];
        put_cell(cell, (double)report_nonfinite(a));
        if (b)
            put_cell(cell + 1, (double)report_nonfinite(b));
    }
}

/* ---- curves along the order ---- */

static bool is_heavier(double a, double b)
{
    return !isnan(a) && (isnan(b) || a > b);
}

/* Adds what x stands for to the point. */
static void put_point(struct report_point *to, const struct report_point *x)
{
    uint64_t of = to->of + x->of;
    bool heavier = x->must == to->must ? is_heavier(x->value, to->value)
                                       : x->must;
    if (to->of == 0 || heavier)
        *to = *x;
    to->of = of;
}

static int keep_close(struct report *r, const struct report_point *x)
{
    if (r->close_n == r->close_room && r->close_n < REPORT_FOCUS) {
        size_t room = r->close_room ? 2 * r->close_room : 256;
        struct report_point *more = realloc(r->close, room * sizeof *more);
        if (!more)
            return no_memory();
        r->close = more;
        r->close_room = room;
    }
    if (r->close_n < r->close_room)
        r->close[r->close_n++] = *x;
    return 0;
}

/* Of calls only what they give, on one rank: the order is a rank's own. */
static int fill_curves(struct report *r, const struct compare_pair *p,
                       double value)
{
    struct report_point x = {*p, value, 1, is_must(r, p)};
    double span = (double)(r->seq_hi - r->seq_lo) + 1;
    size_t at = (size_t)((double)(p->seq - r->seq_lo) / span * REPORT_BINS);
    if (!report_given(p) || isnan(value) || p->rank != r->focus_rank)
        return 0;
    if (p->seq >= r->seq_lo && at < REPORT_BINS)
        put_point(&r->whole[at], &x);
    return p->iteration == r->focus ? keep_close(r, &x) : 0;
}

static int by_seq(const void *x, const void *y)
{
    const struct report_point *a = x, *b = y;
    return a->pair.seq < b->pair.seq ? -1 : a->pair.seq > b->pair.seq;
}

/* Thins the curve of one iteration to neighbours of equal number. */
static void thin_close(struct report *r)
{
    size_t each = (r->close_n + REPORT_BINS - 1) / REPORT_BINS, n = 0;
    if (r->close_n == 0)
        return;
    qsort(r->close, r->close_n, sizeof *r->close, by_seq);
    for (size_t i = 0; i < r->close_n; i++) {
        struct report_point x = r->close[i];
        if (i % each == 0)
            r->close[n++] = (struct report_point){.of = 0};
        put_point(&r->close[n - 1], &x);
    }
    r->close_n = n;
}

/* ---- histories ---- */

static struct report_figures figures_of(const struct scan_row *row)
{
    const struct diff_side *s = &row->side;
    struct report_figures f = {
        .there = true,
        .of = {s->max, s->min, s->mean, s->std, s->l2,
               (double)report_nonfinite(row)}};
    if (!(s->has & TRD_HAS_RANGE))
        f.of[0] = f.of[1] = NAN;
    if (!(s->has & TRD_HAS_MEAN))
        f.of[2] = f.of[3] = NAN;
    if (!(s->has & TRD_HAS_L2))
        f.of[4] = NAN;
    return f;
}

/* Is it where one of the records is that stay? */
static bool is_where_must(const struct report *r,
                          const struct compare_pair *p)
{
    const struct compare_pair *m;
    if (!r->place[report_place_of(r, p)].must)
        return false;
    for (size_t i = 0; (m = report_must(r, i)); i++)
        if (m->object == p->object && m->pass == p->pass &&
            m->io == p->io && m->position == p->position &&
            m->path == p->path && m->rank == p->rank)
            return true;
    return false;
}

static int open_history(struct report *r, const struct compare_pair *p,
                        struct report_history **out)
{
    size_t at = report_place_of(r, p);
    struct report_place *t = &r->place[at];
    struct report_history *h;
    if (r->histories == r->histories_room) {
        size_t room = r->histories_room ? 2 * r->histories_room : 64;
        struct report_moment *m =
            realloc(r->moment, room * r->each * sizeof *m);
        if (m)
            r->moment = m;
        h = realloc(r->history, room * sizeof *h);
        if (h)
            r->history = h;
        if (!m || !h)
            return no_memory();
        r->histories_room = room;
    }
    h = &r->history[r->histories];
    memset(h, 0, sizeof *h);
    memset(&r->moment[r->histories * r->each], 0,
           r->each * sizeof *r->moment);
    h->place = at;
    h->io = p->io;
    h->position = p->position;
    h->path = p->path;
    h->rank = p->rank;
    h->next = t->history;
    t->history = (int32_t)r->histories++;
    *out = h;
    return 0;
}

static int find_history(struct report *r, const struct compare_pair *p,
                        struct report_history **out)
{
    struct report_place *t = &r->place[report_place_of(r, p)];
    *out = NULL;
    for (int32_t i = t->history; i >= 0; i = r->history[i].next) {
        struct report_history *h = &r->history[i];
        if (h->io == p->io && h->position == p->position &&
            h->path == p->path && h->rank == p->rank) {
            *out = h;
            return 0;
        }
    }
    if (t->quota)
        t->quota--;
    else if (!is_where_must(r, p))
        return 0;
    return open_history(r, p, out);
}

/* Of two runs the larger error stays; of one, what is less finite, then the
 * larger norm. */
static bool is_worse(const struct report *r, double value,
                     const struct report_figures *a,
                     const struct report_moment *m)
{
    if (m->of == 0)
        return true;
    if (!r->b && a->of[5] != m->a.of[5])
        return a->of[5] > m->a.of[5];
    return is_heavier(value, m->value);
}

static int fill_history(struct report *r, const struct compare_pair *p,
                        const struct scan_row *a, const struct scan_row *b,
                        double value)
{
    struct report_figures fa = figures_of(a);
    struct report_history *h;
    struct report_moment *m;
    int64_t at = (p->iteration - r->iteration_lo) / r->bin;
    int code = find_history(r, p, &h);
    if (code || !h || at < 0 || (size_t)at >= r->each)
        return code;
    m = &r->moment[(size_t)(h - r->history) * r->each + (size_t)at];
    if (is_worse(r, value, &fa, m)) {
        m->iteration = p->iteration;
        m->value = value;
        m->a = fa;
        if (b)
            m->b = figures_of(b);
    }
    m->of++;
    return 0;
}

/* ---- samples ---- */

static void side_of(const struct scan_row *row, struct report_side *out)
{
    const struct diff_side *s = &row->side;
    size_t wide = trd_dtype_bytes(s->dtype);
    out->there = true;
    out->dtype = s->dtype;
    snprintf(out->shape, sizeof out->shape, "%.*s", (int)s->shape.n,
             s->shape.text);
    out->n = s->n;
    out->hashed = s->has & TRD_HAS_HASH;
    out->hash = s->hash;
    out->figures = figures_of(row);
    out->samples = wide ? s->samples.n / wide : 0;
    for (size_t i = 0; i < out->samples && i < REPORT_VALUES; i++)
        out->value[i] = element_f64(s->dtype, s->samples.text + i * wide);
}

static int fill_samples(struct report *r, const struct compare_pair *p,
                        const struct scan_row *a, const struct scan_row *b)
{
    const struct report_place *t = &r->place[report_place_of(r, p)];
    bool worst = t->at.seq == p->seq && t->at.rank == p->rank &&
                 t->at.step == p->step && !isnan(t->worst);
    struct report_sampled *s;
    if (!(t->sampled && worst) && !is_must(r, p))
        return 0;
    if (r->sampled_n == r->sampled_room) {
        size_t room = r->sampled_room ? 2 * r->sampled_room : 64;
        s = realloc(r->sampled, room * sizeof *s);
        if (!s)
            return no_memory();
        r->sampled = s;
        r->sampled_room = room;
    }
    s = &r->sampled[r->sampled_n++];
    memset(s, 0, sizeof *s);
    s->pair = *p;
    s->sampling = a->side.sampling;
    s->sampling_arg = a->side.sampling_arg;
    side_of(a, &s->a);
    if (b)
        side_of(b, &s->b);
    return 0;
}

/* ---- all together ---- */

static int gather(struct report *r, const struct compare_pair *p,
                  const struct scan_row *a, const struct scan_row *b)
{
    double value = report_value(r, p, a);
    int code;
    fill_maps(r, p, a, b, value);
    code = fill_curves(r, p, value);
    if (!code)
        code = fill_history(r, p, a, b, value);
    if (!code)
        code = fill_samples(r, p, a, b);
    return code;
}

int report_gather(struct report *r)
{
    struct compare_result again = {0};
    int code;
    r->map = open_map(r->rows * r->columns.n);
    r->nan = open_map(r->nan_rows * r->columns.n * 2);
    r->rank_map = open_map(r->rank_rows * r->columns.n);
    r->whole = calloc(REPORT_BINS, sizeof *r->whole);
    if (!r->map || !r->nan || !r->rank_map || !r->whole)
        return no_memory();
    if (r->records == 0)
        return 0;
    code = report_walk(r, gather, &again);
    compare_free(&again);
    thin_close(r);
    return code;
}
