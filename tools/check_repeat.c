/* The same inputs and other outputs, within a run. */
#include "tools/check_repeat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tracectl.h"

enum {
    CALLS = 1 << 17,   /* remembered; a newer one takes an older one's place */
    MAX_FOUND = 4096
};

struct call {
    int64_t object, iteration, step;
    uint32_t rank;
    bool used, whole;  /* all of its tensors have a hash */
    uint64_t got, gave;
    int64_t seq;       /* of its first output */
    size_t first;      /* that output, while its rows are there */
    bool known, made;  /* while they are read */
};

struct found {
    struct repeat_place place;
    int64_t before;    /* seq of the earlier call */
    bool changed, told; /* its parameters, or that they are known at all */
};

struct repeat {
    struct scan *s;
    const uint32_t *group;
    size_t ranks;
    struct call *call;
    struct found *found;
    size_t n;
    struct call *now;  /* of the rows that are looked at */
    size_t now_n, now_room;
};

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

int repeat_open(struct scan *s, const uint32_t *group, size_t ranks,
                struct repeat **out)
{
    struct repeat *p = calloc(1, sizeof *p);
    *out = p;
    if (!p || !(p->call = calloc(CALLS, sizeof *p->call)))
        return no_memory();
    p->s = s;
    p->group = group;
    p->ranks = ranks;
    return 0;
}

void repeat_close(struct repeat *p)
{
    if (!p)
        return;
    free(p->call);
    free(p->found);
    free(p->now);
    free(p);
}

/* ---- what is known of a class ---- */

static bool is_among(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

/* Functions of their inputs that have no parameters. */
static bool is_plain(const char *name)
{
    static const char *const list[] = {
        "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AvgPool1d", "AvgPool2d",
        "ELU", "Flatten", "GELU", "Hardswish", "Hardtanh", "Identity",
        "LeakyReLU", "LogSoftmax", "MaxPool1d", "MaxPool2d", "Mish", "ReLU",
        "ReLU6", "SiLU", "Sigmoid", "Softmax", "Softplus", "Tanh"};
    return is_among(name, list, sizeof list / sizeof *list);
}

/* Functions of their inputs and parameters. */
static bool is_layer(const char *name)
{
    static const char *const list[] = {
        "Bilinear", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d",
        "ConvTranspose2d", "Embedding", "GroupNorm", "LayerNorm", "Linear",
        "RMSNorm"};
    return is_among(name, list, sizeof list / sizeof *list);
}

static bool is_random(const char *name)
{
    static const char *const part[] = {"Drop", "Noise", "Random", "RReLU",
                                       "Stochastic", "Gumbel", "Sampl"};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++)
        if (strstr(name, part[i]))
            return true;
    return false;
}

static bool is_within(const char *inner, const char *outer)
{
    size_t n = strlen(outer);
    return strcmp(inner, outer) != 0 &&
           (n == 0 || (strncmp(inner, outer, n) == 0 && inner[n] == '.'));
}

/* A module that draws random numbers, or has one inside. */
static bool may_be_random(const struct repeat *p, size_t object)
{
    size_t n;
    const struct scan_object *o = scan_objects(p->s, &n);
    const char *module = scan_module(p->s, object);
    if (is_random(o[object].class_name))
        return true;
    for (size_t i = 0; i < n; i++)
        if (is_random(o[i].class_name) && is_within(o[i].module, module))
            return true;
    return false;
}

/* ---- calls ---- */

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static uint64_t mix_row(uint64_t h, const struct scan_row *r)
{
    h = mix(h, (uint64_t)r->position);
    h = mix(h, (uint64_t)r->side.dtype);
    for (size_t i = 0; i < r->side.shape.n; i++)
        h = mix(h, (unsigned char)r->side.shape.text[i]);
    return h;
}

static int take_row(struct repeat *p, const struct check_row *x, size_t at)
{
    const struct scan_row *r = &x->row;
    struct call *c = p->now_n ? &p->now[p->now_n - 1] : NULL;
    if (!c || c->rank != r->rank) {
        if (p->now_n == p->now_room) {
            size_t room = p->now_room ? 2 * p->now_room : 16;
            c = realloc(p->now, room * sizeof *c);
            if (!c)
                return no_memory();
            p->now = c;
            p->now_room = room;
        }
        c = &p->now[p->now_n++];
        *c = (struct call){.object = r->object, .iteration = r->iteration,
                           .step = r->step, .rank = r->rank, .used = true,
                           .whole = true};
    }
    c->whole = c->whole && r->side.has & TRD_HAS_HASH;
    if (r->io == TRD_INPUT) {
        c->got = mix(mix_row(c->got, r), r->side.hash);
        c->known = true;
    } else {
        /* another dtype or shape is another question: autocast, say */
        c->got = mix_row(c->got, r);
        c->gave = mix(c->gave, r->side.hash);
        if (!c->made) {
            c->first = at;
            c->seq = r->seq;
        }
        c->made = true;
    }
    return 0;
}

