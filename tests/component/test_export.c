/* The seed export: the original script's lines for the same training, by its
 * own way of counting; and an imported log back, byte for byte. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/cli.h"

#include "tracerd/client.h"

/* A rank being traced. */
struct rank {
    struct trd_client *client;
    uint64_t iteration;
};

static void open_as(struct rank *r, const char *run, uint32_t rank,
                    enum trd_sampling sampling)
{
    struct trd_client_options o;
    trd_client_options_init(&o);
    o.sampling = sampling;
    o.sampling_arg = 1;
    o.histogram = TRD_HISTOGRAM_ROWS; /* no line has it, and none needs it */
    o.dir = getenv("DIR");
    o.run = run;
    o.rank = rank;
    o.world = 2;
    o.job = "export";
    assert_int_equal(trd_client_open(&o, &r->client), 0);
    r->iteration = 1;
}

static void open_rank(struct rank *r, const char *run, uint32_t rank)
{
    open_as(r, run, rank, TRD_EQUIDISTANT);
}

static void close_rank(struct rank *r)
{
    assert_int_equal(trd_flush(r->client, 20000), 0);
    trd_client_close(r->client);
}

static uint32_t site(struct rank *r, int pass, int io, uint32_t position,
                     const char *class_name, uint32_t instance,
                     const char *path)
{
    const struct trd_site s = {(enum trd_pass)pass, (enum trd_io)io, position,
                               instance, class_name, "m", path};
    uint32_t id = 0;
    assert_int_equal(trd_site(r->client, &s, &id), 0);
    return id;
}

static void put(struct rank *r, uint32_t where, uint64_t step,
                uint32_t labels, int dtype, const void *data)
{
    static const int64_t shape[] = {2};
    const struct trd_tensor t = {data, (enum trd_dtype)dtype, 1, shape, NULL};
    const struct trd_when when = {step, r->iteration, 1, labels, 0};
    assert_int_equal(trd_submit_cpu(r->client, where, &when, &t, 16), 0);
}

static const float one_two[] = {1, 2};

static void call(struct rank *r, int pass, int io, const char *class_name,
                 uint32_t instance, uint64_t step, const char *path,
                 uint32_t position)
{
    put(r, site(r, pass, io, position, class_name, instance, path), step, 0,
        TRD_F32, one_two);
}

static void fwd_in(struct rank *r, const char *c, uint32_t n, uint64_t step)
{
    call(r, TRD_FORWARD, TRD_INPUT, c, n, step, "0", 0);
}

static void fwd_out(struct rank *r, const char *c, uint32_t n, uint64_t step)
{
    call(r, TRD_FORWARD, TRD_OUTPUT, c, n, step, "0", 0);
}

static void bwd_in(struct rank *r, const char *c, uint32_t n, uint64_t step)
{
    call(r, TRD_BACKWARD, TRD_INPUT, c, n, step, "0", 0);
}

static void bwd_out(struct rank *r, const char *c, uint32_t n, uint64_t step)
{
    call(r, TRD_BACKWARD, TRD_OUTPUT, c, n, step, "0", 0);
}

/* counter,name,index of each line must be expected. */
static void exports(const char *run, const char *options,
                    const char *expected)
{
    const struct cli *c = cli_expect(
        0, "$T -r %s export --format seed %s | cut -d, -f2-4", run, options);
    assert_string_equal(c->out, expected);
}

static void test_export__objects_by_first_call(void **state)
{
    (void)state;
    struct rank r;
    open_rank(&r, "order", 0);
    fwd_in(&r, "Net", 1, 1);
    fwd_in(&r, "Lin", 2, 1); /* called before Lin-1 */
    fwd_out(&r, "Lin", 2, 1);
    fwd_in(&r, "Lin", 1, 1);
    fwd_out(&r, "Lin", 1, 1);
    fwd_out(&r, "Net", 1, 1);
    bwd_in(&r, "Lin", 1, 1);
    bwd_out(&r, "Lin", 1, 1);
    bwd_in(&r, "Lin", 2, 1);
    close_rank(&r);
    exports("order", "",
            "1,forward-Net-1-1-input,1\n"
            "2,forward-Lin-1-1-input,1\n"
            "3,forward-Lin-1-1-output,0\n"
            "4,forward-Lin-2-1-input,1\n"
            "5,forward-Lin-2-1-output,0\n"
            "6,forward-Net-1-1-output,0\n"
            "7,backward-Lin-2-1-input,0\n"
            "8,backward-Lin-2-1-output,0\n"
            "9,backward-Lin-1-1-input,0\n"
            "10,backward-Lin-1-1-output,0\n");
}

