/* Gains, guilt and the first divergence; compare.h states the model. */
#include "tools/verdict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PLACES = 1 << 17,       /* of object and iteration, in memory */
    MAX_ITERATIONS = 4096,  /* whose first large error is kept */
    GRAD_MICROBATCH = 1 << 30 /* gradients come behind all micro-batches */
};

/* What a gain is of. */
enum kind { KIND_FORWARD, KIND_BACKWARD, KIND_GRAD, KIND_MOMENTS, KIND_N };

struct gains {
    int64_t iteration;
    double now[KIND_N], last[KIND_N]; /* of this and the iteration before */
};

/* The errors of one call. */
struct call {
    uint32_t number;
    double in[2], out[2];            /* forward, backward; -1: no record */
    size_t worst[2];                 /* pair of out */
    double moments_in, moments_out;  /* forward */
    size_t worst_moments;
};

/* Of an object in an iteration. */
struct place {
    size_t object;
    int64_t iteration;
    double calls;                    /* largest error of its calls */
    struct compare_pair grad;        /* the worst gradient of a parameter */
};

struct compare_noise {
    size_t n;
    double (*most)[KIND_N];
};

struct verdict {
    size_t objects;
    struct gains *gain;
    double (*most)[KIND_N];          /* of all iterations, to be learnt */
    const struct compare_noise *noise;
    struct compare_pair *pair;       /* of the group */
    size_t pairs, room;
    struct call *call;
    size_t calls, call_room;
    struct place *place;             /* sorted by hash, open addressing */
    size_t places;
    struct compare_pair *early;      /* first large error per iteration */
    size_t early_n;
    int64_t begins;                  /* first iteration with a difference */
    struct compare_pair culprit;
    struct compare_result sum;
};

/* ---- memory ---- */

struct verdict *verdict_open(size_t objects,
                             const struct compare_noise *noise)
{
    struct verdict *v = calloc(1, sizeof *v);
    if (!v)
        return NULL;
    v->objects = objects;
    v->noise = noise;
    v->begins = INT64_MAX;
    v->gain = calloc(objects + 1, sizeof *v->gain);
    v->most = calloc(objects + 1, sizeof *v->most);
    v->place = calloc(PLACES, sizeof *v->place);
    v->early = calloc(MAX_ITERATIONS, sizeof *v->early);
    if (v->gain && v->most && v->place && v->early)
        return v;
    verdict_close(v);
    return NULL;
}

void verdict_close(struct verdict *v)
{
    if (!v)
        return;
    free(v->gain);
    free(v->most);
    free(v->pair);
    free(v->call);
    free(v->place);
    free(v->early);
    free(v);
}

struct compare_noise *verdict_learn(const struct verdict *v)
{
    struct compare_noise *n = calloc(1, sizeof *n);
    if (n)
        n->most = calloc(v->objects + 1, sizeof *n->most);
    if (!n || !n->most) {
        free(n);
        return NULL;
    }
    n->n = v->objects;
    memcpy(n->most, v->most, v->objects * sizeof *n->most);
    return n;
}

void compare_noise_free(struct compare_noise *n)
{
    if (n)
        free(n->most);
    free(n);
}

/* ---- order ---- */

static int64_t microbatch_of(const struct compare_pair *p)
{
    bool late = p->pass > TRD_BACKWARD && p->pass != TRD_USER;
    return late && p->microbatch == 0 ? GRAD_MICROBATCH : p->microbatch;
}

/* Forward the first stage of a pipeline comes first, backward the last. */
static int64_t turn_of(const struct compare_pair *p)
{
    if (p->pass == TRD_BACKWARD)
        return INT32_MAX - (int64_t)p->stage;
    return p->pass > TRD_BACKWARD ? (int64_t)INT32_MAX + 1
                                  : (int64_t)p->stage;
}

/* Execution order: iteration, micro-batch, stage, number in the process; of
 * ranks the lowest. */
