/* Names that modules of two runs have in common, whatever ranks they are on. */
#include "tests/lib/unit.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tools/tracectl.h"
#include "tools/units.h"

enum { MOST = 8 };

struct scan {
    struct scan_object object[MOST];
    size_t objects;
    const char *path[MOST];
    struct scan_place place[MOST][2];
    struct scan_stream stream[MOST];
    struct layout_rank rank[MOST];
    struct layout layout;
    uint8_t owned[MOST * MOST];
};

/* ---- what the code asks of a scan ---- */

int ctl_fail(int code, const char *format, ...)
{
    (void)format;
    return code;
}

const char *ctl_errno(int error)
{
    (void)error;
    return "";
}

const struct scan_object *scan_objects(const struct scan *s, size_t *n)
{
    *n = s->objects;
    return s->object;
}

const char *scan_path(const struct scan *s, int64_t path)
{
    return path >= 0 && path < MOST ? s->path[path] : NULL;
}

const char *scan_path_at(const struct scan *s, size_t i, int64_t *path)
{
    *path = (int64_t)i;
    return scan_path(s, *path);
}

/* ---- runs ---- */

static void add_rank(struct scan *s, const char *dimension, int64_t at,
                     int64_t size)
{
    size_t r = s->layout.n++;
    s->layout.rank = s->rank;
    s->place[r][0] = (struct scan_place){(char *)dimension, at, size};
    s->stream[r] = (struct scan_stream){.rank = (uint32_t)r,
                                        .place = s->place[r], .places = 1};
    s->rank[r] = (struct layout_rank){
        .rank = (uint32_t)r, .stream = &s->stream[r],
        .stage = strcmp(dimension, "pp") == 0 ? (uint32_t)at : 0};
}

/* ranks: a digit for each that has it. */
static void add_object(struct scan *s, const char *class_name,
                       const char *module, const char *ranks)
{
    size_t i = s->objects++;
    s->object[i] = (struct scan_object){(int64_t)i + 1, class_name, module,
                                        (int64_t)i + 1};
    for (; *ranks; ranks++)
        s->owned[i * s->layout.n + (size_t)(*ranks - '0')] = 1;
}

struct pair {
    struct align *names;
    struct units *units;
};

static struct pair open_pair(struct scan *a, struct scan *b, const char *map)
{
    const struct units_side x = {a, &a->layout, a->owned};
    const struct units_side y = {b, &b->layout, b->owned};
    struct pair p;
    assert_int_equal(align_open(a, b, map, &p.names), 0);
    assert_int_equal(units_open(&x, &y, p.names, &p.units), 0);
    return p;
}

static void close_pair(struct pair *p)
{
    units_close(p->units);
    align_close(p->names);
}

static size_t of_a(const struct pair *p, size_t object)
{
    return units_of(p->units, false, object, 0);
}

static size_t of_b(const struct pair *p, size_t object, size_t rank)
{
    return units_of(p->units, true, object, rank);
}

/* Four layers; before and behind their numbers. */
static void whole(struct scan *s, const char *before, const char *behind)
{
    static char name[4][64];
    add_rank(s, "tp", 0, 1);
    for (int i = 0; i < 4; i++) {
        snprintf(name[i], sizeof name[i], "%s%d%s", before, i, behind);
        add_object(s, "Layer", name[i], "0");
    }
}

static void test_units__stages_that_count_from_0_get_the_model_s_numbers(
    void **state)
{
    struct scan a = {.objects = 0}, b = {.objects = 0};
    struct pair p;
    size_t n;
    const size_t *list;
    (void)state;
    whole(&a, "decoder.layers.", "");
    for (int i = 0; i < 3; i++)
        add_rank(&b, "pp", i, 3);
    add_object(&b, "Layer", "decoder.layers.0", "012");
    add_object(&b, "Layer", "decoder.layers.1", "0");
    p = open_pair(&a, &b, NULL);
    assert_int_equal(of_b(&p, 0, 0), of_a(&p, 0));
    assert_int_equal(of_b(&p, 1, 0), of_a(&p, 1));
    assert_int_equal(of_b(&p, 0, 1), of_a(&p, 2));
    assert_int_equal(of_b(&p, 0, 2), of_a(&p, 3));
    assert_true(of_b(&p, 1, 1) == SIZE_MAX);
    list = units_objects(p.units, true, of_a(&p, 3), &n);
    assert_int_equal(n, 1);
    assert_int_equal(list[0], 0);
    close_pair(&p);
}

