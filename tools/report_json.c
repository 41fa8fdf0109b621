/* The page: its fixed parts, and the data between them as one json object.
 *
 * All data pass a filter that leaves no `<`, so that no name in a run can end
 * the element that holds them. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/sampling.h"
#include "tools/compare_out.h"
#include "tools/out.h"
#include "tools/report.h"
#include "tools/report_page.h"
#include "tools/rules.h"

enum { NAME_MAX_BYTES = 2 * TRD_MAX_NAME + 128, MISSING_SIDES = 2 };

/* ---- the filter ---- */

static ssize_t put_escaped(void *to, const char *text, size_t n)
{
    FILE *f = to;
    for (size_t i = 0; i < n;) {
        size_t plain = 0;
        while (i + plain < n && text[i + plain] != '<')
            plain++;
        fwrite(text + i, 1, plain, f);
        i += plain;
        if (i < n) {
            fputs("\\u003c", f);
            i++;
        }
    }
    return ferror(f) ? 0 : (ssize_t)n;
}

/* ---- pieces ---- */

static void text(FILE *f, const char *s)
{
    out_json_text(f, slice_of(s));
}

/* Four digits for eyes; null for no value, -1 for one that is no number. */
static void value(FILE *f, double v)
{
    if (isnan(v))
        fputs("null", f);
    else if (isinf(v))
        fputs("-1", f);
    else
        fprintf(f, "%.4g", v);
}

/* A figure, whose NaN and infinities are told from its absence. */
static void figure(FILE *f, double v)
{
    if (isfinite(v))
        fprintf(f, "%.6g", v);
    else
        fputs(isnan(v) ? "null" : v > 0 ? "\"inf\"" : "\"-inf\"", f);
}

static void figures(FILE *f, const struct report_figures *g)
{
    if (!g->there) {
        fputs("null", f);
        return;
    }
    for (size_t i = 0; i < REPORT_FIGURES; i++) {
        putc(i ? ',' : '[', f);
        figure(f, g->of[i]);
    }
    putc(']', f);
}

static int32_t object_of(const struct report *r, size_t object)
{
    return r->shown[object < r->objects ? object : r->objects];
}

static void pair(FILE *f, const struct report *r,
                 const struct compare_pair *p)
{
    char name[NAME_MAX_BYTES];
    const char *path = scan_path(r->a, p->path);
    if (!p->there) {
        fputs("null", f);
        return;
    }
    compare_name(r->a, p, name, sizeof name);
    fputs("{\"name\":", f);
    text(f, name);
    fprintf(f,
            ",\"object\":%d,\"pass\":%d,\"io\":%d,\"rank\":%u,\"step\":%"
            PRId64 ",\"iteration\":%" PRId64 ",\"microbatch\":%" PRId64
            ",\"position\":%" PRId64 ",\"seq\":%" PRId64 ",\"path\":",
            object_of(r, p->object), p->pass, p->io, p->rank, p->step,
            p->iteration, p->microbatch, p->position, p->seq);
    text(f, path ? path : "");
    if (r->b) {
        bool none = p->diff.error >= DIFF_ALL;
        fprintf(f, ",\"kind\":\"%s\",\"by\":\"%s\",\"error\":",
                diff_kind_name(p->diff.kind), diff_figure_name(p->diff.by));
        value(f, none ? INFINITY : p->diff.error);
        fputs(",\"before\":", f);
        value(f, p->before < 0           ? NAN
                 : p->before >= DIFF_ALL ? INFINITY
                                         : p->before);
        fprintf(f, ",\"unit\":%.6g", p->diff.unit);
    }
    putc('}', f);
}

/* ---- parts of the object ---- */

static void put_run(FILE *f, const struct scan *s)
{
    size_t n, ranks = 0;
    const char *info = "";
    const struct scan_stream *t = scan_streams(s, &n);
    for (size_t i = n; i-- > 0;)
        if (t[i].wanted) {
            ranks++;
            info = t[i].info;
        }
    fputs("{\"name\":", f);
    text(f, scan_name(s));
    fprintf(f,
            ",\"attempt\":%" PRId64 ",\"records\":%" PRIu64 ",\"lost\":%"
            PRIu64 ",\"processes\":%zu,\"info\":",
            scan_attempt(s), scan_records(s), scan_lost(s), ranks);
    text(f, info);
    putc('}', f);
}

/* "blocks.2.mlp.act", or Class-n where there is no path. */
static void put_object(FILE *f, const struct scan *s, size_t object)
{
    size_t n;
    char name[NAME_MAX_BYTES];
    const struct scan_object *o = scan_objects(s, &n);
    if (object >= n) {
        text(f, "");
        return;
    }
    snprintf(name, sizeof name, "%s-%" PRId64, o[object].class_name,
             o[object].instance);
    text(f, *o[object].module ? o[object].module : name);
}

