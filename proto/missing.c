/* Why a question for records finds nothing. Pure text.
 *
 * The parts of the question are put back one by one, from the object to the
 * micro-batch, and the first one that leaves no record is named, with the
 * values that the records before it have. */
#include "proto/missing.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    NEAREST = 3,
    NEAREST_ROWS = 20000, /* names that are compared */
    NEAREST_LENGTH = 64,
    SUBJECT_BYTES = 512,
    SHOWN = 200 /* bytes of a part of the question */
};

/* A sentence that grows; what does not fit is left off. */
struct text {
    char *at;
    size_t n, cap;
};

#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static void
say(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->at + t->n, t->cap - t->n, format, args);
    va_end(args);
    if (n > 0)
        t->n += (size_t)n < t->cap - t->n ? (size_t)n : t->cap - t->n - 1;
}

static struct text text_of(char *at, size_t cap)
{
    struct text t = {at, 0, cap};
    at[0] = '\0';
    return t;
}

static int shown(struct slice s)
{
    return s.n < SHOWN ? (int)s.n : SHOWN;
}

void missing_run(const char *run, const char *dir, char out[MISSING_BYTES])
{
    struct text t = text_of(out, MISSING_BYTES);
    if (*run)
        say(&t, "no run '%s'; 'tracectl runs' lists what there is", run);
    else
        say(&t, "there is no run yet in '%s'", dir);
}

/* ---- the values that there are ---- */

struct span {
    int64_t least, most, n; /* n different ones */
};

static int64_t whole(const struct cell *c)
{
    return c->type == CELL_INT ? c->i : 0;
}

static void take_span(void *to, const struct cell *cells)
{
    struct span *s = to;
    s->least = whole(&cells[0]);
    s->most = whole(&cells[1]);
    s->n = whole(&cells[2]);
}

static void take_any(void *to, const struct cell *cells)
{
    (void)cells;
    *(bool *)to = true;
}

/* "rank 0", "ranks 0 to 3", "ranks 0 and 7", "ranks from 0 to 7" */
static void say_span(struct text *t, const char *what, const struct span *s)
{
    long long least = s->least, most = s->most;
    if (s->n <= 1)
        say(t, "%s %lld", what, least);
    else if (s->n == 2)
        say(t, "%ss %lld %s %lld", what, least,
            most == least + 1 ? "to" : "and", most);
    else
        say(t, "%ss %s%lld to %lld", what,
            most - least + 1 == s->n ? "" : "from ", least, most);
}

static int ask(const struct missing *m, struct sql *sql, missing_take *take,
               void *to)
{
    return m->ask(m->context, sql, take, to);
}

/* A statement without values to bind, or with one. */
static void plain(struct sql *sql, const char *text, const struct slice *one)
{
    const struct cell none = {.type = CELL_TEXT};
    snprintf(sql->text, sizeof sql->text, "%s", text);
    sql->n = one != NULL;
    sql->patterns = 0;
    sql->bind[0] = none;
    if (one)
        sql->bind[0].s = *one;
}

/* ---- nothing of that name ---- */

/* Levenshtein's distance of the first bytes. */
static unsigned distance(struct slice a, struct slice b)
{
    unsigned row[NEAREST_LENGTH + 1];
    size_t an = a.n < NEAREST_LENGTH ? a.n : NEAREST_LENGTH;
    size_t bn = b.n < NEAREST_LENGTH ? b.n : NEAREST_LENGTH;

    for (size_t j = 0; j <= bn; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= an; i++) {
        unsigned corner = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= bn; j++) {
            unsigned old = row[j];
            unsigned best = corner + (a.text[i - 1] != b.text[j - 1]);
            if (old + 1 < best)
                best = old + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
            corner = old;
        }
    }
    return row[bn];
}

struct nearest {
    struct slice who;
    unsigned distance[NEAREST];
    char name[NEAREST][NEAREST_LENGTH + 1];
    unsigned n;
};

