/* Copies and shards of one name. */
#include "tools/pieces_match.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double pieces_factor(const struct pieces *p, enum pieces_factor by)
{
    double ranks = (double)p->batch[1].ranks / p->batch[0].ranks;
    double micro = (double)p->batch[1].micro / p->batch[0].micro;
    switch (by) {
    case PIECES_BY_SHARES:
        return ranks * micro;
    case PIECES_BY_RANKS:
        return ranks;
    case PIECES_BY_MICRO:
        return 1 / micro;
    default:
        return 1;
    }
}

/* ---- names ---- */

static int compare_numbers(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

int match_by_name(const void *x, const void *y)
{
    const struct walk_row *a = x, *b = y;
    const struct scan_row *r = &a->row, *s = &b->row;
    int d = compare_numbers(r->pass, s->pass);
    d = d ? d : compare_numbers(r->io, s->io);
    d = d ? d : compare_numbers(r->labels & TRD_L_LOCAL,
                                s->labels & TRD_L_LOCAL);
    d = d ? d : compare_numbers(match_is_eval(a), match_is_eval(b));
    d = d ? d : compare_numbers(a->call, b->call);
    if (walk_by_path(r->pass))
        return d ? d : compare_numbers(a->path, b->path);
    return d ? d : compare_numbers(r->position, s->position);
}

static int by_piece(const void *x, const void *y)
{
    const struct walk_row *a = x, *b = y;
    int d = match_by_name(x, y);
    d = d ? d : compare_numbers(a->share, b->share);
    return d ? d : compare_numbers(a->row.rank, b->row.rank);
}

/* ---- a name ---- */

static void leave_out(struct match *m, enum compare_cause cause)
{
    if (!m->p->learning)
        m->p->w->layout.uncompared[cause] += m->a.n + m->b.n;
}

static bool is_partial(const struct pile *pile)
{
    for (size_t i = 0; i < pile->n; i++) {
        const char *note = scan_note(pile->side->scan, pile->row[i].row.note);
        const char *at = strstr(note, "placements="), *end;
        if (!at)
            continue;
        at += strlen("placements=");
        end = at + strcspn(at, " ;");
        for (; at < end; at += strcspn(at, ",") + 1)
            if (*at == 'P')
                return true;
    }
    return false;
}
/* Have parts of the batch other values, such as losses of their own? */
static bool values_differ(const struct pile *pile)
{
    const struct diff_side *x = &pile->row->row.side;
    for (size_t i = 1; i < pile->n; i++) {
        const struct diff_side *y = &pile->row[i].row.side;
        bool hash = x->has & y->has & TRD_HAS_HASH;
        if (hash ? x->hash != y->hash
                 : x->mean < y->mean || x->mean > y->mean)
            return true;
    }
    return false;
}

/* The mean of scalars. */
static struct diff_side mean_of(const struct pile *pile)
{
    struct diff_side s = pile->row->row.side;
    if (pile->n == 1)
        return s;
    s.mean = 0;
    for (size_t i = 0; i < pile->n; i++)
        s.mean += pile->row[i].row.side.mean / (double)pile->n;
    s.max = s.min = s.mean;
    s.l2 = fabs(s.mean);
    s.std = 0;
    s.has &= ~(uint32_t)TRD_HAS_HASH;
    s.samples.n = 0;
    return s;
}

/* Scalars of parts of the batch have the mean of the whole's, as losses do;
 * of other values nobody knows. */
static int pair_own(struct match *m)
{
    struct whole a = {.row = m->a.row->row, .first = m->a.row, .n = m->a.n};
    struct whole b = {.row = m->b.row->row, .first = m->b.row, .n = m->b.n};
    struct diff_how how = {0};
    if (m->p->learning)
        return 0;
    a.row.side = mean_of(&m->a);
    b.row.side = mean_of(&m->b);
    a.row.side.samples.n = b.row.side.samples.n = 0;
    if (a.row.side.n != 1 || b.row.side.n != 1 ||
        diff_of(&a.row.side, &b.row.side, &how).error > COMPARE_GAIN) {
        leave_out(m, COMPARE_OWN);
        return 0;
    }
    return match_judge(m, &a, &b, &how);
}

static bool has_shape(const struct pile *pile)
{
    return strchr(pile->row->row.side.shape.text, ' ') != NULL;
}

/* One record on each side, of a parameter that FSDP1 has flattened? */
static bool is_flattened(const struct match *m)
{
    return m->a.n == 1 && m->b.n == 1 && match_is_once(m->a.row) &&
           m->a.row->row.side.n == m->b.row->row.side.n &&
           has_shape(&m->a) != has_shape(&m->b);
}

/* One record on each side, that can only be of the same thing? */
static bool is_alone(const struct match *m)
{
    return m->a.n == 1 && m->b.n == 1 &&
           !(match_is_once(m->a.row) &&
             m->a.row->row.side.n != m->b.row->row.side.n);
}

/* On the same ranks, where nothing says that these hold other parts, sizes
 * that fit in no way are another shape. */
static bool is_rank_by_rank(struct match *m)
{
    bool same = m->p->w->alike && m->a.n == m->b.n && !m->batch;
    for (size_t i = 0; i < m->a.n && same; i++)
        same = m->a.row[i].row.rank == m->b.row[i].row.rank;
    m->padded = m->padded && !same;
    m->split_a.size = m->split_b.size = 1;
    return same;
}

static int pair_piles(struct pieces *p, struct pile a, struct pile b,
                      bool batch)
{
    struct match m = {.p = p, .a = a, .b = b, .batch = batch};
    int code = 0;
    if (is_partial(&a) || is_partial(&b)) {
        leave_out(&m, COMPARE_PARTIAL);
        return 0;
    }
    m.split_a.size = m.split_b.size = 1;
    m.flat = is_flattened(&m);
    if (!m.flat && !is_alone(&m) && !match_splits(&m) && !match_stages(&m) &&
        !match_padded(&m) && !is_rank_by_rank(&m)) {
        leave_out(&m, COMPARE_PIECES);
        return 0;
    }
    if (batch && m.split_a.size == 1 && m.split_b.size == 1 &&
        (values_differ(&m.a) || values_differ(&m.b)))
        return pair_own(&m);
    code = match_order(&m);
    for (size_t i = 0, n = match_tensors(&m); i < n && !code; i++)
        code = match_pair(&m, i, n, NULL);
    return code;
}

/* Are there rows of several stages of a pipeline? */
static bool is_staged(const struct walk_side *s)
{
    for (size_t i = 1; i < s->n; i++)
        if (s->layout.rank[s->row[i].rank].stage !=
            s->layout.rank[s->row[0].rank].stage)
            return true;
    return false;
}

static int miss(struct pieces *p, const struct pile *pile)
{
    int code = 0;
    if (p->learning)
        return 0;
    if (is_staged(pile->side)) {
        p->w->layout.uncompared[COMPARE_STAGES] += pile->n;
        return 0;
    }
    for (size_t i = 0; i < pile->n && !code; i++) {
        const struct scan_row *r = &pile->row[i].row;
        code = walk_miss(pile->side, scan_index(pile->side->scan, r->object),
                         r);
    }
    return code;
}

/* The rows of shares [from, to). */
static struct pile shares_of(const struct pile *all, uint64_t from,
                             uint64_t to)
{
    struct pile some = {all->side, all->row, 0};
    while (some.row < all->row + all->n && some.row->share < from)
        some.row++;
    while (some.row + some.n < all->row + all->n &&
           some.row[some.n].share < to)
        some.n++;
    return some;
}

static const char *class_of(const struct pile *pile, size_t i)
{
    size_t n, at = scan_index(pile->side->scan, pile->row[i].row.object);
    const struct scan_object *o = scan_objects(pile->side->scan, &n);
    return at < n ? align_class(o[at].class_name) : "";
}

/* Leaves out rows of a class that the other side has not got, if it has that
 * of others: some stages have a placeholder instead of a module. */
static void drop_others(struct pieces *p, struct pile *pile,
                        const struct pile *other)
{
    size_t n = 0, alike = 0;
    const char *class_name = class_of(other, 0);
    for (size_t i = 0; i < pile->n; i++)
        alike += strcmp(class_of(pile, i), class_name) == 0;
    if (alike == 0 || alike == pile->n)
        return;
    for (size_t i = 0; i < pile->n; i++)
        if (strcmp(class_of(pile, i), class_name) == 0)
            pile->row[n++] = pile->row[i];
    if (!p->learning)
        p->w->layout.uncompared[COMPARE_STAGES] += pile->n - n;
    pile->n = n;
}

static int join_name(struct pieces *p, struct pile a, struct pile b)
{
    struct match all = {.p = p};
    const struct walk_row *r = a.row;
    uint64_t na = p->batch[0].ranks, nb = p->batch[1].ranks, n;
    int code = 0;
    drop_others(p, &a, &b);
    drop_others(p, &b, &a);
    if (match_is_once(r))
        return pair_piles(p, a, b, false);
    if (!match_is_eval(r)) {
        na *= p->batch[0].micro;
        nb *= p->batch[1].micro;
    }
    if (na != nb && r->row.labels & TRD_L_LOCAL) {
        all.a = a;
        all.b = b;
        leave_out(&all, COMPARE_LOCAL);
        return 0;
    }
    if (na % nb && nb % na) {
        all.a = a;
        all.b = b;
        leave_out(&all, COMPARE_BATCHES);
        return 0;
    }
    n = na < nb ? na : nb;
    for (uint64_t i = 0; i < n && !code; i++) {
        struct pile x = shares_of(&a, i * (na / n), (i + 1) * (na / n));
        struct pile y = shares_of(&b, i * (nb / n), (i + 1) * (nb / n));
        if (x.n && y.n)
            code = pair_piles(p, x, y, na != nb);
        else
            code = x.n ? miss(p, &x) : miss(p, &y);
    }
    return code;
}

static struct pile next_pile(struct walk_side *s, size_t at)
{
    struct pile pile = {s, s->row + at, 0};
    while (at + pile.n < s->n &&
           (pile.n == 0 || match_by_name(pile.row, &pile.row[pile.n]) == 0))
        pile.n++;
    return pile;
}

int pieces_join(struct pieces *p)
{
    struct walk_side *a = &p->w->a, *b = &p->w->b;
    size_t i = 0, j = 0;
    int code = 0;
    if (a->n)
        qsort(a->row, a->n, sizeof *a->row, by_piece);
    if (b->n)
        qsort(b->row, b->n, sizeof *b->row, by_piece);
    while (!code && (i < a->n || j < b->n)) {
        struct pile x = next_pile(a, i), y = next_pile(b, j);
        int d = !x.n ? 1 : !y.n ? -1 : match_by_name(x.row, y.row);
        if (d == 0)
            code = join_name(p, x, y);
        else
            code = miss(p, d < 0 ? &x : &y);
        i += d <= 0 ? x.n : 0;
        j += d >= 0 ? y.n : 0;
    }
    if (!p->learning)
        verdict_group(p->w->verdict);
    return code;
}
