/* Where samples are taken, by all three rules: equidistant ones against
 * numpy's formula in integers, which rounds by hand; and that what is taken
 * are the elements there, whatever the strides. */
#include "tests/unit/stats_rig.h"

/* ---- numpy's formula in integers ---- */

__extension__ typedef unsigned __int128 u128;

/* mantissa 2^exponent, the mantissa of 53 bits or 0: an fp64 number. */
struct rounded {
    uint64_t mantissa;
    int exponent;
};

static int bits_of(u128 v)
{
    int bits = 0;

    for (; v; v >>= 1)
        bits++;
    return bits;
}

/* num / den to 53 bits, to nearest and ties to even. */
static struct rounded round_ratio(u128 num, u128 den)
{
    struct rounded r = {0, 0};
    u128 q, rest;

    if (!num)
        return r;
    /* a quotient of 53 or 54 bits, then of 53 */
    r.exponent = bits_of(num) - bits_of(den) - 53;
    if (r.exponent < 0)
        num <<= -r.exponent;
    else
        den <<= r.exponent;
    q = num / den;
    if (q >> 53) {
        den <<= 1;
        r.exponent++;
        q = num / den;
    }
    rest = num - q * den;
    if (2 * rest > den || (2 * rest == den && (q & 1)))
        q++;
    r.mantissa = (uint64_t)q;
    return r;
}

static u128 truncate_to_integer(struct rounded r)
{
    return r.exponent >= 0    ? (u128)r.mantissa << r.exponent
           : r.exponent > -64 ? (u128)(r.mantissa >> -r.exponent)
                              : 0;
}

static uint64_t numpys_position(uint64_t n, uint32_t count, uint32_t i)
{
    struct rounded stop = round_ratio(n - 1, 1), step, product;

    if (i == 0 || count == 1)
        return 0;
    if (i + 1 == count)
        return n - 1;
    step = round_ratio(truncate_to_integer(stop), count - 1);
    product = round_ratio((u128)step.mantissa * i, 1);
    product.exponent += step.exponent;
    return (uint64_t)truncate_to_integer(product);
}

static void check_positions(uint64_t n, uint32_t k)
{
    uint32_t count = k < n ? k : (uint32_t)n;

    for (uint32_t i = 0; i < count; i++)
        if (sample_at(n, k, i) != numpys_position(n, count, i)) {
            print_error("n %llu, k %u, sample %u\n", (unsigned long long)n, k,
                        i);
            fail();
        }
}

static void test_samples__equidistant_for_all_short_tensors(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 300; n++)
        for (uint32_t k = 1; k <= 70; k++)
            check_positions(n, k);
}

static void test_samples__equidistant_for_any_n_and_k(void **state)
{
    uint64_t rng = 31;
    (void)state;
    for (int round = 0; round < 2000; round++) {
        uint64_t n = (rng_next(&rng) >> 2 >> rng_next(&rng) % 62) + 1;
        uint32_t k = 1 + (uint32_t)(rng_next(&rng) % TRD_MAX_SAMPLES);
        check_positions(n, k >> rng_next(&rng) % 12 | 1);
    }
    for (int e = 0; e <= 62; e++)
        for (int off = -2; off <= 2; off++) {
            uint64_t n = (UINT64_C(1) << e) + (uint64_t)off;
            if (n >= 1 && n <= UINT64_C(1) << 62) {
                check_positions(n, 16);
                check_positions(n, TRD_MAX_SAMPLES);
            }
        }
}

static void test_samples__none_and_one(void **state)
{
    struct trd_want want = {.samples = 0};
    (void)state;
    for (int rule = 0; rule < TRD_SAMPLING_COUNT; rule++) {
        want.sampling = (enum trd_sampling)rule;
        want.sampling_arg = 3;
        want.samples = 0;
        assert_int_equal(trd_sample_count(1000, &want), 0);
        want.samples = 16;
        assert_int_equal(trd_sample_count(0, &want), 0);
        assert_int_equal(trd_sample_count(1, &want), 1);
        assert_int_equal(trd_sample_index(1, &want, 0), 0);
    }
    want.samples = 1;
    want.sampling = TRD_EQUIDISTANT;
    assert_int_equal(trd_sample_index(1000, &want, 0), 0);
}

/* ---- the other rules ---- */