static void take_name(void *to, const struct cell *cells)
{
    struct nearest *l = to;
    struct slice name = cells[0].s;
    unsigned d, at;
    if (name.n == 0 || name.n > NEAREST_LENGTH)
        return;
    d = distance(l->who, name);
    if (d == 0 || d >= l->who.n || d > 2 + l->who.n / 2)
        return; /* far away; or equal, so it is there as something else */
    for (at = l->n; at > 0 && l->distance[at - 1] > d; at--)
        if (at < NEAREST) {
            l->distance[at] = l->distance[at - 1];
            memcpy(l->name[at], l->name[at - 1], sizeof l->name[at]);
        }
    if (at >= NEAREST)
        return;
    l->distance[at] = d;
    memcpy(l->name[at], name.text, name.n);
    l->name[at][name.n] = '\0';
    if (l->n < NEAREST)
        l->n++;
}

/* A class that is there, with other instances. *said when there is one. */
static int say_instances(const struct missing *m, struct sql *sql,
                         struct text *t, bool *said)
{
    *said = false;
    for (unsigned i = 0; i < m->names->n; i++) {
        const struct name_reading *r = &m->names->reading[i];
        struct span s = {0, 0, 0};
        if (r->kind != NAME_OBJECT || !r->instance.n ||
            name_has_wildcard(r->who))
            continue;
        plain(sql,
              "SELECT min(instance), max(instance), count(DISTINCT instance)"
              " FROM object WHERE class = ?1",
              &r->who);
        int rc = ask(m, sql, take_span, &s);
        if (rc)
            return rc;
        if (!s.n)
            continue;
        say(t, "run '%s' has no '%.*s-%.*s': '%.*s' has ", m->run,
            shown(r->who), r->who.text, shown(r->instance), r->instance.text,
            shown(r->who), r->who.text);
        say_span(t, "instance", &s);
        *said = true;
        return 0;
    }
    return 0;
}

/* What the readings could have meant. */
static const char *kinds(const struct name_query *names)
{
    unsigned seen = 0;
    for (unsigned i = 0; i < names->n; i++)
        seen |= 1u << names->reading[i].kind;
    if (seen == 1u << NAME_OBJECT)
        return "object";
    if (seen == 1u << NAME_PATH)
        return "parameter or user value";
    return "object, module or path";
}

static int say_unknown(const struct missing *m, struct sql *sql,
                       struct text *t)
{
    static const char *const names =
        "SELECT class FROM object UNION SELECT module FROM object UNION "
        "SELECT text FROM path LIMIT %d";
    static const char *const paths = "SELECT text FROM path LIMIT %d";
    struct nearest l = {.who = m->names->reading[0].who, .n = 0};
    char text[160];
    bool said;
    int rc = say_instances(m, sql, t, &said);
    if (rc || said)
        return rc;
    snprintf(text, sizeof text,
             m->names->reading[0].kind == NAME_PATH ? paths : names,
             (int)NEAREST_ROWS);
    plain(sql, text, NULL);
    rc = ask(m, sql, take_name, &l);
    say(t, "run '%s' has no %s '%.*s'", m->run, kinds(m->names),
        shown(l.who), l.who.text);
    for (unsigned i = 0; i < l.n; i++)
        say(t, "%s'%s'", i ? ", " : "; nearest: ", l.name[i]);
    return rc;
}

/* ---- a part that leaves nothing ---- */

enum part {
    PART_WHO,
    PART_PASS,
    PART_STEP,
    PART_IO,
    PART_POSITION,
    PART_RANK,
    PART_ATTEMPT,
    PART_ITERATION,
    PART_MICROBATCH,
    PARTS
};

/* As sentences call them and as sql_records() names their columns. */
static const char *const words[PARTS] = {
    "",     "pass",    "step",      "io",        "position",
    "rank", "attempt", "iteration", "microbatch"};

/* The question as far as its parts are put back. */
struct partial {
    const struct missing *m;
    struct query q;
    struct name_reading r;
    struct text subject; /* in words */
};

static bool all(struct slice s)
{
    return !s.n || (s.n == 1 && s.text[0] == '*');
}

static int64_t filter(const struct query *q, enum part part)
{
    switch (part) {
    case PART_RANK:
        return q->rank;
    case PART_ATTEMPT:
        return q->attempt;
    case PART_ITERATION:
        return q->iteration;
    case PART_MICROBATCH:
        return q->microbatch;
    default:
        return -1;
    }
}

static const char *io_name(int io)
{
    return io == TRD_INPUT ? "input" : io == TRD_OUTPUT ? "output" : "none";
}

