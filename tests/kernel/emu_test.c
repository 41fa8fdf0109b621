/* The CUDA half on an emulated device: every bit is the reference's, for all
 * dtypes, lengths, layouts, geometries and orders of threads; and the half's
 * promises: ring, streams, graphs, failures.
 * usage: emu_test LIBRARY [CASES [SEED]] */
#include "tests/lib/unit.h"

#include "tests/kernel/emu_rig.h"

#include <limits.h>

enum { SAMPLE_BYTES = 64 * 16 };

static uint64_t cases_wanted = 20000;
static uint64_t seed = 20261202;

static const int dtypes[] = {
    TRD_F64,         TRD_F32,         TRD_F16,        TRD_BF16,
    TRD_F8_E4M3FN,   TRD_F8_E5M2,     TRD_F8_E4M3FNUZ, TRD_F8_E5M2FNUZ,
    TRD_F8_E8M0FNU,  TRD_I8,          TRD_I16,        TRD_I32,
    TRD_I64,         TRD_U8,          TRD_U16,        TRD_U32,
    TRD_U64,         TRD_BOOL,        TRD_C32,        TRD_C64,
    TRD_C128,        TRD_F4_E2M1X2,
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static struct trd__cuda_config config_of(enum trd_sampling sampling,
                                         uint64_t arg,
                                         enum trd_histogram_kind histogram)
{
    struct trd__cuda_config c = {0, 64, SAMPLE_BYTES, sampling, arg,
                                 histogram};
    return c;
}

static struct trd__cuda *opened(const struct trd__cuda_config *config)
{
    struct trd__cuda *cuda = NULL;

    assert_int_equal(emu.half->open(config, &cuda), 0);
    assert_non_null(cuda);
    return cuda;
}

static void set_geometry(uint64_t *rng)
{
    uint64_t r = emu_random(rng);

    emu.geometry[0] = 1u << r % 4;
    emu.geometry[1] = r >> 8 & 3;
    emu.order(1 + (r >> 16) % 4, r >> 24 & 1, r >> 32);
}

/* ---- bits ---- */

struct batch {
    struct emu_case c[TRD__CUDA_BATCH];
    struct emu_tensor t[TRD__CUDA_BATCH];
    uint32_t n;
};

static void describe(const struct emu_case *c, uint64_t geometry_seed)
{
    fprintf(stderr,
            "differs: %s, %llu elements, fill %d, view %d, seed %llu; "
            "%u warps, %u doublings, geometry of seed %llu\n",
            trd_dtype_name(c->dtype), (unsigned long long)c->n, c->fill,
            c->view, (unsigned long long)c->seed, emu.geometry[0],
            emu.geometry[1], (unsigned long long)geometry_seed);
}

/* One launch of several tensors; every result compared. */
static void run_batch(struct trd__cuda *cuda,
                      const struct trd__cuda_config *config, struct batch *b,
                      uint64_t geometry_seed)
{
    struct trd__cuda_item items[TRD__CUDA_BATCH];
    static unsigned char samples[SAMPLE_BYTES];
    static uint64_t bins[TRD_MAX_BINS];
    struct trd__cuda_result result;
    uint32_t k[TRD__CUDA_BATCH];
    uint32_t seen = 0;
    int captured = 1;

    for (uint32_t i = 0; i < b->n; i++) {
        emu_make(&b->c[i], &b->t[i]);
        k[i] = (uint32_t)(b->c[i].seed % 65);
        emu_item(&b->t[i].t, k[i], 1000 + i, &items[i]);
    }
    assert_int_equal(
        emu.half->launch(cuda, NULL, items, b->n, &captured), 0);
    assert_int_equal(captured, 0);
    for (uint32_t i = 0; i < b->n; i++) {
        uint32_t at;
        assert_int_equal(emu.half->poll(cuda, &result, samples, bins), 1);
        at = (uint32_t)(result.tag - 1000);
        assert_true(at < b->n && !(seen >> at & 1));
        seen |= 1u << at;
        assert_int_equal(result.replay, 0);
        if (!emu_same(config, &b->t[at].t, k[at], &result, samples, bins)) {
            describe(&b->c[at], geometry_seed);
            fail();
        }
    }
    assert_int_equal(emu.half->poll(cuda, &result, samples, bins), 0);
    for (uint32_t i = 0; i < b->n; i++)
        emu_free(&b->t[i]);
}

static uint64_t some_length(uint64_t *rng)
{
    static const uint64_t edges[] = {0,    1,    64,    512,   1024,
                                     2048, 4096, 32768, 65536, 66560};
    uint64_t r = emu_random(rng);
    uint64_t edge = edges[r >> 8 & 7 ? (r >> 16) % 7 : (r >> 16) % 10];

    switch (r % 5) {
    case 0:
        return edge;
    case 1:
        return edge + 1 + (r >> 32) % 3;
    case 2:
        return edge > 3 ? edge - 1 - (r >> 32) % 3 : edge;
    case 3:
        return (r >> 32) % 3000;
    default:
        return (r >> 32) % (r >> 24 & 15 ? 700 : 150000);
    }
}

static struct emu_case some_case(uint64_t *rng)
{
    uint64_t r = emu_random(rng);
    struct emu_case c = {dtypes[r % DTYPES], some_length(rng),
                         (int)((r >> 16) % FILL_COUNT),
                         (r >> 24) % 3 ? VIEW_DENSE
                                       : (int)((r >> 32) % VIEW_COUNT),
                         emu_random(rng)};
    return c;
}

static void test_bits__every_dtype_and_fill_above_and_below_wide_n(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    uint64_t rng = seed;
    (void)s;

    for (int d = 0; d < DTYPES; d++)
        for (int fill = 0; fill < FILL_COUNT; fill++) {
            struct batch b = {.n = 2};
            uint64_t geometry = rng;
            set_geometry(&rng);
            b.c[0] = (struct emu_case){dtypes[d], 65536 + 4 * 1024 + 77, fill,
                                       VIEW_DENSE, emu_random(&rng)};
            b.c[1] = (struct emu_case){dtypes[d], 5000, fill, VIEW_DENSE,
                                       emu_random(&rng)};
            run_batch(cuda, &config, &b, geometry);
        }
    emu.half->close(cuda, 0);
}

static void test_bits__every_dtype_and_view(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_RANDOM, 99, TRD_HISTOGRAM_EXACT);
    struct trd__cuda *cuda = opened(&config);
    uint64_t rng = seed + 1;
    (void)s;

    for (int d = 0; d < DTYPES; d++)
        for (int view = 0; view < VIEW_COUNT; view++) {
            struct batch b = {.n = 2};
            uint64_t geometry = rng;
            set_geometry(&rng);
            b.c[0] = (struct emu_case){dtypes[d], 70000, FILL_SPECIAL, view,
                                       emu_random(&rng)};
            b.c[1] = (struct emu_case){dtypes[d], 3333, FILL_NORMAL, view,
                                       emu_random(&rng)};
            run_batch(cuda, &config, &b, geometry);
        }
    emu.half->close(cuda, 0);
}

