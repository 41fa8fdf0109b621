/* The rules' file of a comparison. */
#include "tools/rules.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/figures.h"
#include "proto/name.h"
#include "tools/rule_file.h"

enum { NAME_MAX_BYTES = 2 * TRD_MAX_NAME + 128 };

struct rule {
    char *pattern;
    bool ignore, within;
    double rtol, atol, noise;
};

struct rules {
    struct rule *rule;
    size_t n;
};

void compare_name(const struct scan *a, const struct compare_pair *p,
                  char *out, size_t cap)
{
    size_t n;
    const struct scan_object *o = scan_objects(a, &n);
    const char *path = scan_path(a, p->path);
    bool has = p->object < n;
    struct name_parts parts = {p->pass,
                               p->io,
                               slice_of(has ? o[p->object].class_name : ""),
                               has ? (uint64_t)o[p->object].instance : 0,
                               (uint64_t)p->step,
                               (uint64_t)p->position,
                               slice_of(path ? path : "")};
    if (name_put(&parts, out, cap))
        out[0] = '\0';
}

/* ---- the file ---- */

static int bad_line(const struct rule_line *line, const char *why,
                    const char *word)
{
    return ctl_fail(CTL_BAD, "%s:%lu: %s '%s'", line->file, line->number, why,
                    word);
}

static bool read_real(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= 0 && isfinite(*out);
}

static bool read_word(struct rule *r, const char *word)
{
    if (strcmp(word, "ignore") == 0) {
        r->ignore = true;
        return true;
    }
    if (strncmp(word, "noise=", 6) == 0)
        return read_real(word + 6, &r->noise) && r->noise > 0;
    if (strncmp(word, "rtol=", 5) != 0 && strncmp(word, "atol=", 5) != 0)
        return false;
    r->within = true;
    return read_real(word + 5, *word == 'r' ? &r->rtol : &r->atol);
}

static int add_rule(void *to, char *pattern, struct rule_line *line)
{
    struct rules *r = to;
    struct rule rule = {.noise = 1};
    char *word;
    if (r->n == RULE_FILE_MAX)
        return bad_line(line, "there are more than 4096 rules, at", pattern);
    word = rule_word(line);
    if (!word)
        return bad_line(line, "nothing is said of", pattern);
    for (; word; word = rule_word(line))
        if (!read_word(&rule, word))
            return bad_line(line, "expected ignore, rtol=, atol= or noise= "
                                  "with a number, not", word);
    rule.pattern = strdup(pattern);
    if (!rule.pattern)
        return ctl_fail(CTL_FAILED, "out of memory");
    r->rule[r->n++] = rule;
    return 0;
}

int rules_open(const char *file, struct rules **out)
{
    struct rules *r = calloc(1, sizeof *r);
    *out = r;
    if (!r || !(r->rule = calloc(RULE_FILE_MAX, sizeof *r->rule)))
        return ctl_fail(CTL_FAILED, "out of memory");
    return rule_file_read(file, add_rule, r);
}

void rules_close(struct rules *r)
{
    if (!r)
        return;
    for (size_t i = 0; i < r->n; i++)
        free(r->rule[i].pattern);
    free(r->rule);
    free(r);
}

/* ---- a pair ---- */

static bool near(const struct rule *r, double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= r->atol + r->rtol * fabs(b);
}

static bool samples_near(const struct rule *r, const struct diff_side *x,
                         const struct diff_side *y)
{
    size_t wide_x = trd_dtype_bytes(x->dtype);
    size_t wide_y = trd_dtype_bytes(y->dtype);
    if (!wide_x || !wide_y || x->sampling != y->sampling ||
        x->sampling_arg != y->sampling_arg ||
        x->samples.n / wide_x != y->samples.n / wide_y)
        return true;
    for (size_t i = 0; i < x->samples.n / wide_x; i++)
        if (!near(r, element_f64(x->dtype, x->samples.text + i * wide_x),
                  element_f64(y->dtype, y->samples.text + i * wide_y)))
            return false;
    return true;
}

static bool all_near(const struct rule *r, const struct diff_side *x,
                     const struct diff_side *y)
{
    uint32_t both = x->has & y->has;
    if (both & TRD_HAS_RANGE &&
        !(near(r, x->max, y->max) && near(r, x->min, y->min)))
        return false;
    if (both & TRD_HAS_MEAN &&
        !(near(r, x->mean, y->mean) && near(r, x->std, y->std)))
        return false;
    return samples_near(r, x, y);
}

static const struct rule *rule_for(const struct rules *r,
                                   const struct scan *a,
                                   const struct compare_pair *p)
{
    char name[NAME_MAX_BYTES];
    size_t n;
    const struct scan_object *o = scan_objects(a, &n);
    compare_name(a, p, name, sizeof name);
    for (size_t i = 0; i < r->n; i++)
        if (fnmatch(r->rule[i].pattern, name, 0) == 0 ||
            (p->object < n &&
             fnmatch(r->rule[i].pattern, o[p->object].module, 0) == 0))
            return &r->rule[i];
    return NULL;
}

bool rules_apply(const struct rules *r, const struct scan *a,
                 struct compare_pair *p, const struct diff_side *x,
                 const struct diff_side *y)
{
    const struct rule *rule;
    struct diff *d = &p->diff;
    rule = rule_for(r, a, p);
    if (!rule)
        return true;
    if (rule->ignore)
        return false;
    if (d->kind != DIFF_NEAR)
        return true;
    if (!rule->within) {
        d->error /= rule->noise;
    } else if (all_near(rule, x, y)) {
        d->kind = DIFF_EQUAL;
        d->error = 0;
    } else if (d->error <= COMPARE_GAIN) {
        d->error = COMPARE_GAIN * 2; /* who sets a limit means it */
    }
    return true;
}
