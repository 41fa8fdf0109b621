/* Tensors on GPUs, from the launch to the stored row: a real client, a real
 * daemon, and a CUDA half that the test controls. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/lib/fake_half.h"
#include "tests/lib/ingest.h"

#include "tracerd/client.h"
#include "tracerd/stats.h"

static struct fake_half *fake;
static struct trd_client *c;
static uint32_t site_id;

static int set_up(void **state)
{
    struct trd_client_options o;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    ingest_set_up(state);
    rig_start(&ingest.rig);
    memset(fake, 0, sizeof *fake);
    trd_client_options_init(&o);
    o.dir = ingest.rig.dir;
    o.run = "run";
    assert_int_equal(trd_client_open(&o, &c), 0);
    assert_int_equal(trd_site(c, &s, &site_id), 0);
    return 0;
}

static int tear_down(void **state)
{
    trd_client_close(c);
    return ingest_tear_down(state);
}

#define gpu_test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static struct trd_item item_of(const float *data, const int64_t *n,
                               uint64_t step)
{
    struct trd_item i = {
        .site = site_id,
        .when = {.step = step, .iteration = step, .microbatch = 1},
        .tensor = {data, TRD_F32, 1, n, NULL},
        .k = 4};
    return i;
}

static int submit(const float *data, int64_t n, uint64_t step)
{
    struct trd_item i = item_of(data, &n, step);
    return trd_submit_cuda(c, &i, 1, 0, fake);
}

static uint64_t lost(enum trd_cause cause)
{
    struct trd_counters n;
    trd_counters(c, &n);
    return n.lost[cause];
}

static float data[100000];

static void test_gpu__figures_have_the_bits_of_the_cpu(void **state)
{
    const int64_t n = 100000;
    struct trd_tensor t = {data, TRD_F32, 1, &n, NULL};
    struct trd_stats s;
    char sql[256];
    (void)state;
    for (int i = 0; i < n; i++)
        data[i] = (float)(i * 37 % 1009) - 100.25f;
    assert_int_equal(trd_stats_cpu(&t, 0, &s, NULL), 0);
    assert_int_equal(trd_cuda_open(c, 0, 16), 0);
    assert_int_equal(submit(data, n, 1), 0);
    assert_ptr_equal(fake->stream, fake);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM v_record WHERE mean = %.17g AND std = %.17g"
             " AND l2 = %.17g AND hash = '%016llx' AND shape = '100000'",
             s.mean, s.std, s.l2, (unsigned long long)s.hash);
    assert_int_equal(ingest_ask("run", sql), 1);
    assert_int_equal(ingest_ask("run", "SELECT length(samples) FROM record"),
                     16);
}

static void test_gpu__tensors_of_one_hook_are_one_launch(void **state)
{
    struct trd_item items[5];
    const int64_t n = 10;
    (void)state;
    assert_int_equal(trd_cuda_open(c, 1, 4), 0);
    for (int i = 0; i < 5; i++)
        items[i] = item_of(data, &n, (uint64_t)i + 1);
    assert_int_equal(trd_submit_cuda(c, items, 5, 1, NULL), 0);
    assert_int_equal(fake->launches, 1);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 5);
}

static void test_gpu__odd_tensors_are_kept_as_shapes(void **state)
{
    static const int64_t zero[2] = {3, 0};
    static const int64_t six[7] = {2, 2, 2, 2, 2, 2, 2};
    static const int64_t apart[7] = {1, 3, 9, 27, 81, 243, 729};
    struct trd_item i = item_of(NULL, six, 1);
    (void)state;
    assert_int_equal(trd_cuda_open(c, 0, 4), 0);
    assert_int_equal(trd_submit_cuda(c, &i, 1, 0, NULL), 0); /* no memory */
    i = item_of(data, six, 2);
    i.tensor.ndim = 7;
    i.tensor.strides = apart; /* seven dimensions that do not merge */
    assert_int_equal(trd_submit_cuda(c, &i, 1, 0, NULL), 0);
    i.tensor.strides = NULL; /* they merge */
    assert_int_equal(trd_submit_cuda(c, &i, 1, 0, NULL), 0);
    i = item_of(NULL, zero, 3);
    i.tensor.ndim = 2;
    assert_int_equal(trd_submit_cuda(c, &i, 1, 0, NULL), 0);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_record WHERE"
                                       " labels = 'nodata' AND step = 1"),
                     1);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_record WHERE"
                                       " labels = 'unsupported' AND step = 2"),
                     1);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_record WHERE"
                                       " labels = '' AND n = 128"),
                     1);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_record WHERE"
                                       " n = 0 AND nan = 0 AND step = 3"),
                     1);
    i = item_of(data, six, 4);
    i.k = 5; /* more than there is room for */
    assert_int_equal(trd_submit_cuda(c, &i, 1, 0, NULL), TRD_EINVAL);
    i.k = 4;
    i.site = 12345;
    assert_int_equal(trd_submit_cuda(c, &i, 1, 0, NULL), 0);
    i.site = site_id;
    i.tensor.dtype = (enum trd_dtype)99;
    assert_int_equal(trd_submit_cuda(c, &i, 1, 0, NULL), 0);
    assert_int_equal(lost(TRD_LOST_DEVICE), 1);
    assert_int_equal(lost(TRD_LOST_ERROR), 2);
}

