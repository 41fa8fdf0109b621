/* The hash: its definition written a second time, what it promises to tell
 * apart, and a few values that must stay for ever. */
#include "tests/unit/stats_rig.h"

enum { TILE_WORDS = 512 }; /* of fp32 */

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint64_t key(unsigned j)
{
    uint64_t c = UINT64_C(0x9e3779b97f4a7c15);
    return mix((j % 16 + 1) * c) ^ mix((16 + j / 16 + 1) * c);
}

/* The contract, a byte at a time. */
static uint64_t slow_hash(const unsigned char *bytes, size_t n, size_t size)
{
    uint64_t total = 0;

    for (size_t t = 0; t * 1024 < n; t++) {
        size_t left = (n - t * 1024) * size;
        size_t length = left < 1024 * size ? left : 1024 * size;
        uint64_t h = 0;
        for (size_t j = 0; j * 8 < length; j++) {
            uint64_t x = key((unsigned)j);
            for (size_t b = 0; b < 8 && j * 8 + b < length; b++)
                x ^= (uint64_t)bytes[t * 1024 * size + j * 8 + b] << 8 * b;
            h += ((x & 0xffffffff) + (UINT64_C(1) << 32)) *
                 ((x >> 32) + (UINT64_C(1) << 32));
        }
        total += mix(h + t * UINT64_C(0x9e3779b97f4a7c15));
    }
    return mix(total + n);
}

static uint64_t hash_of(int dtype, const void *data, size_t n)
{
    return stats_of(dtype, data, n).hash;
}

/* The same for one tile of bytes, without the other figures. */
static uint64_t hash_of_tile_bytes(const void *tile, size_t bytes)
{
    struct trd__tally tally;
    tally.hash = 0;
    trd__hash_tile(tile, bytes, 0, &tally);
    return tally.hash;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static void assert_all_differ(uint64_t *hashes, size_t n)
{
    qsort(hashes, n, sizeof *hashes, by_value);
    for (size_t i = 1; i < n; i++)
        assert_true(hashes[i - 1] != hashes[i]);
}

static void test_hash__is_the_one_written_down(void **state)
{
    static unsigned char data[3000 * 16];
    static const size_t lengths[] = {1,  2,    3,    7,    8,    9,
                                     15, 1023, 1024, 1025, 2048, 3000};
    uint64_t rng = 1;
    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)rng_next(&rng);
    for (int d = 1; d < TRD_DTYPE_LIMIT; d++) {
        unsigned size = trd_dtype_bytes(d);
        if (d == TRD_TEXT || d == TRD_OPAQUE)
            continue;
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            assert_true(hash_of(d, data, lengths[i]) ==
                        slow_hash(data, lengths[i], size));
    }
}

static void test_hash__stays_for_ever(void **state)
{
    static const float zero[5000], one = 1;
    float ramp[3000];
    (void)state;
    for (int i = 0; i < 3000; i++)
        ramp[i] = (float)i / 8;
    assert_int_equal(hash_of(TRD_F32, &one, 1), UINT64_C(0x2c02476d9a4a647f));
    assert_int_equal(hash_of(TRD_F32, zero, 5000),
                     UINT64_C(0xbd08a8cbfe72dbff));
    assert_int_equal(hash_of(TRD_F32, ramp, 3000),
                     UINT64_C(0x65b5fbf935e49e81));
}

static void test_hash__keys_have_no_half_in_common(void **state)
{
    static uint64_t halves[2 * 2048];
    (void)state;
    for (unsigned j = 0; j < 2048; j++) {
        halves[2 * j] = key(j) >> 32;
        halves[2 * j + 1] = key(j) & 0xffffffff;
    }
    assert_all_differ(halves, 2 * 2048);
}

/* All 32769 differ pairwise: so no single flip and no two flips, wherever
 * they are, leave the hash as it was. */
static void check_flips(const uint64_t *fill)
{
    static uint64_t data[TILE_WORDS], hashes[TILE_WORDS * 64 + 1];
    size_t n = 0;

    memcpy(data, fill, sizeof data);
    hashes[n++] = hash_of_tile_bytes(data, sizeof data);
    for (int j = 0; j < TILE_WORDS; j++)
        for (int b = 0; b < 64; b++) {
            data[j] ^= UINT64_C(1) << b;
            hashes[n++] = hash_of_tile_bytes(data, sizeof data);
            data[j] ^= UINT64_C(1) << b;
        }
    assert_all_differ(hashes, n);
}

static void test_hash__single_and_double_flips(void **state)
{
    static uint64_t fill[TILE_WORDS];
    uint64_t rng = 2;
    (void)state;
    check_flips(fill);
    for (int j = 0; j < TILE_WORDS; j++) /* ones */
        fill[j] = UINT64_C(0x3f8000003f800000);
    check_flips(fill);
    for (int j = 0; j < TILE_WORDS; j++)
        fill[j] = rng_next(&rng);
    check_flips(fill);
}