static void test_export__calls_as_the_script_counts(void **state)
{
    (void)state;
    struct rank r;
    uint32_t in, out;
    open_rank(&r, "calls", 0);
    fwd_in(&r, "A", 1, 1); /* twice in one forward */
    fwd_out(&r, "A", 1, 1);
    fwd_in(&r, "A", 1, 2);
    fwd_out(&r, "A", 1, 2);
    in = site(&r, TRD_FORWARD, TRD_INPUT, 0, "A", 1, "0");
    out = site(&r, TRD_FORWARD, TRD_OUTPUT, 0, "A", 1, "0");
    put(&r, in, 2, TRD_L_RECOMPUTE, TRD_F32, one_two);
    put(&r, out, 2, TRD_L_RECOMPUTE, TRD_F32, one_two);
    bwd_in(&r, "A", 1, 2);
    put(&r, in, 1, TRD_L_RECOMPUTE, TRD_F32, one_two);
    put(&r, out, 1, TRD_L_RECOMPUTE, TRD_F32, one_two);
    bwd_in(&r, "A", 1, 1);
    bwd_in(&r, "A", 1, 1); /* again, with the graph kept */
    fwd_in(&r, "A", 1, 3);
    bwd_in(&r, "A", 1, 3);
    close_rank(&r);
    exports("calls", "",
            "1,forward-A-1-1-input,1\n"
            "2,forward-A-1-1-output,0\n"
            "3,forward-A-1-2-input,1\n"
            "4,forward-A-1-2-output,0\n"
            "5,forward-A-1-3-input,1\n"
            "6,forward-A-1-3-output,0\n"
            "7,backward-A-1-1-input,0\n"
            "8,backward-A-1-1-output,0\n"
            "9,forward-A-1-4-input,1\n"
            "10,forward-A-1-4-output,0\n"
            "11,backward-A-1-2-input,0\n"
            "12,backward-A-1-2-output,0\n"
            "13,backward-A-1-3-input,0\n"
            "14,backward-A-1-3-output,0\n"
            "15,forward-A-1-5-input,1\n"
            "16,backward-A-1-4-input,0\n"
            "17,backward-A-1-4-output,0\n");
}

static void test_export__tuples_and_what_the_script_does_not_see(void **state)
{
    (void)state;
    struct rank r;
    const double complex_one[] = {1, 2, 3, 4};
    open_rank(&r, "tuples", 0);
    call(&r, TRD_FORWARD, TRD_INPUT, "T", 1, 1, "0", 0);
    call(&r, TRD_FORWARD, TRD_INPUT, "T", 1, 1, "1.0", 1); /* in a list */
    call(&r, TRD_FORWARD, TRD_INPUT, "T", 1, 1, "2", 2);
    call(&r, TRD_FORWARD, TRD_INPUT, "T", 1, 1, "mask", 3); /* by name */
    call(&r, TRD_FORWARD, TRD_OUTPUT, "T", 1, 1, "0", 0);
    call(&r, TRD_FORWARD, TRD_OUTPUT, "T", 1, 1, "1", 1);
    call(&r, TRD_BACKWARD, TRD_INPUT, "T", 1, 1, "0", 0);
    call(&r, TRD_BACKWARD, TRD_INPUT, "T", 1, 1, "1", 1);
    call(&r, TRD_BACKWARD, TRD_OUTPUT, "T", 1, 1, "0", 0);
    put(&r, site(&r, TRD_FORWARD, TRD_OUTPUT, 0, "C", 1, "0"), 1,
        TRD_L_COMPLEX, TRD_C128, complex_one);
    put(&r, site(&r, TRD_GRAD, 0, 0, "T", 1, "m.weight"), 1, TRD_L_LOCAL,
        TRD_F32, one_two);
    put(&r, site(&r, TRD_GRAD, 0, 0, "T", 1, "m.weight"), 1, TRD_L_FINAL,
        TRD_F32, one_two);
    put(&r, site(&r, TRD_PARAM, 0, 0, "T", 1, "m.weight"), 1, 0, TRD_F32,
        one_two);
    put(&r, site(&r, TRD_USER, 0, 0, "", 0, "loss"), 1, 0, TRD_F32, one_two);
    close_rank(&r);
    exports("tuples", "",
            "1,forward-T-1-1-input,1\n"
            "1,forward-T-1-1-input,3\n"
            "2,forward-T-1-1-output,0\n"
            "2,forward-T-1-1-output,1\n"
            "3,backward-T-1-1-input,0\n"
            "3,backward-T-1-1-input,1\n"
            "4,backward-T-1-1-output,0\n"
            "4,backward-T-1-1-output,1\n"
            "5,grad-m.weight,0\n");
    cli_has(cli_expect(0, "$T -r tuples export --format seed")->err,
            "1 records left out");
}

