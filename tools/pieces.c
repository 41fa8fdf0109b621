/* Copies and shards of one name. */
#include "tools/pieces.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/merge.h"
#include "tools/tracectl.h"

/* Of merged moments, by the number of elements (docs of the statistics). */
#define INEXACT_SMALL 4e-13
#define INEXACT_LARGE 2e-7
enum { SMALL = 65536, CALLS = 1 << 20 };

/* Rows of one name, in the order of shares and ranks. */
struct pile {
    struct walk_side *side;
    struct walk_row *row;
    size_t n;
};

/* How a pile falls into whole tensors: n / size of them. */
struct split {
    size_t size;
    bool strided;    /* piece i is of tensor i mod (n / size) */
};

/* A tensor of one side. */
struct whole {
    struct scan_row row;
    struct walk_row *first;
    const struct diff_side **shard;
    size_t n;
};

struct match {
    struct pieces *p;
    struct pile a, b;
    struct split split_a, split_b;
    bool padded, batch;
    bool flat;       /* one has all of it, without its shape */
};

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

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

/* Is there one of it in an iteration, whatever the micro-batches? */
static bool is_once(const struct walk_row *r)
{
    return r->row.pass > TRD_BACKWARD && r->row.pass != TRD_USER &&
           !(r->row.labels & TRD_L_LOCAL);
}

static bool is_eval(const struct walk_row *r)
{
    return r->row.microbatch == 0 && !is_once(r);
}

static int by_name(const void *x, const void *y)
{
    const struct walk_row *a = x, *b = y;
    const struct scan_row *r = &a->row, *s = &b->row;
    int d = compare_numbers(r->pass, s->pass);
    d = d ? d : compare_numbers(r->io, s->io);
    d = d ? d : compare_numbers(r->labels & TRD_L_LOCAL,
                                s->labels & TRD_L_LOCAL);
    d = d ? d : compare_numbers(is_eval(a), is_eval(b));
    d = d ? d : compare_numbers(a->call, b->call);
    if (walk_by_path(r->pass))
        return d ? d : compare_numbers(a->path, b->path);
    return d ? d : compare_numbers(r->position, s->position);
}

static int by_piece(const void *x, const void *y)
{
    const struct walk_row *a = x, *b = y;
    int d = by_name(x, y);
    d = d ? d : compare_numbers(a->share, b->share);
    return d ? d : compare_numbers(a->row.rank, b->row.rank);
}

/* ---- whole tensors ---- */

static size_t index_in(const struct pile *pile, const struct split *s,
                       size_t tensor, size_t shard)
{
    return s->strided ? tensor + shard * (pile->n / s->size)
                      : tensor * s->size + shard;
}

static bool sizes_agree(const struct pile *pile, size_t size, uint64_t *n)
{
    for (size_t i = 0; i < pile->n; i += size) {
        uint64_t sum = 0;
        for (size_t j = i; j < i + size; j++)
            sum += pile->row[j].row.side.n;
        if (i && sum != *n)
            return false;
        *n = sum;
    }
    return true;
}

static struct merge_plan plan_of(const struct match *m,
                                 const struct diff_side *whole,
                                 const struct pile *pile, size_t size)
{
    struct merge_plan plan = {.way = MERGE_NOT};
    const struct diff_side **list = malloc(size * sizeof *list);
    for (size_t i = 0; i < size && list; i++)
        list[i] = &pile->row[i].row.side;
    if (list)
        plan = merge_plan(whole, list, size, m->padded);
    free(list);
    return plan;
}

static bool splits_fit(const struct match *m, size_t a, size_t b)
{
    uint64_t of_a = 0, of_b = 0;
    bool agree = sizes_agree(&m->a, a, &of_a) && sizes_agree(&m->b, b, &of_b);
    if (!agree || (of_a != of_b && !m->padded))
        return false;
    if (a == 1 && b == 1)
        return of_a == of_b && strcmp(m->a.row->row.side.shape.text,
                                      m->b.row->row.side.shape.text) == 0;
    if (a == 1)
        return plan_of(m, &m->a.row->row.side, &m->b, b).way != MERGE_NOT;
    if (b == 1)
        return plan_of(m, &m->b.row->row.side, &m->a, a).way != MERGE_NOT;
    return of_a == of_b;
}

/* The smallest splits that make tensors of one size of both. */
static bool find_splits(struct match *m)
{
    size_t best = SIZE_MAX;
    for (size_t a = 1; a <= m->a.n; a++) {
        if (m->a.n % a)
            continue;
        for (size_t b = 1; b <= m->b.n; b++)
            if (m->b.n % b == 0 && a * b < best && splits_fit(m, a, b)) {
                best = a * b;
                m->split_a.size = a;
                m->split_b.size = b;
            }
    }
    return best < SIZE_MAX;
}