/* The figures of as many chunks as a launch may have: its tree is deep. */
static void test_bits__more_chunks_than_a_launch_has(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EVERY, 100001, TRD_HISTOGRAM_ROWS);
    struct trd__cuda *cuda = opened(&config);
    struct batch b = {.n = 1};
    (void)s;

    emu.geometry[0] = 1;
    emu.geometry[1] = 0;
    emu.order(3, 1, 7);
    b.c[0] = (struct emu_case){TRD_I8, UINT64_C(33) << 20, FILL_BITS,
                               VIEW_SHIFTED, 5};
    run_batch(cuda, &config, &b, 0);
    b.c[0] = (struct emu_case){TRD_BF16, UINT64_C(33) << 20, FILL_STEP,
                               VIEW_DENSE, 5};
    run_batch(cuda, &config, &b, 0);
    /* fewer, but several warps that add them up */
    emu.geometry[0] = 8;
    for (uint64_t i = 0; i < 4; i++) {
        emu.order(1 + i % 4, i % 2, i);
        b.c[0] = (struct emu_case){TRD_F32, UINT64_C(2) << 20, FILL_RANGE,
                                   VIEW_SHIFTED, i};
        run_batch(cuda, &config, &b, i);
    }
    emu.half->close(cuda, 0);
}

