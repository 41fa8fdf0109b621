/* The name grammar: odd class names, ends left off, wildcards. */
#include <stdio.h>

#include "tests/lib/unit.h"

#include "proto/name.h"

static struct name_query parse(const char *text, enum name_as as)
{
    struct name_query q;
    const char *why = NULL;
    int failed = name_parse(slice_of(text), as, &q, &why);
    if (failed)
        fail_msg("%s: %s", text, why);
    return q;
}

static void is(const struct name_reading *r, enum name_who kind,
               const char *who, const char *instance, const char *step)
{
    assert_int_equal(r->kind, kind);
    assert_slice(r->who, who);
    assert_slice(r->instance, instance);
    assert_slice(r->step, step);
}

static void test_name__object_and_step_is_tried_first(void **state)
{
    (void)state;
    struct name_query q = parse("forward-CustomLinear-1-2", NAME_AS_ANY);
    is(&q.reading[0], NAME_OBJECT, "CustomLinear", "1", "2");
    is(&q.reading[1], NAME_OBJECT, "CustomLinear-1", "2", "");
    is(&q.reading[2], NAME_OBJECT, "CustomLinear-1-2", "", "");
    is(&q.reading[3], NAME_MODULE, "CustomLinear-1", "", "2");
    assert_slice(q.reading[0].pass, "forward");
}

static void test_name__class_with_dashes_is_read_from_the_right(void **state)
{
    (void)state;
    struct name_query q = parse("forward-Conv-1-2-1-2", NAME_AS_ANY);
    is(&q.reading[0], NAME_OBJECT, "Conv-1-2", "1", "2");
    q = parse("forward-forward-Linear-1-1-2", NAME_AS_ANY);
    is(&q.reading[0], NAME_OBJECT, "forward-Linear-1", "1", "2");
    q = parse("forward-grad-1-2", NAME_AS_ANY);
    is(&q.reading[0], NAME_OBJECT, "grad", "1", "2");
    q = parse("forward-线性层-1-2", NAME_AS_ANY);
    is(&q.reading[0], NAME_OBJECT, "线性层", "1", "2");
    q = parse("forward-x.y<z>-1-2", NAME_AS_ANY);
    is(&q.reading[0], NAME_OBJECT, "x.y<z>", "1", "2");
}

static void test_name__io_and_position(void **state)
{
    (void)state;
    struct name_query q = parse("backward-MyModel-1-2-output.1", NAME_AS_ANY);
    is(&q.reading[0], NAME_OBJECT, "MyModel", "1", "2");
    assert_int_equal(q.reading[0].io, TRD_OUTPUT);
    assert_slice(q.reading[0].position, "1");
    q = parse("forward-L-1-2-input", NAME_AS_ANY);
    assert_int_equal(q.reading[0].io, TRD_INPUT);
    assert_slice(q.reading[0].position, "0");
}

static void test_name__module_path(void **state)
{
    (void)state;
    struct name_query q = parse("forward-layer1-2", NAME_AS_MODULE);
    is(&q.reading[0], NAME_MODULE, "layer1", "", "2");
    is(&q.reading[1], NAME_MODULE, "layer1-2", "", "");
    q = parse("forward-blocks.2.mlp.act-1-input", NAME_AS_ANY);
    is(&q.reading[0], NAME_MODULE, "blocks.2.mlp.act", "", "1");
}

static void test_name__gradient_by_parameter_path(void **state)
{
    (void)state;
    struct name_query q = parse("grad-layer1.weight-3", NAME_AS_ANY);
    const struct name_reading *last = &q.reading[q.n - 1];
    is(last - 1, NAME_PATH, "layer1.weight", "", "3");
    q = parse("user-loss-1", NAME_AS_OBJECT); /* nothing but a user's name */
    is(&q.reading[0], NAME_PATH, "loss", "", "1");
    is(&q.reading[1], NAME_PATH, "loss-1", "", "");
    assert_int_equal(q.n, 2);
    q = parse("grad-layer1.weight-3", NAME_AS_ANY);
    last = &q.reading[q.n - 1];
    is(last, NAME_PATH, "layer1.weight-3", "", "");
}

