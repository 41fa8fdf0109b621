/* Text for eyes, one json object, or the ranked pairs as csv. */
#include "tools/compare_out.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/out.h"
#include "tools/rules.h"

enum { NAME_MAX_BYTES = 2 * TRD_MAX_NAME + 128, FEW = 10, WORST = 10 };

const char *compare_verdict_name(enum compare_verdict v)
{
    static const char *const name[] = {"same", "rounding", "unsure",
                                       "differs"};
    return name[v];
}

/* "blocks.2.mlp.act", or Class-n where there is no path. */
static void object_name(const struct scan *s, size_t object, char *out,
                        size_t cap)
{
    size_t n;
    const struct scan_object *o = scan_objects(s, &n);
    if (object >= n)
        snprintf(out, cap, "values of no module");
    else if (*o[object].module)
        snprintf(out, cap, "%s", o[object].module);
    else
        snprintf(out, cap, "%s-%" PRId64, o[object].class_name,
                 o[object].instance);
}

/* ---- text ---- */

static void plain(const char *text)
{
    out_plain(stdout, slice_of(text));
}

static void put_pair(const struct compare_names *n,
                     const struct compare_pair *p)
{
    char name[NAME_MAX_BYTES];
    compare_name(n->a, p, name, sizeof name);
    plain(name);
    printf(" (");
    object_name(n->a, p->object, name, sizeof name);
    plain(name);
    printf(", rank %u", p->rank);
    if (p->rank_b != p->rank)
        printf(" against %u", p->rank_b);
    printf(", iteration %" PRId64 ")", p->iteration);
}

static void put_missing(const struct compare_names *n, const struct scan *s,
                        const struct compare_missing *m, size_t count,
                        const char *where)
{
    char name[NAME_MAX_BYTES];
    size_t most = n->all || count <= FEW ? count : FEW;
    for (size_t i = 0; i < most; i++) {
        object_name(s, m[i].object, name, sizeof name);
        printf("only in %s: ", where);
        plain(name);
        printf(" (%" PRIu64 " records, steps %" PRId64 " to %" PRId64 ")\n",
               m[i].records, m[i].first, m[i].last);
    }
    if (most < count)
        printf("only in %s: %zu more (--all lists them)\n", where,
               count - most);
}

static void put_head(const struct compare_names *n,
                     const struct compare_result *r)
{
    char name[NAME_MAX_BYTES];
    printf("%s", compare_verdict_name(r->verdict));
    if (r->culprit.there) {
        object_name(n->a, r->culprit.object, name, sizeof name);
        printf(": ");
        plain(name);
        printf(", %s, step %" PRId64, trd_pass_name(r->culprit.pass),
               r->culprit.step);
    }
    putchar('\n');
    if (*r->reason)
        printf("  %s\n", r->reason);
    if (r->first.there) {
        printf("  first: ");
        put_pair(n, &r->first);
        putchar('\n');
    }
}

static void put_counts(const struct compare_result *r)
{
    printf("%" PRIu64 " compared: %" PRIu64 " equal, %" PRIu64
           " within rounding, %" PRIu64 " differ",
           r->compared, r->equal, r->rounding, r->differ);
    if (r->blind)
        printf(", %" PRIu64 " without figures", r->blind);
    printf("; %" PRIu64 " only in A, %" PRIu64 " only in B\n", r->only_a,
           r->only_b);
    if (r->shape || r->dtype || r->nan || r->nan_alike)
        printf("%" PRIu64 " of other shape, %" PRIu64 " of other dtype, %"
               PRIu64 " NaN or infinite on one side, %" PRIu64
               " on both alike\n", r->shape, r->dtype, r->nan, r->nan_alike);
    if (r->functions_a || r->functions_b)
        printf("not compared: %" PRIu64 " records of functions only in A, %"
               PRIu64 " only in B\n", r->functions_a, r->functions_b);
    if (r->text)
        printf("a text log is exact to 1e-5: what is nearer counts as "
               "equal\n");
}

static void put_number(double v)
{
    if (v >= DIFF_ALL)
        printf("%10s", "-");
    else if (v < 0)
        printf("%10s", "");
    else
        printf("%10.3g", v);
}

