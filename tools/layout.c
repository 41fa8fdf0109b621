/* Ranks, and what they share. */
#include "tools/layout.h"

#include <stdlib.h>
#include <string.h>

#include "tools/tracectl.h"

static bool begins_with(const char *text, const char *const *with)
{
    for (; *with; with++)
        if (strncmp(text, *with, strlen(*with)) == 0)
            return true;
    return false;
}

static bool is_stage(const struct scan_place *p)
{
    static const char *const names[] = {"pp", "pipe", "stage", NULL};
    return begins_with(p->name, names);
}

static bool is_data(const struct scan_place *p)
{
    static const char *const names[] = {"dp",        "data",  "ddp",
                                        "fsdp",      "hsdp",  "zero",
                                        "replicate", "shard", "batch", NULL};
    return begins_with(p->name, names);
}

/* A mesh without names says nothing; experts lie across other dimensions. */
static bool is_known(const struct scan_place *p)
{
    static const char *const names[] = {"dim", "ep", "expert", "etp", "vpp",
                                        NULL};
    return p->size > 1 && !begins_with(p->name, names);
}

/* ---- coordinates ---- */

static int by_rank(const void *a, const void *b)
{
    const struct layout_rank *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Have two ranks the same share of the model? */
static bool same_model(const struct layout_rank *a,
                       const struct layout_rank *b)
{
    for (size_t i = 0; i < a->stream->places; i++) {
        const struct scan_place *p = &a->stream->place[i], *q;
        if (!is_known(p) || is_data(p))
            continue;
        q = layout_place(b, p->name);
        if (!q || q->at != p->at)
            return false;
    }
    return true;
}

static void place(struct layout *l, struct layout_rank *r)
{
    bool model = false, data = false;
    uint64_t share = 0, before = 0;
    for (size_t i = 0; i < r->stream->places; i++) {
        const struct scan_place *p = &r->stream->place[i];
        if (is_stage(p))
            r->stage = (uint32_t)p->at;
        if (is_data(p)) {
            share = share * (uint64_t)p->size + (uint64_t)p->at;
            data = true;
        }
        model = model || (is_known(p) && !is_data(p));
    }
    for (struct layout_rank *o = l->rank; o < r; o++)
        before += same_model(o, r);
    if (data)
        r->data = (uint32_t)share;
    else if (model)
        r->data = (uint32_t)before;
}

int layout_open(const struct scan *s, struct layout *out)
{
    size_t streams, n = 0;
    const struct scan_stream *t = scan_streams(s, &streams);
    struct layout_rank *list = malloc((streams + 1) * sizeof *list);
    out->rank = list;
    out->n = 0;
    if (!list)
        return ctl_fail(CTL_FAILED, "out of memory");
    for (size_t i = 0; i < streams; i++)
        if (t[i].wanted)
            list[n++] = (struct layout_rank){t[i].rank, LAYOUT_UNKNOWN,
                                             LAYOUT_UNKNOWN, false, &t[i]};
    qsort(list, n, sizeof *list, by_rank);
    for (size_t i = 0; i < n; i++) { /* a rank may have had two processes */
        struct layout_rank *last = &list[out->n ? out->n - 1 : 0];
        if (out->n == 0 || last->rank != list[i].rank)
            list[out->n++] = list[i];
        else if (list[i].stream->places > last->stream->places)
            *last = list[i];
    }
    for (size_t i = 0; i < out->n; i++)
        place(out, &list[i]);
    return 0;
}

void layout_close(struct layout *l)
{
    free(l->rank);
    l->rank = NULL;
    l->n = 0;
}

static bool includes(const struct layout_rank *a, const struct layout_rank *b)
{
    for (size_t i = 0; i < a->stream->places; i++) {
        const struct scan_place *p = &a->stream->place[i];
        const struct scan_place *q = layout_place(b, p->name);
        if (p->size > 1 && (!q || q->size != p->size || q->at != p->at))
            return false;
    }
    return true;
}

bool layout_is_same(const struct layout *a, const struct layout *b)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (a->rank[i].rank != b->rank[i].rank ||
            !includes(&a->rank[i], &b->rank[i]) ||
            !includes(&b->rank[i], &a->rank[i]))
            return false;
    return true;
}

