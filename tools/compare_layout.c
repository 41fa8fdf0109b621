/* The way through runs whose ranks hold other parts of batch and model.
 *
 * One iteration after the other, and of it one unit (units.h) after the
 * other: all its records on all ranks and in all micro-batches are read, so
 * memory is that of one unit's iteration, and 24 bytes for each step of each
 * object. Where these records lie is found out first. pair_pieces() then
 * pairs those of one name. */
#include <stdlib.h>
#include <string.h>

#include "tools/pieces.h"
#include "tools/tracectl.h"
#include "tools/units.h"

/* Steps of an object that have records of an iteration. */
struct entry {
    int64_t iteration, step;
    size_t object;   /* index; how many there are for "of no object" */
};

struct way {
    struct walk *w;
    struct pieces pieces;
    struct units *units;
    struct entries {
        struct entry *at;
        size_t n, room, begin, end; /* of the iteration */
        size_t objects;
        uint8_t *owned;             /* units_side */
        uint32_t *share;            /* of each rank, among those of a unit */
        struct walk_side *side;
        int64_t last_id;
        size_t last_object;
    } of[2];
    bool dealt;      /* ranks before micro-batches in the order of shares */
};

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- where the records are ---- */

static int take_group(void *to, const struct scan_group *g)
{
    struct entries *e = to;
    struct entry new = {g->iteration, g->step, e->last_object};
    size_t rank = layout_index(&e->side->layout, g->rank);
    if (g->object != e->last_id) {
        size_t index = scan_index(e->side->scan, g->object);
        e->last_id = g->object;
        new.object = e->last_object = index < e->objects ? index
                                                         : e->objects;
    }
    if (new.object < e->objects)
        e->owned[new.object * e->side->layout.n + rank] = 1;
    if (e->n && memcmp(&e->at[e->n - 1], &new, sizeof new) == 0)
        return 0;
    if (e->n == e->room) {
        size_t room = e->room ? 2 * e->room : 4096;
        struct entry *more = realloc(e->at, room * sizeof *more);
        if (!more)
            return no_memory();
        e->at = more;
        e->room = room;
    }
    e->at[e->n++] = new;
    return 0;
}

static int by_iteration(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;
    if (a->iteration != b->iteration)
        return a->iteration < b->iteration ? -1 : 1;
    if (a->object != b->object)
        return a->object < b->object ? -1 : 1;
    return a->step < b->step ? -1 : a->step > b->step;
}

static int survey(struct entries *e, struct walk_side *side)
{
    size_t n = 0;
    int code;
    e->side = side;
    scan_objects(side->scan, &e->objects);
    e->last_id = 0;
    e->last_object = e->objects;
    e->owned = calloc((e->objects + 1) * (side->layout.n + 1), 1);
    e->share = malloc((side->layout.n + 1) * sizeof *e->share);
    if (!e->owned || !e->share)
        return no_memory();
    code = scan_groups(side->scan, take_group, e);
    if (code)
        return code;
    if (e->n)
        qsort(e->at, e->n, sizeof *e->at, by_iteration);
    for (size_t i = 0; i < e->n; i++) /* other ranks came in between */
        if (n == 0 || by_iteration(&e->at[n - 1], &e->at[i]) != 0)
            e->at[n++] = e->at[i];
    e->n = n;
    return layout_guess(&side->layout, side->scan, e->owned);
}

/* ---- the rows of a unit in an iteration ---- */