/* The words that make one factor as small as it can be, and as large. */
static void test_hash__single_flips_where_a_factor_is_least(void **state)
{
    static const uint64_t x[] = {0,           1,
                                 0x100000000, UINT64_MAX,
                                 0x80000000,  UINT64_C(0x8000000000000000)};
    (void)state;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        uint64_t w = x[i] ^ key(0);
        uint64_t whole = hash_of(TRD_U64, &w, 1);
        for (int b = 0; b < 64; b++) {
            uint64_t flipped = w ^ UINT64_C(1) << b;
            assert_true(hash_of(TRD_U64, &flipped, 1) != whole);
        }
    }
}

static void test_hash__any_other_value_of_an_element(void **state)
{
    uint32_t data[2] = {0x3f800000, 0x40000000};
    uint64_t whole = hash_of(TRD_F32, data, 2);
    uint64_t rng = 3;
    (void)state;
    for (int i = 0; i < 200000; i++) {
        uint32_t was = data[i % 2];
        uint32_t other = (uint32_t)rng_next(&rng);
        data[i % 2] = other;
        assert_true((hash_of(TRD_F32, data, 2) == whole) == (other == was));
        data[i % 2] = was;
    }
}

static void test_hash__permutations_of_rows(void **state)
{
    enum { ROWS = 96, COLUMNS = 32 };
    static float data[ROWS][COLUMNS], row[COLUMNS];
    static uint64_t hashes[ROWS * ROWS];
    size_t n = 0;
    uint64_t rng = 4;
    (void)state;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            data[i][j] = (float)rng_normal(&rng);
    hashes[n++] = hash_of(TRD_F32, data, ROWS * COLUMNS);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < i; j++) {
            memcpy(row, data[i], sizeof row);
            memcpy(data[i], data[j], sizeof row);
            memcpy(data[j], row, sizeof row);
            hashes[n++] = hash_of(TRD_F32, data, ROWS * COLUMNS);
            memcpy(data[j], data[i], sizeof row);
            memcpy(data[i], row, sizeof row);
        }
    assert_all_differ(hashes, n);
}

static void test_hash__whole_tiles_in_another_order(void **state)
{
    static float data[4 * 1024], other[4 * 1024];
    static const int order[][4] = {{0, 1, 2, 3}, {1, 0, 2, 3}, {3, 1, 2, 0},
                                   {2, 3, 0, 1}, {0, 0, 2, 3}, {1, 1, 2, 3}};
    uint64_t hashes[6];
    uint64_t rng = 5;
    (void)state;
    for (int i = 0; i < 4 * 1024; i++)
        data[i] = (float)rng_normal(&rng);
    for (int o = 0; o < 6; o++) {
        for (int t = 0; t < 4; t++)
            memcpy(other + 1024 * t, data + 1024 * order[o][t], 4096);
        hashes[o] = hash_of(TRD_F32, other, 4096);
    }
    assert_all_differ(hashes, 6);
}

static void test_hash__doubled_tensors(void **state)
{
    static float data[1 << 14];
    uint64_t hashes[15];
    uint64_t rng = 6;
    size_t n = 0;
    (void)state;
    data[0] = (float)rng_normal(&rng);
    for (size_t length = 1; length <= 1 << 14; length *= 2) {
        hashes[n++] = hash_of(TRD_F32, data, length);
        if (length < 1 << 14)
            memcpy(data + length, data, length * sizeof *data);
    }
    assert_all_differ(hashes, n);
}

static void test_hash__zeros_of_different_lengths(void **state)
{
    static const unsigned char zeros[20000];
    static uint64_t hashes[20000];
    (void)state;
    for (size_t n = 1; n <= 20000; n++)
        hashes[n - 1] = hash_of(TRD_F4_E2M1X2, zeros, n);
    assert_all_differ(hashes, 20000);
}

static void test_hash__does_not_know_the_dtype(void **state)
{
    static const float x[3] = {1, -2, 3};
    (void)state;
    assert_int_equal(hash_of(TRD_F32, x, 3), hash_of(TRD_I32, x, 3));
}

static void test_hash__counts_beyond_32_bits(void **state)
{
    static const unsigned char row[1024];
    static const int64_t shape[] = {(1 << 21) + 1, 1024}, strides[] = {0, 1};
    struct trd_tensor t = {row, TRD_F4_E2M1X2, 2, shape, strides};
    struct trd_stats s;
    (void)state;
    assert_int_equal(trd_stats_cpu(&t, 16, &s, NULL), 0);
    assert_true(s.n == (UINT64_C(1) << 31) + 1024);
    assert_int_equal(s.has, TRD_HAS_HASH);
    assert_int_equal(s.sample_n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash__is_the_one_written_down),
        cmocka_unit_test(test_hash__stays_for_ever),
        cmocka_unit_test(test_hash__keys_have_no_half_in_common),
        cmocka_unit_test(test_hash__single_and_double_flips),
        cmocka_unit_test(test_hash__single_flips_where_a_factor_is_least),
        cmocka_unit_test(test_hash__any_other_value_of_an_element),
        cmocka_unit_test(test_hash__permutations_of_rows),
        cmocka_unit_test(test_hash__whole_tiles_in_another_order),
        cmocka_unit_test(test_hash__doubled_tensors),
        cmocka_unit_test(test_hash__zeros_of_different_lengths),
        cmocka_unit_test(test_hash__does_not_know_the_dtype),
        cmocka_unit_test(test_hash__counts_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