static bool is_before(const struct compare_pair *a,
                      const struct compare_pair *b)
{
    if (a->iteration != b->iteration)
        return a->iteration < b->iteration;
    if (microbatch_of(a) != microbatch_of(b))
        return microbatch_of(a) < microbatch_of(b);
    if (a->stage != b->stage && turn_of(a) != turn_of(b))
        return turn_of(a) < turn_of(b);
    if (a->rank != b->rank && a->seq == b->seq)
        return a->rank < b->rank;
    return a->seq < b->seq;
}

static void keep_first(struct compare_pair *kept,
                       const struct compare_pair *p)
{
    if (!kept->there || is_before(p, kept)) {
        *kept = *p;
        kept->there = true;
    }
}

/* The first large error of each iteration. */
static void keep_early(struct verdict *v, const struct compare_pair *p)
{
    for (size_t i = 0; i < v->early_n; i++)
        if (v->early[i].iteration == p->iteration) {
            keep_first(&v->early[i], p);
            return;
        }
    if (v->early_n < MAX_ITERATIONS)
        keep_first(&v->early[v->early_n++], p);
}

/* ---- counting ---- */

static bool is_number(const struct diff *d)
{
    return d->kind == DIFF_EQUAL || d->kind == DIFF_NEAR;
}

static void rank_pair(struct compare_result *r, const struct compare_pair *p)
{
    size_t at = r->ranked_n;
    while (at > 0 && (r->ranked[at - 1].diff.error < p->diff.error ||
                      (r->ranked[at - 1].diff.error <= p->diff.error &&
                       is_before(p, &r->ranked[at - 1]))))
        at--;
    if (at == COMPARE_RANKED)
        return;
    if (r->ranked_n < COMPARE_RANKED)
        r->ranked_n++;
    memmove(&r->ranked[at + 1], &r->ranked[at],
            (r->ranked_n - at - 1) * sizeof *p);
    r->ranked[at] = *p;
}

static void count(struct verdict *v, const struct compare_pair *p)
{
    struct compare_result *r = &v->sum;
    const struct diff *d = &p->diff;
    r->compared++;
    r->nan_alike += d->nan_alike;
    r->nan += d->kind == DIFF_NAN;
    r->shape += d->kind == DIFF_SHAPE;
    r->dtype += d->kind == DIFF_DTYPE || d->mixed;
    r->blind += d->kind == DIFF_BLIND;
    if (d->kind == DIFF_EQUAL) {
        r->equal++;
        return;
    }
    if (d->kind == DIFF_BLIND)
        return;
    if (d->error > COMPARE_GAIN)
        r->differ++;
    else
        r->rounding++;
    if (is_number(d) && d->error > r->most)
        r->most = d->error;
    if (p->iteration < v->begins)
        v->begins = p->iteration;
    rank_pair(r, p);
    if (d->error > COMPARE_GAIN)
        keep_early(v, p);
}

bool verdict_pair(struct verdict *v, const struct compare_pair *p)
{
    if (v->pairs == v->room) {
        size_t room = v->room ? 2 * v->room : 64;
        struct compare_pair *more = realloc(v->pair, room * sizeof *more);
        if (!more)
            return false;
        v->pair = more;
        v->room = room;
    }
    v->pair[v->pairs++] = *p;
    return true;
}

/* ---- gains ---- */

static bool is_narrow(const struct diff *d)
{
    return d->unit >= 0x1p-12;
}

static double limit_of(const struct compare_pair *p, enum kind kind)
{
    if (kind == KIND_MOMENTS)
        return COMPARE_GAIN_MOMENTS;
    if (kind == KIND_FORWARD && is_narrow(&p->diff) && !p->diff.mixed)
        return COMPARE_GAIN_NARROW;
    return COMPARE_GAIN;
}

/* The gain that is no guilt. */
static double allowed(struct verdict *v, const struct compare_pair *p,
                      enum kind kind)
{
    double most = fmax(1, v->gain[p->object].last[kind]);
    if (v->noise && p->object < v->noise->n)
        most = fmax(most, v->noise->most[p->object][kind]);
    return limit_of(p, kind) * most;
}

