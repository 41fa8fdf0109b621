/* Lines of the seed log: what is taken, what is refused and where, and that
 * a line comes back byte for byte. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/unit.h"

#include "proto/text.h"

static struct text_line line;
static char printed[1 << 20];

static void good(const char *text, uint32_t k)
{
    const char *why = "";
    size_t column = 0;
    if (text_parse(text, strlen(text), k, &line, &why, &column))
        fail_msg("%s\n%zu: %s", text, column, why);
}

/* Refused, at this column. */
static void bad(const char *text, size_t at)
{
    const char *why = NULL;
    size_t column = 0;
    if (text_parse(text, strlen(text), 16, &line, &why, &column) !=
        TRD_EINVAL)
        fail_msg("taken: %s", text);
    assert_non_null(why);
    if (at && column != at)
        fail_msg("%s\ncolumn %zu, not %zu: %s", text, column, at, why);
    assert_in_range(column, 1, strlen(text) + 1);
}

static void comes_back(const char *text)
{
    good(text, 16);
    assert_int_equal(text_print(&line, printed, sizeof printed),
                     strlen(text));
    assert_string_equal(printed, text);
}

static void test_text__a_line(void **state)
{
    (void)state;
    good("162417790405,1,forward-MyModel-1-1-input,1,[2, 1]-0.04025,-0.04651,"
         "-0.00585,0.01007,-0.01444,0.00986",
         16);
    assert_int_equal(line.time_us, ((16 * 60 + 24) * 60 + 17) * 1000000LL +
                                       790405);
    assert_int_equal(line.counter, 1);
    assert_slice(line.name, "forward-MyModel-1-1-input");
    assert_int_equal(line.index, 1);
    assert_int_equal(line.ndim, 2);
    assert_int_equal(line.shape[0], 2);
    assert_int_equal(line.n, 2);
    assert_true(line.figure[0] == 0.04025);
    assert_true(line.figure[1] == -0.04651);
    assert_true(line.figure[3] == 0.01007);
    assert_int_equal(line.sample_n, 2);
    assert_true(line.sample[1] == 0.00986);
}

static void test_text__comes_back_byte_for_byte(void **state)
{
    (void)state;
    comes_back("235959999999,9007199254740993,grad-a.b,0,[]-2.50000,2.50000,"
               "2.50000,0.00000,2.50000");
    comes_back("000000000000,1,forward-Conv-1-2-1-2-output,0,[1, 2]-1.00000,"
               "1.00000,1.00000,0.00000,1.00000,1.00000");
    comes_back("101500000003,3,forward-线性-1-3-output,0,[2]--3.00000,"
               "-3.00000,-0.00000,0.00000,-3.00000,-3.00000");
    comes_back("101500000001,1,forward-x.y<z>-1-1-output,0,[1]-nan,inf,-inf,"
               "nan,nan");
    comes_back("101500000001,1,grad-w,0,[1]-"
               "340282346638528859811704183484516925440.00000,"
               "-340282346638528859811704183484516925440.00000,"
               "90071992547.40993,123456789012.34500,0.00001");
    comes_back("101500000001,1,forward-E-1-1-output,0,[0]-");
    comes_back("101500000001,1,forward-E-1-1-output,0,[4, 0, 2]-");
}

static void test_text__other_spellings_of_nan_and_inf(void **state)
{
    (void)state;
    good("101500000006,6,forward-Linear-5-1-output,0,[1]-NaN,Infinity,"
         "-Infinity,-nan,-INF",
         16);
    assert_true(isnan(line.figure[0]));
    assert_true(line.figure[1] == HUGE_VAL);
    assert_true(line.figure[2] == -HUGE_VAL);
    assert_true(isnan(line.figure[3]));
    assert_true(line.sample[0] == -HUGE_VAL);
}

static void test_text__carriage_return_at_the_end(void **state)
{
    (void)state;
    good("101500000001,1,grad-w,0,[1]-1.00000,1.00000,1.00000,0.00000,"
         "1.00000\r",
         16);
    bad("101500000001,1,grad-w,0,[1]-1.00000,1.00000,1.00000,0.00000,"
        "1.00000\r\r",
        0);
}