/* The value that the question gives for the part; false: it gives none. */
static bool value_of(const struct missing *m, enum part part, char *out,
                     size_t cap)
{
    const struct name_reading *r = m->reading;
    struct slice s = {"", 0};
    int64_t v = filter(m->q, part);
    if (v >= 0) {
        snprintf(out, cap, "%lld", (long long)v);
        return true;
    }
    if (!r || r->kind == NAME_TEXT)
        return false;
    if (part == PART_PASS)
        s = r->pass;
    else if (part == PART_STEP)
        s = r->step;
    else if (part == PART_POSITION && r->io)
        s = r->position;
    else if (part == PART_IO && r->io)
        s = slice_of(io_name((int)r->io));
    snprintf(out, cap, "%.*s", shown(s), s.text);
    return !all(s);
}

/* Puts the part back. */
static void put_back(struct partial *p, enum part part)
{
    const struct name_reading *r = p->m->reading;
    const struct query *q = p->m->q;
    switch (part) {
    case PART_PASS:
        p->r.pass = r->pass;
        break;
    case PART_STEP:
        p->r.step = r->step;
        break;
    case PART_IO:
        p->r.io = r->io;
        break;
    case PART_POSITION:
        p->r.position = r->position;
        break;
    case PART_RANK:
        p->q.rank = q->rank;
        break;
    case PART_ATTEMPT:
        p->q.attempt = q->attempt;
        break;
    case PART_ITERATION:
        p->q.iteration = q->iteration;
        break;
    case PART_MICROBATCH:
        p->q.microbatch = q->microbatch;
        break;
    default:
        break;
    }
}

/* "'forward-Log-1-3' of " */
static void say_name(struct text *t, const struct name_reading *r)
{
    bool pass = r->kind != NAME_TEXT && !all(r->pass);
    if (!pass && !r->who.n)
        return;
    say(t, "'");
    if (pass)
        say(t, "%.*s%s", shown(r->pass), r->pass.text, r->who.n ? "-" : "");
    say(t, "%.*s", shown(r->who), r->who.text);
    if (r->instance.n)
        say(t, "-%.*s", shown(r->instance), r->instance.text);
    if (r->step.n)
        say(t, "-%.*s", shown(r->step), r->step.text);
    if (r->io)
        say(t, "-%s", io_name((int)r->io));
    say(t, "' of ");
}

/* The question's words so far: "'forward-Log-1' of run 'r', rank 0," */
static void name_subject(struct partial *p)
{
    struct text *t = &p->subject;
    bool comma = false;
    *t = text_of(t->at, t->cap);
    if (p->m->reading)
        say_name(t, &p->r);
    say(t, "run '%s'", p->m->run);
    for (enum part i = PART_RANK; i < PARTS; i++)
        if (filter(&p->q, i) >= 0) {
            say(t, ", %s %lld", words[i], (long long)filter(&p->q, i));
            comma = true;
        }
    if (comma)
        say(t, ",");
}

/* Are there records? */
static int look(struct partial *p, struct sql *sql, bool *found)
{
    p->q.limit = 1;
    *found = false;
    if (sql_records(&p->q, p->m->reading ? &p->r : NULL, sql))
        return 0;
    return ask(p->m, sql, take_any, found);
}

/* Puts a selection around the statement; the binds stay. */
static void around(struct sql *sql, const char *head, const char *tail)
{
    size_t n = strlen(sql->text), h = strlen(head), e = strlen(tail);
    if (n + h + e + 1 > sizeof sql->text)
        return;
    memmove(sql->text + h, sql->text, n);
    memcpy(sql->text, head, h);
    memcpy(sql->text + h + n, tail, e + 1);
}

struct kinds_seen {
    struct text *t;
    const char *(*name)(int);
    unsigned n;
};

static void take_kind(void *to, const struct cell *cells)
{
    struct kinds_seen *k = to;
    const char *name = k->name((int)whole(&cells[0]));
    say(k->t, "%s%s", k->n++ ? ", " : "", name ? name : "?");
}