static void test_bits__random_batches(void **s)
{
    static const enum trd_histogram_kind kinds[] = {
        TRD_HISTOGRAM_NONE, TRD_HISTOGRAM_ROWS, TRD_HISTOGRAM_EXACT};
    uint64_t rng = seed + 2;
    (void)s;

    while (emu_compared < cases_wanted) {
        uint64_t r = emu_random(&rng);
        struct trd__cuda_config config =
            config_of((enum trd_sampling)(r % TRD_SAMPLING_COUNT),
                      1 + (r >> 8) % 777, kinds[(r >> 32) % 3]);
        struct trd__cuda *cuda = opened(&config);
        for (int i = 0; i < 60 && emu_compared < cases_wanted; i++) {
            struct batch b = {.n = 1 + (uint32_t)(emu_random(&rng) % 9)};
            uint64_t geometry = rng;
            set_geometry(&rng);
            for (uint32_t j = 0; j < b.n; j++)
                b.c[j] = some_case(&rng);
            run_batch(cuda, &config, &b, geometry);
        }
        emu.half->close(cuda, 0);
    }
    printf("emulated device: %llu tensors compared, seed %llu\n",
           (unsigned long long)emu_compared, (unsigned long long)seed);
}

/* ---- launches ---- */

static void make_small(uint64_t with_seed, struct emu_tensor *out)
{
    struct emu_case c = {TRD_F32, 3000, FILL_NORMAL, VIEW_DENSE, with_seed};

    emu_make(&c, out);
}

static void test_launch__one_kernel_for_each_class_of_dtypes(void **s)
{
    static const int of[] = {TRD_F32, TRD_BF16, TRD_F32, TRD_I64,
                             TRD_F64, TRD_I8,   TRD_BOOL};
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    size_t before = emu.launches();
    struct batch b = {.n = 7};
    (void)s;

    for (uint32_t i = 0; i < 7; i++)
        b.c[i] = (struct emu_case){of[i], 1000, FILL_NORMAL, VIEW_DENSE, i};
    run_batch(cuda, &config, &b, 0);
    /* float32, bfloat16, bytes, and all others together */
    assert_int_equal(emu.launches() - before, 4);
    emu.half->close(cuda, 0);
}

static void test_launch__bad_items_are_refused_and_launch_nothing(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    struct emu_tensor t;
    struct trd__cuda_item items[TRD__CUDA_BATCH + 1], good;
    size_t before = emu.launches();
    int captured;
    (void)s;

    make_small(1, &t);
    emu_item(&t.t, 4, 0, &good);
#define REFUSED(error, ...)                                                   \
    do {                                                                      \
        items[0] = items[1] = good;                                           \
        __VA_ARGS__;                                                          \
        assert_int_equal(emu.half->launch(cuda, NULL, items, 2, &captured),   \
                         error);                                              \
    } while (0)
    REFUSED(TRD_EUNSUPPORTED, items[1].dtype = TRD_OPAQUE);
    REFUSED(TRD_EUNSUPPORTED, items[1].dtype = TRD_TEXT);
    REFUSED(TRD_EUNSUPPORTED, items[1].dtype = 1000);
    REFUSED(TRD_EINVAL, items[1].ndim = 0);
    REFUSED(TRD_EINVAL, items[1].ndim = TRD_CUDA_DIMS + 1);
    REFUSED(TRD_EINVAL, items[1].k = SAMPLE_BYTES / 4 + 1);
    REFUSED(TRD_EINVAL, items[1].dim[0].extent = 0);
    REFUSED(TRD_ENODATA, items[1].data = NULL);
    REFUSED(TRD_ELIMIT, items[1].n = UINT64_C(1) << 50);
#undef REFUSED
    assert_int_equal(
        emu.half->launch(cuda, NULL, items, TRD__CUDA_BATCH + 1, &captured),
        TRD_EINVAL);
    assert_int_equal(emu.half->launch(cuda, NULL, NULL, 1, &captured),
                     TRD_EINVAL);
    assert_int_equal(emu.half->launch(NULL, NULL, items, 1, &captured),
                     TRD_EINVAL);
    assert_int_equal(emu.launches(), before);
    emu_free(&t);
    emu.half->close(cuda, 0);
}