static void begin_iteration(struct gains *g, int64_t iteration)
{
    if (g->iteration == iteration)
        return;
    for (int k = 0; k < KIND_N; k++)
        g->last[k] = g->iteration ? fmax(g->now[k], g->last[k]) : 0;
    memset(g->now, 0, sizeof g->now);
    g->iteration = iteration;
}

static void judge(struct verdict *v, const struct compare_pair *p,
                  double gain, double before, enum kind kind)
{
    struct gains *g = &v->gain[p->object];
    begin_iteration(g, p->iteration);
    if (gain > allowed(v, p, kind)) {
        struct compare_pair guilty = *p;
        guilty.before = before;
        keep_first(&v->culprit, &guilty);
        return; /* what is guilty is no measure for what comes */
    }
    g->now[kind] = fmax(g->now[kind], gain);
    v->most[p->object][kind] = fmax(v->most[p->object][kind], gain);
}

static void judge_error(struct verdict *v, const struct compare_pair *p,
                        double before, enum kind kind)
{
    judge(v, p, p->diff.error / fmax(1, before), before, kind);
}

/* Roundings of n elements cancel in their moments, a shift of all does not. */
static void judge_moments(struct verdict *v, const struct call *c)
{
    const struct compare_pair *p = &v->pair[c->worst_moments];
    double root = sqrt((double)(p->n ? p->n : 1));
    double before = fmax(c->moments_in, fmax(1, c->in[0]) / root);
    if (is_narrow(&p->diff) && !p->diff.mixed && p->diff.kind == DIFF_NEAR)
        judge(v, p, c->moments_out / before, c->in[0], KIND_MOMENTS);
}

static struct call *call_of(struct verdict *v, uint32_t number)
{
    struct call *c;
    for (size_t i = v->calls; i-- > 0;)
        if (v->call[i].number == number)
            return &v->call[i];
    if (v->calls == v->call_room) {
        size_t room = v->call_room ? 2 * v->call_room : 16;
        c = realloc(v->call, room * sizeof *c);
        if (!c)
            return NULL;
        v->call = c;
        v->call_room = room;
    }
    c = &v->call[v->calls++];
    *c = (struct call){.number = number, .in = {-1, -1}, .out = {-1, -1}};
    return c;
}

static struct place *place_of(struct verdict *v, size_t object,
                              int64_t iteration)
{
    uint64_t h = (object * UINT64_C(0x9e3779b97f4a7c15) ^
                  (uint64_t)iteration * UINT64_C(0xc2b2ae3d27d4eb4f));
    size_t at = (size_t)(h >> 40) & (PLACES - 1);
    while (v->place[at].iteration) {
        if (v->place[at].object == object &&
            v->place[at].iteration == iteration)
            return &v->place[at];
        at = (at + 1) & (PLACES - 1);
    }
    if (v->places >= PLACES / 4 * 3)
        return NULL; /* later iterations are judged by their calls alone */
    v->places++;
    v->place[at].object = object;
    v->place[at].iteration = iteration;
    return &v->place[at];
}

/* Errors of calls, and the worst gradient, for the end. */
static void remember(struct verdict *v, const struct compare_pair *p)
{
    struct place *place;
    if (p->diff.error <= 0 || p->iteration < 1)
        return;
    place = place_of(v, p->object, p->iteration);
    if (!place)
        return;
    if (p->pass != TRD_GRAD)
        place->calls = fmax(place->calls, p->diff.error);
    else if (!place->grad.there ||
             p->diff.error > place->grad.diff.error) {
        place->grad = *p;
        place->grad.there = true;
    }
}

static void take(struct verdict *v, size_t i)
{
    const struct compare_pair *p = &v->pair[i];
    int pass = p->pass - TRD_FORWARD;
    struct call *c;
    if (p->object >= v->objects || p->pass > TRD_GRAD)
        return;
    remember(v, p);
    if (p->pass == TRD_GRAD || !(c = call_of(v, p->call)))
        return;
    if (pass == 0 && p->io == TRD_INPUT) {
        c->moments_in = fmax(c->moments_in, p->diff.moments);
    } else if (pass == 0 && p->diff.moments > c->moments_out) {
        c->moments_out = p->diff.moments;
        c->worst_moments = i;
    }
    if (p->io == TRD_INPUT) {
        c->in[pass] = fmax(c->in[pass], p->diff.error);
    } else if (p->diff.error > c->out[pass]) {
        c->out[pass] = p->diff.error;
        c->worst[pass] = i;
    }
}