/* The script takes its samples at equal distances: others would be compared
 * with the wrong elements. */
static void test_export__other_samples_are_no_lines(void **state)
{
    (void)state;
    struct rank r;
    open_as(&r, "drawn", 0, TRD_RANDOM);
    fwd_in(&r, "A", 1, 1);
    fwd_out(&r, "A", 1, 1);
    close_rank(&r);
    const struct cli *c = cli_expect(1, "$T -r drawn export --format seed");
    assert_string_equal(c->out, "");
    cli_has(c->err, "2 records left out: their samples are not equidistant");
    open_rank(&r, "drawn", 0);
    fwd_in(&r, "A", 1, 2);
    close_rank(&r);
    exports("drawn", "", "1,forward-A-1-2-input,1\n");
}

static void test_export__figures_are_of_float32(void **state)
{
    (void)state;
    struct rank r;
    const int64_t whole[] = {-3, 16777217};
    const double wide[] = {0.1, 1e300};
    const uint16_t half[] = {0x2e66, 0x8001}; /* 0.0999756, -6e-8 */
    const float odd[] = {1, -(float)(0.0 / 0.0 * 0)};
    const unsigned char truth[] = {1, 0};
    open_rank(&r, "float", 0);
    put(&r, site(&r, TRD_FORWARD, TRD_OUTPUT, 0, "I", 1, "0"), 1, 0, TRD_I64,
        whole);
    put(&r, site(&r, TRD_FORWARD, TRD_OUTPUT, 0, "D", 1, "0"), 1, 0, TRD_F64,
        wide);
    put(&r, site(&r, TRD_FORWARD, TRD_OUTPUT, 0, "H", 1, "0"), 1, 0, TRD_F16,
        half);
    put(&r, site(&r, TRD_FORWARD, TRD_OUTPUT, 0, "N", 1, "0"), 1, 0, TRD_F32,
        odd);
    put(&r, site(&r, TRD_FORWARD, TRD_OUTPUT, 0, "B", 1, "0"), 1, 0, TRD_BOOL,
        truth);
    close_rank(&r);
    const struct cli *c =
        cli_expect(0, "$T -r float export --format seed | cut -d, -f3-");
    assert_string_equal(
        c->out,
        "forward-I-1-1-output,0,[2]-16777216.00000,-3.00000,8388607.00000,"
        "8388610.00000,-3.00000,16777216.00000\n"
        "forward-D-1-1-output,0,[2]-inf,0.10000,inf,inf,0.10000,inf\n"
        "forward-H-1-1-output,0,[2]-0.09998,-0.00000,0.04999,0.04999,"
        "0.09998,-0.00000\n"
        "forward-N-1-1-output,0,[2]-nan,nan,nan,nan,1.00000,nan\n"
        "forward-B-1-1-output,0,[2]-1.00000,0.00000,0.50000,0.50000,1.00000,"
        "0.00000\n");
}

static void test_export__rank_after_rank(void **state)
{
    (void)state;
    struct rank r[2];
    for (uint32_t i = 0; i < 2; i++)
        open_rank(&r[i], "ranks", i);
    for (uint64_t step = 1; step <= 2; step++)
        for (int i = 1; i >= 0; i--)
            fwd_in(&r[i], i ? "B" : "A", 1, step);
    for (int i = 1; i >= 0; i--)
        close_rank(&r[i]);
    exports("ranks", "",
            "1,forward-A-1-1-input,1\n2,forward-A-1-2-input,1\n"
            "1,forward-B-1-1-input,1\n2,forward-B-1-2-input,1\n");
    exports("ranks", "--rank 1",
            "1,forward-B-1-1-input,1\n2,forward-B-1-2-input,1\n");
    cli_has(cli_expect(1, "$T -r ranks export --format seed --rank 7")->err,
            "tracectl: rank 7: run 'ranks' has ranks 0 to 1\n");
    cli_has(cli_expect(0, "$T -r ranks export --format seed")->err,
            "tracectl: lines of several ranks follow one another");
    assert_string_equal(
        cli_expect(0, "$T -r ranks export --format seed --rank 1")->err, "");
    assert_string_equal(cli_expect(0, "$T -r ranks export --format csv")->err,
                        "");
}