static void test_launch__a_failure_is_told_and_the_next_one_works(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    struct emu_tensor t;
    struct trd__cuda_result result;
    struct trd__cuda_item item;
    int captured;
    (void)s;

    make_small(1, &t);
    emu_item(&t.t, 0, 5, &item);
    emu.fail_launches(1);
    assert_int_equal(emu.half->launch(cuda, NULL, &item, 1, &captured),
                     TRD_EIO);
    assert_int_equal(emu.half->poll(cuda, &result, NULL, NULL), 0);
    assert_int_equal(emu.half->launch(cuda, NULL, &item, 1, &captured), 0);
    assert_int_equal(emu.half->poll(cuda, &result, NULL, NULL), 1);
    assert_true(emu_same(&config, &t.t, 0, &result, NULL, NULL));
    emu_free(&t);
    emu.half->close(cuda, 0);
    assert_int_equal(emu.allocations(), 0);
}

static void test_launch__a_failure_after_a_success_counts_as_dropped(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    struct trd__cuda_counters counters;
    struct trd__cuda_result result;
    struct trd__cuda_item items[3];
    struct emu_tensor t;
    int captured;
    (void)s;

    make_small(1, &t);
    for (uint64_t i = 0; i < 3; i++)
        emu_item(&t.t, 0, i, &items[i]);
    items[1].dtype = items[2].dtype = TRD_I32; /* launched first */
    emu.fail_launches(1);
    assert_int_equal(emu.half->launch(cuda, NULL, items, 3, &captured), 0);
    emu.half->counters(cuda, &counters);
    assert_int_equal(counters.dropped, 2);
    assert_int_equal(emu.half->poll(cuda, &result, NULL, NULL), 1);
    assert_int_equal(result.tag, 0);
    assert_int_equal(emu.half->poll(cuda, &result, NULL, NULL), 0);
    emu_free(&t);
    emu.half->close(cuda, 0);
    assert_int_equal(emu.allocations(), 0);
}

static void test_launch__the_threads_device_stays(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct emu_tensor t;
    struct trd__cuda_item item;
    struct trd__cuda *cuda;
    int captured;
    (void)s;

    make_small(1, &t);
    emu_item(&t.t, 0, 5, &item);
    emu.device_set(1);
    cuda = opened(&config);
    assert_int_equal(emu.device(), 1);
    assert_int_equal(emu.half->launch(cuda, NULL, &item, 1, &captured), 0);
    assert_int_equal(emu.device(), 1);
    emu.half->close(cuda, 0);
    assert_int_equal(emu.device(), 1);
    emu.device_set(0);
    emu_free(&t);
}