static void test_name__optimizer_state_by_parameter_and_state(void **state)
{
    (void)state;
    struct name_query q = parse("optim-layer1.weight.exp_avg-3", NAME_AS_ANY);
    const struct name_reading *last = &q.reading[q.n - 1];
    is(last - 1, NAME_PATH, "layer1.weight.exp_avg", "", "3");
    q = parse("optim-*.exp_avg-3", NAME_AS_ANY);
    is(&q.reading[0], NAME_PATH, "*.exp_avg", "", "3");
    char out[64];
    struct name_parts p = {.pass = TRD_OPTIM, .step = 3,
                           .path = slice_of("layer1.weight.exp_avg")};
    assert_int_equal(name_put(&p, out, sizeof out), 0);
    assert_string_equal(out, "optim-layer1.weight.exp_avg-3");
}

static void test_name__wildcards_stand_for_any_part(void **state)
{
    (void)state;
    struct name_query q = parse("*-Custom*-?-*", NAME_AS_ANY);
    is(&q.reading[0], NAME_OBJECT, "Custom*", "?", "*");
    q = parse("grad-*-2", NAME_AS_ANY);
    is(&q.reading[0], NAME_PATH, "*", "", "2");
    is(&q.reading[1], NAME_PATH, "*-2", "", "");
    q = parse("*-3-output", NAME_AS_ANY); /* fits no part: whole names */
    is(&q.reading[0], NAME_TEXT, "*-3-output", "", "");
    q = parse("*Log*", NAME_AS_ANY);
    is(&q.reading[0], NAME_TEXT, "*Log*", "", "");
    q = parse("forward-Log-1-3-*", NAME_AS_ANY);
    is(&q.reading[q.n - 1], NAME_TEXT, "forward-Log-1-3-*", "", "");
    q = parse("user-*", NAME_AS_ANY);
    is(&q.reading[0], NAME_PATH, "*", "", "");
    q = parse("forward", NAME_AS_ANY);
    assert_int_equal(q.reading[0].kind, NAME_ALL);
    assert_true(name_match(slice_of("a*c?"), slice_of("abbbcd")));
    assert_true(name_match(slice_of("*"), slice_of("")));
    assert_false(name_match(slice_of("a*c"), slice_of("abd")));
    assert_false(name_match(slice_of("a[b]"), slice_of("ab")));
}

static void test_name__malformed_ones_say_why(void **state)
{
    (void)state;
    const char *const bad[] = {"",         "forwrd-Linear-1-2",
                               "-Linear-1", "forward-",
                               "Linear-1-2", "forward-Linear-input"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct name_query q;
        const char *why = NULL;
        assert_int_equal(name_parse(slice_of(bad[i]), NAME_AS_ANY, &q, &why),
                         TRD_ENAME);
        assert_non_null(why);
    }
}

static void test_name__printed_names_are_the_promised_ones(void **state)
{
    (void)state;
    char out[256];
    struct name_parts p = {.pass = TRD_BACKWARD, .io = TRD_OUTPUT,
                           .class_name = slice_of("MyModel"), .instance = 1,
                           .step = 2, .position = 1,
                           .path = slice_of("0")};
    assert_int_equal(name_put(&p, out, sizeof out), 0);
    assert_string_equal(out, "backward-MyModel-1-2-output.1");
    struct name_parts g = {.pass = TRD_GRAD, .class_name = slice_of("L"),
                           .instance = 1, .step = 3,
                           .path = slice_of("layer1.weight")};
    assert_int_equal(name_put(&g, out, sizeof out), 0);
    assert_string_equal(out, "grad-layer1.weight-3");
    assert_int_equal(name_put(&g, out, 20), TRD_ELIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_name__object_and_step_is_tried_first),
        cmocka_unit_test(test_name__class_with_dashes_is_read_from_the_right),
        cmocka_unit_test(test_name__io_and_position),
        cmocka_unit_test(test_name__module_path),
        cmocka_unit_test(test_name__gradient_by_parameter_path),
        cmocka_unit_test(test_name__optimizer_state_by_parameter_and_state),
        cmocka_unit_test(test_name__wildcards_stand_for_any_part),
        cmocka_unit_test(test_name__malformed_ones_say_why),
        cmocka_unit_test(test_name__printed_names_are_the_promised_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
