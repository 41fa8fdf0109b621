/* Walks two runs side by side, an object's step at a time.
 *
 * The first run is read from end to end. The second stands at the same
 * object and step, or is made to jump there; so memory is that of one step
 * of one object on all ranks, whatever the order of the objects. */
#include "tools/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/align.h"
#include "tools/rules.h"
#include "tools/verdict.h"

enum { TELL_EVERY = 65536 };

/* A row that is kept until its partner has come. */
struct kept {
    struct scan_row row;
    size_t samples;        /* where they are in the arena */
    int64_t path;          /* as the second run numbers it */
    bool used;
};

struct side {
    struct scan *scan;
    struct kept *row;
    size_t n, room;
    char *arena;
    size_t arena_n, arena_room;
    struct compare_missing *missing;
    size_t missing_n;
    uint64_t only;
};

struct compare {
    const struct compare_options *o;
    struct side a, b;
    struct align *align;
    struct rules *rules;
    struct verdict *verdict;
    const struct scan_object *object_a, *object_b;
    size_t objects_a, objects_b;
    uint64_t done, told, b_read;
    bool text;
};

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- rows of one object's step ---- */

static int keep(struct side *s, const struct scan_row *r, int64_t path)
{
    size_t n = r->side.samples.n;
    if (s->n == s->room) {
        size_t room = s->room ? 2 * s->room : 64;
        struct kept *more = realloc(s->row, room * sizeof *more);
        if (!more)
            return no_memory();
        s->row = more;
        s->room = room;
    }
    if (s->arena_room - s->arena_n < n) {
        size_t room = 2 * (s->arena_room + n);
        char *more = realloc(s->arena, room);
        if (!more)
            return no_memory();
        s->arena = more;
        s->arena_room = room;
    }
    if (n)
        memcpy(s->arena + s->arena_n, r->side.samples.text, n);
    s->row[s->n++] = (struct kept){*r, s->arena_n, path, false};
    s->arena_n += n;
    return 0;
}

/* What a comparison leaves out. */
static bool is_left_out(const struct compare *c, const struct scan_row *r)
{
    return r->labels & TRD_L_RECOMPUTE || r->iteration <= c->o->skip;
}

static bool by_path(int pass)
{
    return pass > TRD_BACKWARD;
}

