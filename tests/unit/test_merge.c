/* Merging what records say of shards, against the whole tensor. */
#include "tests/lib/unit.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/sampling.h"
#include "tools/merge.h"

enum { MAX_N = 4096, MAX_SHARDS = 8, SAMPLES = 16 };

/* A tensor of float32 and what a record says of it. */
struct tensor {
    float x[MAX_N];
    size_t n;
    char shape[64];
    float sample[SAMPLES];
    struct diff_side side;
};

static void describe(struct tensor *t, const char *shape)
{
    struct diff_side *s = &t->side;
    double sum = 0, square = 0, off = 0;
    uint64_t finite = 0;
    uint32_t k = sampling_count(t->n, SAMPLES, TRD_EQUIDISTANT, 0);
    if (shape != t->shape)
        snprintf(t->shape, sizeof t->shape, "%s", shape);
    *s = (struct diff_side){.dtype = TRD_F32, .shape = slice_of(t->shape),
                            .n = t->n, .has = TRD_HAS_ALL, .hash = 1};
    for (size_t i = 0; i < t->n; i++) {
        double v = (double)t->x[i];
        s->nan += isnan(v) != 0;
        s->pinf += isinf(v) && v > 0;
        s->ninf += isinf(v) && v < 0;
        if (!isfinite(v))
            continue;
        s->max = finite && s->max > v ? s->max : v;
        s->min = finite && s->min < v ? s->min : v;
        finite++;
        sum += v;
        square += v * v;
    }
    s->mean = finite ? sum / (double)finite : 0;
    for (size_t i = 0; i < t->n; i++)
        if (isfinite((double)t->x[i]))
            off += pow((double)t->x[i] - s->mean, 2);
    s->std = finite ? sqrt(off / (double)finite) : 0;
    s->l2 = sqrt(square);
    if (!finite)
        s->has &= ~(uint32_t)(TRD_HAS_RANGE | TRD_HAS_MEAN | TRD_HAS_L2);
    for (uint32_t i = 0; i < k; i++)
        t->sample[i] =
            t->x[sampling_index(t->n, k, TRD_EQUIDISTANT, 0, i)];
    s->samples = (struct slice){(const char *)t->sample,
                                k * sizeof *t->sample};
}

static uint32_t draw(uint64_t *seed, uint32_t below)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*seed >> 33) % below;
}

static float element(uint64_t *seed, bool odd)
{
    uint32_t kind = draw(seed, 40);
    if (odd && kind == 0)
        return NAN;
    if (odd && kind == 1)
        return INFINITY;
    if (odd && kind == 2)
        return -INFINITY;
    if (kind == 3)
        return 0;
    return ((float)draw(seed, 1 << 20) - (1 << 19)) * 0x1p-16f + 3;
}

static void assert_near(double a, double b, double scale)
{
    assert_true(fabs(a - b) <= 1e-13 * scale);
}

static void assert_same_figures(const struct diff_side *m,
                                const struct diff_side *w)
{
    double rms = diff_rms(w);
    assert_int_equal(m->n, w->n);
    assert_int_equal(m->nan, w->nan);
    assert_int_equal(m->pinf, w->pinf);
    assert_int_equal(m->ninf, w->ninf);
    assert_int_equal(m->has & TRD_HAS_RANGE, w->has & TRD_HAS_RANGE);
    assert_int_equal(m->has & TRD_HAS_MEAN, w->has & TRD_HAS_MEAN);
    assert_int_equal(m->has & TRD_HAS_HASH, 0);
    assert_true(m->max <= w->max && m->max >= w->max);
    assert_true(m->min <= w->min && m->min >= w->min);
    assert_near(m->mean, w->mean, rms);
    assert_near(m->std, w->std, rms);
    assert_near(m->l2, w->l2, w->l2);
}

/* Cuts [outer, rows, inner] along the rows, or deals them out. */
struct cut {
    size_t outer, rows, inner, shards, of[MAX_SHARDS];
    bool dealt;
};

static size_t shard_of(const struct cut *c, size_t row, size_t *at)
{
    size_t i = 0;
    *at = row;
    if (c->dealt) {
        *at = row / c->shards;
        return row % c->shards;
    }
    while (*at >= c->of[i])
        *at -= c->of[i++];
    return i;
}