void verdict_group(struct verdict *v)
{
    v->calls = 0;
    for (size_t i = 0; i < v->pairs; i++) {
        count(v, &v->pair[i]);
        take(v, i);
    }
    for (size_t i = 0; i < v->calls; i++) {
        const struct call *c = &v->call[i];
        double before = fmax(c->in[0], c->out[0]);
        /* without a record of what it got nobody can be guilty */
        if (c->out[0] >= 0 && c->in[0] >= 0)
            judge_error(v, &v->pair[c->worst[0]], c->in[0], KIND_FORWARD);
        if (c->moments_out > 0 && c->in[0] >= 0)
            judge_moments(v, c);
        if (c->out[1] >= 0 && c->in[1] >= 0)
            judge_error(v, &v->pair[c->worst[1]], fmax(before, c->in[1]),
                        KIND_BACKWARD);
    }
    v->pairs = 0;
}

/* ---- the end ---- */

static int by_iteration(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->object != y->object)
        return x->object < y->object ? -1 : 1;
    return x->iteration < y->iteration ? -1 : x->iteration > y->iteration;
}

/* The gradients of parameters, against all calls of their iteration. */
static void judge_gradients(struct verdict *v, bool calls)
{
    size_t n = 0;
    for (size_t i = 0; i < PLACES; i++)
        if (v->place[i].iteration)
            v->place[n++] = v->place[i];
    qsort(v->place, n, sizeof *v->place, by_iteration);
    for (size_t i = 0; i < v->objects; i++)
        v->gain[i].iteration = 0;
    for (size_t i = 0; i < n && calls; i++)
        if (v->place[i].grad.there)
            judge_error(v, &v->place[i].grad, v->place[i].calls, KIND_GRAD);
}

/* From gradients of parameters alone: they all suffer from a wrong block,
 * those in it most. The block is what the parameters with the largest errors
 * have in common. */
static void blame_by_gradients(struct verdict *v,
                               const struct compare_pair *first)
{
    struct compare_pair *most = NULL;
    for (size_t i = 0; i < PLACES; i++) {
        struct compare_pair *p = &v->place[i].grad;
        if (p->there && p->iteration == first->iteration &&
            (!most || p->diff.error > most->diff.error))
            most = p;
    }
    if (most)
        keep_first(&v->culprit, most);
}

static void say(struct compare_result *r, const char *text)
{
    snprintf(r->reason, sizeof r->reason, "%s", text);
}

static void say_culprit(const struct verdict *v, struct compare_result *r)
{
    const struct compare_pair *c = &v->culprit;
    const char *what = c->pass == TRD_GRAD       ? "gradient of a parameter"
                       : c->pass == TRD_BACKWARD ? "gradient of its input"
                                                 : "output";
    if (c->before < 0)
        snprintf(r->reason, sizeof r->reason,
                 "of all gradients its parameters' differ most, by %.3g "
                 "units of rounding; it or a module beside it is wrong",
                 c->diff.error);
    else if (c->diff.kind != DIFF_NEAR)
        snprintf(r->reason, sizeof r->reason,
                 "what it got agrees (error %.3g), and its %s differs in %s",
                 c->before, what, diff_kind_name(c->diff.kind));
    else
        snprintf(r->reason, sizeof r->reason,
                 "what it got agrees (error %.3g), and its %s differs by "
                 "%.3g units of rounding (%s)%s",
                 c->before, what, c->diff.error,
                 diff_figure_name(c->diff.by),
                 c->apart ? "; ranks that should have copies of it do not: "
                            "is a reduction missing?"
                          : "");
}