static int compare_numbers(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

/* Calls have places for their tensors, everything else has paths. */
static int by_key(const void *x, const void *y)
{
    const struct kept *a = x, *b = y;
    const struct scan_row *r = &a->row, *s = &b->row;
    int64_t local = r->labels & TRD_L_LOCAL, other = s->labels & TRD_L_LOCAL;
    int d = compare_numbers(r->pass, s->pass);
    d = d ? d : compare_numbers(r->rank, s->rank);
    d = d ? d : compare_numbers(r->io, s->io);
    d = d ? d : compare_numbers(local, other);
    if (local)
        d = d ? d : compare_numbers(r->microbatch, s->microbatch);
    if (by_path(r->pass))
        return d ? d : compare_numbers(a->path, b->path);
    return d ? d : compare_numbers(r->position, s->position);
}

static int by_key_and_time(const void *x, const void *y)
{
    const struct kept *a = x, *b = y;
    int d = by_key(x, y);
    return d ? d : compare_numbers(a->row.seq, b->row.seq);
}

/* Reads the rows of (step, object) at which the scan stands. */
static int read_group(struct compare *c, struct side *s, int64_t step,
                      int64_t object)
{
    const struct scan_row *r;
    int got;
    s->n = s->arena_n = 0;
    while ((got = scan_peek(s->scan, &r)) > 0 && r->step == step &&
           r->object == object) {
        int64_t path = r->path;
        c->text = c->text || r->side.has & TRD_IS_GIVEN;
        c->b_read += s == &c->b;
        if (s == &c->a && by_path(r->pass))
            path = align_path(c->align, path);
        int code = is_left_out(c, r) ? 0 : keep(s, r, path);
        if (code)
            return code;
        scan_next(s->scan, &r);
        c->done++;
    }
    if (got < 0)
        return -got;
    qsort(s->row, s->n, sizeof *s->row, by_key_and_time);
    return 0;
}

/* Makes the second run stand at (step, object), and reads it. */
static int read_partner(struct compare *c, int64_t step, long object)
{
    const struct scan_row *r;
    int64_t id = object < 0 ? 0 : c->object_b[object].id;
    int got = scan_peek(c->b.scan, &r), code = 0;
    if (got < 0)
        return -got;
    if (!got || r->step != step || r->object != id)
        code = scan_goto(c->b.scan, step, id);
    return code ? code : read_group(c, &c->b, step, id);
}

/* ---- missing ---- */

static int miss(struct side *s, size_t object, const struct scan_row *r)
{
    struct compare_missing *m = s->missing;
    s->only++;
    for (size_t i = s->missing_n; i-- > 0;)
        if (m[i].object == object) {
            m[i].records++;
            m[i].first = r->step < m[i].first ? r->step : m[i].first;
            m[i].last = r->step > m[i].last ? r->step : m[i].last;
            return 0;
        }
    m = realloc(m, (s->missing_n + 1) * sizeof *m);
    if (!m)
        return no_memory();
    s->missing = m;
    m[s->missing_n++] =
        (struct compare_missing){object, 1, r->step, r->step};
    return 0;
}

/* Has the first run rows of the partner's object at that step? */
static int has_partner(struct compare *c, const struct scan_row *r,
                       size_t object, bool *has)
{
    const struct scan_row *mine;
    long back = align_back(c->align, object);
    int64_t id = 0, step = r->step;
    int code, got;
    *has = false;
    if (r->object && back < 0)
        return 0;
    if (r->object)
        id = c->object_a[back].id;
    code = scan_goto(c->a.scan, step, id);
    if (code)
        return code;
    got = scan_peek(c->a.scan, &mine);
    *has = got > 0 && mine->step == step && mine->object == id;
    return got < 0 ? -got : 0;
}

/* Rows of objects and steps that the first run has not got, if not all rows
 * of the second were read. */
static int miss_rest(struct compare *c)
{
    const struct scan_row *r;
    int64_t step = INT64_MIN, object = INT64_MIN;
    size_t at = SIZE_MAX;
    bool has = false;
    int code, got = 0;
    if (c->b_read >= scan_records(c->b.scan))
        return 0;
    code = scan_goto(c->b.scan, INT64_MIN, INT64_MIN);
    while (!code && (got = scan_next(c->b.scan, &r)) > 0) {
        if (r->step != step || r->object != object) {
            step = r->step;
            object = r->object;
            at = scan_index(c->b.scan, object);
            code = has_partner(c, r, at, &has);
        }
        if (!code && !has && !is_left_out(c, r))
            code = miss(&c->b, at, r);
    }
    return code ? code : got < 0 ? -got : 0;
}

/* ---- pairs ---- */

/* What a parameter's gradient sums up: the root of the sum of squares of its
 * terms, if they are not larger when added than when left alone. Sums that
 * cancel are measured by it. */
static double scale_of(const struct side *s, const struct scan_row *grad)
{
    double g = 0, x = 0, rows = 0;
    if (grad->pass != TRD_GRAD || grad->step != grad->iteration)
        return 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct scan_row *r = &s->row[i].row;
        const char *last = strrchr(r->side.shape.text, ' ');
        if (r->rank != grad->rank || r->io != TRD_INPUT || r->position)
            continue;
        if (r->pass == TRD_FORWARD && diff_unit(r->side.dtype) > 0)
            x = diff_rms(&r->side);
        if (r->pass == TRD_BACKWARD && last && atof(last) > 0) {
            g = diff_rms(&r->side);
            rows = (double)r->side.n / atof(last);
        }
    }
    return strchr(grad->side.shape.text, ' ') ? g * x * sqrt(rows)
                                              : g * sqrt(rows);
}