static void put_ranked(const struct compare_names *n,
                       const struct compare_result *r)
{
    char name[NAME_MAX_BYTES];
    size_t most = n->all || r->ranked_n < WORST ? r->ranked_n : WORST;
    if (!most)
        return;
    printf("\n%10s  %-8s  %s\n", "error", "by", "worst records, in units of "
                                              "rounding");
    for (size_t i = 0; i < most; i++) {
        const struct compare_pair *p = &r->ranked[i];
        put_number(p->diff.error);
        printf("  %-8s  ", p->diff.kind == DIFF_NEAR
                               ? diff_figure_name(p->diff.by)
                               : diff_kind_name(p->diff.kind));
        compare_name(n->a, p, name, sizeof name);
        plain(name);
        printf("  ");
        plain(scan_module(n->a, p->object));
        if (p->rank)
            printf("  rank %u", p->rank);
        putchar('\n');
    }
}

static const struct {
    const char *name, *what;
} cause[COMPARE_CAUSE_N] = {
#define CAUSE_TEXT(member, text, what) {text, what},
    COMPARE_CAUSES(CAUSE_TEXT)
#undef CAUSE_TEXT
};

static void put_ranks(const char *name, const struct compare_ranks *r)
{
    printf("%s has %u rank%s", name, r->ranks, r->ranks == 1 ? "" : "s");
    if (r->ranks > 1)
        printf(" (%u share%s of the batch, %u stage%s)", r->data,
               r->data == 1 ? "" : "s", r->stages,
               r->stages == 1 ? "" : "s");
}

static void put_layout(const struct compare_layout *l)
{
    if (l->same)
        return;
    put_ranks("layouts: A", &l->a);
    put_ranks(", B", &l->b);
    printf("; pairs: %" PRIu64 " of copies, %" PRIu64
           " of merged shards, %" PRIu64 " of merged parts of the batch\n",
           l->copies, l->merged, l->batch);
    if (l->factor > 1 || l->factor < 1)
        printf("gradients of B are %.4g x those of A, as a mean over another "
               "part of the batch makes them\n", l->factor);
    for (int i = 0; i < COMPARE_CAUSE_N; i++)
        if (l->uncompared[i])
            printf("not compared: %" PRIu64 " records, %s\n",
                   l->uncompared[i], cause[i].what);
}

static void put_text(const struct compare_names *n,
                     const struct compare_result *r)
{
    put_head(n, r);
    put_counts(r);
    put_layout(&r->layout);
    put_missing(n, n->a, r->missing_a, r->missing_a_n, "A");
    put_missing(n, n->b, r->missing_b, r->missing_b_n, "B");
    put_ranked(n, r);
}

/* ---- json ---- */

static void key(const char *name)
{
    printf(",\"%s\":", name);
}

static void key_text(const char *name, const char *text)
{
    key(name);
    out_json_text(stdout, slice_of(text));
}

static void key_whole(const char *name, int64_t v)
{
    key(name);
    printf("%" PRId64, v);
}

/* A number, or null where there is none. */
static void key_real(const char *name, double v)
{
    key(name);
    if (v < 0 || v >= DIFF_ALL)
        printf("null");
    else
        out_json_real(stdout, v);
}

static void json_pair(const struct compare_names *n,
                      const struct compare_pair *p, const char *reason)
{
    char name[NAME_MAX_BYTES];
    if (!p->there) {
        printf("null");
        return;
    }
    compare_name(n->a, p, name, sizeof name);
    printf("{\"name\":");
    out_json_text(stdout, slice_of(name));
    key_text("module", scan_module(n->a, p->object));
    object_name(n->a, p->object, name, sizeof name);
    key_text("object", name);
    key_whole("rank", p->rank);
    key_whole("rank_b", p->rank_b);
    key_text("pass", trd_pass_name(p->pass));
    key_whole("step", p->step);
    key_whole("iteration", p->iteration);
    key_whole("microbatch", p->microbatch);
    key_text("kind", diff_kind_name(p->diff.kind));
    key_text("by", diff_figure_name(p->diff.by));
    key_real("error", p->diff.error);
    key_real("before", p->before);
    key_real("unit", p->diff.unit);
    if (reason)
        key_text(p->before >= 0 || *reason ? "why" : "reason", reason);
    putchar('}');
}

static void json_missing(const struct scan *s, const char *name,
                         const struct compare_missing *m, size_t count)
{
    char text[NAME_MAX_BYTES];
    key(name);
    putchar('[');
    for (size_t i = 0; i < count; i++) {
        object_name(s, m[i].object, text, sizeof text);
        printf("%s{\"object\":", i ? "," : "");
        out_json_text(stdout, slice_of(text));
        key_whole("records", (int64_t)m[i].records);
        key_whole("first_step", m[i].first);
        key_whole("last_step", m[i].last);
        putchar('}');
    }
    putchar(']');
}