/* An existing file is replaced by a whole export or stays. */
static void test_export__the_file_is_whole_or_left_alone(void **state)
{
    static const char *const forms[] = {"seed", "csv", "json"};
    struct rank r;
    (void)state;
    open_rank(&r, "whole", 0);
    fwd_in(&r, "A", 1, 1);
    close_rank(&r);
    for (int i = 0; i < 3; i++) {
        cli_expect(0, "mkdir -p out; echo precious > out/log; chmod 640 "
                      "out/log; ln -sf log out/link");
        cli_expect(1, "$T -r whole export --format %s --out out/log --rank 7",
                   forms[i]);
        cli_expect(1, "$T -r nosuch export --format %s --out out/log",
                   forms[i]);
        /* a directory where nothing can be made */
        cli_expect(3, "$T -r whole export --format %s --out out/no/log",
                   forms[i]);
        cli_has(cli_expect(0, "cat out/log; ls out")->out,
                "precious\nlink\nlog\n");
        cli_expect(0, "$T -r whole export --format %s --out out/link; $T -r "
                      "whole export --format %s | cmp - out/log",
                   forms[i], forms[i]);
        cli_has(cli_expect(0, "stat -c %%a out/log; readlink out/link; ls "
                              "out")->out,
                "640\nlog\nlink\nlog\n");
    }
    cli_expect(1, "$T -r whole export --format seed --out out/new --rank 7");
    cli_expect(1, "test -e out/new");
    cli_expect(0, "umask 027; $T -r whole export --format seed --out "
                  "out/new; test $(stat -c %%a out/new) = 640");
}

/* The original log: every byte, times and counters too. */
static void test_export__an_imported_log_comes_back(void **state)
{
    (void)state;
    cli_expect(0, "$T import $GOLDEN/seed-small.log --run small");
    cli_expect(0, "$T -r small export --format seed --out back.log && "
                  "cmp back.log $GOLDEN/seed-small.log");
    cli_expect(0, "$T -d $DATA export small --format seed --out - | "
                  "cmp - $GOLDEN/seed-small.log");
    cli_expect(0, "$T export $DATA/small.db --format seed | "
                  "cmp - $GOLDEN/seed-small.log");
    cli_expect(0, "$T import $CASES/H63_grad_lines_without_step.txt --run "
                  "h63; $T -r h63 export --format seed | cmp - "
                  "$CASES/H63_grad_lines_without_step.txt");
    cli_expect(0, "$T import $CASES/H53_midnight.txt --run h53; "
                  "$T -r h53 export --format seed | cmp - "
                  "$CASES/H53_midnight.txt");
}

/* Numbers that are easy to lose. */
static void test_export__odd_numbers_come_back(void **state)
{
    (void)state;
    static const char text[] =
        "101500000001,1,forward-Z-1-1-output,0,[2]--0.00000,-0.00000,"
        "0.00000,0.00000,-0.00000,0.00000\n"
        "101500000002,2,forward-Z-1-2-output,0,[1]-"
        "340282346638528859811704183484516925440.00000,-0.00001,"
        "65504.00000,inf,-inf\n"
        "101500000003,3,forward-Z-1-3-output,0,[]-1.00000,1.00000,1.00000,"
        "0.00000,1.00000\n"
        "101500000004,4,forward-Z-1-4-output,0,[3, 0]-\n";
    cli_write_file("odd.txt", text, sizeof text - 1);
    cli_expect(0, "$T import odd.txt --run odd; $T -r odd export --format "
                  "seed > back.txt; diff odd.txt back.txt >&2");
}

/* A small negative mean prints as -0.00000: its sign must be stored. */
static void test_export__sign_of_a_zero_mean_comes_back(void **state)
{
    (void)state;
    static const char text[] =
        "101500000001,1,grad-w,0,[1]-0.00000,-0.00000,-0.00000,0.00000,"
        "-0.00000\n";
    cli_write_file("mean.txt", text, sizeof text - 1);
    cli_expect(0, "$T import mean.txt --run mean; $T -r mean export --format "
                  "seed > back.txt; diff mean.txt back.txt >&2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_export__objects_by_first_call),
        cmocka_unit_test(test_export__calls_as_the_script_counts),
        cmocka_unit_test(
            test_export__tuples_and_what_the_script_does_not_see),
        cmocka_unit_test(test_export__other_samples_are_no_lines),
        cmocka_unit_test(test_export__figures_are_of_float32),
        cmocka_unit_test(test_export__rank_after_rank),
        cmocka_unit_test(test_export__the_file_is_whole_or_left_alone),
        cmocka_unit_test(test_export__an_imported_log_comes_back),
        cmocka_unit_test(test_export__odd_numbers_come_back),
        cmocka_unit_test(test_export__sign_of_a_zero_mean_comes_back),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}