/* Nobody is guilty, but something is wrong from `first` on. */
static void judge_first(struct verdict *v, const struct compare_pair *first,
                        struct compare_result *r)
{
    r->verdict = COMPARE_UNSURE;
    if (first->iteration > v->begins) {
        r->verdict = COMPARE_ROUNDING;
        say(r, "rounding of the first iterations grew, as it does in "
               "training; no module added to it out of nothing");
    } else if (first->diff.kind != DIFF_NEAR) {
        r->verdict = COMPARE_DIFFERS;
        say(r, "it differs in kind, and no traced module is to blame");
    } else if (first->pass == TRD_BACKWARD && first->io == TRD_INPUT) {
        r->verdict = COMPARE_DIFFERS;
        say(r, "the gradient that comes in differs, and the output it is "
               "of agrees: look at what is behind it, such as the loss");
    } else if (first->pass == TRD_FORWARD && first->io == TRD_INPUT) {
        r->verdict = COMPARE_DIFFERS;
        say(r, "its input differs already, and no traced module made it: "
               "look at the data and at what is computed between modules");
    } else {
        say(r, "more than rounding explains, but what led to it is not "
               "recorded");
    }
}

static const struct compare_pair *early_of(const struct verdict *v,
                                           int64_t iteration)
{
    const struct compare_pair *best = NULL;
    for (size_t i = 0; i < v->early_n; i++)
        if ((iteration == 0 || v->early[i].iteration == iteration) &&
            (!best || is_before(&v->early[i], best)))
            best = &v->early[i];
    return best;
}

bool verdict_first(const struct verdict *v, struct compare_pair *out)
{
    const struct compare_pair *early;
    if (!v->culprit.there)
        return false;
    early = early_of(v, v->culprit.iteration);
    *out = early && is_before(early, &v->culprit) ? *early : v->culprit;
    return true;
}

static bool has_calls(const struct verdict *v)
{
    for (size_t i = 0; i < PLACES; i++)
        if (v->place[i].iteration && v->place[i].calls > 0)
            return true;
    return false;
}

static void judge_all(struct verdict *v, struct compare_result *r)
{
    bool calls = has_calls(v);
    const struct compare_pair *first;
    judge_gradients(v, calls);
    first = early_of(v, 0);
    if (!v->culprit.there && first && first->iteration == v->begins &&
        first->pass == TRD_GRAD && !calls)
        blame_by_gradients(v, first);
    if (v->culprit.there) {
        r->culprit = v->culprit;
        verdict_first(v, &r->first);
        r->verdict = COMPARE_DIFFERS;
        say_culprit(v, r);
    } else if (first) {
        r->first = *first;
        judge_first(v, first, r);
    } else if (r->equal + r->blind < r->compared) {
        r->verdict = COMPARE_ROUNDING;
    }
}

void verdict_end(struct verdict *v, struct compare_result *out)
{
    struct compare_result *r = &v->sum;
    r->only_a = out->only_a;
    r->only_b = out->only_b;
    r->functions_a = out->functions_a;
    r->functions_b = out->functions_b;
    r->missing_a = out->missing_a;
    r->missing_b = out->missing_b;
    r->missing_a_n = out->missing_a_n;
    r->missing_b_n = out->missing_b_n;
    r->text = out->text;
    r->layout = out->layout;
    *out = *r;
    judge_all(v, out);
    if (out->verdict <= COMPARE_ROUNDING) {
        out->rounding += out->differ;
        out->differ = 0;
        out->first.there = false;
    }
    if (out->compared == 0 && !out->layout.same) {
        out->verdict = COMPARE_UNSURE;
        say(out, "the ranks of the runs hold other parts of the model, and "
                 "no record of one could be paired with one of the other");
    } else if (out->compared == 0) {
        out->verdict = COMPARE_DIFFERS;
        say(out, "the runs have no record in common");
    } else if ((out->only_a || out->only_b) &&
               out->verdict < COMPARE_DIFFERS) {
        out->verdict = COMPARE_DIFFERS;
        say(out, "some records are in one run only");
    }
}