static void test_launch__streams_that_wait_keep_their_scratch(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_EXACT);
    struct trd__cuda *cuda = opened(&config);
    struct emu_tensor t[TRD__CUDA_STREAMS + 1];
    void *stream[TRD__CUDA_STREAMS + 1];
    static uint64_t bins[TRD_MAX_BINS];
    struct trd__cuda_result result;
    struct trd__cuda_item item;
    int captured;
    (void)s;

    for (int i = 0; i <= TRD__CUDA_STREAMS; i++) {
        make_small((uint64_t)i, &t[i]);
        stream[i] = emu.stream_new();
        emu.stream_hold(stream[i], 1);
        emu_item(&t[i].t, 0, (uint64_t)i, &item);
        assert_int_equal(
            emu.half->launch(cuda, stream[i], &item, 1, &captured),
            i < TRD__CUDA_STREAMS ? 0 : TRD_ELIMIT);
    }
    /* one has run: the last stream takes its place */
    emu.stream_hold(stream[3], 0);
    assert_int_equal(
        emu.half->launch(cuda, stream[TRD__CUDA_STREAMS], &item, 1, &captured),
        0);
    for (int i = TRD__CUDA_STREAMS; i >= 0; i--)
        emu.stream_free(stream[i]);
    for (int i = 0; i <= TRD__CUDA_STREAMS; i++) {
        assert_int_equal(emu.half->poll(cuda, &result, NULL, bins), 1);
        assert_true(emu_same(&config, &t[result.tag].t, 0, &result, NULL,
                             bins));
    }
    for (int i = 0; i <= TRD__CUDA_STREAMS; i++)
        emu_free(&t[i]);
    emu.half->close(cuda, 0);
    assert_int_equal(emu.allocations(), 0);
}

/* A call of several classes is refused as a whole. */
static void test_graph__a_call_that_is_refused_takes_nothing(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    void *stream = emu.stream_new();
    struct trd__cuda_result result;
    struct trd__cuda_item items[2];
    struct emu_tensor t;
    void *graph;
    int captured;
    (void)s;

    make_small(1, &t);
    emu_item(&t.t, 0, 0, &items[0]);
    items[1] = items[0];
    items[1].dtype = TRD_I32;
    emu.capture_begin(stream);
    for (int i = 1; i < TRD__CUDA_CAPTURED; i++)
        assert_int_equal(
            emu.half->launch(cuda, stream, items, 1, &captured), 0);
    assert_int_equal(emu.half->launch(cuda, stream, items, 2, &captured),
                     TRD_ELIMIT);
    assert_int_equal(emu.half->launch(cuda, stream, items, 1, &captured), 0);
    graph = emu.capture_end(stream);
    assert_int_equal(emu.half->poll(cuda, &result, NULL, NULL), 0);
    emu.graph_free(graph);
    emu.stream_free(stream);
    emu_free(&t);
    emu.half->close(cuda, 0);
}

/* ---- ring ---- */

static void test_ring__full_drops_new_results_and_counts_them(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda_counters counters;
    struct trd__cuda_result result;
    struct trd__cuda_item item;
    struct emu_tensor t;
    struct trd__cuda *cuda;
    int captured;
    (void)s;

    make_small(1, &t);
    config.slots = 4;
    cuda = opened(&config);
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < 7; i++) {
            emu_item(&t.t, 0, i, &item);
            assert_int_equal(
                emu.half->launch(cuda, NULL, &item, 1, &captured), 0);
        }
        emu.half->counters(cuda, &counters);
        assert_int_equal(counters.dropped, 3 * (round + 1));
        for (uint64_t i = 0; i < 4; i++) {
            assert_int_equal(emu.half->poll(cuda, &result, NULL, NULL), 1);
            assert_int_equal(result.tag, i);
        }
        assert_int_equal(emu.half->poll(cuda, &result, NULL, NULL), 0);
    }
    emu_free(&t);
    emu.half->close(cuda, 0);
}

/* ---- graphs ---- */