/* "'Log-1' of run 'r' has steps 1 to 3" */
static int say_values(struct partial *p, enum part part, struct sql *sql,
                      struct text *t)
{
    struct kinds_seen k = {t, part == PART_PASS ? trd_pass_name : io_name, 0};
    struct span s = {0, 0, 0};
    char head[160];
    p->q.limit = 0;
    if (sql_records(&p->q, p->m->reading ? &p->r : NULL, sql))
        return 0;
    say(t, "%s has ", p->subject.at);
    if (part == PART_PASS || part == PART_IO) {
        snprintf(head, sizeof head, "SELECT DISTINCT %s FROM (", words[part]);
        around(sql, head, ") ORDER BY 1");
        return ask(p->m, sql, take_kind, &k);
    }
    snprintf(head, sizeof head,
             "SELECT min(%s), max(%s), count(DISTINCT %s) FROM (",
             words[part], words[part], words[part]);
    around(sql, head, ")");
    int rc = ask(p->m, sql, take_span, &s);
    say_span(t, words[part], &s);
    return rc;
}

/* A rank or an attempt that the whole run has not: no record is read. */
static int say_no_stream(const struct missing *m, enum part part,
                         struct sql *sql, struct text *t)
{
    struct span s = {0, 0, 0}, other = {0, 0, 0};
    int64_t v = filter(m->q, part);
    char text[160];
    if (v < 0)
        return 0;
    snprintf(text, sizeof text,
             "SELECT min(%s), max(%s), count(DISTINCT %s) FROM stream",
             words[part], words[part], words[part]);
    plain(sql, text, NULL);
    int rc = ask(m, sql, take_span, &s);
    if (rc)
        return rc;
    snprintf(text, sizeof text,
             "SELECT 0, 0, count(*) FROM stream WHERE %s = %lld",
             words[part], (long long)v);
    plain(sql, text, NULL);
    rc = ask(m, sql, take_span, &other);
    if (rc || other.n)
        return rc;
    say(t, "%s %lld: run '%s' has ", words[part], (long long)v, m->run);
    say_span(t, words[part], &s);
    return 0;
}

static int say_part(const struct missing *m, struct sql *sql, struct text *t)
{
    const struct slice any = {"*", 1}, none = {"", 0};
    char subject[SUBJECT_BYTES], value[SHOWN + 1];
    struct partial p = {.m = m, .q = *m->q};
    bool found;
    p.subject = text_of(subject, sizeof subject);
    p.q.rank = p.q.attempt = p.q.iteration = p.q.microbatch = -1;
    p.q.order = ORDER_NAME;
    p.q.cursor = none;
    if (m->reading) {
        p.r = *m->reading;
        if (p.r.kind != NAME_TEXT) {
            p.r.pass = any;
            p.r.step = p.r.position = none;
            p.r.io = TRD_IO_NONE;
        }
    }
    for (enum part i = PART_WHO; i < PARTS; i++) {
        if (i != PART_WHO && !value_of(m, i, value, sizeof value))
            continue;
        struct partial before = p;
        name_subject(&before);
        put_back(&p, i);
        int rc = look(&p, sql, &found);
        if (rc || (!found && i == PART_WHO))
            return rc;
        if (found)
            continue;
        say(t, "%s %s: ", words[i], value);
        return say_values(&before, i, sql, t);
    }
    return 0;
}

int missing_say(const struct missing *m, struct sql *sql,
                char out[MISSING_BYTES])
{
    struct text t = text_of(out, MISSING_BYTES);
    bool any = false;
    plain(sql, "SELECT 1 FROM record LIMIT 1", NULL);
    int rc = ask(m, sql, take_any, &any);
    if (rc)
        return rc;
    if (!any) {
        say(&t, "run '%s' has no records", m->run);
        return 0;
    }
    if (m->names && !m->reading)
        return say_unknown(m, sql, &t);
    for (enum part i = PART_RANK; i <= PART_ATTEMPT && !t.n && !rc; i++)
        rc = say_no_stream(m, i, sql, &t);
    if (!t.n && !rc)
        rc = say_part(m, sql, &t);
    if (t.n || rc)
        return rc;
    /* the dictionary knows it, the records do not */
    if (m->reading && m->reading->kind == NAME_PATH)
        return say_unknown(m, sql, &t);
    say(&t, "run '%s' has no record of '%.*s'", m->run, shown(m->q->name),
        m->q->name.text);
    return 0;
}