static bool gather(const struct pile *pile, const struct split *s,
                   size_t tensor, struct whole *out)
{
    out->n = s->size;
    out->shard = malloc(s->size * sizeof *out->shard);
    if (!out->shard)
        return false;
    for (size_t i = 0; i < s->size; i++) {
        struct walk_row *r = &pile->row[index_in(pile, s, tensor, i)];
        r->row.side.samples.text = pile->side->arena + r->samples;
        out->shard[i] = &r->row.side;
        if (i == 0) {
            out->row = r->row;
            out->first = r;
        }
    }
    return true;
}

/* ---- a pair ---- */

/* The error of a tensor and one that is merged, of which x and y become what
 * to compare. Samples that say more than all other figures are not of the
 * same elements, so they are left out. room: for samples of both. */
static struct diff diff_merged(const struct match *m, struct whole *one,
                               struct whole *many, bool first_is_one,
                               const struct diff_how *how, char *room)
{
    struct diff_side *x = &one->row.side, *y = &many->row.side;
    struct diff_side whole = *x;
    struct diff_side *a = first_is_one ? x : y, *b = first_is_one ? y : x;
    struct merge_plan plan =
        merge_plan(x, many->shard, many->n, m->padded);
    struct merge_samples s = {.whole = room, .shards = room + x->samples.n};
    struct diff without, with;
    y->shape = x->shape;
    y->sampling = x->sampling;
    y->sampling_arg = x->sampling_arg;
    x->samples.n = y->samples.n = 0;
    without = diff_of(a, b, how);
    for (int dealt = 0; dealt < 2; dealt++) {
        if (dealt && (!m->batch || plan.way != MERGE_BLOCKS))
            break;
        if (dealt)
            plan.way = MERGE_DEALT;
        merge_samples(&plan, &whole, many->shard, many->n, &s);
        x->samples = (struct slice){s.whole,
                                    s.n * trd_dtype_bytes(x->dtype)};
        y->samples = (struct slice){s.shards,
                                    s.n * trd_dtype_bytes(y->dtype)};
        with = diff_of(a, b, how);
        if (with.error <= COMPARE_GAIN || without.error > COMPARE_GAIN)
            return with;
    }
    x->samples.n = y->samples.n = 0;
    return without;
}

static void merge_whole(struct whole *t, uint64_t pad)
{
    struct scan_row *r = &t->row;
    if (t->n > 1)
        merge_sides(t->shard, t->n, pad, &r->side);
}

/* Root of the sum of squares of what the gradient of a parameter sums up;
 * compare.c has it for one rank's call. */
static double scale_of(const struct pieces *p, const struct scan_row *grad)
{
    double square[2] = {0}, n[2] = {0}, rows = 0, g, x;
    const struct walk_side *s = &p->w->a;
    for (size_t i = 0; i < s->n && grad->pass == TRD_GRAD; i++) {
        const struct scan_row *r = &s->row[i].row;
        const char *last = strrchr(r->side.shape.text, ' ');
        int back = r->pass == TRD_BACKWARD;
        bool copy = i && by_name(&s->row[i - 1], &s->row[i]) == 0 &&
                    s->row[i - 1].share == s->row[i].share;
        if (r->pass > TRD_BACKWARD || r->io != TRD_INPUT || r->position ||
            copy || !(diff_unit(r->side.dtype) > 0))
            continue;
        square[back] += pow(diff_rms(&r->side), 2) * (double)r->side.n;
        n[back] += (double)r->side.n;
        if (back && last && atof(last) > 0)
            rows += (double)r->side.n / atof(last);
    }
    g = n[1] > 0 ? sqrt(square[1] / n[1]) : 0;
    x = n[0] > 0 ? sqrt(square[0] / n[0]) : 0;
    return strchr(grad->side.shape.text, ' ') ? g * x * sqrt(rows)
                                              : g * sqrt(rows);
}

static bool copies_differ(const struct pile *pile, const struct split *s)
{
    if (s->size > 1 || pile->n < 2)
        return false;
    for (size_t i = 1; i < pile->n; i++) {
        const struct diff_side *x = &pile->row[0].row.side;
        const struct diff_side *y = &pile->row[i].row.side;
        if (x->has & y->has & TRD_HAS_HASH && x->hash != y->hash)
            return true;
    }
    return false;
}