static void cut(const struct cut *c, const struct tensor *whole,
                struct tensor *shard, const struct diff_side **side)
{
    for (size_t i = 0; i < c->shards; i++)
        shard[i].n = c->outer * c->of[i] * c->inner;
    for (size_t o = 0; o < c->outer; o++)
        for (size_t r = 0; r < c->rows; r++) {
            size_t at, i = shard_of(c, r, &at);
            memcpy(&shard[i].x[(o * c->of[i] + at) * c->inner],
                   &whole->x[(o * c->rows + r) * c->inner],
                   c->inner * sizeof *whole->x);
        }
    for (size_t i = 0; i < c->shards; i++) {
        char shape[64];
        snprintf(shape, sizeof shape, "%zu %zu %zu", c->outer, c->of[i],
                 c->inner);
        describe(&shard[i], shape);
        side[i] = &shard[i].side;
    }
}

static struct tensor whole, shard[MAX_SHARDS];
static const struct diff_side *side[MAX_SHARDS];

static void make(struct cut *c, uint64_t *seed, bool odd)
{
    char shape[64];
    *c = (struct cut){.outer = 1 + draw(seed, 5), .inner = 1 + draw(seed, 9),
                      .shards = 2 + draw(seed, MAX_SHARDS - 1)};
    for (size_t i = 0; i < c->shards; i++) {
        c->of[i] = draw(seed, 9); /* some have nothing */
        c->rows += c->of[i];
    }
    whole.n = c->outer * c->rows * c->inner;
    for (size_t i = 0; i < whole.n; i++)
        whole.x[i] = element(seed, odd);
    snprintf(shape, sizeof shape, "%zu %zu %zu", c->outer, c->rows, c->inner);
    describe(&whole, shape);
    cut(c, &whole, shard, side);
}

static void test_merge__shards_of_any_cut_have_the_whole_s_figures(void **st)
{
    uint64_t seed = 7;
    (void)st;
    for (int round = 0; round < 2000; round++) {
        struct cut c;
        struct diff_side merged;
        struct merge_plan plan;
        make(&c, &seed, round & 1);
        plan = merge_plan(&whole.side, side, c.shards, false);
        assert_int_equal(plan.way, MERGE_BLOCKS);
        merge_sides(side, c.shards, 0, &merged);
        assert_same_figures(&merged, &whole.side);
    }
}

static void check_samples(const struct merge_plan *plan, const struct cut *c,
                          size_t *found)
{
    float a[SAMPLES], b[SAMPLES];
    struct merge_samples s = {.whole = (char *)a, .shards = (char *)b};
    merge_samples(plan, &whole.side, side, c->shards, &s);
    assert_true(s.n <= SAMPLES);
    *found += s.n;
    for (size_t i = 0; i < s.n; i++)
        assert_memory_equal(&a[i], &b[i], sizeof a[i]);
}

static void test_merge__samples_are_those_of_the_same_elements(void **state)
{
    uint64_t seed = 11;
    size_t found = 0;
    (void)state;
    for (int round = 0; round < 2000; round++) {
        struct cut c;
        struct merge_plan plan;
        make(&c, &seed, round & 1);
        /* no two elements are alike */
        for (size_t i = 0; i < whole.n; i++)
            whole.x[i] = (float)i;
        describe(&whole, whole.shape);
        cut(&c, &whole, shard, side);
        plan = merge_plan(&whole.side, side, c.shards, false);
        if (whole.n)
            check_samples(&plan, &c, &found);
    }
    assert_true(found > 10000);
}

static void test_merge__rows_dealt_out_find_theirs(void **state)
{
    uint64_t seed = 13;
    size_t found = 0;
    (void)state;
    for (int round = 0; round < 500; round++) {
        struct merge_plan plan = {.way = MERGE_DEALT};
        struct cut c = {.outer = 1, .inner = 1 + draw(&seed, 9),
                        .shards = 2 + draw(&seed, 4), .dealt = true};
        size_t each = 1 + draw(&seed, 8);
        char shape[64];
        for (size_t i = 0; i < c.shards; i++)
            c.of[i] = each;
        c.rows = each * c.shards;
        whole.n = c.rows * c.inner;
        for (size_t i = 0; i < whole.n; i++)
            whole.x[i] = (float)i;
        snprintf(shape, sizeof shape, "1 %zu %zu", c.rows, c.inner);
        describe(&whole, shape);
        cut(&c, &whole, shard, side);
        plan.dim = 1;
        check_samples(&plan, &c, &found);
    }
    assert_true(found > 500);
}

static void flat(size_t from, size_t n, size_t pad, size_t i)
{
    char shape[64];
    shard[i].n = n + pad;
    memcpy(shard[i].x, whole.x + from, n * sizeof *whole.x);
    memset(shard[i].x + n, 0, pad * sizeof *whole.x);
    snprintf(shape, sizeof shape, "%zu", n + pad);
    describe(&shard[i], shape);
    side[i] = &shard[i].side;
}

