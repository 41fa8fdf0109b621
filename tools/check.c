/* Looks over all records of a run, an object's step at a time. */
#include "tools/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static struct compare_pair place_of(const struct check_row *s)
{
    const struct scan_row *r = &s->row;
    return (struct compare_pair){
        .there = true, .pass = r->pass, .io = r->io, .step = r->step,
        .iteration = r->iteration, .microbatch = r->microbatch,
        .position = r->position, .seq = r->seq, .path = r->path,
        .rank = r->rank, .n = r->side.n, .object = s->object, .before = -1};
}

static bool is_earlier(const struct compare_pair *a,
                       const struct compare_pair *b)
{
    if (a->iteration != b->iteration)
        return a->iteration < b->iteration;
    return a->seq != b->seq ? a->seq < b->seq : a->rank < b->rank;
}

/* One finding for a kind and object. */
static int find(struct check *c, enum check_kind kind,
                const struct compare_pair *at, const char *detail)
{
    struct check_result *r = c->out;
    struct check_finding *f = r->finding;
    for (size_t i = 0; i < r->n; i++)
        if (f[i].kind == kind && f[i].at.object == at->object) {
            f[i].records++;
            if (is_earlier(at, &f[i].at)) {
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

/* ---- NaN and infinities ---- */

static bool has_nan(const struct diff_side *s)
{
    return s->nan || (s->has & TRD_IS_GIVEN && isnan(s->mean));
}

/* A mask of -inf is no accident. */
static bool has_inf(const struct diff_side *s)
{
    return s->pinf || (s->has & TRD_IS_GIVEN && isinf(s->max));
}

/* What a call got: its inputs; backward also those of the forward pass. */
static bool got(const struct check *c, const struct scan_row *of,
                bool (*has)(const struct diff_side *))
{
    for (size_t i = 0; i < c->n; i++) {
        const struct scan_row *r = &c->row[i].row;
        bool before = r->io == TRD_INPUT && r->pass <= of->pass;
        if (r->rank == of->rank && before && has(&r->side))
            return true;
        if (r->rank == of->rank && of->pass == TRD_BACKWARD &&
            r->pass == TRD_FORWARD && has(&r->side))
            return true;
    }
    return false;
}

static int look_for(struct check *c, const struct check_row *s,
                    enum check_kind kind,
                    bool (*has)(const struct diff_side *), uint64_t count)
{
    const struct scan_row *r = &s->row;
    struct compare_pair at = place_of(s);
    char detail[CHECK_DETAIL];
    if (r->io != TRD_OUTPUT || r->pass > TRD_BACKWARD || got(c, r, has))
        return 0;
    snprintf(detail, sizeof detail,
             "%llu of %llu elements; what the call got has none",
             (unsigned long long)count, (unsigned long long)r->side.n);
    return find(c, kind, &at, detail);
}

static int look_at_nonfinite(struct check *c, const struct check_row *s)
{
    const struct diff_side *f = &s->row.side;
    int code = 0;
    if (has_nan(f) || has_inf(f) || f->ninf)
        c->out->carriers++;
    if (has_nan(f))
        code = look_for(c, s, CHECK_NAN, has_nan, f->nan);
    if (!code && has_inf(f))
        code = look_for(c, s, CHECK_INF, has_inf, f->pinf + f->ninf);
    return code;
}

/* Is the module of f in the one of g? */
static bool is_within(const struct check *c, const struct check_finding *f,
                      const struct check_finding *g)
{
    const char *inner = scan_module(c->s, f->at.object);
    const char *outer = scan_module(c->s, g->at.object);
    size_t n = strlen(outer);
    return f->at.object != g->at.object &&
           (n == 0 || (strncmp(inner, outer, n) == 0 && inner[n] == '.'));
}

/* What only hands on: modules round the one where it was born, and all that
 * comes in later iterations, when it is in the parameters. */
static void drop_carriers(struct check *c, enum check_kind kind)
{
    struct check_result *r = c->out;
    const struct check_finding *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        struct check_finding f = r->finding[i];
        bool carrier = false;
        if (f.kind == kind && first) {
            carrier = f.at.iteration > first->at.iteration;
            for (size_t j = 0; j < n && !carrier; j++)
                carrier = r->finding[j].kind == kind &&
                          is_within(c, &r->finding[j], &f);
        }
        if (carrier)
            continue;
        r->finding[n] = f;
        if (f.kind == kind && !first)
            first = &r->finding[n];
        n++;
    }
    r->n = n;
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
    struct compare_pair at = place_of(s);
    char detail[CHECK_DETAIL];
    int code = 0;
    if (most > 0 && r->side.has & TRD_HAS_RANGE && here > most / 2) {
        snprintf(detail, sizeof detail, "magnitudes up to %.6g, %s ends at "
                                        "%.6g",
                 here, trd_dtype_name(r->side.dtype), most);
        code = find(c, CHECK_RANGE, &at, detail);
    }
    if (!code && r->side.has & TRD_HAS_COUNTS && r->zero <= r->side.n &&
        number && r->subnormal * 10 > number) {
        snprintf(detail, sizeof detail,
                 "%.0f %% of what is not zero is subnormal, %.0f %% is zero",
                 100.0 * (double)r->subnormal / (double)number,
                 100.0 * (double)r->zero / (double)r->side.n);
        code = find(c, CHECK_UNDERFLOW, &at, detail);
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
        .first = place_of(s)};
    return &c->track[at];
}

static bool is_followed(const struct scan_row *r)
{
    return (r->pass <= TRD_BACKWARD && r->io == TRD_OUTPUT) ||
           r->pass == TRD_GRAD;
}

static int look_at_norm(struct check *c, const struct check_row *s)
{
    const struct scan_row *r = &s->row;
    char detail[CHECK_DETAIL];
    struct compare_pair at = place_of(s);
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
    if (t->n > WARM && t->mean > 0 && l2 > CHECK_JUMP * t->mean) {
        snprintf(detail, sizeof detail,
                 "its norm is %.3g, %.3g times the mean before it", l2,
                 l2 / t->mean);
        code = find(c, CHECK_SPIKE, &at, detail);
    } else {
        t->mean = t->mean > 0 ? 0.8 * t->mean + 0.2 * l2 : l2;
    }
    return code;
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
        code = find(c, CHECK_DEAD, &t->first, detail);
    }
    return code;
}

/* ---- recomputed outputs ---- */

static int look_at_recompute(struct check *c, const struct check_row *s)
{
    const struct scan_row *r = &s->row;
    struct compare_pair at = place_of(s);
    if (!(r->labels & TRD_L_RECOMPUTE) || r->io != TRD_OUTPUT ||
        !(r->side.has & TRD_HAS_HASH))
        return 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct scan_row *o = &c->row[i].row;
        if (o->rank == r->rank && o->pass == r->pass && o->io == r->io &&
            o->position == r->position && o->side.has & TRD_HAS_HASH &&
            !(o->labels & TRD_L_RECOMPUTE) && o->side.hash != r->side.hash)
            return find(c, CHECK_RECOMPUTE, &at,
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
    struct compare_pair at = place_of(s);
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
        return find(c, CHECK_REPLICAS, &at, detail);
    }
    return 0;
}

/* Ranks that agree on less than half are no replicas: parts of a model that
 * is cut by hand, or of runs that have nothing to do with one another. */
static void drop_replicas(struct check *c)
{
    struct check_result *r = c->out;
    size_t n = 0;
    if (c->disagree <= c->agree)
        return;
    for (size_t i = 0; i < r->n; i++)
        if (r->finding[i].kind != CHECK_REPLICAS)
            r->finding[n++] = r->finding[i];
    r->n = n;
}

/* ---- calls that give other bits ---- */

static int take_repeat(void *to, const struct repeat_place *place)
{
    struct check *c = to;
    struct check_result *r = c->out;
    struct compare_pair at = place_of(&place->at);
    char detail[CHECK_DETAIL];
    int code;
    /* ranks that are no replicas have other parameters */
    if (place->across && c->agree <= c->disagree)
        return 0;
    snprintf(detail, sizeof detail, "%s%s", place->note ? "note: " : "",
             place->detail);
    code = find(c, CHECK_REPEAT, &at, detail);
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
        code = look_at_nonfinite(c, s);
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
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return is_earlier(&x->at, &y->at) ? -1 : is_earlier(&y->at, &x->at);
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
        code = walk(&c);
    if (!code)
        code = repeat_end(c.repeat, take_repeat, &c);
    if (!code)
        code = tell_dead(&c);
    if (!code)
        drop_replicas(&c);
    if (!code && out->n)
        qsort(out->finding, out->n, sizeof *out->finding, by_kind);
    drop_carriers(&c, CHECK_NAN);
    drop_carriers(&c, CHECK_INF);
    for (size_t i = 0; i < out->n; i++)
        out->notes += out->finding[i].note;
    repeat_close(c.repeat);
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