static void test_text__exactly_min_k_n_samples(void **state)
{
    (void)state;
    static const char three[] =
        "101500000001,1,grad-w,0,[3]-1.00000,1.00000,1.00000,0.00000,1.00000,"
        "1.00000,1.00000";
    good(three, 16);
    good(three, 3);
    const char *why;
    size_t column;
    assert_int_equal(
        text_parse(three, strlen(three), 2, &line, &why, &column),
        TRD_EINVAL);
    assert_int_equal(
        text_parse(three, strlen(three) - 8, 16, &line, &why, &column),
        TRD_EINVAL);
    good("101500000001,1,grad-w,0,[3]-1.00000,1.00000,1.00000,0.00000", 0);
    bad("101500000001,1,grad-w,0,[0]-1.00000", 29);
}

#define TAIL ",0,[1]-1.00000,1.00000,1.00000,0.00000,1.00000"

static void test_text__refused_with_the_place(void **state)
{
    (void)state;
    bad("", 1);
    bad("10150000000", 1);
    bad("246000000001,1,grad-w" TAIL, 1);
    bad("1015000000x1,1,grad-w" TAIL, 11);
    bad("101500000001x1,grad-w" TAIL, 13);
    bad("101500000001,,grad-w" TAIL, 14);
    bad("101500000001,01,grad-w" TAIL, 14);
    bad("101500000001,99999999999999999999,grad-w" TAIL, 14);
    bad("101500000001,1," TAIL, 16);
    bad("101500000001,1,grad\x01w" TAIL, 20);
    bad("101500000001,1,forward-\xe7\xba" TAIL, 24);
    bad("101500000001,1,forward-\xe7", 24);
    bad("101500000001,1,grad-w,4294967296,[1]-1.00000,1.00000,1.00000,"
        "0.00000,1.00000",
        23);
    bad("101500000001,1,grad-w,0,[1,2]-", 28);
    bad("101500000001,1,grad-w,0,[-1]-", 26);
    bad("101500000001,1,grad-w,0,[4611686018427387904, 2]-", 45);
    bad("101500000001,1,grad-w,0,[9223372036854775808]-", 26);
    bad("101500000001,1,grad-w,0,[1]", 28);
    bad("101500000001,1,grad-w,0,[1]-1.0000,1.00000,1.00000,0.00000,1.00000",
        29);
    bad("101500000001,1,grad-w,0,[1]-1.000000,1.00000,1.00000,0.00000,"
        "1.00000",
        29);
    bad("101500000001,1,grad-w,0,[1]-01.00000,1.00000,1.00000,0.00000,"
        "1.00000",
        29);
    bad("101500000001,1,grad-w,0,[1]-1,1.00000,1.00000,0.00000,1.00000", 29);
    bad("101500000001,1,grad-w,0,[1]-1e5,1.00000,1.00000,0.00000,1.00000",
        29);
    bad("101500000001,1,grad-w,0,[1]-.00000,1.00000,1.00000,0.00000,1.00000",
        29);
    bad("101500000001,1,grad-w,0,[1]-nanx,1.00000,1.00000,0.00000,1.00000",
        29);
    bad("101500000001,1,grad-w,0,[1]-1.00000,1.00000,1.00000,0.00000", 60);
    bad("101500000001,1,grad-w" TAIL ",1.00000", 68);
    bad("101500000001,1,grad-w" TAIL ",", 68);
}

static void test_text__too_many_digits(void **state)
{
    (void)state;
    char text[600];
    char digits[400];
    memset(digits, '9', sizeof digits);
    digits[308] = '\0';
    snprintf(text, sizeof text,
             "101500000001,1,grad-w,0,[1]-%s.00000,1.00000,1.00000,0.00000,"
             "1.00000",
             digits);
    good(text, 16);
    digits[308] = '9';
    digits[399] = '\0';
    snprintf(text, sizeof text,
             "101500000001,1,grad-w,0,[1]-%s.00000,1.00000,1.00000,0.00000,"
             "1.00000",
             digits);
    bad(text, 29);
}

static void test_text__long_names(void **state)
{
    (void)state;
    char text[2 * TRD_MAX_NAME], name[TRD_MAX_NAME + 2];
    memset(name, 'A', sizeof name);
    name[TRD_MAX_NAME] = '\0';
    snprintf(text, sizeof text, "101500000001,1,forward-%s-1-2-input,0,[0]-",
             name);
    comes_back(text);
    struct text_name parts;
    assert_int_equal(text_name(line.name, &parts), 0);
    assert_int_equal(parts.class_name.n, TRD_MAX_NAME);
    name[TRD_MAX_NAME] = 'A';
    name[TRD_MAX_NAME + 1] = '\0';
    snprintf(text, sizeof text, "101500000001,1,forward-%s-1-2-input,0,[0]-",
             name);
    good(text, 16);
    assert_int_equal(text_name(line.name, &parts), TRD_ENAME);
}