static void test_merge__flat_shards_with_and_without_padding(void **state)
{
    struct diff_side merged;
    struct merge_plan plan;
    uint64_t seed = 17;
    size_t found = 0;
    const struct cut c = {.shards = 4};
    (void)state;
    whole.n = 7 * 9;
    for (size_t i = 0; i < whole.n; i++)
        whole.x[i] = element(&seed, false) * (i & 1 ? 1 : -1);
    describe(&whole, "7 9");
    for (size_t i = 0; i < 4; i++)
        flat(16 * i, i < 3 ? 16 : 15, i == 3, i);
    plan = merge_plan(&whole.side, side, 4, false);
    assert_int_equal(plan.way, MERGE_NOT);
    plan = merge_plan(&whole.side, side, 4, true);
    assert_int_equal(plan.way, MERGE_FLAT);
    assert_int_equal(plan.pad, 1);
    merge_sides(side, 4, plan.pad, &merged);
    assert_same_figures(&merged, &whole.side);
    check_samples(&plan, &c, &found);
    assert_true(found >= 2);
    flat(48, 15, 0, 3);
    plan = merge_plan(&whole.side, side, 4, false);
    assert_int_equal(plan.way, MERGE_FLAT);
    assert_int_equal(plan.pad, 0);
}

static void test_merge__an_extreme_that_may_be_padding_is_left_out(void **st)
{
    struct diff_side merged;
    (void)st;
    whole.n = 5;
    for (size_t i = 0; i < whole.n; i++)
        whole.x[i] = (float)i + 1;
    flat(0, 3, 0, 0);
    flat(3, 2, 1, 1);
    merge_sides(side, 2, 1, &merged);
    assert_int_equal(merged.n, 5);
    assert_int_equal(merged.has & TRD_HAS_RANGE, 0);
    assert_near(merged.mean, 3, 3);
    assert_near(merged.std, sqrt(2), 3);
}

static void test_merge__shards_along_two_dimensions_map_no_samples(void **st)
{
    float a[SAMPLES], b[SAMPLES];
    struct merge_samples s = {(char *)a, (char *)b, 1};
    struct merge_plan plan;
    (void)st;
    whole.n = 24;
    describe(&whole, "4 6");
    for (size_t i = 0; i < 4; i++) {
        shard[i].n = 6;
        describe(&shard[i], "2 3");
        side[i] = &shard[i].side;
    }
    plan = merge_plan(&whole.side, side, 4, false);
    assert_int_equal(plan.way, MERGE_GRID);
    merge_samples(&plan, &whole.side, side, 4, &s);
    assert_int_equal(s.n, 0);
    /* as many elements, but they cannot lie so */
    describe(&whole, "3 8");
    plan = merge_plan(&whole.side, side, 4, false);
    assert_int_equal(plan.way, MERGE_NOT);
    describe(&shard[1], "3 2");
    describe(&whole, "4 6");
    plan = merge_plan(&whole.side, side, 4, false);
    assert_int_equal(plan.way, MERGE_NOT);
}

static void test_merge__what_one_shard_lacks_the_whole_lacks(void **state)
{
    struct diff_side merged;
    (void)state;
    whole.n = 8;
    for (size_t i = 0; i < whole.n; i++)
        whole.x[i] = (float)i;
    flat(0, 4, 0, 0);
    flat(4, 4, 0, 1);
    shard[1].side.has = TRD_HAS_RANGE;
    merge_sides(side, 2, 0, &merged);
    assert_int_equal(merged.has, TRD_HAS_RANGE);
    assert_true(merged.max >= 7 && merged.max <= 7);
    /* one without finite elements has no figures to lack */
    for (size_t i = 0; i < 4; i++)
        shard[1].x[i] = NAN;
    describe(&shard[1], "4");
    merge_sides(side, 2, 0, &merged);
    assert_int_equal(merged.nan, 4);
    assert_true(merged.has & TRD_HAS_MEAN && merged.max <= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_merge__shards_of_any_cut_have_the_whole_s_figures),
        cmocka_unit_test(test_merge__samples_are_those_of_the_same_elements),
        cmocka_unit_test(test_merge__rows_dealt_out_find_theirs),
        cmocka_unit_test(test_merge__flat_shards_with_and_without_padding),
        cmocka_unit_test(
            test_merge__an_extreme_that_may_be_padding_is_left_out),
        cmocka_unit_test(
            test_merge__shards_along_two_dimensions_map_no_samples),
        cmocka_unit_test(test_merge__what_one_shard_lacks_the_whole_lacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