static void put_missing(FILE *f, const struct scan *s,
                        const struct compare_missing *m, size_t n)
{
    fprintf(f, "{\"of\":%zu,\"list\":[", n);
    for (size_t i = 0; i < n && i < REPORT_MISSING; i++) {
        fputs(i ? ",[" : "[", f);
        put_object(f, s, m[i].object);
        fprintf(f, ",%" PRIu64 ",%" PRId64 ",%" PRId64 "]", m[i].records,
                m[i].first, m[i].last);
    }
    fputs("]}", f);
}

static void put_ranks(FILE *f, const struct compare_ranks *n)
{
    fprintf(f, "[%u,%u,%u]", n->ranks, n->data, n->stages);
}

/* How ranks were paired; null for rank with rank. */
static void put_layout(FILE *f, const struct compare_layout *l)
{
    static const char *const what[COMPARE_CAUSE_N] = {
#define CAUSE_WHAT(member, name, words) words,
        COMPARE_CAUSES(CAUSE_WHAT)
#undef CAUSE_WHAT
    };
    bool first = true;
    fputs(",\"layout\":", f);
    if (l->same) {
        fputs("null", f);
        return;
    }
    fputs("{\"a\":", f);
    put_ranks(f, &l->a);
    fputs(",\"b\":", f);
    put_ranks(f, &l->b);
    fprintf(f,
            ",\"copies\":%" PRIu64 ",\"merged\":%" PRIu64 ",\"batch\":%"
            PRIu64 ",\"factor\":%.4g,\"uncompared\":[",
            l->copies, l->merged, l->batch, l->factor);
    for (int i = 0; i < COMPARE_CAUSE_N; i++)
        if (l->uncompared[i]) {
            fprintf(f, "%s[%" PRIu64 ",", first ? "" : ",", l->uncompared[i]);
            text(f, what[i]);
            putc(']', f);
            first = false;
        }
    fputs("]}", f);
}

static void put_compare(FILE *f, const struct report *r)
{
    const struct compare_result *c = &r->compare;
    fprintf(f, "\"verdict\":\"%s\",\"reason\":",
            compare_verdict_name(c->verdict));
    text(f, c->reason);
    fputs(",\"culprit\":", f);
    pair(f, r, &c->culprit);
    fputs(",\"first\":", f);
    pair(f, r, &c->first);
    fprintf(f,
            ",\"counts\":{\"compared\":%" PRIu64 ",\"equal\":%" PRIu64
            ",\"rounding\":%" PRIu64 ",\"differ\":%" PRIu64 ",\"blind\":%"
            PRIu64 ",\"only_a\":%" PRIu64 ",\"only_b\":%" PRIu64
            ",\"shape\":%" PRIu64 ",\"dtype\":%" PRIu64 ",\"nan\":%" PRIu64
            ",\"nan_alike\":%" PRIu64 ",\"functions_a\":%" PRIu64
            ",\"functions_b\":%" PRIu64 "},\"text\":%s,\"missing\":[",
            c->compared, c->equal, c->rounding, c->differ, c->blind,
            c->only_a, c->only_b, c->shape, c->dtype, c->nan, c->nan_alike,
            c->functions_a, c->functions_b, c->text ? "true" : "false");
    put_missing(f, r->a, c->missing_a, c->missing_a_n);
    putc(',', f);
    put_missing(f, r->b, c->missing_b, c->missing_b_n);
    putc(']', f);
    put_layout(f, &c->layout);
    fputs(",\"ranked\":[", f);
    for (size_t i = 0; i < c->ranked_n; i++) {
        if (i)
            putc(',', f);
        pair(f, r, &c->ranked[i]);
    }
    putc(']', f);
}

static void put_check(FILE *f, const struct report *r)
{
    const struct check_result *c = &r->check;
    fprintf(f,
            "\"verdict\":\"%s\",\"nonfinite\":%" PRIu64
            ",\"findings_of\":%zu,\"findings\":[",
            c->n > c->notes ? "unhealthy" : "healthy", c->carriers, c->n);
    for (size_t i = 0; i < c->n && i < REPORT_FINDINGS; i++) {
        const struct check_finding *g = &c->finding[i];
        fprintf(f, "%s{\"kind\":\"%s\",\"records\":%" PRIu64 ",\"detail\":",
                i ? "," : "", check_kind_name(g->kind), g->records);
        text(f, g->detail);
        fputs(",\"at\":", f);
        pair(f, r, &g->at);
        putc('}', f);
    }
    putc(']', f);
}

