/* Conditions for a ClickHouse, part for part those of proto/row.c. */
#include "tools/house_where.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const names_sql =
    " AND ((concat(transform(pass, [1, 2, 3, 4, 5, 6], ['forward', 'backward',"
    " 'grad', 'param', 'user', 'optim'], ''), '-', if(pass > 2, concat(path,"
    " '-', toString(step)), concat(class, '-', toString(instance), '-',"
    " toString(step), '-', transform(io, [1, 2], ['input', 'output'], ''),"
    " if(position > 0, concat('.', toString(position)), ''))))"
    " AS record_name) LIKE '";

#ifdef __GNUC__
__attribute__((format(printf, 2, 3)))
#endif
static void
say(struct house_where *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->text + w->n, sizeof w->text - w->n, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof w->text - w->n)
        w->bad = true;
    else if (!w->bad)
        w->n += (size_t)n;
    w->text[w->n] = '\0';
}

static void put(struct house_where *w, const char *signs)
{
    say(w, "%s", signs);
}

/* The text within quotes, as it is. */
static void put_text(struct house_where *w, struct slice s)
{
    for (size_t i = 0; i < s.n; i++)
        say(w, s.text[i] == '\'' || s.text[i] == '\\' ? "\\%c" : "%c",
            s.text[i]);
}

/* * and ? as LIKE has them; what LIKE would take for a sign of its own gets a
 * backslash, which within quotes is two. */
static void put_pattern(struct house_where *w, struct slice s)
{
    for (size_t i = 0; i < s.n; i++) {
        char c = s.text[i];
        if (c == '*')
            put(w, "%");
        else if (c == '?')
            put(w, "_");
        else if (c == '%' || c == '_')
            say(w, "\\\\%c", c);
        else if (c == '\\')
            put(w, "\\\\\\\\");
        else
            say(w, c == '\'' ? "\\%c" : "%c", c);
    }
}

static bool all(struct slice s)
{
    return s.n == 1 && s.text[0] == '*';
}

static void match_text(struct house_where *w, const char *column,
                       struct slice s)
{
    bool pattern = name_has_wildcard(s);
    say(w, " AND %s %s '", column, pattern ? "LIKE" : "=");
    if (pattern)
        put_pattern(w, s);
    else
        put_text(w, s);
    put(w, "'");
}

static void match_number(struct house_where *w, const char *column,
                         struct slice s)
{
    int64_t v = 0;
    if (!s.n || all(s))
        return;
    if (name_has_wildcard(s)) {
        say(w, " AND toString(%s) LIKE '", column);
        put_pattern(w, s);
        put(w, "'");
        return;
    }
    for (size_t i = 0; i < s.n && v >= 0; i++)
        v = v > (INT64_MAX - 9) / 10 ? -1 : v * 10 + (s.text[i] - '0');
    if (v < 0)
        put(w, " AND 0");
    else
        say(w, " AND %s = %lld", column, (long long)v);
}

static void match_pass(struct house_where *w, struct slice pass)
{
    unsigned n = 0;
    if (all(pass))
        return;
    for (int i = 1; trd_pass_name(i); i++)
        if (name_match(pass, slice_of(trd_pass_name(i))))
            say(w, n++ ? ", %d" : " AND pass IN (%d", i);
    put(w, n ? ")" : " AND 0");
}

/* The printed name, or its beginning up to a '-' or '.'. */
static void match_name(struct house_where *w, struct slice pattern)
{
    put(w, names_sql);
    put_pattern(w, pattern);
    put(w, "' OR record_name LIKE '");
    put_pattern(w, pattern);
    put(w, "-%' OR record_name LIKE '");
    put_pattern(w, pattern);
    put(w, ".%')");
}

static void match_who(struct house_where *w, const struct name_reading *r)
{
    switch (r->kind) {
    case NAME_OBJECT:
        put(w, " AND object > 0");
        match_text(w, "class", r->who);
        match_number(w, "instance", r->instance);
        break;
    case NAME_MODULE:
        put(w, " AND object > 0");
        match_text(w, "module", r->who);
        break;
    case NAME_PATH:
        match_text(w, "path", r->who);
        break;
    case NAME_TEXT:
        match_name(w, r->who);
        break;
    default:
        break;
    }
}

static struct house_where *begin(struct house_where *w)
{
    w->n = 0;
    w->bad = false;
    w->text[0] = '\0';
    return w;
}

static void match_filter(struct house_where *w, const char *column, int64_t v)
{
    if (v >= 0)
        say(w, " AND %s = %lld", column, (long long)v);
}

void house_where_records(const struct query *q, const struct name_reading *r,
                         struct house_where *out)
{
    struct house_where *w = begin(out);
    if (r) {
        match_number(w, "step", r->step);
        match_pass(w, r->pass);
        match_who(w, r);
        if (r->kind == NAME_PATH)
            put(w, " AND pass > 2");
        if (r->io) {
            say(w, " AND io = %d", (int)r->io);
            match_number(w, "position", r->position);
        }
    }
    match_filter(w, "rank", q->rank);
    match_filter(w, "attempt", q->attempt);
    match_filter(w, "iteration", q->iteration);
    match_filter(w, "microbatch", q->microbatch);
}

void house_where_who(const struct name_reading *r, struct house_where *out)
{
    match_who(begin(out), r);
}

bool house_where_is_exact(const struct name_reading *r)
{
    /* a sign is a byte there */
    return !r || (r->kind != NAME_TEXT && !memchr(r->who.text, '?', r->who.n));
}

void house_where_until(struct house_where *w, int64_t step)
{
    say(w, " AND step <= %lld", (long long)step);
}
