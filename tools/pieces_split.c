/* How the rows of a name fall into tensors. */
#include "tools/pieces_match.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/merge.h"

/* ---- sizes ---- */

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
bool match_splits(struct match *m)
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

bool match_padded(struct match *m)
{
    m->padded = match_is_once(m->a.row);
    return m->padded && match_splits(m);
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

bool match_stages(struct match *m)
{
    struct pile a = m->a, b = m->b;
    uint64_t *left = &m->p->w->layout.uncompared[COMPARE_STAGES];
    for (size_t i = 0; i < a.n; i += m->a.n) {
        m->a = stage_of(&a, i);
        for (size_t j = 0; j < b.n; j += m->b.n) {
            m->b = stage_of(&b, j);
            if ((m->a.n < a.n || m->b.n < b.n) && match_splits(m)) {
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


/* ---- order ---- */

size_t match_tensors(const struct match *m)
{
    size_t a = m->a.n / m->split_a.size, b = m->b.n / m->split_b.size;
    return a > b ? a : b;
}

static int worst_of(struct match *m, double *worst)
{
    int code = 0;
    *worst = 0;
    for (size_t i = 0; i < match_tensors(m) && !code; i++) {
        double error = 0;
        code = match_pair(m, i, match_tensors(m), &error);
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
int match_order(struct match *m)
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