static void test_graph__each_replay_brings_results_of_what_is_there(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_ROWS);
    struct trd__cuda *cuda = opened(&config);
    struct emu_case of[3] = {{TRD_F32, 70000, FILL_NORMAL, VIEW_DENSE, 1},
                             {TRD_BF16, 900, FILL_NORMAL, VIEW_DENSE, 2},
                             {TRD_F32, 2000, FILL_SPECIAL, VIEW_SHIFTED, 3}};
    static unsigned char samples[SAMPLE_BYTES];
    static uint64_t bins[TRD_MAX_BINS];
    struct trd__cuda_item items[3];
    struct trd__cuda_result result;
    struct emu_tensor t[3];
    void *stream = emu.stream_new();
    void *graph;
    int captured = 0;
    (void)s;

    for (int i = 0; i < 3; i++) {
        emu_make(&of[i], &t[i]);
        emu_item(&t[i].t, 16, (uint64_t)i, &items[i]);
    }
    emu.capture_begin(stream);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            emu.half->launch(cuda, stream, items, 3, &captured), 0);
        assert_int_equal(captured, 1);
    }
    graph = emu.capture_end(stream);
    assert_int_equal(emu.half->poll(cuda, &result, samples, bins), 0);
    for (uint64_t replay = 0; replay < 5; replay++) {
        t[0].memory[5 * replay] ^= 64; /* the graph reads it anew */
        emu.graph_run(graph);
        for (int i = 0; i < 6; i++) {
            assert_int_equal(emu.half->poll(cuda, &result, samples, bins), 1);
            assert_int_equal(result.replay, replay);
            assert_true(emu_same(&config, &t[result.tag].t, 16, &result,
                                 samples, bins));
        }
    }
    /* launches outside are not counted with it */
    assert_int_equal(emu.half->launch(cuda, stream, items, 1, &captured), 0);
    assert_int_equal(captured, 0);
    assert_int_equal(emu.half->poll(cuda, &result, samples, bins), 1);
    assert_int_equal(result.replay, 0);

    /* the graph may run again: its memory stays */
    emu.half->close(cuda, 0);
    assert_true(emu.allocations() > 0);
    emu.graph_run(graph);
    emu.graph_free(graph);
    emu.stream_free(stream);
    for (int i = 0; i < 3; i++)
        emu_free(&t[i]);
}

static void test_graph__more_launches_than_are_kept_are_refused(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    struct emu_tensor t;
    void *stream = emu.stream_new();
    struct trd__cuda_item item;
    int captured;
    (void)s;

    make_small(1, &t);
    emu_item(&t.t, 0, 0, &item);
    emu.capture_begin(stream);
    for (int i = 0; i < TRD__CUDA_CAPTURED; i++)
        assert_int_equal(
            emu.half->launch(cuda, stream, &item, 1, &captured), 0);
    assert_int_equal(emu.half->launch(cuda, stream, &item, 1, &captured),
                     TRD_ELIMIT);
    emu.graph_free(emu.capture_end(stream));
    emu.stream_free(stream);
    emu_free(&t);
    emu.half->close(cuda, 0);
}

/* ---- open and close ---- */

static void test_open__bad_configurations_are_refused(void **s)
{
    struct trd__cuda_config good =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = NULL;
    struct trd__cuda_config c;
    (void)s;

    assert_int_equal(emu.half->size, sizeof *emu.half);
    assert_true(emu.half->devices() > 0);
#define REFUSED(...)                                                          \
    do {                                                                      \
        c = good;                                                             \
        __VA_ARGS__;                                                          \
        assert_int_equal(emu.half->open(&c, &cuda), TRD_EINVAL);              \
        assert_null(cuda);                                                    \
    } while (0)
    REFUSED(c.device = -1);
    REFUSED(c.device = 100);
    REFUSED(c.slots = 0);
    REFUSED(c.slots = 12);
    REFUSED(c.sample_bytes = UINT_MAX);
    REFUSED(c.sampling = (enum trd_sampling)77);
    REFUSED(c.sampling = TRD_EVERY);
    REFUSED(c.histogram = (enum trd_histogram_kind)77);
#undef REFUSED
    assert_int_equal(emu.half->open(NULL, &cuda), TRD_EINVAL);
    emu.half->close(NULL, 100);
}

static void test_open__without_memory_leaves_none_behind(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_ROWS);
    struct trd__cuda *cuda = NULL;
    size_t before = emu.allocations();
    int refused = 0;
    (void)s;

    for (unsigned i = 1; i < 20; i++) {
        emu.fail_memory(i);
        if (emu.half->open(&config, &cuda) == 0)
            break;
        refused++;
        assert_null(cuda);
        assert_int_equal(emu.allocations(), before);
    }
    emu.fail_memory(0);
    assert_int_equal(refused, 9);
    emu.half->close(cuda, 0);
    assert_int_equal(emu.allocations(), before);
}

