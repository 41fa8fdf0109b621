/* Looks over all records of a run, an object's step at a time. */
#include "tools/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/check_nonfinite.h"
#include "tools/check_repeat.h"

enum {
    MAX_TRACKS = 1 << 18, /* places whose norms are followed */
    WARM = 4,             /* norms before one can be a spike */
    MAX_GROUPS = 1 << 16
};

/* What is followed of a place in the model over its steps. */
struct track {
    int64_t path, object;
    int32_t pass, io, position;
    uint32_t rank;
    bool used, alive;
    uint64_t zeros, n;
    double mean;          /* running, of l2 */
    double last, low;     /* l2 of the record before, and where it began to
                             grow at each */
    uint64_t grown;       /* records since then */
    struct compare_pair first;
};

struct check {
    struct scan *s;
    struct check_result *out;
    struct check_row *row;
    size_t n, room;
    struct track *track;
    size_t tracks;
    uint32_t *group;      /* of each rank: its data-parallel group */
    size_t ranks;
    uint64_t agree, disagree; /* replicas */
    struct repeat *repeat;
    struct nonfinite *nonfinite;
};

const char *check_kind_name(enum check_kind kind)
{
    static const char *const name[CHECK_KIND_N] = {
#define CHECK_KIND_TEXT(member, text) text,
        CHECK_KINDS(CHECK_KIND_TEXT)
#undef CHECK_KIND_TEXT
    };
    return name[kind];
}

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

/* ---- findings ---- */

struct compare_pair check_place(const struct check_row *s)
{
    const struct scan_row *r = &s->row;
    return (struct compare_pair){
        .there = true, .pass = r->pass, .io = r->io, .step = r->step,
        .iteration = r->iteration, .microbatch = r->microbatch,
        .position = r->position, .seq = r->seq, .path = r->path,
        .rank = r->rank, .n = r->side.n, .object = s->object, .before = -1};
}

bool check_is_earlier(const struct compare_pair *a,
                      const struct compare_pair *b)
{
    if (a->iteration != b->iteration)
        return a->iteration < b->iteration;
    return a->seq != b->seq ? a->seq < b->seq : a->rank < b->rank;
}

int check_find(struct check_result *r, enum check_kind kind,
               const struct compare_pair *at, const char *detail)
{
    struct check_finding *f = r->finding;
    for (size_t i = 0; i < r->n; i++)
        if (f[i].kind == kind && f[i].at.object == at->object) {
            f[i].records++;
            if (check_is_earlier(at, &f[i].at)) {
                f[i].at = *at;
                snprintf(f[i].detail, sizeof f[i].detail, "%s", detail);
            }
            return 0;
        }
    f = realloc(f, (r->n + 1) * sizeof *f);
    if (!f)
        return no_memory();
    r->finding = f;
    f += r->n++;
    *f = (struct check_finding){.kind = kind, .at = *at, .records = 1};
    snprintf(f->detail, sizeof f->detail, "%s", detail);
    return 0;
}

/* ---- range ---- */

/* The largest finite number of a narrow dtype; 0 for others. */
static double largest(int dtype)
{
    switch (dtype) {
    case TRD_F16:
        return 65504;
    case TRD_F8_E4M3FN:
        return 448;
    case TRD_F8_E4M3FNUZ:
        return 240;
    case TRD_F8_E5M2:
    case TRD_F8_E5M2FNUZ:
        return 57344;
    default:
        return 0;
    }
}

static int look_at_range(struct check *c, const struct check_row *s)
{
    const struct scan_row *r = &s->row;
    double most = largest(r->side.dtype);
    double here = fmax(fabs(r->side.max), fabs(r->side.min));
    uint64_t number = r->side.n - r->zero;
    struct compare_pair at = check_place(s);
    char detail[CHECK_DETAIL];
    int code = 0;
    if (most > 0 && r->side.has & TRD_HAS_RANGE && here > most / 2) {
        snprintf(detail, sizeof detail, "magnitudes up to %.6g, %s ends at "
                                        "%.6g",
                 here, trd_dtype_name(r->side.dtype), most);
        code = check_find(c->out, CHECK_RANGE, &at, detail);
    }
    if (!code && r->side.has & TRD_HAS_COUNTS && r->zero <= r->side.n &&
        number && r->subnormal * 10 > number) {
        snprintf(detail, sizeof detail,
                 "%.0f %% of what is not zero is subnormal, %.0f %% is zero",
                 100.0 * (double)r->subnormal / (double)number,
                 100.0 * (double)r->zero / (double)r->side.n);
        code = check_find(c->out, CHECK_UNDERFLOW, &at, detail);
    }
    return code;
}