static void test_text__small_output(void **state)
{
    (void)state;
    char small[8];
    good("101500000001,1,grad-w,0,[0]-", 16);
    assert_int_equal(text_print(&line, small, sizeof small), TRD_ELIMIT);
    assert_int_equal(text_print(&line, printed, 28), TRD_ELIMIT);
    assert_int_equal(text_print(&line, printed, 29), 28);
}

static void named(const char *name, int pass, const char *class_name,
                  uint64_t instance, uint64_t step, int io)
{
    struct text_name t;
    if (text_name(slice_of(name), &t))
        fail_msg("refused: %s", name);
    assert_int_equal(t.pass, pass);
    assert_slice(t.class_name, class_name);
    assert_int_equal(t.instance, instance);
    assert_int_equal(t.step, step);
    assert_int_equal(t.io, io);
}

static void test_text__names_are_read_from_the_right(void **state)
{
    (void)state;
    struct text_name t;
    named("forward-Conv-1-2-1-2-output", TRD_FORWARD, "Conv-1-2", 1, 2,
          TRD_OUTPUT);
    named("backward-forward-Linear-1-3-4-input", TRD_BACKWARD,
          "forward-Linear-1", 3, 4, TRD_INPUT);
    named("forward-grad-1-2-input", TRD_FORWARD, "grad", 1, 2, TRD_INPUT);
    named("forward-线性层-1-2-input", TRD_FORWARD, "线性层", 1, 2, TRD_INPUT);
    assert_int_equal(text_name(slice_of("grad-layer1.weight-1-2"), &t), 0);
    assert_int_equal(t.pass, TRD_GRAD);
    assert_slice(t.path, "layer1.weight-1-2");
    assert_int_equal(t.step, 0);
}

static void test_text__no_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "",           "grad-",       "forward-Linear-1-2",
        "loss",       "forward-1-2-input", "forward--1-2-input",
        "forward-Linear-0-1-input", "forward-Linear-1-0-input",
        "forward-Linear-1-01-input", "forward-Linear-1-2-middle",
        "param-w"};
    struct text_name t;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (text_name(slice_of(names[i]), &t) != TRD_ENAME)
            fail_msg("taken: %s", names[i]);
}

/* Every prefix and every tail of a line, and a whole line behind any prefix,
 * are refused: H52, H54. */
static void test_text__cut_and_glued_lines(void **state)
{
    (void)state;
    static const char one[] =
        "101500000001,1,forward-线性-1-1-output,0,[4]-10.00000,10.00000,"
        "10.00000,0.00000,10.00000,10.00000,10.00000,10.00000";
    char text[2 * sizeof one];
    for (size_t cut = 0; cut < strlen(one); cut++) {
        snprintf(text, sizeof text, "%.*s", (int)cut, one);
        bad(text, 0);
        bad(one + cut + 1, 0);
        snprintf(text, sizeof text, "%.*s%s", (int)cut, one, one);
        if (cut)
            bad(text, 0);
    }
}

/* Whatever the bytes, no read outside them (run with a sanitizer). */
static void test_text__changed_bytes(void **state)
{
    (void)state;
    static const char one[] =
        "101500000001,1,forward-A-1-1-output,0,[2]--10.00000,nan,inf,0.00000,"
        "10.00000,-inf";
    static const char bytes[] = "0-,.[] \r\xe7\xff";
    for (size_t at = 0; at < strlen(one); at++)
        for (size_t b = 0; b < sizeof bytes; b++) {
            size_t n = strlen(one), column = 0;
            char *copy = malloc(n);
            const char *why;
            memcpy(copy, one, n);
            copy[at] = bytes[b];
            struct text_name t;
            if (text_parse(copy, n, 16, &line, &why, &column) == 0)
                text_name(line.name, &t);
            free(copy);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text__a_line),
        cmocka_unit_test(test_text__comes_back_byte_for_byte),
        cmocka_unit_test(test_text__other_spellings_of_nan_and_inf),
        cmocka_unit_test(test_text__carriage_return_at_the_end),
        cmocka_unit_test(test_text__exactly_min_k_n_samples),
        cmocka_unit_test(test_text__refused_with_the_place),
        cmocka_unit_test(test_text__too_many_digits),
        cmocka_unit_test(test_text__long_names),
        cmocka_unit_test(test_text__small_output),
        cmocka_unit_test(test_text__names_are_read_from_the_right),
        cmocka_unit_test(test_text__no_names),
        cmocka_unit_test(test_text__cut_and_glued_lines),
        cmocka_unit_test(test_text__changed_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
