/* Births of NaN and infinities, by iteration. */
#include "tools/check_nonfinite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of those that are kept; the first iterations come first. */
enum { MAX_SPOTS = 1 << 14, MAX_SKIPPED = 1 << 20 };

/* Records with one: a birth, or the first of an iteration. */
struct spot {
    struct compare_pair at;
    enum check_kind kind;
    bool birth;
    uint64_t count;    /* elements */
};

struct nonfinite {
    struct spot *spot; /* births, in no order */
    size_t n, room;
    struct spot *first; /* of each iteration and kind, in their order */
    size_t first_n, first_room;
    int64_t *skipped;   /* iterations, rising */
    size_t skipped_n, skipped_room;
    uint64_t carriers;
};

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

int nonfinite_open(struct nonfinite **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? 0 : no_memory();
}

void nonfinite_close(struct nonfinite *x)
{
    if (!x)
        return;
    free(x->spot);
    free(x->first);
    free(x->skipped);
    free(x);
}

/* Room for one more; NULL: there is no memory. */
static void *room_for(void *at, size_t n, size_t *room, size_t size)
{
    size_t more = *room ? 2 * *room : 64;
    if (n < *room)
        return at;
    at = realloc(at, more * size);
    if (at)
        *room = more;
    return at;
}

/* ---- records ---- */

static bool has_nan(const struct scan_row *r)
{
    const struct diff_side *s = &r->side;
    return s->nan || (s->has & TRD_IS_GIVEN && isnan(s->mean));
}

/* A mask of -inf is no accident; a gradient of -inf is. */
static bool has_inf(const struct scan_row *r)
{
    const struct diff_side *s = &r->side;
    bool both = r->pass != TRD_FORWARD;
    return s->pinf || (both && s->ninf) ||
           (s->has & TRD_IS_GIVEN &&
            (isinf(s->max) || (both && isinf(s->min))));
}

/* What a call got: its inputs; backward also those of the forward pass. */
static bool got(const struct check_row *row, size_t n,
                const struct scan_row *of,
                bool (*has)(const struct scan_row *))
{
    for (size_t i = 0; i < n; i++) {
        const struct scan_row *r = &row[i].row;
        bool before = r->io == TRD_INPUT && r->pass <= of->pass;
        if (r->rank == of->rank && before && has(r))
            return true;
        if (r->rank == of->rank && of->pass == TRD_BACKWARD &&
            r->pass == TRD_FORWARD && has(r))
            return true;
    }
    return false;
}

static int keep_birth(struct nonfinite *x, const struct spot *s)
{
    struct spot *to;
    if (x->n == MAX_SPOTS)
        return 0;
    to = room_for(x->spot, x->n, &x->room, sizeof *to);
    if (!to)
        return no_memory();
    x->spot = to;
    to[x->n++] = *s;
    return 0;
}

static int keep_first(struct nonfinite *x, const struct spot *s)
{
    struct spot *to = x->first;
    size_t i = x->first_n;
    while (i > 0 && (to[i - 1].at.iteration > s->at.iteration ||
                     (to[i - 1].at.iteration == s->at.iteration &&
                      to[i - 1].kind > s->kind)))
        i--;
    if (i > 0 && to[i - 1].at.iteration == s->at.iteration &&
        to[i - 1].kind == s->kind) {
        if (check_is_earlier(&s->at, &to[i - 1].at))
            to[i - 1] = *s;
        return 0;
    }
    if (i == MAX_SPOTS)
        return 0;
    if (x->first_n == MAX_SPOTS)
        x->first_n--;
    to = room_for(x->first, x->first_n, &x->first_room, sizeof *to);
    if (!to)
        return no_memory();
    x->first = to;
    memmove(&to[i + 1], &to[i], (x->first_n++ - i) * sizeof *to);
    to[i] = *s;
    return 0;
}

static int look_for(struct nonfinite *x, const struct check_row *row, size_t n,
                    size_t i, enum check_kind kind,
                    bool (*has)(const struct scan_row *))
{
    const struct scan_row *r = &row[i].row;
    struct spot s = {.at = check_place(&row[i]), .kind = kind};
    int code;
    if (!has(r))
        return 0;
    s.count = kind == CHECK_NAN ? r->side.nan : r->side.pinf + r->side.ninf;
    code = keep_first(x, &s);
    if (code || r->io != TRD_OUTPUT || r->pass > TRD_BACKWARD ||
        got(row, n, r, has))
        return code;
    s.birth = true;
    return keep_birth(x, &s);
}

/* The last iterations are the likely ones. */
static int keep_skipped(struct nonfinite *x, int64_t iteration)
{
    int64_t *to = x->skipped;
    size_t i = x->skipped_n;
    while (i > 0 && to[i - 1] > iteration)
        i--;
    if ((i > 0 && to[i - 1] == iteration) || x->skipped_n == MAX_SKIPPED)
        return 0;
    to = room_for(to, x->skipped_n, &x->skipped_room, sizeof *to);
    if (!to)
        return no_memory();
    x->skipped = to;
    memmove(&to[i + 1], &to[i], (x->skipped_n++ - i) * sizeof *to);
    to[i] = iteration;
    return 0;
}