/* The first entry of the iteration's that is of the object or behind. */
static size_t find_entry(const struct entries *e, size_t object)
{
    size_t low = e->begin, high = e->end;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (e->at[mid].object < object)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Has the unit that row of the object's? Behind the last unit is what is of
 * no object, and what is paired apart from objects. */
static bool is_of_unit(const struct way *y, int side, size_t unit,
                       size_t object, size_t rank, const struct scan_row *r)
{
    bool apart = walk_is_apart(y->w, r);
    if (unit == units_n(y->units))
        return apart || object == y->of[side].objects;
    return !apart && units_of(y->units, side, object, rank) == unit;
}

static int read_object(struct way *y, int side, size_t unit, size_t object)
{
    struct entries *e = &y->of[side];
    struct walk_side *s = e->side;
    size_t n;
    const struct scan_object *o = scan_objects(s->scan, &n);
    int64_t id = object < n ? o[object].id : 0;
    for (size_t i = find_entry(e, object);
         i < e->end && e->at[i].object == object; i++) {
        const struct scan_row *r;
        int got, code = scan_goto(s->scan, e->at[i].step, id);
        if (code)
            return code;
        while ((got = scan_peek_at(s->scan, e->at[i].step, id, &r)) > 0) {
            size_t rank = layout_index(&s->layout, r->rank);
            int64_t path = -1;
            bool wanted = r->iteration == e->at[i].iteration &&
                          !walk_leaves_out(y->w, r) &&
                          is_of_unit(y, side, unit, object, rank, r);
            y->w->text = y->w->text || r->side.has & TRD_IS_GIVEN;
            if (wanted && walk_by_path(r->pass)) {
                path = units_path(y->units, side, r->path, rank);
                if (path < 0)
                    return no_memory();
            }
            code = wanted ? walk_keep(s, r, path) : 0;
            if (code)
                return code;
            if (wanted) {
                s->row[s->n - 1].rank = rank;
                y->w->done++;
            }
            scan_next(s->scan, &r);
        }
        if (got < 0)
            return -got;
    }
    return 0;
}

static int compare_numbers(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

/* A rank's calls in their order, within a micro-batch. */
static int by_call(const void *x, const void *y)
{
    const struct walk_row *a = x, *b = y;
    const struct scan_row *r = &a->row, *s = &b->row;
    int d = compare_numbers(r->rank, s->rank);
    d = d ? d : compare_numbers(r->microbatch, s->microbatch);
    d = d ? d : compare_numbers(a->path, b->path);
    d = d ? d : compare_numbers(r->object, s->object);
    return d ? d : compare_numbers(r->step, s->step);
}

/* Numbers the calls of an object (or the values of a user's name) in a
 * rank's micro-batch; what is once an iteration is call 0. */
static void number_calls(struct walk_side *s)
{
    for (size_t i = 0; i < s->n; i++) {
        struct walk_row *a = &s->row[i], *last = i ? a - 1 : NULL;
        bool once = a->row.pass > TRD_BACKWARD && a->row.pass != TRD_USER;
        bool same = last && last->row.rank == a->row.rank &&
                    last->row.microbatch == a->row.microbatch &&
                    last->path == a->path &&
                    !once == !(last->row.pass > TRD_BACKWARD &&
                               last->row.pass != TRD_USER);
        a->call = 0;
        if (same && !once)
            a->call = last->call + (last->row.step != a->row.step ||
                                    last->row.object != a->row.object);
    }
}

/* How the ranks that own the unit share the batch. */
static uint32_t share_batch(struct way *y, int side, size_t unit)
{
    struct entries *e = &y->of[side];
    const struct layout *l = &e->side->layout;
    size_t objects = 0;
    const size_t *object =
        unit < units_n(y->units)
            ? units_objects(y->units, side, unit, &objects)
            : NULL;
    uint32_t n = 0, found;
    for (size_t r = 0; r < l->n; r++) {
        bool owned = !object;
        for (size_t i = 0; i < objects; i++)
            owned = owned || (e->owned[object[i] * l->n + r] &&
                              units_of(y->units, side, object[i], r) == unit);
        e->share[r] = owned ? l->rank[r].data : LAYOUT_UNKNOWN;
    }
    do { /* the next smallest gets the next number */
        uint32_t least = LAYOUT_UNKNOWN;
        found = 0;
        for (size_t r = 0; r < l->n; r++)
            if (e->share[r] >= n && e->share[r] < least)
                least = e->share[r];
        for (size_t r = 0; r < l->n && least != LAYOUT_UNKNOWN; r++)
            if (e->share[r] == least) {
                e->share[r] = n;
                found = 1;
            }
        n += found;
    } while (found);
    return n ? n : 1;
}

static int by_value(const void *x, const void *y)
{
    return compare_numbers(*(const int64_t *)x, *(const int64_t *)y);
}

/* Numbers the shares of the batch that rows are of. */
static int number_shares(struct way *y, int side, size_t unit)
{
    struct entries *e = &y->of[side];
    struct walk_side *s = e->side;
    struct pieces_batch *b = &y->pieces.batch[side];
    int64_t *micro = malloc((s->n + 1) * sizeof *micro);
    size_t n = 0, some = 0;
    if (!micro)
        return no_memory();
    for (size_t i = 0; i < s->n; i++)
        if (s->row[i].row.microbatch > 0)
            micro[some++] = s->row[i].row.microbatch;
    qsort(micro, some, sizeof *micro, by_value);
    for (size_t i = 0; i < some; i++)
        if (n == 0 || micro[n - 1] != micro[i])
            micro[n++] = micro[i];
    b->ranks = share_batch(y, side, unit);
    b->micro = n ? (uint32_t)n : 1;
    for (size_t i = 0; i < s->n; i++) {
        struct walk_row *r = &s->row[i];
        int64_t *at = n ? bsearch(&r->row.microbatch, micro, n,
                                  sizeof *micro, by_value)
                        : NULL;
        uint32_t m = at ? (uint32_t)(at - micro) : 0;
        r->share = e->share[r->rank];
        if (at)
            r->share = y->dealt ? r->share * b->micro + m
                                : m * b->ranks + r->share;
    }
    free(micro);
    return 0;
}

/* ---- the walk ---- */

static int read_unit(struct way *y, int side, size_t unit)
{
    struct walk_side *s = y->of[side].side;
    size_t none = y->of[side].objects, n = none + 1, i = 0;
    const size_t *object = NULL;
    int code = 0;
    if (unit < units_n(y->units))
        object = units_objects(y->units, side, unit, &n);
    else if (!y->w->log)
        i = none;
    s->n = s->arena_n = 0;
    for (; i < n && !code; i++)
        code = read_object(y, side, unit, object ? object[i] : i);
    if (code || s->n == 0)
        return code;
    qsort(s->row, s->n, sizeof *s->row, by_call);
    number_calls(s);
    return 0;
}

/* All that the two have of an iteration. */
static int walk_iteration(struct way *y)
{
    size_t n;
    int code = 0;
    for (size_t u = 0; u <= units_n(y->units) && !code; u++) {
        const size_t *object = NULL;
        for (int i = 0; i < 2 && !code; i++)
            code = read_unit(y, i, u);
        for (int i = 0; i < 2 && !code; i++)
            code = number_shares(y, i, u);
        if (code || (y->w->a.n == 0 && y->w->b.n == 0))
            continue;
        if (u < units_n(y->units))
            object = units_objects(y->units, false, u, &n);
        y->pieces.object = object && n ? object[0] : SIZE_MAX;
        code = pieces_join(&y->pieces);
        if (!y->pieces.learning)
            walk_tell(y->w);
    }
    return code;
}

/* Goes to the next iteration of either; false: there is none. */
static bool next_iteration(struct way *y, int64_t *iteration)
{
    *iteration = INT64_MAX;
    for (int i = 0; i < 2; i++) {
        struct entries *e = &y->of[i];
        e->begin = e->end;
        while (e->begin < e->n &&
               e->at[e->begin].iteration <= y->w->o->skip)
            e->begin++;
        if (e->begin < e->n && e->at[e->begin].iteration < *iteration)
            *iteration = e->at[e->begin].iteration;
    }
    for (int i = 0; i < 2; i++) {
        struct entries *e = &y->of[i];
        e->end = e->begin;
        while (e->end < e->n && e->at[e->end].iteration == *iteration)
            e->end++;
    }
    return *iteration < INT64_MAX;
}

/* Finds out, from the first iteration that both have, in which order shares
 * of the batch are counted, and whether gradients are a multiple. */
static int learn(struct way *y)
{
    struct pieces *p = &y->pieces;
    uint64_t far, best = 0;
    int64_t iteration;
    int code;
    while (next_iteration(y, &iteration))
        if (y->of[0].begin < y->of[0].end && y->of[1].begin < y->of[1].end)
            break;
    p->learning = true;
    code = walk_iteration(y);
    far = p->far;
    if (!code && far) {
        p->far = 0;
        memset(p->votes, 0, sizeof p->votes);
        y->dealt = true;
        code = walk_iteration(y);
        if (!code && p->far >= far) {
            y->dealt = false;
            memset(p->votes, 0, sizeof p->votes);
            code = walk_iteration(y);
        }
    }
    for (int i = 0; i < PIECES_FACTOR_N; i++)
        if (p->votes[i] > best) {
            best = p->votes[i];
            p->factor = i;
        }
    p->learning = false;
    for (int i = 0; i < 2; i++)
        y->of[i].begin = y->of[i].end = 0;
    y->w->done = 0;
    return code;
}

static void count_ranks(const struct layout *l, struct compare_ranks *out)
{
    out->ranks = (uint32_t)l->n;
    layout_count(l, &out->data, &out->stages);
}

static int walk(struct way *y)
{
    struct walk *w = y->w;
    struct units_side a = {w->a.scan, &w->a.layout, y->of[0].owned};
    struct units_side b = {w->b.scan, &w->b.layout, y->of[1].owned};
    int64_t iteration;
    int code = units_open(&a, &b, w->align, &y->units);
    if (!code)
        code = learn(y);
    w->layout.factor = 1;
    while (!code && next_iteration(y, &iteration)) {
        code = walk_iteration(y);
        walk_tell_first(w);
        if (pieces_factor(&y->pieces, y->pieces.factor) > w->layout.factor ||
            pieces_factor(&y->pieces, y->pieces.factor) < w->layout.factor)
            w->layout.factor = pieces_factor(&y->pieces, y->pieces.factor);
    }
    return code;
}

int layout_walk(struct walk *w)
{
    struct way y = {.w = w, .pieces = {.w = w}};
    int code = survey(&y.of[0], &w->a);
    if (!code)
        code = survey(&y.of[1], &w->b);
    if (!code)
        code = walk(&y);
    count_ranks(&w->a.layout, &w->layout.a);
    count_ranks(&w->b.layout, &w->layout.b);
    units_close(y.units);
    for (int i = 0; i < 2; i++) {
        free(y.of[i].at);
        free(y.of[i].owned);
        free(y.of[i].share);
    }
    return code;
}
