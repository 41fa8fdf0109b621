/* The rule of random samples to the bit, since programs of other languages
 * follow it, and the ends of every rule. Where samples lie in general is in
 * test_stats_samples.c. */
#include "tests/lib/unit.h"

#include "proto/sampling.h"

__extension__ typedef unsigned __int128 u128;

static void test_sampling__random_gives_these_elements(void **state)
{
    /* by Python's whole numbers, from the words of FORMAT.md */
    static const struct {
        uint64_t n, seed;
        uint32_t k, count;
        uint64_t at[8];
    } rows[] = {
        {1000, 0, 8, 8, {110, 178, 253, 496, 513, 665, 771, 971}},
        {1000, 7, 8, 8, {48, 127, 362, 447, 556, 656, 808, 916}},
        {65537, UINT64_MAX, 8, 8,
         {7324, 15668, 18182, 28068, 38549, 47716, 56874, 59404}},
        {UINT64_C(1) << 62, 42, 8, 8,
         {427483047898602356, 668642817682388872, 1313524121746308346,
          1927794696293340956, 2327765908780630303, 3382803171694085848,
          3584666536094841706, 4496758120092332413}},
        {10, 1, 4, 4, {1, 5, 7, 8}},
        {3, 99, 8, 3, {0, 1, 2}}};
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        struct trd_want want = {.samples = rows[r].k,
                                .sampling = TRD_RANDOM,
                                .sampling_arg = rows[r].seed};
        assert_int_equal(trd_sample_count(rows[r].n, &want), rows[r].count);
        for (int again = 0; again < 2; again++)
            for (uint32_t i = 0; i < rows[r].count; i++)
                assert_true(trd_sample_index(rows[r].n, &want, i) ==
                            rows[r].at[i]);
    }
}

static void test_sampling__another_seed_gives_others(void **state)
{
    struct trd_want want = {.samples = 16, .sampling = TRD_RANDOM};
    uint64_t at[64][16];
    (void)state;
    for (uint64_t seed = 0; seed < 64; seed++) {
        want.sampling_arg = seed;
        for (uint32_t i = 0; i < 16; i++)
            at[seed][i] = trd_sample_index(UINT64_C(1) << 40, &want, i);
        for (uint64_t other = 0; other < seed; other++)
            for (uint32_t i = 0; i < 16; i++)
                assert_true(at[seed][i] != at[other][i]);
    }
}

/* The product that no 64 bits hold, by the compiler's 128 bits. */
static void test_sampling__below_is_the_upper_half_of_the_product(void **state)
{
    static const uint64_t limits[] = {
        1, 2, 3, 1000, UINT32_MAX, UINT64_C(1) << 32, (UINT64_C(1) << 32) + 1,
        UINT64_C(0x123456789abcdef1), UINT64_C(1) << 62, UINT64_MAX};
    (void)state;
    for (size_t l = 0; l < sizeof limits / sizeof *limits; l++)
        for (uint32_t i = 0; i < 1000; i++) {
            uint64_t seed = i * UINT64_C(0x2545f4914f6cdd1d);
            uint64_t z = seed + (i + UINT64_C(1)) *
                                    UINT64_C(0x9e3779b97f4a7c15);
            z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
            z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
            z ^= z >> 31;
            assert_true(sampling_below(limits[l], seed, i) ==
                        (uint64_t)((u128)z * limits[l] >> 64));
        }
}

/* Ascending, each once, within the tensor: the longest one and short ones. */
static void test_sampling__every_rule_stays_within_the_tensor(void **state)
{
    static const uint64_t lengths[] = {1, 2, 15, 16, 17, 4095, 4096, 4097,
                                       8191, (UINT64_C(1) << 53) + 3,
                                       (UINT64_C(1) << 62) - 1,
                                       UINT64_C(1) << 62};
    static const uint32_t counts[] = {1, 2, 15, 16, 4096};
    (void)state;
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++)
        for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
            for (int rule = 0; rule < TRD_SAMPLING_COUNT; rule++) {
                uint64_t n = lengths[l], last = 0;
                struct trd_want want = {
                    .samples = counts[k], .sampling = (enum trd_sampling)rule,
                    .sampling_arg = n / counts[k] + 1};
                uint32_t count = trd_sample_count(n, &want);
                assert_true(count >= 1 && count <= counts[k] && count <= n);
                for (uint32_t i = 0; i < count; i++) {
                    uint64_t at = trd_sample_index(n, &want, i);
                    assert_true(at < n && (i == 0 || at > last));
                    last = at;
                }
            }
}

static void test_sampling__an_empty_tensor_has_none(void **state)
{
    (void)state;
    for (int rule = 0; rule < TRD_SAMPLING_COUNT; rule++) {
        struct trd_want want = {.samples = 16,
                                .sampling = (enum trd_sampling)rule,
                                .sampling_arg = 1};
        assert_int_equal(trd_sample_count(0, &want), 0);
        want.samples = 0;
        assert_int_equal(trd_sample_count(1000, &want), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampling__random_gives_these_elements),
        cmocka_unit_test(test_sampling__another_seed_gives_others),
        cmocka_unit_test(
            test_sampling__below_is_the_upper_half_of_the_product),
        cmocka_unit_test(test_sampling__every_rule_stays_within_the_tensor),
        cmocka_unit_test(test_sampling__an_empty_tensor_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