static void test_gpu__launches_that_fail_are_counted(void **state)
{
    (void)state;
    assert_int_equal(submit(data, 10, 1), TRD_EUNSUPPORTED); /* not opened */
    assert_int_equal(trd_cuda_open(c, 7, 4), TRD_EUNSUPPORTED);
    assert_int_equal(trd_cuda_open(c, -1, 4), TRD_EINVAL);
    fake->fail_open = TRD_ENOMEM;
    assert_int_equal(trd_cuda_open(c, 0, 4), TRD_ENOMEM);
    assert_int_equal(trd_cuda_open(c, 0, 4), 0);
    assert_int_equal(trd_cuda_open(c, 0, 4), 0);
    assert_int_equal(trd_cuda_open(c, 0, 5), TRD_EINVAL);
    assert_int_equal(fake->opened, 1);
    fake->fail_launch = TRD_EIO;
    assert_int_equal(submit(data, 10, 2), TRD_EIO);
    fake->fail_launch = TRD_ELIMIT;
    assert_int_equal(submit(data, 10, 3), TRD_ELIMIT);
    fake->fail_launch = 0;
    fake->drop = 1;
    assert_int_equal(submit(data, 10, 4), 0);
    assert_int_equal(submit(data, 10, 5), 0);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    rig_until(lost(TRD_LOST_DEVICE) == 4);
    rig_until(ingest_ask("run", "SELECT sum(count) FROM v_loss WHERE"
                                " cause = 'device'") == 4);
    assert_int_equal(ingest_ask("run", "SELECT step FROM record"), 5);
}

static void test_gpu__a_full_ring_drops_and_recovers(void **state)
{
    enum { MANY = 6000 };
    int full = 0;
    (void)state;
    assert_int_equal(trd_cuda_open(c, 0, 4), 0);
    fake->hold = 1;
    for (int i = 0; i < MANY; i++) {
        int r = submit(data, 10, (uint64_t)i + 1);
        assert_true(r == 0 || r == TRD_EFULL);
        full += r == TRD_EFULL;
    }
    assert_in_range(full, 1, MANY - 1000);
    assert_int_equal(trd_flush(c, 1), TRD_ETIMEDOUT);
    fake->hold = 0;
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    assert_int_equal(submit(data, 10, MANY + 1), 0);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    assert_int_equal(lost(TRD_LOST_DEVICE), full);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"),
                     MANY - full + 1);
}