static void json_counts(const struct compare_result *r)
{
    printf(",\"counts\":{\"compared\":%" PRIu64, r->compared);
    key_whole("equal", (int64_t)r->equal);
    key_whole("rounding", (int64_t)r->rounding);
    key_whole("differ", (int64_t)r->differ);
    key_whole("blind", (int64_t)r->blind);
    key_whole("only_a", (int64_t)r->only_a);
    key_whole("only_b", (int64_t)r->only_b);
    key_whole("functions_a", (int64_t)r->functions_a);
    key_whole("functions_b", (int64_t)r->functions_b);
    key_whole("shape", (int64_t)r->shape);
    key_whole("dtype", (int64_t)r->dtype);
    key_whole("nan", (int64_t)r->nan);
    key_whole("nan_alike", (int64_t)r->nan_alike);
    putchar('}');
}

static void json_ranks(const char *name, const struct compare_ranks *r)
{
    key(name);
    printf("{\"ranks\":%u,\"data\":%u,\"stages\":%u}", r->ranks, r->data,
           r->stages);
}

static void json_layout(const struct compare_layout *l)
{
    key("layout");
    printf("{\"same\":%s", l->same ? "true" : "false");
    if (!l->same) {
        json_ranks("a", &l->a);
        json_ranks("b", &l->b);
        key_whole("copies", (int64_t)l->copies);
        key_whole("merged", (int64_t)l->merged);
        key_whole("batch", (int64_t)l->batch);
        key_real("gradient_factor", l->factor);
        key("uncompared");
        for (int i = 0; i < COMPARE_CAUSE_N; i++)
            printf("%s\"%s\":%" PRIu64, i ? "," : "{", cause[i].name,
                   l->uncompared[i]);
        putchar('}');
    }
    putchar('}');
}

static void put_json(const struct compare_names *n,
                     const struct compare_result *r)
{
    printf("{\"verdict\":\"%s\"", compare_verdict_name(r->verdict));
    key_text("reason", r->reason);
    key("first");
    json_pair(n, &r->first, NULL);
    key("culprit");
    json_pair(n, &r->culprit, r->reason);
    json_counts(r);
    json_layout(&r->layout);
    key_real("resolution", r->text ? DIFF_TEXT : -1);
    json_missing(n->a, "only_a", r->missing_a, r->missing_a_n);
    json_missing(n->b, "only_b", r->missing_b, r->missing_b_n);
    key("ranked");
    putchar('[');
    for (size_t i = 0; i < r->ranked_n; i++) {
        if (i)
            putchar(',');
        json_pair(n, &r->ranked[i], NULL);
    }
    printf("]}\n");
}

/* ---- csv ---- */

static int put_csv(const struct compare_names *n,
                   const struct compare_result *r)
{
    static const char *const head[] = {"verdict", "name", "module", "rank",
                                       "iteration", "kind", "by", "error"};
    enum { COLUMNS = sizeof head / sizeof *head };
    struct slice column[COLUMNS];
    char name[NAME_MAX_BYTES];
    struct out o;
    for (int i = 0; i < COLUMNS; i++)
        column[i] = slice_of(head[i]);
    if (out_open(&o, "csv", stdout))
        return CTL_BAD;
    out_table(&o, column, COLUMNS);
    for (size_t i = 0; i < r->ranked_n; i++) {
        const struct compare_pair *p = &r->ranked[i];
        compare_name(n->a, p, name, sizeof name);
        const struct cell row[COLUMNS] = {
            {.type = CELL_TEXT,
             .s = slice_of(compare_verdict_name(r->verdict))},
            {.type = CELL_TEXT, .s = slice_of(name)},
            {.type = CELL_TEXT, .s = slice_of(scan_module(n->a, p->object))},
            {.type = CELL_INT, .i = p->rank, .s = {"", 0}},
            {.type = CELL_INT, .i = p->iteration, .s = {"", 0}},
            {.type = CELL_TEXT, .s = slice_of(diff_kind_name(p->diff.kind))},
            {.type = CELL_TEXT, .s = slice_of(diff_figure_name(p->diff.by))},
            {.type = CELL_REAL, .f = p->diff.error, .s = {"", 0}},
        };
        out_row(&o, row);
    }
    return out_close(&o);
}

int compare_out(const struct compare_names *n, const struct compare_result *r,
                const char *format)
{
    if (!format || strcmp(format, "text") == 0)
        put_text(n, r);
    else if (strcmp(format, "json") == 0)
        put_json(n, r);
    else
        return put_csv(n, r);
    return 0;
}