static void learn(struct pieces *p, const struct whole *a,
                  const struct whole *b, double error)
{
    const struct diff_side *x = &a->row.side, *y = &b->row.side;
    if (a->row.pass == TRD_FORWARD && a->row.io == TRD_INPUT)
        p->far += error > COMPARE_GAIN;
    if (a->row.pass != TRD_BACKWARD || !(x->l2 > 0) || !(y->l2 > 0))
        return;
    for (int i = 0; i < PIECES_FACTOR_N; i++)
        if (fabs(log(y->l2 / x->l2 / pieces_factor(p, i))) < 0.05) {
            p->votes[i]++;
            return;
        }
}

/* Makes of two tensors what can be compared. */
static int make_alike(const struct match *m, struct whole *a,
                      struct whole *b, struct diff_how *how, char **room)
{
    struct whole *one = a->n == 1 ? a : b->n == 1 ? b : NULL;
    struct whole *many = one == a ? b : a;
    struct merge_plan plan = {.pad = 0};
    how->inexact = a->row.side.n <= SMALL ? INEXACT_SMALL : INEXACT_LARGE;
    if (one)
        plan = merge_plan(&one->row.side, many->shard, many->n, m->padded);
    merge_whole(a, one == b ? plan.pad : 0);
    merge_whole(b, one == a ? plan.pad : 0);
    if (!one) {
        b->row.side.shape = a->row.side.shape;
        a->row.side.samples.n = b->row.side.samples.n = 0;
        return 0;
    }
    /* an element of the shards has at most 16 bytes */
    *room = malloc(17 * one->row.side.samples.n + 1);
    if (!*room)
        return no_memory();
    diff_merged(m, one, many, one == a, how, *room);
    return 0;
}

static struct diff_how how_of(const struct match *m, const struct whole *a,
                              const struct whole *b)
{
    const struct pieces *p = m->p;
    struct diff_how how = {.scale = scale_of(p, &a->row)};
    double factor = pieces_factor(p, p->factor);
    bool back = a->row.pass == TRD_BACKWARD || a->row.pass == TRD_GRAD;
    /* the loss of a part has a part of the weight */
    if (m->batch && a->row.side.n == 1 && b->row.side.n == 1)
        factor /= pieces_factor(p, PIECES_BY_SHARES);
    if (back && !is_once(a->first) && fabs(factor - 1) > 0)
        how.factor = factor;
    return how;
}

static int judge(struct match *m, struct whole *a, struct whole *b,
                 const struct diff_how *how)
{
    struct pieces *p = m->p;
    struct compare_layout *l = &p->w->layout;
    bool merged = a->n > 1 || b->n > 1;
    struct compare_pair pair = {
        .object = p->object < SIZE_MAX
                      ? p->object
                      : walk_object(p->w, &a->row, &b->row),
        .call = (a->first->share * 2 + is_eval(a->first)) * CALLS +
                a->first->call % CALLS,
        .stage = layout_stage(&p->w->a.layout, a->row.rank),
        .apart = copies_differ(&m->a, &m->split_a) ||
                 copies_differ(&m->b, &m->split_b)};
    int code = walk_pair(p->w, &pair, &a->row, &b->row, how);
    l->copies += pair.there && !merged;
    l->merged += pair.there && merged && !m->batch;
    l->batch += pair.there && merged && m->batch;
    return code;
}

/* Judges tensor i of so many, or with a place for it measures its error. */
static int pair(struct match *m, size_t i, size_t tensors, double *error)
{
    struct diff_how how = {0};
    struct whole a = {.n = 0}, b = {.n = 0};
    size_t na = m->a.n / m->split_a.size, nb = m->b.n / m->split_b.size;
    char *room = NULL;
    int code = 0;
    if (!gather(&m->a, &m->split_a, i * na / tensors, &a) ||
        !gather(&m->b, &m->split_b, i * nb / tensors, &b))
        code = no_memory();
    if (!code)
        how = how_of(m, &a, &b);
    if (!code && (a.n > 1 || b.n > 1))
        code = make_alike(m, &a, &b, &how, &room);
    if (!code && m->flat)
        b.row.side.shape = a.row.side.shape;
    if (!code && error)
        *error = diff_of(&a.row.side, &b.row.side, &how).error;
    else if (!code && m->p->learning)
        learn(m->p, &a, &b, diff_of(&a.row.side, &b.row.side, &how).error);
    else if (!code)
        code = judge(m, &a, &b, &how);
    free(room);
    free(a.shard);
    free(b.shard);
    return code;
}

/* ---- pairing ---- */

static size_t tensors_of(const struct match *m)
{
    size_t a = m->a.n / m->split_a.size, b = m->b.n / m->split_b.size;
    return a > b ? a : b;
}