static int pair(struct compare *c, struct kept *a, struct kept *b,
                size_t object)
{
    struct scan_row *r = &a->row;
    struct compare_pair p = {
        .there = true, .pass = r->pass, .io = r->io, .step = r->step,
        .iteration = r->iteration, .microbatch = r->microbatch,
        .position = r->position, .seq = r->seq, .path = r->path,
        .rank = r->rank, .n = r->side.n, .object = object, .before = -1};
    r->side.samples.text = c->a.arena + a->samples;
    b->row.side.samples.text = c->b.arena + b->samples;
    p.diff = diff_of(&r->side, &b->row.side, 0);
    if (p.diff.kind == DIFF_NEAR && r->pass == TRD_GRAD)
        p.diff = diff_of(&r->side, &b->row.side, scale_of(&c->a, r));
    if (c->rules &&
        !rules_apply(c->rules, c->a.scan, &p, &r->side, &b->row.side))
        return 0;
    return verdict_pair(c->verdict, &p) ? 0 : no_memory();
}

static int join(struct compare *c, size_t object, long partner)
{
    size_t i = 0, j = 0;
    size_t theirs = partner < 0 ? SIZE_MAX : (size_t)partner;
    int code = 0;
    while (code == 0 && (i < c->a.n || j < c->b.n)) {
        int d = i == c->a.n   ? 1
                : j == c->b.n ? -1
                              : by_key(&c->a.row[i], &c->b.row[j]);
        if (d == 0)
            code = pair(c, &c->a.row[i++], &c->b.row[j++], object);
        else if (d < 0)
            code = miss(&c->a, object, &c->a.row[i++].row);
        else
            code = miss(&c->b, theirs, &c->b.row[j++].row);
    }
    verdict_group(c->verdict);
    return code;
}

/* ---- the walk ---- */

static void tell(struct compare *c)
{
    if (!c->o->progress || c->done - c->told < TELL_EVERY)
        return;
    c->told = c->done;
    c->o->progress(c->o->state, c->done,
                   scan_records(c->a.scan) + scan_records(c->b.scan));
}

static int walk(struct compare *c)
{
    const struct scan_row *r;
    int got, code = 0;
    while (code == 0 && (got = scan_peek(c->a.scan, &r)) != 0) {
        int64_t step, id;
        size_t object;
        long partner;
        if (got < 0)
            return -got;
        step = r->step;
        id = r->object;
        object = scan_index(c->a.scan, id);
        partner = id ? align_object(c->align, object) : -1;
        c->b.n = 0;
        code = read_group(c, &c->a, step, id);
        if (code == 0 && (id == 0 || partner >= 0))
            code = read_partner(c, step, partner);
        if (code == 0)
            code = join(c, object, partner);
        tell(c);
    }
    return code;
}

static void side_free(struct side *s)
{
    free(s->row);
    free(s->arena);
}

int compare_runs(struct scan *a, struct scan *b,
                 const struct compare_options *o,
                 const struct compare_noise *noise,
                 struct compare_noise **learn, struct compare_result *out)
{
    struct compare c = {.o = o, .a = {.scan = a}, .b = {.scan = b}};
    int code;
    memset(out, 0, sizeof *out);
    c.object_a = scan_objects(a, &c.objects_a);
    c.object_b = scan_objects(b, &c.objects_b);
    code = align_open(a, b, o->map, &c.align);
    if (!code && o->rules)
        code = rules_open(o->rules, &c.rules);
    if (!code && !(c.verdict = verdict_open(c.objects_a, noise)))
        code = no_memory();
    if (!code)
        code = walk(&c);
    if (!code)
        code = miss_rest(&c);
    out->only_a = c.a.only;
    out->only_b = c.b.only;
    out->missing_a = c.a.missing;
    out->missing_b = c.b.missing;
    out->missing_a_n = c.a.missing_n;
    out->missing_b_n = c.b.missing_n;
    out->text = c.text;
    if (!code)
        verdict_end(c.verdict, out);
    if (!code && learn && !(*learn = verdict_learn(c.verdict)))
        code = no_memory();
    verdict_close(c.verdict);
    rules_close(c.rules);
    align_close(c.align);
    side_free(&c.a);
    side_free(&c.b);
    if (code)
        compare_free(out);
    return code;
}

void compare_free(struct compare_result *r)
{
    free(r->missing_a);
    free(r->missing_b);
    r->missing_a = r->missing_b = NULL;
}