static int add(struct repeat *p, const struct check_row *row,
               const struct call *earlier, const struct call *later,
               bool across)
{
    const struct check_row *at = &row[later->first];
    size_t n;
    const char *class_name = scan_objects(p->s, &n)[at->object].class_name;
    struct found *f;
    if (p->n == MAX_FOUND || may_be_random(p, at->object))
        return 0;
    f = realloc(p->found, (p->n + 1) * sizeof *f);
    if (!f)
        return no_memory();
    p->found = f;
    f += p->n++;
    *f = (struct found){.place = {.at = *at, .across = across},
                        .before = earlier->seq};
    f->place.note = !is_plain(class_name) && !is_layer(class_name);
    f->told = across || is_plain(class_name);
    if (across)
        snprintf(f->place.detail, sizeof f->place.detail,
                 "ranks %u and %u got the same bits and gave others",
                 earlier->rank, later->rank);
    else
        snprintf(f->place.detail, sizeof f->place.detail,
                 "calls %lld and %lld got the same bits and gave others",
                 (long long)earlier->step, (long long)later->step);
    return 0;
}

static bool may_differ_in_parameters(const struct repeat *p,
                                     const struct call *a,
                                     const struct call *b, size_t object)
{
    size_t n;
    const struct scan_object *o = scan_objects(p->s, &n);
    if (is_plain(o[object].class_name))
        return false;
    return a->rank >= p->ranks || b->rank >= p->ranks ||
           p->group[a->rank] != p->group[b->rank];
}

/* The same call on other ranks; one is told. */
static int look_across(struct repeat *p, const struct check_row *row,
                       const struct call *c)
{
    for (const struct call *o = p->now; o < c; o++) {
        size_t object = row[c->first].object;
        if (!o->whole || !o->known || !o->made || o->got != c->got ||
            o->iteration != c->iteration ||
            may_differ_in_parameters(p, o, c, object))
            continue;
        return o->gave == c->gave ? 0 : add(p, row, o, c, true);
    }
    return 0;
}

static int look_back(struct repeat *p, const struct check_row *row,
                     const struct call *c)
{
    uint64_t h = mix(mix(mix(c->got, (uint64_t)c->object), c->rank),
                     (uint64_t)c->iteration);
    struct call *o = &p->call[(size_t)(h >> 32) & (CALLS - 1)];
    bool same = o->used && o->object == c->object && o->rank == c->rank &&
                o->iteration == c->iteration && o->got == c->got;
    int code = 0;
    if (same && o->gave != c->gave)
        code = add(p, row, o, c, false);
    *o = *c;
    return code;
}

int repeat_look(struct repeat *p, const struct check_row *row, size_t n)
{
    int code = 0;
    p->now_n = 0;
    for (size_t i = 0; i < n && !code; i++)
        if (row[i].row.pass == TRD_FORWARD && row[i].row.object &&
            !(row[i].row.labels & TRD_L_RECOMPUTE))
            code = take_row(p, &row[i], i);
    for (size_t i = 0; i < p->now_n && !code; i++) {
        const struct call *c = &p->now[i];
        if (!c->whole || !c->known || !c->made)
            continue;
        code = look_across(p, row, c);
        if (!code)
            code = look_back(p, row, c);
    }
    return code;
}

/* ---- the end ---- */

/* Gradients say that there are parameters and when they were changed. */
static void learn(struct repeat *p, const struct scan_row *r)
{
    for (size_t i = 0; i < p->n; i++) {
        struct found *f = &p->found[i];
        const struct scan_row *at = &f->place.at.row;
        if (f->place.across || at->object != r->object || at->rank != r->rank)
            continue;
        f->told = true;
        if (r->seq > f->before && r->seq < at->seq)
            f->changed = true;
    }
}

static int read_changes(struct repeat *p)
{
    const struct scan_row *r;
    int got, code = scan_goto(p->s, INT64_MIN, INT64_MIN);
    if (code)
        return code;
    while ((got = scan_next(p->s, &r)) > 0)
        if (r->pass == TRD_GRAD || r->pass == TRD_PARAM ||
            r->pass == TRD_OPTIM)
            learn(p, r);
    return got < 0 ? -got : 0;
}

/* What is round another that is told only hands on. */
static bool is_carrier(const struct repeat *p, const struct found *f)
{
    const char *outer = scan_module(p->s, f->place.at.object);
    for (size_t i = 0; i < p->n; i++)
        if (!p->found[i].changed &&
            is_within(scan_module(p->s, p->found[i].place.at.object), outer))
            return true;
    return false;
}

int repeat_end(struct repeat *p,
               int (*take)(void *to, const struct repeat_place *place),
               void *to)
{
    int code = p->n ? read_changes(p) : 0;
    for (size_t i = 0; i < p->n && !code; i++) {
        struct found *f = &p->found[i];
        f->place.note = f->place.note || !f->told;
        if (!f->changed && !is_carrier(p, f))
            code = take(to, &f->place);
    }
    return code;
}