static int worst_of(struct match *m, double *worst)
{
    int code = 0;
    *worst = 0;
    for (size_t i = 0; i < tensors_of(m) && !code; i++) {
        double error = 0;
        code = pair(m, i, tensors_of(m), &error);
        *worst = fmax(*worst, error);
    }
    return code;
}

static bool may_stride(const struct pile *pile, const struct split *s)
{
    return s->size > 1 && s->size < pile->n;
}

/* Which ranks have shards of one tensor is not known where there are copies
 * of shards: neighbours, or those that are far from each other. */
static int choose_order(struct match *m)
{
    bool a = may_stride(&m->a, &m->split_a);
    bool b = may_stride(&m->b, &m->split_b);
    struct split best_a = m->split_a, best_b = m->split_b;
    double best = INFINITY, worst;
    for (int i = 0; i < 4 && (a || b); i++) {
        int code;
        if ((i & 1 && !a) || (i & 2 && !b))
            continue;
        m->split_a.strided = i & 1;
        m->split_b.strided = i & 2;
        code = worst_of(m, &worst);
        if (code)
            return code;
        if (worst < best) {
            best = worst;
            best_a = m->split_a;
            best_b = m->split_b;
        }
        if (best <= COMPARE_GAIN)
            break;
    }
    m->split_a = best_a;
    m->split_b = best_b;
    return 0;
}

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

static bool find_padded(struct match *m)
{
    m->padded = is_once(m->a.row);
    return m->padded && find_splits(m);
}

/* The rows of one stage of a pipeline among those of several: the outermost
 * module has other inputs and outputs in each. */
static struct pile stage_of(const struct pile *all, size_t begin)
{
    struct pile one = {all->side, all->row + begin, 0};
    const struct layout *l = &all->side->layout;
    uint32_t stage = l->rank[one.row->rank].stage;
    while (begin + one.n < all->n &&
           l->rank[one.row[one.n].rank].stage == stage)
        one.n++;
    return one;
}

static bool find_stages(struct match *m)
{
    struct pile a = m->a, b = m->b;
    uint64_t *left = &m->p->w->layout.uncompared[COMPARE_STAGES];
    for (size_t i = 0; i < a.n; i += m->a.n) {
        m->a = stage_of(&a, i);
        for (size_t j = 0; j < b.n; j += m->b.n) {
            m->b = stage_of(&b, j);
            if ((m->a.n < a.n || m->b.n < b.n) && find_splits(m)) {
                if (!m->p->learning)
                    *left += a.n - m->a.n + (b.n - m->b.n);
                return true;
            }
        }
    }
    m->a = a;
    m->b = b;
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
    return judge(m, &a, &b, &how);
}

static bool has_shape(const struct pile *pile)
{
    return strchr(pile->row->row.side.shape.text, ' ') != NULL;
}

/* One record on each side, of a parameter that FSDP1 has flattened? */
static bool is_flattened(const struct match *m)
{
    return m->a.n == 1 && m->b.n == 1 && is_once(m->a.row) &&
           m->a.row->row.side.n == m->b.row->row.side.n &&
           has_shape(&m->a) != has_shape(&m->b);
}

/* One record on each side, that can only be of the same thing? */
static bool is_alone(const struct match *m)
{
    return m->a.n == 1 && m->b.n == 1 &&
           !(is_once(m->a.row) &&
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
    if (!m.flat && !is_alone(&m) && !find_splits(&m) && !find_stages(&m) &&
        !find_padded(&m) && !is_rank_by_rank(&m)) {
        leave_out(&m, COMPARE_PIECES);
        return 0;
    }
    if (batch && m.split_a.size == 1 && m.split_b.size == 1 &&
        (values_differ(&m.a) || values_differ(&m.b)))
        return pair_own(&m);
    code = choose_order(&m);
    for (size_t i = 0, n = tensors_of(&m); i < n && !code; i++)
        code = pair(&m, i, n, NULL);
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
    if (is_once(r))
        return pair_piles(p, a, b, false);
    if (!is_eval(r)) {
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
           (pile.n == 0 || by_name(pile.row, &pile.row[pile.n]) == 0))
        pile.n++;
    return pile;
}

int pieces_join(struct pieces *p)
{
    struct walk_side *a = &p->w->a, *b = &p->w->b;
    size_t i = 0, j = 0;
    int code = 0;
    qsort(a->row, a->n, sizeof *a->row, by_piece);
    qsort(b->row, b->n, sizeof *b->row, by_piece);
    while (!code && (i < a->n || j < b->n)) {
        struct pile x = next_pile(a, i), y = next_pile(b, j);
        int d = !x.n ? 1 : !y.n ? -1 : by_name(x.row, y.row);
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