static void put_objects(FILE *f, const struct report *r)
{
    size_t n;
    const struct scan_object *o = scan_objects(r->a, &n);
    bool first = true;
    fputs(",\n\"objects\":[", f);
    for (size_t i = 0; i <= n; i++) {
        if (r->shown[i] < 0)
            continue;
        fputs(first ? "[" : ",\n[", f);
        first = false;
        text(f, i < n ? o[i].module : "");
        putc(',', f);
        text(f, i < n ? o[i].class_name : "");
        fprintf(f, ",%" PRId64 "]", i < n ? o[i].instance : 0);
    }
    fputs("],\n\"places\":[", f);
    for (size_t i = 0, k = 0; i < r->places; i++) {
        const struct report_place *p = &r->place[r->order[i]];
        int32_t object = r->shown[r->order[i] / REPORT_PASSES];
        if (object < 0)
            continue;
        fprintf(f, "%s[%d,%zu,%" PRIu64 ",", k++ ? ",\n" : "", object,
                r->order[i] % REPORT_PASSES, p->records);
        value(f, p->worst);
        fprintf(f, ",%" PRIu64 ",%" PRIu64 ",%" PRId64 ",%d,%d]", p->off,
                p->nonfinite, p->seq, p->row, p->nan_row);
    }
    putc(']', f);
}

static void put_row(FILE *f, const float *cell, size_t n, size_t step)
{
    putc('[', f);
    for (size_t i = 0; i < n; i++) {
        if (i)
            putc(',', f);
        value(f, (double)cell[i * step]);
    }
    putc(']', f);
}

static void put_maps(FILE *f, const struct report *r)
{
    size_t n = r->columns.n, k = 0;
    fprintf(f,
            ",\n\"columns\":[%" PRId64 ",%" PRId64 ",%zu,%" PRId64
            "],\n\"map\":[",
            r->columns.first, r->columns.width, n,
            r->iteration_gcd > 0 ? r->iteration_gcd : 1);
    for (size_t i = 0; i < r->rows; i++) {
        fputs(i ? ",\n" : "", f);
        put_row(f, r->map + i * n, n, 1);
    }
    fputs("],\n\"nan\":[", f);
    for (size_t i = 0; i < r->nan_rows; i++) {
        fputs(i ? ",\n[" : "[", f);
        put_row(f, r->nan + i * n * 2, n, 2);
        putc(',', f);
        put_row(f, r->nan + i * n * 2 + 1, n, 2);
        putc(']', f);
    }
    fputs("],\n\"ranks\":[", f);
    for (size_t i = 0; i < r->ranks; i++) {
        const struct report_rank *t = &r->rank[i];
        if (!t->records)
            continue;
        fprintf(f, "%s[%zu,%" PRIu64 ",", k++ ? ",\n" : "", i, t->records);
        value(f, t->worst);
        fprintf(f, ",%" PRIu64 ",%" PRIu64 ",", t->off, t->nonfinite);
        if (i < r->rank_rows)
            put_row(f, r->rank_map + i * n, n, 1);
        else
            fputs("null", f);
        putc(']', f);
    }
    putc(']', f);
}

static void put_curve(FILE *f, const struct report *r,
                      const struct report_point *p, size_t n)
{
    putc('[', f);
    for (size_t i = 0, k = 0; i < n; i++) {
        const struct compare_pair *x = &p[i].pair;
        if (!p[i].of || object_of(r, x->object) < 0)
            continue;
        fprintf(f, "%s[%" PRId64 ",%d,%d,%" PRId64 ",%" PRIu64 ",",
                k++ ? ",\n" : "", x->seq, object_of(r, x->object), x->pass,
                x->iteration, p[i].of);
        value(f, p[i].value);
        putc(',', f);
        value(f, r->b && x->before >= 0 && x->before < DIFF_ALL ? x->before
                                                                : NAN);
        putc(']', f);
    }
    putc(']', f);
}

static void put_curves(FILE *f, const struct report *r)
{
    fprintf(f, ",\n\"curve\":{\"rank\":%u,\"iteration\":%" PRId64
               ",\"whole\":",
            r->focus_rank, r->focus);
    put_curve(f, r, r->whole, r->records ? REPORT_BINS : 0);
    fputs(",\n\"focus\":", f);
    put_curve(f, r, r->close, r->close_n);
    putc('}', f);
}