static void test_units__paths_of_parameters_are_numbered_alike(void **state)
{
    struct scan a = {.objects = 0}, b = {.objects = 0};
    struct pair p;
    (void)state;
    whole(&a, "layers.", "");
    a.path[0] = "layers.0.weight";
    a.path[1] = "layers.2.weight";
    add_rank(&b, "pp", 0, 2);
    add_rank(&b, "pp", 1, 2);
    add_object(&b, "Layer", "layers.0", "01");
    add_object(&b, "Layer", "layers.1", "01");
    b.path[0] = "layers.0.weight";
    p = open_pair(&a, &b, NULL);
    assert_int_equal(units_path(p.units, true, 0, 0),
                     units_path(p.units, false, 0, 0));
    assert_int_equal(units_path(p.units, true, 0, 1),
                     units_path(p.units, false, 1, 0));
    close_pair(&p);
}

static void test_units__stages_that_keep_the_numbers_are_left_alone(void **st)
{
    struct scan a = {.objects = 0}, b = {.objects = 0};
    struct pair p;
    (void)st;
    whole(&a, "layers.", "");
    add_rank(&b, "pp", 0, 2);
    add_rank(&b, "pp", 1, 2);
    add_object(&b, "Layer", "layers.1", "0");
    add_object(&b, "Layer", "layers.2", "1");
    p = open_pair(&a, &b, NULL);
    assert_int_equal(of_b(&p, 0, 0), of_a(&p, 1));
    assert_int_equal(of_b(&p, 1, 1), of_a(&p, 2));
    close_pair(&p);
}

static void test_units__experts_of_a_rank_get_the_model_s_numbers(void **st)
{
    struct scan a = {.objects = 0}, b = {.objects = 0};
    struct pair p;
    (void)st;
    whole(&a, "layers.0.mlp.local_experts.", ".up");
    add_rank(&b, "ep", 0, 2);
    add_rank(&b, "ep", 1, 2);
    add_object(&b, "Layer", "layers.0.mlp.local_experts.0.up", "01");
    add_object(&b, "Layer", "layers.0.mlp.local_experts.1.up", "01");
    p = open_pair(&a, &b, NULL);
    for (size_t r = 0; r < 2; r++)
        for (size_t i = 0; i < 2; i++)
            assert_int_equal(of_b(&p, i, r), of_a(&p, 2 * r + i));
    close_pair(&p);
}

static void test_units__wrappers_and_classes_of_fsdp_do_not_hinder(void **st)
{
    struct scan a = {.objects = 0}, b = {.objects = 0};
    struct pair p;
    (void)st;
    add_rank(&a, "tp", 0, 1);
    add_object(&a, "Model", "", "0");
    add_object(&a, "Linear", "up.act", "0");
    add_rank(&b, "fsdp", 0, 2);
    add_rank(&b, "fsdp", 1, 2);
    add_object(&b, "FSDPModel", "module", "01");
    add_object(&b, "FSDPLinear", "up._checkpoint_wrapped_module.act", "01");
    p = open_pair(&a, &b, NULL);
    assert_int_equal(of_b(&p, 0, 1), of_a(&p, 0));
    assert_int_equal(of_b(&p, 1, 0), of_a(&p, 1));
    assert_true(of_a(&p, 0) != of_a(&p, 1));
    assert_int_equal(units_n(p.units), 2);
    close_pair(&p);
}

static void with_map(const char *text, struct scan *a, struct scan *b,
                     struct pair *out)
{
    char file[] = "/tmp/trd_units_XXXXXX";
    int fd = mkstemp(file);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    *out = open_pair(a, b, file);
    unlink(file);
}

static void test_units__a_map_speaks_of_some_ranks_of_either_run(void **state)
{
    struct scan a = {.objects = 0}, b = {.objects = 0};
    struct pair p;
    (void)state;
    add_rank(&a, "tp", 0, 1);
    add_object(&a, "Layer", "h.0", "0");
    add_object(&a, "Layer", "h.1", "0");
    add_rank(&b, "x", 0, 2);
    add_rank(&b, "x", 1, 2);
    add_object(&b, "Layer", "h.0", "01");
    with_map("h.1 x=1 h.0\n", &a, &b, &p);
    assert_int_equal(of_b(&p, 0, 0), of_a(&p, 0));
    assert_int_equal(of_b(&p, 0, 1), of_a(&p, 1));
    close_pair(&p);
    with_map("rank=1 h.0 h.1\n", &b, &a, &p);
    assert_int_equal(units_of(p.units, false, 0, 0), of_b(&p, 0, 0));
    assert_int_equal(units_of(p.units, false, 0, 1), of_b(&p, 1, 0));
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_units__stages_that_count_from_0_get_the_model_s_numbers),
        cmocka_unit_test(test_units__paths_of_parameters_are_numbered_alike),
        cmocka_unit_test(
            test_units__stages_that_keep_the_numbers_are_left_alone),
        cmocka_unit_test(
            test_units__experts_of_a_rank_get_the_model_s_numbers),
        cmocka_unit_test(
            test_units__wrappers_and_classes_of_fsdp_do_not_hinder),
        cmocka_unit_test(
            test_units__a_map_speaks_of_some_ranks_of_either_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