static void test_samples__every_distance(void **state)
{
    static const uint64_t distances[] = {
        1, 2, 7, 999, 1000, 1001, UINT64_C(1) << 63, UINT64_MAX};
    struct trd_want want = {.sampling = TRD_EVERY};
    (void)state;
    for (size_t d = 0; d < sizeof distances / sizeof *distances; d++)
        for (uint32_t k = 1; k <= TRD_MAX_SAMPLES; k = 4 * k) {
            uint64_t a = distances[d], inside = 999 / a + 1;
            want.sampling_arg = a;
            want.samples = k;
            assert_int_equal(trd_sample_count(1000, &want),
                             inside < k ? inside : k);
            for (uint32_t i = 0; i < trd_sample_count(1000, &want); i++)
                assert_true(trd_sample_index(1000, &want, i) == i * a);
        }
}

static void test_samples__random_is_one_of_each_part(void **state)
{
    static const uint64_t lengths[] = {1,    7,     100,
                                       4096, 65537, UINT64_C(1) << 62};
    struct trd_want want = {.sampling = TRD_RANDOM};
    (void)state;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (uint32_t k = 1; k <= 100; k += 11) {
            uint64_t n = lengths[l], first = 0;
            uint32_t count;
            want.samples = k;
            want.sampling_arg = l * 1000 + k;
            count = trd_sample_count(n, &want);
            assert_int_equal(count, n < k ? n : k);
            for (uint32_t i = 0; i < count; i++) {
                uint64_t end = first + n / count + (i < n % count);
                uint64_t at = trd_sample_index(n, &want, i);
                assert_true(at >= first && at < end);
                first = end;
            }
            assert_true(first == n);
        }
}

static void test_samples__random_reaches_each_element(void **state)
{
    uint32_t seen[7] = {0};
    struct trd_want want = {.sampling = TRD_RANDOM, .samples = 2};
    (void)state;
    for (uint64_t seed = 0; seed < 7000; seed++) {
        want.sampling_arg = seed;
        seen[trd_sample_index(7, &want, 0)]++;
        seen[trd_sample_index(7, &want, 1)]++;
    }
    for (int i = 0; i < 4; i++) /* the first part has four of the seven */
        assert_in_range(seen[i], 1550, 1950);
    for (int i = 4; i < 7; i++)
        assert_in_range(seen[i], 2100, 2570);
}

/* ---- what is taken ---- */

static void test_samples__are_the_elements_there(void **state)
{
    enum { ROWS = 90, COLUMNS = 70, N = ROWS * COLUMNS, K = 200 };
    static const int dtypes[] = {TRD_I8, TRD_BF16, TRD_F32, TRD_F64, TRD_C128};
    static unsigned char buffer[N * 16], got[K * 16 + 1];
    static const int64_t shape[2] = {COLUMNS, ROWS}, strides[2] = {-1, COLUMNS};
    uint64_t rng = 33;
    (void)state;
    for (size_t i = 0; i < sizeof buffer; i++)
        buffer[i] = (unsigned char)rng_next(&rng);
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
        for (int rule = 0; rule < TRD_SAMPLING_COUNT; rule++) {
            size_t size = trd_dtype_bytes(dtypes[d]);
            struct trd_tensor t = {buffer + (COLUMNS - 1) * size,
                                   (enum trd_dtype)dtypes[d], 2, shape,
                                   strides};
            struct trd_want want = {K, (enum trd_sampling)rule, 29,
                                    TRD_HISTOGRAM_NONE};
            struct trd_stats s;
            memset(got, 0xee, sizeof got);
            assert_int_equal(trd_stats_cpu_as(&t, &want, &s, got, NULL), 0);
            assert_int_equal(s.sample_n, trd_sample_count(N, &want));
            assert_int_equal(s.sampling, rule);
            assert_int_equal(s.sampling_arg, rule == TRD_EQUIDISTANT ? 0 : 29);
            for (uint32_t i = 0; i < s.sample_n; i++) {
                uint64_t e = trd_sample_index(N, &want, i);
                uint64_t column = COLUMNS - 1 - e / ROWS, row = e % ROWS;
                assert_memory_equal(got + i * size,
                                    buffer + (row * COLUMNS + column) * size,
                                    size);
            }
            assert_int_equal(got[s.sample_n * size], 0xee);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_samples__equidistant_for_all_short_tensors),
        cmocka_unit_test(test_samples__equidistant_for_any_n_and_k),
        cmocka_unit_test(test_samples__none_and_one),
        cmocka_unit_test(test_samples__every_distance),
        cmocka_unit_test(test_samples__random_is_one_of_each_part),
        cmocka_unit_test(test_samples__random_reaches_each_element),
        cmocka_unit_test(test_samples__are_the_elements_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