size_t layout_index(const struct layout *l, uint32_t rank)
{
    struct layout_rank key = {.rank = rank}, *found;
    if (!l->n)
        return 0;
    found = bsearch(&key, l->rank, l->n, sizeof key, by_rank);
    return found ? (size_t)(found - l->rank) : l->n;
}

uint32_t layout_stage(const struct layout *l, uint32_t rank)
{
    size_t i = layout_index(l, rank);
    return i < l->n && l->rank[i].stage != LAYOUT_UNKNOWN ? l->rank[i].stage
                                                          : 0;
}

void layout_count(const struct layout *l, uint32_t *data, uint32_t *stages)
{
    *data = *stages = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (l->rank[i].data != LAYOUT_UNKNOWN && l->rank[i].data >= *data)
            *data = l->rank[i].data + 1;
        if (l->rank[i].stage != LAYOUT_UNKNOWN &&
            l->rank[i].stage >= *stages)
            *stages = l->rank[i].stage + 1;
    }
}

/* ---- guesses ---- */

/* The first input of a rank. */
struct input {
    bool there;
    int64_t seq, object;
    struct diff_side side;
};

static bool same_input(const struct input *a, const struct input *b)
{
    const struct diff_side *x = &a->side, *y = &b->side;
    if (!a->there || !b->there)
        return a->there == b->there;
    if (a->object != b->object || x->n != y->n)
        return false;
    if (x->has & y->has & TRD_HAS_HASH)
        return x->hash == y->hash;
    return !(x->max < y->max || x->max > y->max || x->min < y->min ||
             x->min > y->min || x->mean < y->mean || x->mean > y->mean);
}

static int read_inputs(const struct layout *l, struct scan *s,
                       struct input *in)
{
    const struct scan_row *r;
    int64_t step = 0;
    bool some = false;
    int got, code = scan_goto(s, INT64_MIN, INT64_MIN);
    if (code)
        return code;
    while ((got = scan_next(s, &r)) > 0 && (!some || r->step == step)) {
        size_t i = layout_index(l, r->rank);
        step = r->step;
        some = true;
        if (i == l->n || r->pass != TRD_FORWARD || r->io != TRD_INPUT ||
            r->position || r->labels & TRD_L_RECOMPUTE ||
            (in[i].there && in[i].seq < r->seq))
            continue;
        in[i] = (struct input){true, r->seq, r->object, r->side};
    }
    return got < 0 ? -got : 0;
}

/* Do two ranks own at least half of what the one with less owns? */
static bool same_modules(const struct layout *l, const struct scan *s,
                         const uint8_t *owned, size_t a, size_t b)
{
    size_t objects, of_a = 0, of_b = 0, both = 0;
    scan_objects(s, &objects);
    for (size_t i = 0; i < objects; i++, owned += l->n) {
        of_a += owned[a];
        of_b += owned[b];
        both += owned[a] & owned[b];
    }
    return 2 * both >= (of_a < of_b ? of_a : of_b);
}

int layout_guess(struct layout *l, struct scan *s, const uint8_t *owned)
{
    struct input *in = calloc(l->n + 1, sizeof *in);
    uint32_t stages = 0;
    int code;
    if (!in)
        return ctl_fail(CTL_FAILED, "out of memory");
    code = read_inputs(l, s, in);
    for (size_t i = 0; i < l->n && !code; i++) {
        struct layout_rank *r = &l->rank[i];
        uint32_t shares = 0;
        r->guessed = r->stage == LAYOUT_UNKNOWN;
        for (size_t j = 0; j < i && r->stage == LAYOUT_UNKNOWN; j++)
            if (same_modules(l, s, owned, i, j))
                r->stage = l->rank[j].stage;
        if (r->stage == LAYOUT_UNKNOWN)
            r->stage = stages++;
        if (r->data != LAYOUT_UNKNOWN)
            continue;
        for (size_t j = 0; j < i; j++) {
            if (l->rank[j].stage != r->stage)
                continue;
            if (l->rank[j].data >= shares)
                shares = l->rank[j].data + 1;
            if (same_input(&in[i], &in[j]))
                r->data = l->rank[j].data;
        }
        if (r->data == LAYOUT_UNKNOWN)
            r->data = shares;
    }
    free(in);
    return code ? code : scan_goto(s, INT64_MIN, INT64_MIN);
}