static void test_close__kernels_that_never_end_keep_their_memory(void **s)
{
    struct trd__cuda_config config =
        config_of(TRD_EQUIDISTANT, 0, TRD_HISTOGRAM_NONE);
    struct trd__cuda *cuda = opened(&config);
    struct emu_tensor t;
    void *stream = emu.stream_new();
    size_t before = emu.allocations();
    struct trd__cuda_item item;
    int captured;
    (void)s;

    make_small(1, &t);
    emu_item(&t.t, 0, 0, &item);
    emu.stream_hold(stream, 1);
    assert_int_equal(emu.half->launch(cuda, stream, &item, 1, &captured), 0);
    emu.half->close(cuda, 5);
    assert_int_equal(emu.allocations(), before);
    emu.stream_free(stream); /* it runs now, and hurts nobody */
    emu_free(&t);
}

/* ---- through the public call ---- */

static void test_stats_cuda__one_tensor_has_the_figures_of_the_cpu(void **s)
{
    const struct trd_want want = {40, TRD_RANDOM, 7, TRD_HISTOGRAM_ROWS};
    static struct trd_histogram here, there;
    unsigned char got[40 * 16], expected[40 * 16];
    struct trd_stats a, b;
    (void)s;

    for (int d = 0; d < DTYPES; d++) {
        struct emu_case c = {dtypes[d], 70000, FILL_SPECIAL, d % VIEW_COUNT,
                             (uint64_t)d};
        struct emu_tensor t;

        emu_make(&c, &t);
        memset(got, 0, sizeof got);
        memset(expected, 0, sizeof expected);
        assert_int_equal(trd_stats_cuda(&t.t, &want, 1, NULL, &a, got, &there),
                         0);
        assert_int_equal(trd_stats_cpu_as(&t.t, &want, &b, expected, &here),
                         0);
        assert_memory_equal(got, expected, sizeof got);
        assert_int_equal(!a.histogram, !b.histogram);
        if (a.histogram)
            assert_memory_equal(here.count, there.count,
                                here.n * sizeof *here.count);
        a.histogram = b.histogram = NULL;
        assert_memory_equal(&a, &b, sizeof a);
        emu_free(&t);
    }
    assert_int_equal(emu.device(), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_bits__every_dtype_and_fill_above_and_below_wide_n),
        cmocka_unit_test(test_bits__every_dtype_and_view),
        cmocka_unit_test(test_bits__more_chunks_than_a_launch_has),
        cmocka_unit_test(test_bits__random_batches),
        cmocka_unit_test(
            test_stats_cuda__one_tensor_has_the_figures_of_the_cpu),
        cmocka_unit_test(test_launch__one_kernel_for_each_class_of_dtypes),
        cmocka_unit_test(
            test_launch__bad_items_are_refused_and_launch_nothing),
        cmocka_unit_test(
            test_launch__a_failure_is_told_and_the_next_one_works),
        cmocka_unit_test(
            test_launch__a_failure_after_a_success_counts_as_dropped),
        cmocka_unit_test(test_launch__the_threads_device_stays),
        cmocka_unit_test(test_launch__streams_that_wait_keep_their_scratch),
        cmocka_unit_test(test_ring__full_drops_new_results_and_counts_them),
        cmocka_unit_test(test_open__bad_configurations_are_refused),
        cmocka_unit_test(test_open__without_memory_leaves_none_behind),
        cmocka_unit_test(test_close__kernels_that_never_end_keep_their_memory),
        cmocka_unit_test(
            test_graph__each_replay_brings_results_of_what_is_there),
        cmocka_unit_test(test_graph__more_launches_than_are_kept_are_refused),
        cmocka_unit_test(test_graph__a_call_that_is_refused_takes_nothing),
    };

    if (argc < 2 || !emu_load(argv[1]))
        return 2;
    setenv("TRACERD_CUDA_LIB", argv[1], 1);
    if (argc > 2)
        cases_wanted = strtoull(argv[2], NULL, 10);
    if (argc > 3)
        seed = strtoull(argv[3], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
