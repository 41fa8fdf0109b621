/* Names of records and queries: see name.h for the grammar. Pure. */
#include "proto/name.h"

#include <stdio.h>

static const struct slice none = {"", 0};

static struct slice part(const char *text, size_t n)
{
    struct slice s = {text, n};
    return s;
}

int name_has_wildcard(struct slice s)
{
    return s.n && (memchr(s.text, '*', s.n) || memchr(s.text, '?', s.n));
}

/* Greedy with one point of return: the last star. */
int name_match(struct slice pattern, struct slice text)
{
    size_t p = 0, t = 0, star = SIZE_MAX, mark = 0;
    while (t < text.n) {
        if (p < pattern.n && pattern.text[p] == '*') {
            star = p++;
            mark = t;
        } else if (p < pattern.n && (pattern.text[p] == '?' ||
                                     pattern.text[p] == text.text[t])) {
            p++;
            t++;
        } else if (star != SIZE_MAX) {
            p = star + 1;
            t = ++mark;
        } else {
            return 0;
        }
    }
    while (p < pattern.n && pattern.text[p] == '*')
        p++;
    return p == pattern.n;
}

static int pass_known(struct slice s)
{
    for (int i = 1; trd_pass_name(i); i++)
        if (name_match(s, slice_of(trd_pass_name(i))))
            return 1;
    return 0;
}

static int same(struct slice s, const char *word)
{
    return s.n == strlen(word) && !memcmp(s.text, word, s.n);
}

/* Passes whose records are named by a path. */
static int has_paths(struct slice pass)
{
    return same(pass, "grad") || same(pass, "param") || same(pass, "user") ||
           same(pass, "optim");
}

/* May this part be a number? Digits and wildcards only. */
static int is_number(struct slice s)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = s.text[i];
        if ((c < '0' || c > '9') && c != '*' && c != '?')
            return 0;
    }
    return s.n > 0;
}

/* Splits s at its last '-': the right side goes to *tail. */
static int split_last(struct slice s, struct slice *head, struct slice *tail)
{
    for (size_t i = s.n; i-- > 0;)
        if (s.text[i] == '-') {
            *head = part(s.text, i);
            *tail = part(s.text + i + 1, s.n - i - 1);
            return 1;
        }
    return 0;
}

/* Takes "-input", "-output" or "-output.3" off the end. */
static int take_io(struct slice *rest, struct name_reading *base)
{
    struct slice head, tail;
    if (!split_last(*rest, &head, &tail))
        return 0;
    struct slice word = tail, position = part("0", 1);
    const char *dot = memchr(tail.text, '.', tail.n);
    if (dot) {
        word = part(tail.text, (size_t)(dot - tail.text));
        position = part(dot + 1, tail.n - word.n - 1);
    }
    if (same(word, "input"))
        base->io = TRD_INPUT;
    else if (same(word, "output"))
        base->io = TRD_OUTPUT;
    else
        return 0;
    if (!is_number(position)) {
        base->io = TRD_IO_NONE;
        return 0;
    }
    base->position = position;
    *rest = head;
    return 1;
}

static void add(struct name_query *q, const struct name_reading *base,
                enum name_who kind, struct slice who, struct slice instance,
                struct slice step)
{
    if (!who.n || q->n == NAME_MAX_READINGS)
        return;
    struct name_reading *r = &q->reading[q->n++];
    *r = *base;
    r->kind = kind;
    r->who = who;
    r->instance = instance;
    r->step = step;
}