/* ---- dead and exploding tensors ---- */

static struct track *track_of(struct check *c, const struct check_row *s)
{
    const struct scan_row *r = &s->row;
    uint64_t h = (uint64_t)r->object * UINT64_C(0x9e3779b97f4a7c15) ^
                 (uint64_t)r->path * UINT64_C(0xc2b2ae3d27d4eb4f) ^
                 ((uint64_t)r->rank << 20 | (uint64_t)r->position << 6 |
                  (uint64_t)r->pass << 2 | (uint64_t)r->io) *
                     UINT64_C(0x165667b19e3779f9);
    size_t at = (size_t)(h >> 32) & (MAX_TRACKS - 1);
    for (struct track *t; (t = &c->track[at])->used;
         at = (at + 1) & (MAX_TRACKS - 1))
        if (t->object == r->object && t->path == r->path &&
            t->pass == r->pass && t->io == r->io &&
            t->position == r->position && t->rank == r->rank)
            return t;
    if (c->tracks >= MAX_TRACKS / 4 * 3)
        return NULL;
    c->tracks++;
    c->track[at] = (struct track){
        .path = r->path, .object = r->object, .pass = r->pass, .io = r->io,
        .position = (int32_t)r->position, .rank = r->rank, .used = true,
        .first = check_place(s)};
    return &c->track[at];
}

static bool is_followed(const struct scan_row *r)
{
    return (r->pass <= TRD_BACKWARD && r->io == TRD_OUTPUT) ||
           r->pass == TRD_GRAD;
}

/* Step by step without end, so slowly that none of them is a spike. */
static int look_at_growth(struct check *c, struct track *t,
                          const struct compare_pair *at, double l2)
{
    char detail[CHECK_DETAIL];
    bool grows = t->last > 0 && l2 > CHECK_RISE * t->last;
    t->grown = grows ? t->grown + 1 : 0;
    t->low = grows ? t->low : l2;
    t->last = l2;
    if (l2 < CHECK_GROWTH * t->low)
        return 0;
    snprintf(detail, sizeof detail,
             "its norm is %.3g, and grew %.3g-fold over %llu records, at "
             "each of them",
             l2, l2 / t->low, (unsigned long long)t->grown);
    return check_find(c->out, CHECK_GROWS, at, detail);
}

static int look_at_norm(struct check *c, const struct check_row *s)
{
    const struct scan_row *r = &s->row;
    char detail[CHECK_DETAIL];
    struct compare_pair at = check_place(s);
    struct track *t;
    int code = 0;
    double l2 = r->side.l2;
    if (!is_followed(r) || !(r->side.has & TRD_HAS_L2) || r->side.n < 2 ||
        !(t = track_of(c, s)))
        return 0;
    t->n++;
    if (l2 == 0) {
        t->zeros++;
        return 0;
    }
    t->alive = true;
    if (!isfinite(l2)) /* others tell it, and no mean comes back from it */
        return 0;
    if (t->n > WARM && t->mean > 0 && l2 > CHECK_JUMP * t->mean) {
        snprintf(detail, sizeof detail,
                 "its norm is %.3g, %.3g times the mean before it", l2,
                 l2 / t->mean);
        code = check_find(c->out, CHECK_SPIKE, &at, detail);
    } else {
        t->mean = t->mean > 0 ? 0.8 * t->mean + 0.2 * l2 : l2;
    }
    return code ? code : look_at_growth(c, t, &at, l2);
}

static int tell_dead(struct check *c)
{
    int code = 0;
    for (size_t i = 0; i < MAX_TRACKS && !code; i++) {
        const struct track *t = &c->track[i];
        char detail[CHECK_DETAIL];
        if (!t->used || t->alive || t->zeros < CHECK_TIMES)
            continue;
        snprintf(detail, sizeof detail, "all zeros in all of %llu records",
                 (unsigned long long)t->zeros);
        code = check_find(c->out, CHECK_DEAD, &t->first, detail);
    }
    return code;
}

/* ---- recomputed outputs ---- */

