/* Two tensors of one name, merged where they are in shards. */
#include "tools/pieces_match.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/merge.h"
#include "tools/tracectl.h"

#include "tools/tracectl.h"

/* Of merged moments, by the number of elements (docs of the statistics). */
#define INEXACT_SMALL 4e-13
#define INEXACT_LARGE 2e-7
enum { SMALL = 65536, CALLS = 1 << 20 };

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- whole tensors ---- */

static size_t index_in(const struct pile *pile, const struct split *s,
                       size_t tensor, size_t shard)
{
    return s->strided ? tensor + shard * (pile->n / s->size)
                      : tensor * s->size + shard;
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
        bool copy = i && match_by_name(&s->row[i - 1], &s->row[i]) == 0 &&
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
    if (back && !match_is_once(a->first) && fabs(factor - 1) > 0)
        how.factor = factor;
    return how;
}

int match_judge(struct match *m, struct whole *a, struct whole *b,
                 const struct diff_how *how)
{
    struct pieces *p = m->p;
    struct compare_layout *l = &p->w->layout;
    bool merged = a->n > 1 || b->n > 1;
    struct compare_pair pair = {
        .object = p->object < SIZE_MAX
                      ? p->object
                      : walk_object(p->w, &a->row, &b->row),
        .call = (a->first->share * 2 + match_is_eval(a->first)) * CALLS +
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

int match_pair(struct match *m, size_t i, size_t tensors, double *error)
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
        code = match_judge(m, &a, &b, &how);
    free(room);
    free(a.shard);
    free(b.shard);
    return code;
}