/* The readings of what follows the pass, in the order they are tried. */
static void read_parts(struct name_query *q, const struct name_reading *base,
                       struct slice rest, enum name_as as)
{
    struct slice head1 = none, tail1 = none, head2 = none, tail2 = none;
    int io = base->io != TRD_IO_NONE;
    int n1 = split_last(rest, &head1, &tail1) && is_number(tail1);
    int n2 = n1 && split_last(head1, &head2, &tail2) && is_number(tail2);
    int user = same(base->pass, "user");
    /* a pattern for gradients or parameters means their paths */
    int paths_first =
        user || (as == NAME_AS_ANY && has_paths(base->pass) &&
                 name_has_wildcard(rest));
    for (int round = 0; round < 2; round++) {
        if (!io && paths_first == (round == 0) &&
            (user || as != NAME_AS_OBJECT)) {
            if (n1)
                add(q, base, NAME_PATH, head1, none, tail1);
            add(q, base, NAME_PATH, rest, none, none);
        }
        if (round || user)
            continue;
        if (as != NAME_AS_MODULE) {
            if (n2)
                add(q, base, NAME_OBJECT, head2, tail2, tail1);
            if (n1 && !io)
                add(q, base, NAME_OBJECT, head1, tail1, none);
            if (!io)
                add(q, base, NAME_OBJECT, rest, none, none);
        }
        if (as != NAME_AS_OBJECT) {
            if (n1)
                add(q, base, NAME_MODULE, head1, none, tail1);
            if (!io)
                add(q, base, NAME_MODULE, rest, none, none);
        }
    }
}

/* What is wrong with a text, or NULL; fills the readings. */
static const char *parse(struct slice text, enum name_as as,
                         struct name_query *q)
{
    struct name_reading base = {.kind = NAME_ALL, .pass = none, .who = none,
                                .instance = none, .step = none,
                                .position = none, .io = TRD_IO_NONE};
    const char *dash = text.n ? memchr(text.text, '-', text.n) : NULL;
    base.pass = dash ? part(text.text, (size_t)(dash - text.text)) : text;
    if (!base.pass.n || !pass_known(base.pass))
        return "it must begin with forward-, backward-, grad-, param-, "
               "optim- or user-";
    if (!dash) {
        q->reading[q->n++] = base;
        return NULL;
    }
    struct slice rest = part(dash + 1, text.n - base.pass.n - 1);
    if (!rest.n)
        return "nothing follows the pass";
    if (!has_paths(base.pass))
        take_io(&rest, &base);
    read_parts(q, &base, rest, as);
    if (!q->n)
        return base.io ? "a step must stand before input or output"
                       : "it must be pass-Class-n-step-io, or "
                         "pass-module.path-step";
    return NULL;
}

int name_parse(struct slice text, enum name_as as, struct name_query *out,
               const char **why)
{
    struct name_query q = {0};
    const struct name_reading whole = {
        .pass = part("*", 1), .instance = none, .step = none,
        .position = none, .io = TRD_IO_NONE};
    if (text.n > 2 * TRD_MAX_NAME) {
        *why = "it is longer than a name can be";
        return TRD_ENAME;
    }
    const char *wrong = parse(text, as, &q);
    if (name_has_wildcard(text) && (wrong || q.reading[0].kind != NAME_ALL)) {
        add(&q, &whole, NAME_TEXT, text, none, none);
    } else if (wrong) {
        *why = wrong;
        return TRD_ENAME;
    }
    *out = q;
    return 0;
}

int name_put(const struct name_parts *p, char *out, size_t cap)
{
    const char *pass = trd_pass_name(p->pass);
    int n;
    if (!pass)
        return TRD_EINVAL;
    if (p->pass > TRD_BACKWARD) {
        n = snprintf(out, cap, "%s-%.*s-%llu", pass, (int)p->path.n,
                     p->path.text, (unsigned long long)p->step);
    } else {
        n = snprintf(out, cap, "%s-%.*s-%llu-%llu-%s", pass,
                     (int)p->class_name.n, p->class_name.text,
                     (unsigned long long)p->instance,
                     (unsigned long long)p->step,
                     p->io == TRD_INPUT ? "input" : "output");
        if (n >= 0 && (size_t)n < cap && p->position)
            n += snprintf(out + n, cap - (size_t)n, ".%llu",
                          (unsigned long long)p->position);
    }
    return n < 0 || (size_t)n >= cap ? TRD_ELIMIT : 0;
}