static void test_gpu__each_replay_of_a_graph_is_recorded(void **state)
{
    (void)state;
    assert_int_equal(trd_cuda_open(c, 0, 4), 0);
    fake->capturing = 1;
    assert_int_equal(submit(data, 10, 7), 0);
    fake->capturing = 0;
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0); /* nothing has run */
    fake->replays = 3;
    rig_until(ingest_ask("run", "SELECT count(*) FROM v_record WHERE"
                                " labels = 'graph'") == 3);
    assert_int_equal(ingest_ask("run", "SELECT count(DISTINCT step) * 100"
                                       " + min(step) * 10 + max(iteration)"
                                       " FROM v_record"),
                     379);
}

static void test_gpu__what_never_ends_is_lost_by_name(void **state)
{
    (void)state;
    assert_int_equal(trd_cuda_open(c, 0, 4), 0);
    assert_int_equal(submit(data, 10, 1), 0);
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    fake->hold = 1;
    assert_int_equal(submit(data, 10, 2), 0);
    assert_int_equal(submit(data, 10, 3), 0);
    long long before = rig_now_ms();
    trd_client_close(c);
    c = NULL;
    assert_in_range(rig_now_ms() - before, 0, 2000);
    assert_int_equal(fake->closed, 1);
    rig_until(ingest_ask("run", "SELECT sum(count) FROM v_loss WHERE"
                                " cause = 'device'") == 2);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 1);
}

static void test_gpu__one_tensor_waited_for(void **state)
{
    const int64_t n = 70000, none = 0;
    struct trd_tensor t = {data, TRD_F32, 1, &n, NULL};
    struct trd_want want = {.samples = 3};
    struct trd_stats a, b;
    float from_a[3], from_b[3];
    (void)state;
    assert_int_equal(trd_stats_cuda(&t, &want, 0, NULL, &a, from_a, NULL), 0);
    assert_int_equal(trd_stats_cpu_as(&t, &want, &b, from_b, NULL), 0);
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_equal(from_a, from_b, sizeof from_a);
    t.shape = &none;
    assert_int_equal(trd_stats_cuda(&t, &want, 0, NULL, &a, from_a, NULL), 0);
    assert_int_equal(a.n, 0);
    t.shape = &n;
    t.data = NULL;
    assert_int_equal(trd_stats_cuda(&t, &want, 0, NULL, &a, from_a, NULL),
                     TRD_ENODATA);
    t.data = data;
    assert_int_equal(trd_stats_cuda(&t, &want, 9, NULL, &a, from_a, NULL),
                     TRD_EUNSUPPORTED);
    assert_int_equal(trd_stats_cuda(&t, &want, 0, NULL, &a, NULL, NULL),
                     TRD_EINVAL);
    assert_int_equal(trd_stats_cuda(&t, NULL, 0, NULL, &a, from_a, NULL),
                     TRD_EINVAL);
    fake->capturing = 1; /* nothing would come back */
    assert_int_equal(trd_stats_cuda(&t, &want, 0, NULL, &a, from_a, NULL),
                     TRD_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        gpu_test(test_gpu__figures_have_the_bits_of_the_cpu),
        gpu_test(test_gpu__tensors_of_one_hook_are_one_launch),
        gpu_test(test_gpu__odd_tensors_are_kept_as_shapes),
        gpu_test(test_gpu__launches_that_fail_are_counted),
        gpu_test(test_gpu__a_full_ring_drops_and_recovers),
        gpu_test(test_gpu__each_replay_of_a_graph_is_recorded),
        gpu_test(test_gpu__what_never_ends_is_lost_by_name),
        gpu_test(test_gpu__one_tensor_waited_for),
    };
    void *half = dlopen(getenv("TRACERD_CUDA_LIB"), RTLD_NOW);
    fake = half ? dlsym(half, "fake_half") : NULL;
    if (!fake) {
        print_error("%s\n", dlerror());
        return 1;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