static void put_histories(FILE *f, const struct report *r)
{
    fprintf(f, ",\n\"histories_of\":%zu,\"bin\":%" PRId64
               ",\n\"histories\":[",
            r->histories_of, r->bin);
    for (size_t i = 0; i < r->histories; i++) {
        const struct report_history *h = &r->history[i];
        const struct report_moment *m = &r->moment[i * r->each];
        const char *path = scan_path(r->a, h->path);
        fprintf(f, "%s{\"object\":%d,\"pass\":%zu,\"io\":%d,\"position\":%"
                   PRId64 ",\"rank\":%u,\"path\":",
                i ? ",\n" : "", r->shown[h->place / REPORT_PASSES],
                h->place % REPORT_PASSES, h->io, h->position, h->rank);
        text(f, path ? path : "");
        fputs(",\"points\":[", f);
        for (size_t j = 0, k = 0; j < r->each; j++) {
            if (!m[j].of)
                continue;
            fprintf(f, "%s[%" PRId64 ",%" PRIu64 ",", k++ ? "," : "",
                    m[j].iteration, m[j].of);
            value(f, m[j].value);
            putc(',', f);
            figures(f, &m[j].a);
            if (r->b) {
                putc(',', f);
                figures(f, &m[j].b);
            }
            putc(']', f);
        }
        fputs("]}", f);
    }
    putc(']', f);
}

static void put_side(FILE *f, const struct report_side *s)
{
    if (!s->there) {
        fputs("null", f);
        return;
    }
    fprintf(f, "{\"dtype\":\"%s\",\"shape\":", trd_dtype_name(s->dtype));
    text(f, s->shape);
    fprintf(f, ",\"n\":%" PRIu64 ",\"hash\":", s->n);
    fprintf(f, s->hashed ? "\"%016" PRIx64 "\"" : "null", s->hash);
    fputs(",\"figures\":", f);
    figures(f, &s->figures);
    fprintf(f, ",\"samples\":%zu,\"value\":[", s->samples);
    for (size_t i = 0; i < s->samples && i < REPORT_VALUES; i++) {
        if (i)
            putc(',', f);
        out_json_real(f, s->value[i]);
    }
    fputs("]}", f);
}

static void put_sampled(FILE *f, const struct report *r)
{
    fputs(",\n\"sampled\":[", f);
    for (size_t i = 0; i < r->sampled_n; i++) {
        const struct report_sampled *s = &r->sampled[i];
        size_t n = s->a.samples;
        fputs(i ? ",\n{\"at\":" : "{\"at\":", f);
        pair(f, r, &s->pair);
        fputs(",\"index\":[", f);
        for (size_t j = 0; j < n && j < REPORT_VALUES; j++)
            fprintf(f, "%s%" PRIu64, j ? "," : "",
                    sampling_index(s->a.n, (uint32_t)n, s->sampling,
                                   s->sampling_arg, (uint32_t)j));
        fputs("],\"a\":", f);
        put_side(f, &s->a);
        fputs(",\"b\":", f);
        put_side(f, &s->b);
        putc('}', f);
    }
    putc(']', f);
}

static void put_bounds(FILE *f, const struct report *r)
{
    fprintf(f,
            ",\n\"bounds\":{\"records\":%" PRIu64
            ",\"objects\":[%zu,%zu],\"rows\":[%zu,%zu],\"nan_rows\":"
            "[%zu,%zu],\"histories\":[%zu,%zu],\"places\":%zu,\"values\":%d}",
            r->records, r->objects_shown, r->objects_seen, r->rows,
            r->rows_of, r->nan_rows, r->nan_rows_of, r->histories,
            r->histories_of, r->places, REPORT_VALUES);
}

static void put_data(FILE *f, const struct report *r)
{
    char made[32] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm))
        strftime(made, sizeof made, "%Y-%m-%d %H:%M UTC", &tm);
    fprintf(f, "{\"version\":\"%s\",\"made\":\"%s\",\"runs\":[", trd_version(),
            made);
    put_run(f, r->a);
    if (r->b) {
        putc(',', f);
        put_run(f, r->b);
    }
    fputs("],\n", f);
    if (r->b)
        put_compare(f, r);
    else
        put_check(f, r);
    fputs(",\n\"passes\":[\"\"", f);
    for (int i = 1; i < REPORT_PASSES; i++)
        fprintf(f, ",\"%s\"", trd_pass_name(i));
    putc(']', f);
    put_objects(f, r);
    put_maps(f, r);
    put_curves(f, r);
    put_histories(f, r);
    put_sampled(f, r);
    put_bounds(f, r);
    putc('}', f);
}

int report_write(struct report *r, FILE *f)
{
    const cookie_io_functions_t filter = {.write = put_escaped};
    FILE *data = fopencookie(f, "w", filter);
    int bad;
    if (!data)
        return ctl_fail(CTL_FAILED, "out of memory");
    fputs(report_page_head, f);
    put_data(data, r);
    bad = fclose(data);
    fputs(report_page_tail, f);
    if (bad || ferror(f))
        return ctl_fail(CTL_FAILED, "cannot write the page");
    return 0;
}