int nonfinite_look(struct nonfinite *x, const struct check_row *row, size_t n,
                   size_t i)
{
    const struct scan_row *r = &row[i].row;
    int code = 0;
    if (r->labels & TRD_L_SKIPPED)
        code = keep_skipped(x, r->iteration);
    x->carriers += has_nan(r) || has_inf(r) || r->side.ninf;
    if (!code)
        code = look_for(x, row, n, i, CHECK_NAN, has_nan);
    /* what a user keeps, the best loss so far, may begin with one */
    if (!code && r->pass != TRD_USER)
        code = look_for(x, row, n, i, CHECK_INF, has_inf);
    return code;
}

/* ---- the end ---- */

static bool is_skipped(const struct nonfinite *x, int64_t iteration)
{
    size_t from = 0, to = x->skipped_n;
    while (from < to) {
        size_t at = from + (to - from) / 2;
        if (x->skipped[at] == iteration)
            return true;
        if (x->skipped[at] < iteration)
            from = at + 1;
        else
            to = at;
    }
    return false;
}

/* Is the module of an object in that of another? */
static bool is_within(const struct scan *s, size_t object, size_t other)
{
    const char *inner = scan_module(s, object);
    const char *outer = scan_module(s, other);
    size_t n = strlen(outer);
    return object != other &&
           (n == 0 || (strncmp(inner, outer, n) == 0 && inner[n] == '.'));
}

static bool is_of(const struct spot *birth, const struct spot *first)
{
    return birth->kind == first->kind &&
           birth->at.iteration == first->at.iteration;
}

/* A module round one where it was born only hands on. */
static bool hands_on(const struct nonfinite *x, const struct scan *s,
                     const struct spot *birth)
{
    for (size_t i = 0; i < x->n; i++)
        if (is_of(&x->spot[i], birth) &&
            is_within(s, x->spot[i].at.object, birth->at.object))
            return true;
    return false;
}

/* The first record that has one is of a birth, or within it. Where births are
 * on other ranks alone, it came from there. */
static bool is_explained(const struct nonfinite *x, const struct scan *s,
                         const struct spot *first)
{
    bool born = false, here = false;
    for (size_t i = 0; i < x->n; i++) {
        const struct spot *b = &x->spot[i];
        if (!is_of(b, first))
            continue;
        born = true;
        here = here || b->at.rank == first->at.rank;
        if (b->at.rank == first->at.rank &&
            (b->at.object == first->at.object ||
             is_within(s, first->at.object, b->at.object)))
            return true;
    }
    return born && !here;
}

/* Text logs have no counts. */
static void describe(const struct spot *s, bool skipped,
                     char out[CHECK_DETAIL])
{
    char count[64] = "";
    if (s->count)
        snprintf(count, sizeof count, "%llu of %llu elements; ",
                 (unsigned long long)s->count, (unsigned long long)s->at.n);
    snprintf(out, CHECK_DETAIL, "%s%s%s%s", skipped ? "note: " : "", count,
             s->birth ? "what the call got has none"
                      : "the first that has any; no traced call made it",
             skipped ? "; the gradient scaler skipped the step" : "");
}

static int tell(struct check_result *out, const struct spot *s)
{
    char detail[CHECK_DETAIL];
    describe(s, false, detail);
    return check_find(out, s->kind, &s->at, detail);
}

/* Of skipped steps one is told, unless its module is told already. */
static int tell_skipped(const struct nonfinite *x, const struct spot *first,
                        struct check_result *out)
{
    const struct spot *s = first;
    char detail[CHECK_DETAIL];
    uint64_t n = 0;
    int code;
    for (size_t i = 0; i < x->first_n; i++)
        n += x->first[i].kind == first->kind &&
             is_skipped(x, x->first[i].at.iteration);
    for (size_t i = 0; i < x->n; i++)
        if (is_of(&x->spot[i], first) &&
            (!s->birth || check_is_earlier(&x->spot[i].at, &s->at)))
            s = &x->spot[i];
    for (size_t i = 0; i < out->n; i++)
        if (out->finding[i].kind == s->kind &&
            out->finding[i].at.object == s->at.object)
            return 0;
    describe(s, true, detail);
    code = check_find(out, s->kind, &s->at, detail);
    if (code == 0) {
        out->finding[out->n - 1].note = true;
        out->finding[out->n - 1].records = n;
    }
    return code;
}

static int tell_kind(const struct nonfinite *x, const struct scan *s,
                     enum check_kind kind, struct check_result *out)
{
    const struct spot *first = NULL, *skipped = NULL;
    int code = 0;
    for (size_t i = 0; i < x->first_n && !first; i++) {
        const struct spot *f = &x->first[i];
        if (f->kind != kind)
            continue;
        if (!is_skipped(x, f->at.iteration))
            first = f;
        else if (!skipped)
            skipped = f;
    }
    for (size_t i = 0; first && i < x->n && !code; i++)
        if (is_of(&x->spot[i], first) && !hands_on(x, s, &x->spot[i]))
            code = tell(out, &x->spot[i]);
    if (first && !code && !is_explained(x, s, first))
        code = tell(out, first);
    return skipped && !code ? tell_skipped(x, skipped, out) : code;
}

int nonfinite_end(struct nonfinite *x, const struct scan *s,
                  struct check_result *out)
{
    int code;
    out->carriers = x->carriers;
    code = tell_kind(x, s, CHECK_NAN, out);
    return code ? code : tell_kind(x, s, CHECK_INF, out);
}