static int look_at_recompute(struct check *c, const struct check_row *s)
{
    const struct scan_row *r = &s->row;
    struct compare_pair at = check_place(s);
    if (!(r->labels & TRD_L_RECOMPUTE) || r->io != TRD_OUTPUT ||
        !(r->side.has & TRD_HAS_HASH))
        return 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct scan_row *o = &c->row[i].row;
        if (o->rank == r->rank && o->pass == r->pass && o->io == r->io &&
            o->position == r->position && o->side.has & TRD_HAS_HASH &&
            !(o->labels & TRD_L_RECOMPUTE) && o->side.hash != r->side.hash)
            return check_find(c->out, CHECK_RECOMPUTE, &at,
                        "the recomputed output is not the first one's, bit "
                        "for bit");
    }
    return 0;
}

/* ---- replicas ---- */

/* The coordinates of a process but for its data-parallel one, as text. */
static void layout_of(const char *info, char *out, size_t cap)
{
    const char *at = strstr(info, "\"coordinates\": {");
    size_t n = 0;
    out[0] = '\0';
    if (!at)
        return;
    for (at = strchr(at, '{') + 1; *at && *at != '}';) {
        const char *end = strchr(at, ']');
        if (!end)
            return;
        if (strncmp(at, "\"dp\"", 4) != 0 && n + (size_t)(end - at) < cap) {
            memcpy(out + n, at, (size_t)(end - at));
            n += (size_t)(end - at);
            out[n] = '\0';
        }
        at = end + 1;
        at += strspn(at, ", ");
    }
}

static int find_groups(struct check *c)
{
    size_t n;
    const struct scan_stream *t = scan_streams(c->s, &n);
    char (*text)[256] = calloc(n + 1, sizeof *text);
    for (size_t i = 0; i < n; i++)
        if (t[i].wanted && t[i].rank < MAX_GROUPS && t[i].rank >= c->ranks)
            c->ranks = t[i].rank + 1;
    c->group = calloc(c->ranks + 1, sizeof *c->group);
    if (!text || !c->group) {
        free(text);
        return no_memory();
    }
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;
        layout_of(t[i].info, text[i], sizeof *text);
        while (j < i && strcmp(text[j], text[i]) != 0)
            j++;
        if (t[i].wanted && t[i].rank < c->ranks)
            c->group[t[i].rank] = (uint32_t)j;
    }
    free(text);
    return 0;
}

static bool is_replicated(const struct scan_row *r)
{
    return (r->pass == TRD_GRAD || r->pass == TRD_PARAM) &&
           r->side.has & TRD_HAS_HASH &&
           !(r->labels & (TRD_L_SHARD | TRD_L_LOCAL | TRD_L_SKIPPED));
}

/* The same parameter on the first rank of the group. */
static int look_at_replicas(struct check *c, const struct check_row *s)
{
    const struct scan_row *r = &s->row;
    struct compare_pair at = check_place(s);
    char detail[CHECK_DETAIL];
    if (!is_replicated(r) || r->rank >= c->ranks)
        return 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct scan_row *o = &c->row[i].row;
        if (!is_replicated(o) || o->rank >= r->rank ||
            c->group[o->rank] != c->group[r->rank] || o->pass != r->pass ||
            o->path != r->path || o->side.n != r->side.n)
            continue;
        if (o->side.hash == r->side.hash) {
            c->agree++;
            return 0;
        }
        c->disagree++;
        snprintf(detail, sizeof detail,
                 "ranks %u and %u hold different bits of one parameter",
                 o->rank, r->rank);
        return check_find(c->out, CHECK_REPLICAS, &at, detail);
    }
    return 0;
}

/* Ranks that agree on less than half are no replicas: parts of a model that
 * is cut by hand, or of runs that have nothing to do with one another. Where
 * they agree on nothing at all the reduction may have been forgotten: the
 * first is kept, as a note. */
static void drop_replicas(struct check *c)
{
    struct check_result *r = c->out;
    struct check_finding *kept = NULL;
    size_t n = 0;
    if (c->disagree <= c->agree)
        return;
    for (size_t i = 0; i < r->n; i++) {
        const struct check_finding f = r->finding[i];
        if (f.kind != CHECK_REPLICAS) {
            r->finding[n++] = f;
        } else if (!c->agree && !kept) {
            kept = &r->finding[n++];
            *kept = f;
        } else if (kept && check_is_earlier(&f.at, &kept->at)) {
            *kept = f;
        }
    }
    r->n = n;
    if (!kept)
        return;
    kept->note = true;
    kept->records = c->disagree;
    snprintf(kept->detail, sizeof kept->detail,
             "note: no parameter has the same bits on two ranks: each "
             "trains for itself, or a reduction is missing");
}

