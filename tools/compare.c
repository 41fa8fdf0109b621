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

#include "tools/compare_walk.h"

enum { TELL_EVERY = 65536 };

/* What only this way needs. */
struct compare {
    struct walk w;
    const struct scan_object *object_a, *object_b;
    size_t objects_a, objects_b;
    uint64_t b_read;
    bool trial;      /* the first step only, of which nothing is judged */
    bool names;      /* parameters beside a log, and nothing else */
    uint64_t sizes;  /* that differ there */
};

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- rows of one object's step ---- */

int walk_keep(struct walk_side *s, const struct scan_row *r, int64_t path)
{
    size_t n = r->side.samples.n;
    if (s->n == s->room) {
        size_t room = s->room ? 2 * s->room : 64;
        struct walk_row *more = realloc(s->row, room * sizeof *more);
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
    s->row[s->n++] =
        (struct walk_row){.row = *r, .samples = s->arena_n, .path = path};
    s->arena_n += n;
    return 0;
}

bool walk_leaves_out(const struct walk *w, const struct scan_row *r)
{
    return r->labels & TRD_L_RECOMPUTE || r->iteration <= w->o->skip;
}

static int compare_numbers(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

/* Calls have places for their tensors, everything else has paths. */
static int by_key(const void *x, const void *y)
{
    const struct walk_row *a = x, *b = y;
    const struct scan_row *r = &a->row, *s = &b->row;
    int64_t local = r->labels & TRD_L_LOCAL, other = s->labels & TRD_L_LOCAL;
    int d = compare_numbers(r->pass, s->pass);
    d = d ? d : compare_numbers(r->rank, s->rank);
    d = d ? d : compare_numbers(r->io, s->io);
    d = d ? d : compare_numbers(local, other);
    if (local)
        d = d ? d : compare_numbers(r->microbatch, s->microbatch);
    if (walk_by_path(r->pass))
        return d ? d : compare_numbers(a->path, b->path);
    return d ? d : compare_numbers(r->position, s->position);
}

static int by_key_and_time(const void *x, const void *y)
{
    const struct walk_row *a = x, *b = y;
    int d = by_key(x, y);
    return d ? d : compare_numbers(a->row.seq, b->row.seq);
}

/* Rows of one rank come in this order, and sorting what is sorted costs as
 * much as reading it. */
static void sort(struct walk_side *s)
{
    for (size_t i = 1; i < s->n; i++)
        if (by_key_and_time(&s->row[i - 1], &s->row[i]) > 0) {
            qsort(s->row, s->n, sizeof *s->row, by_key_and_time);
            return;
        }
}

static bool is_left_out(const struct compare *c, const struct scan_row *r)
{
    return walk_leaves_out(&c->w, r) ||
           (walk_is_apart(&c->w, r) && !c->names);
}

/* Reads the rows of (step, object) at which the scan stands. */
static int read_group(struct compare *c, struct walk_side *s, int64_t step,
                      int64_t object)
{
    const struct scan_row *r;
    int got;
    s->n = s->arena_n = 0;
    while ((got = scan_peek_at(s->scan, step, object, &r)) > 0) {
        int64_t path = r->path;
        c->w.text = c->w.text || r->side.has & TRD_IS_GIVEN;
        c->b_read += s == &c->w.b;
        if (s == &c->w.a && walk_by_path(r->pass))
            path = align_path(c->w.align, path);
        int code = is_left_out(c, r) ? 0 : walk_keep(s, r, path);
        if (code)
            return code;
        scan_next(s->scan, &r);
        c->w.done += !c->names;
    }
    if (got < 0)
        return -got;
    sort(s);
    return 0;
}

/* Makes the second run stand at (step, object), and reads it. */
static int read_partner(struct compare *c, int64_t step, long object)
{
    const struct scan_row *r;
    int64_t id = object < 0 ? 0 : c->object_b[object].id;
    int got = scan_peek_at(c->w.b.scan, step, id, &r), code = 0;
    if (got < 0)
        return -got;
    if (!got)
        code = scan_goto(c->w.b.scan, step, id);
    return code ? code : read_group(c, &c->w.b, step, id);
}

/* ---- missing ---- */

/* Dumps may have functions too, as objects whose class is their path. */
static bool is_function(const struct scan *s, size_t object)
{
    size_t n;
    const struct scan_object *o = scan_objects(s, &n);
    return object < n && strchr(o[object].class_name, '.') &&
           strcmp(o[object].class_name, o[object].module) == 0;
}

int walk_miss(struct walk_side *s, size_t object, const struct scan_row *r)
{
    struct compare_missing *m = s->missing;
    if (r->labels & TRD_L_REPEATED) /* says what another says */
        return 0;
    if (is_function(s->scan, object)) {
        s->functions++;
        return 0;
    }
    s->only++;
    for (size_t n = 0; n < s->missing_n; n++) {
        /* mostly it is the last one again, or the one behind it */
        size_t i = (s->missing_at + n) % s->missing_n;
        if (m[i].object == object) {
            s->missing_at = i;
            m[i].records++;
            m[i].first = r->step < m[i].first ? r->step : m[i].first;
            m[i].last = r->step > m[i].last ? r->step : m[i].last;
            return 0;
        }
    }
    m = realloc(m, (s->missing_n + 1) * sizeof *m);
    if (!m)
        return no_memory();
    s->missing = m;
    s->missing_at = s->missing_n;
    m[s->missing_n++] =
        (struct compare_missing){object, 1, r->step, r->step};
    return 0;
}

/* Has the first run rows of the partner's object at that step? */
static int has_partner(struct compare *c, const struct scan_row *r,
                       size_t object, bool *has)
{
    const struct scan_row *mine;
    long back = align_back(c->w.align, object);
    int64_t id = 0, step = r->step;
    int code, got;
    *has = false;
    if (r->object && back < 0)
        return 0;
    if (r->object)
        id = c->object_a[back].id;
    code = scan_goto(c->w.a.scan, step, id);
    if (code)
        return code;
    got = scan_peek_at(c->w.a.scan, step, id, &mine);
    *has = got > 0;
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
    if (c->b_read >= scan_records(c->w.b.scan))
        return 0;
    code = scan_goto(c->w.b.scan, INT64_MIN, INT64_MIN);
    while (!code && (got = scan_next(c->w.b.scan, &r)) > 0) {
        if (r->step != step || r->object != object) {
            step = r->step;
            object = r->object;
            at = scan_index(c->w.b.scan, object);
            code = has_partner(c, r, at, &has);
        }
        if (!code && !has && !is_left_out(c, r))
            code = walk_miss(&c->w.b, at, r);
    }
    return code ? code : got < 0 ? -got : 0;
}

/* ---- pairs ---- */

/* What a parameter's gradient sums up: the root of the sum of squares of its
 * terms, if they are not larger when added than when left alone. Sums that
 * cancel are measured by it. */
static double scale_of(const struct walk_side *s, const struct scan_row *grad)
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

/* Gradients of an input that are not the same thing: a module's share and
 * all that flows into the tensor; what a log has there is the gradient of the
 * output once more. */
static bool are_others(const struct scan_row *a, const struct scan_row *b)
{
    uint32_t own_a = a->labels & (TRD_L_EXACT | TRD_L_TOTAL);
    uint32_t own_b = b->labels & (TRD_L_EXACT | TRD_L_TOTAL);
    bool again = (a->labels ^ b->labels) & TRD_L_REPEATED;
    return a->pass == TRD_BACKWARD && a->io == TRD_OUTPUT &&
           (again || (own_a && own_b && own_a != own_b));
}

int walk_pair(struct walk *w, struct compare_pair *p,
              const struct scan_row *a, const struct scan_row *b,
              const struct diff_how *how)
{
    if (are_others(a, b))
        return 0;
    p->there = true;
    p->pass = a->pass;
    p->io = a->io;
    p->step = a->step;
    p->iteration = a->iteration;
    p->microbatch = a->microbatch;
    p->position = a->position;
    p->seq = a->seq;
    p->path = a->path;
    p->rank = a->rank;
    p->rank_b = b->rank;
    p->n = a->side.n;
    p->before = -1;
    p->diff = diff_of(&a->side, &b->side, how);
    if (w->rules &&
        !rules_apply(w->rules, w->a.scan, p, &a->side, &b->side))
        return 0;
    if (w->o->pair)
        w->o->pair(w->o->state, p, a, b);
    return verdict_pair(w->verdict, p) ? 0 : no_memory();
}

size_t walk_object(const struct walk *w, const struct scan_row *a,
                   const struct scan_row *b)
{
    size_t mine = scan_index(w->a.scan, a->object);
    long back = align_back(w->align, scan_index(w->b.scan, b->object));
    return mine < SIZE_MAX || back < 0 ? mine : (size_t)back;
}

static int pair(struct compare *c, struct walk_row *a, struct walk_row *b,
                size_t object)
{
    struct compare_pair p = {.object = object, .call = a->row.rank};
    struct diff_how how = {0};
    if (c->trial) {
        c->sizes += a->row.side.n != b->row.side.n;
        return 0;
    }
    p.stage = layout_stage(&c->w.a.layout, a->row.rank);
    if (a->row.pass == TRD_GRAD &&
        !(a->row.side.has & b->row.side.has & TRD_HAS_HASH &&
          a->row.side.hash == b->row.side.hash))
        how.scale = c->names ? fmax(a->scale, b->scale)
                             : scale_of(&c->w.a, &a->row);
    return walk_pair(&c->w, &p, &a->row, &b->row, &how);
}

static int miss(const struct compare *c, struct walk_side *s,
                const struct scan_row *r)
{
    return c->trial ? 0 : walk_miss(s, scan_index(s->scan, r->object), r);
}

/* Pairs the rows of two sides, of the object unless they are of several. */
static int join(struct compare *c, const struct walk_side *a,
                const struct walk_side *b, size_t object)
{
    size_t i = 0, j = 0;
    int code = 0;
    while (code == 0 && (i < a->n || j < b->n)) {
        struct walk_row *x = a->row + i, *y = b->row + j;
        int d = i == a->n ? 1 : j == b->n ? -1 : by_key(x, y);
        i += d <= 0;
        j += d >= 0;
        if (d < 0) {
            code = miss(c, &c->w.a, &x->row);
        } else if (d > 0) {
            code = miss(c, &c->w.b, &y->row);
        } else {
            x->row.side.samples.text = a->arena + x->samples;
            y->row.side.samples.text = b->arena + y->samples;
            code = pair(c, x, y, c->names ? walk_object(&c->w, &x->row,
                                                        &y->row)
                                          : object);
        }
    }
    if (!c->trial)
        verdict_group(c->w.verdict);
    return code;
}

static void side_free(struct walk_side *s)
{
    layout_close(&s->layout);
    free(s->row);
    free(s->arena);
}

/* ---- the walk ---- */

void walk_tell(struct walk *w)
{
    if (!w->o->progress || w->done - w->told < TELL_EVERY)
        return;
    w->told = w->done;
    w->o->progress(w->o->state, w->done,
                   scan_records(w->a.scan) + scan_records(w->b.scan));
}

void walk_tell_first(struct walk *w)
{
    struct compare_pair p;
    if (!w->o->first || !verdict_first(w->verdict, &p) ||
        (w->first.there && w->first.rank == p.rank && w->first.seq == p.seq))
        return;
    w->first = p;
    w->o->first(w->o->state, &p);
}

static int walk(struct compare *c)
{
    const struct scan_row *r;
    int64_t last = INT64_MIN;
    int got, code = 0;
    while (code == 0 && (got = scan_peek(c->w.a.scan, &r)) != 0) {
        int64_t step, id;
        size_t object;
        long partner;
        if (got < 0)
            return -got;
        step = r->step;
        id = r->object;
        if (step != last && c->trial && last > INT64_MIN)
            return 0;
        if (step != last)
            walk_tell_first(&c->w);
        last = step;
        object = scan_index(c->w.a.scan, id);
        partner = id ? align_object(c->w.align, object) : -1;
        c->w.b.n = 0;
        code = read_group(c, &c->w.a, step, id);
        if (code == 0 && (id == 0 || partner >= 0))
            code = read_partner(c, step, partner);
        if (code == 0)
            code = join(c, &c->w.a, &c->w.b, object);
        if (!c->trial)
            walk_tell(&c->w);
    }
    return code || c->trial ? code : miss_rest(c);
}

/* ---- parameters beside a log ---- */

/* Has the run records of a log, which names no module? */
static int is_log(struct scan *s, bool *log)
{
    const struct scan_row *r;
    int got = scan_peek(s, &r);
    *log = *log || (got > 0 && r->side.dtype == TRD_TEXT);
    return got < 0 ? -got : 0;
}

/* Adds to `to` what the step at which the scan stands has of parameters. */
static int read_names(struct compare *c, struct walk_side *s,
                      struct walk_side *to, int64_t step)
{
    const struct scan_row *r;
    int got, code = 0;
    while (!code && (got = scan_peek(s->scan, &r)) > 0 && r->step == step) {
        code = read_group(c, s, step, r->object);
        for (size_t i = 0; i < s->n && !code; i++) {
            struct walk_row *row = &s->row[i];
            if (!walk_is_apart(&c->w, &row->row))
                continue;
            row->row.side.samples.text = s->arena + row->samples;
            code = walk_keep(to, &row->row, row->path);
            if (!code)
                to->row[to->n - 1].scale = scale_of(s, &row->row);
        }
    }
    return !code && got < 0 ? -got : code;
}

/* The next step of either; INT64_MAX: there is none. */
static int next_step(struct compare *c, int64_t *step)
{
    const struct scan_row *r;
    int a = scan_peek(c->w.a.scan, &r), b;
    *step = a > 0 ? r->step : INT64_MAX;
    b = scan_peek(c->w.b.scan, &r);
    if (b > 0 && r->step < *step)
        *step = r->step;
    return a < 0 ? -a : b < 0 ? -b : 0;
}

/* Step by step: memory is that of the parameters. */
static int walk_names(struct compare *c)
{
    struct walk_side a = {.scan = c->w.a.scan}, b = {.scan = c->w.b.scan};
    int64_t step = 0;
    int code = scan_goto(a.scan, INT64_MIN, INT64_MIN);
    if (!code)
        code = scan_goto(b.scan, INT64_MIN, INT64_MIN);
    c->names = true;
    while (!code && step < INT64_MAX) {
        a.n = a.arena_n = b.n = b.arena_n = 0;
        code = next_step(c, &step);
        if (!code && step < INT64_MAX)
            code = read_names(c, &c->w.a, &a, step);
        if (!code && step < INT64_MAX)
            code = read_names(c, &c->w.b, &b, step);
        sort(&a);
        sort(&b);
        if (!code)
            code = join(c, &a, &b, SIZE_MAX);
    }
    side_free(&a);
    side_free(&b);
    return code;
}

static int walk_open(struct walk *w, size_t objects,
                     const struct compare_noise *noise)
{
    int code = layout_open(w->a.scan, &w->a.layout);
    if (!code)
        code = layout_open(w->b.scan, &w->b.layout);
    if (!code)
        code = align_open(w->a.scan, w->b.scan, w->o->map, &w->align);
    if (!code && w->o->rules)
        code = rules_open(w->o->rules, &w->rules);
    if (!code && !(w->verdict = verdict_open(objects, noise)))
        code = no_memory();
    return code;
}

/* The micro-batch of the second call; -1: it is not known. */
static int second_batch(struct scan *s, int64_t *microbatch)
{
    const struct scan_row *r;
    int got, code = scan_goto(s, 2, INT64_MIN);
    *microbatch = -1;
    if (code)
        return code;
    while ((got = scan_next(s, &r)) > 0 && r->step == 2)
        if (r->pass == TRD_FORWARD && !(r->labels & TRD_L_RECOMPUTE)) {
            *microbatch = r->microbatch;
            break;
        }
    return got < 0 ? -got : scan_goto(s, INT64_MIN, INT64_MIN);
}

/* Have the ranks' tensors other sizes in the first step? */
static int try_sizes(struct compare *c)
{
    struct walk *w = &c->w;
    int code;
    c->trial = true;
    code = walk(c);
    c->trial = false;
    c->b_read = w->done = w->told = 0;
    if (!code)
        code = scan_goto(w->a.scan, INT64_MIN, INT64_MIN);
    return code ? code : scan_goto(w->b.scan, INT64_MIN, INT64_MIN);
}

/* Can rank be compared with rank, and step with step? Where coordinates do
 * not tell that ranks hold other parts, sizes do. */
static int find_way(struct compare *c)
{
    struct walk *w = &c->w;
    int64_t a = -1, b = -1;
    int code = 0;
    w->alike = layout_is_same(&w->a.layout, &w->b.layout) &&
               !align_is_by_rank(w->align);
    if (w->alike && w->a.layout.n > 1)
        code = try_sizes(c);
    if (!code)
        code = second_batch(w->a.scan, &a);
    if (!code)
        code = second_batch(w->b.scan, &b);
    w->layout.same = w->alike && !c->sizes && (a < 0 || b < 0 || a == b);
    return code;
}

int compare_runs(struct scan *a, struct scan *b,
                 const struct compare_options *o,
                 const struct compare_noise *noise,
                 struct compare_noise **learn, struct compare_result *out)
{
    struct compare c = {.w = {.o = o, .a = {.scan = a}, .b = {.scan = b}}};
    struct walk *w = &c.w;
    int code;
    memset(out, 0, sizeof *out);
    c.object_a = scan_objects(a, &c.objects_a);
    c.object_b = scan_objects(b, &c.objects_b);
    code = walk_open(w, c.objects_a, noise);
    if (!code)
        code = is_log(a, &w->log);
    if (!code)
        code = is_log(b, &w->log);
    if (!code)
        code = find_way(&c);
    if (!code)
        code = w->layout.same ? walk(&c) : layout_walk(w);
    if (!code && w->layout.same && w->log)
        code = walk_names(&c);
    out->layout = w->layout;
    out->only_a = w->a.only;
    out->only_b = w->b.only;
    out->functions_a = w->a.functions;
    out->functions_b = w->b.functions;
    out->missing_a = w->a.missing;
    out->missing_b = w->b.missing;
    out->missing_a_n = w->a.missing_n;
    out->missing_b_n = w->b.missing_n;
    out->text = w->text;
    if (!code)
        verdict_end(w->verdict, out);
    if (!code && learn && !(*learn = verdict_learn(w->verdict)))
        code = no_memory();
    verdict_close(w->verdict);
    rules_close(w->rules);
    align_close(w->align);
    side_free(&w->a);
    side_free(&w->b);
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