/* ---- calls that give other bits ---- */

static int take_repeat(void *to, const struct repeat_place *place)
{
    struct check *c = to;
    struct check_result *r = c->out;
    struct compare_pair at = check_place(&place->at);
    char detail[CHECK_DETAIL];
    int code;
    /* ranks that are no replicas have other parameters */
    if (place->across && c->agree <= c->disagree)
        return 0;
    snprintf(detail, sizeof detail, "%s%s", place->note ? "note: " : "",
             place->detail);
    code = check_find(c->out, CHECK_REPEAT, &at, detail);
    for (size_t i = 0; i < r->n && !code; i++)
        if (r->finding[i].kind == CHECK_REPEAT &&
            r->finding[i].at.object == at.object)
            r->finding[i].note =
                place->note &&
                (r->finding[i].records == 1 || r->finding[i].note);
    return code;
}

/* ---- the walk ---- */

static int keep(struct check *c, const struct scan_row *r)
{
    struct check_row *s;
    if (c->n == c->room) {
        size_t room = c->room ? 2 * c->room : 64;
        s = realloc(c->row, room * sizeof *s);
        if (!s)
            return no_memory();
        c->row = s;
        c->room = room;
    }
    s = &c->row[c->n++];
    s->row = *r;
    s->object = scan_index(c->s, r->object);
    return 0;
}

static int look(struct check *c)
{
    int code = repeat_look(c->repeat, c->row, c->n);
    for (size_t i = 0; i < c->n && !code; i++) {
        const struct check_row *s = &c->row[i];
        code = nonfinite_look(c->nonfinite, c->row, c->n, i);
        if (!code)
            code = look_at_range(c, s);
        if (!code)
            code = look_at_norm(c, s);
        if (!code)
            code = look_at_recompute(c, s);
        if (!code)
            code = look_at_replicas(c, s);
    }
    c->n = 0;
    return code;
}

static int walk(struct check *c)
{
    const struct scan_row *r;
    int got_row, code = 0;
    while (!code && (got_row = scan_next(c->s, &r)) != 0) {
        if (got_row < 0)
            return -got_row;
        if (c->n && (c->row[0].row.step != r->step ||
                     c->row[0].row.object != r->object))
            code = look(c);
        if (!code)
            code = keep(c, r);
        c->out->records++;
    }
    return code ? code : look(c);
}

static int by_kind(const void *a, const void *b)
{
    const struct check_finding *x = a, *y = b;
    if (x->note != y->note)
        return x->note - y->note;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return check_is_earlier(&x->at, &y->at)   ? -1
           : check_is_earlier(&y->at, &x->at) ? 1
                                              : 0;
}

int check_run(struct scan *s, struct check_result *out)
{
    struct check c = {.s = s, .out = out};
    int code = 0;
    memset(out, 0, sizeof *out);
    c.track = calloc(MAX_TRACKS, sizeof *c.track);
    if (!c.track)
        code = no_memory();
    if (!code)
        code = find_groups(&c);
    if (!code)
        code = repeat_open(s, c.group, c.ranks, &c.repeat);
    if (!code)
        code = nonfinite_open(&c.nonfinite);
    if (!code)
        code = walk(&c);
    if (!code)
        code = repeat_end(c.repeat, take_repeat, &c);
    if (!code)
        code = tell_dead(&c);
    if (!code)
        code = nonfinite_end(c.nonfinite, s, out);
    if (!code)
        drop_replicas(&c);
    if (!code && out->n)
        qsort(out->finding, out->n, sizeof *out->finding, by_kind);
    for (size_t i = 0; i < out->n; i++)
        out->notes += out->finding[i].note;
    repeat_close(c.repeat);
    nonfinite_close(c.nonfinite);
    free(c.row);
    free(c.track);
    free(c.group);
    if (code)
        check_free(out);
    return code;
}

void check_free(struct check_result *r)
{
    free(r->finding);
    r->finding = NULL;
    r->n = 0;
}
