/* The address of a ClickHouse, and rows of its answers. */
#include "tests/lib/unit.h"

#include <stdlib.h>

#include "proto/clickhouse/house.h"
#include "tools/house_rows.h"
#include "tracerd/base.h"

static struct house_place place;
static char why[HOUSE_WHY_BYTES];

static void test_house__an_address_is_taken_apart(void **state)
{
    (void)state;
    setenv("TRACERD_STORE_PASSWORD", "word", 1);
    assert_int_equal(
        house_place_read("clickhouse://me@node-1:9/traces", &place, why), 0);
    assert_string_equal(place.base, "http://node-1:9/");
    assert_string_equal(place.user, "me");
    assert_string_equal(place.database, "traces");
    assert_string_equal(place.cluster, "");
    assert_string_equal(place.password, "word");
    unsetenv("TRACERD_STORE_PASSWORD");
    assert_int_equal(
        house_place_read("clickhouses://h/d?cluster=all", &place, why), 0);
    assert_string_equal(place.base, "https://h:8443/");
    assert_string_equal(place.user, "");
    assert_string_equal(place.cluster, "all");
    assert_string_equal(place.password, "");
    assert_int_equal(house_place_read("clickhouse://[::1]/d", &place, why),
                     0);
    assert_string_equal(place.base, "http://[::1]:8123/");
}

static void test_house__a_wrong_address_is_told(void **state)
{
    static const char *const wrong[] = {
        "sqlite", "http://h/d", "clickhouse://h", "clickhouse:///d",
        "clickhouse://h/", "clickhouse://h/d;e", "clickhouse://h/d/e",
        "clickhouse://h/d?cluster=", "clickhouse://h/d?user=x",
        "clickhouse://u:secret@h/d", "clickhouse://h x/d"};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        why[0] = '\0';
        assert_int_equal(house_place_read(wrong[i], &place, why),
                         TRD_EINVAL);
        assert_non_null(strstr(why, "is no store"));
        assert_null(strstr(why, "secret"));
    }
}

static void test_house__a_password_file_that_is_missing(void **state)
{
    (void)state;
    setenv("TRACERD_STORE_PASSWORD_FILE", "/nowhere/at/all", 1);
    assert_int_equal(house_place_read("clickhouse://h/d", &place, why),
                     TRD_EIO);
    assert_non_null(strstr(why, "/nowhere/at/all"));
    unsetenv("TRACERD_STORE_PASSWORD_FILE");
}

static int rows_n;

static int on_row(void *to, const struct house_field *c, int n)
{
    (void)to;
    assert_int_equal(n, 3);
    if (rows_n++ == 0) {
        assert_int_equal(c[0].s.n, 6);
        assert_memory_equal(c[0].s.text, "\0\t\n\\'x", 6);
        assert_true(c[1].null);
        assert_int_equal(house_whole(&c[2]), -1);
    } else {
        assert_int_equal(c[0].s.n, 0);
        assert_false(c[0].null);
        assert_true(house_real(&c[1]) == 0.1);
        assert_int_equal(house_whole(&c[2]), INT64_MIN);
    }
    return 0;
}

static void test_house__rows_come_in_any_pieces(void **state)
{
    static const char text[] = "\\0\\t\\n\\\\\\'x\t\\N\t18446744073709551615\n"
                               "\t0.1\t-9223372036854775808\n";
    (void)state;
    for (size_t piece = 1; piece < sizeof text; piece++) {
        struct house_rows r = {.row = on_row};
        rows_n = 0;
        for (size_t at = 0; at < sizeof text - 1; at += piece) {
            size_t left = sizeof text - 1 - at;
            assert_int_equal(
                house_rows_take(&r, text + at, left < piece ? left : piece),
                0);
        }
        assert_int_equal(rows_n, 2);
        assert_false(r.bad);
        house_rows_free(&r);
    }
}

static int on_binary(void *to, const struct house_field *c, int n)
{
    (void)to;
    assert_int_equal(n, 6);
    assert_int_equal(house_whole(&c[0]), rows_n == 0 ? 255 : 0);
    assert_int_equal(c[1].s.n, rows_n == 0 ? 3 : 0);
    assert_true(c[2].null == (rows_n == 0));
    if (rows_n++ == 0) {
        assert_memory_equal(c[1].s.text, "\0\n\t", 3);
        assert_int_equal(house_whole(&c[3]), -1);
    } else {
        assert_int_equal(house_whole(&c[2]), 7);
        assert_int_equal(house_whole(&c[3]), 1);
    }
    assert_true(house_real(&c[4]) == -2.0);
    assert_int_equal(house_whole(&c[5]), 0x80000001);
    return 0;
}

static void test_house__binary_rows_come_in_any_pieces(void **state)
{
    static const char bytes[] =
        "\xff\3\0\n\t\1\xff\xff\xff\xff\xff\xff\xff\xff"
        "\0\0\0\0\0\0\0\xc0\1\0\0\x80"
        "\0\0\0\7\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0"
        "\0\0\0\0\0\0\0\xc0\1\0\0\x80";
    (void)state;
    for (size_t piece = 1; piece < sizeof bytes; piece++) {
        struct house_rows r = {.row = on_binary, .types = "bsLlfi"};
        rows_n = 0;
        for (size_t at = 0; at < sizeof bytes - 1; at += piece) {
            size_t left = sizeof bytes - 1 - at;
            assert_int_equal(
                house_rows_take(&r, bytes + at, left < piece ? left : piece),
                0);
        }
        assert_int_equal(rows_n, 2);
        assert_true(house_rows_good(&r));
        assert_int_equal(house_rows_take(&r, "\0", 1), 0);
        assert_false(house_rows_good(&r));
        house_rows_free(&r);
    }
}

/* A server that fails while it answers writes that into the answer. */
static void test_house__an_error_among_binary_rows_is_none(void **state)
{
    static const char text[] = "Code: 241, e.displayText() = DB::Exception: "
                               "Memory limit (for query) exceeded";
    struct house_rows r = {.row = on_binary, .types = "bLsLlfi"};
    (void)state;
    assert_int_equal(house_rows_take(&r, text, sizeof text - 1), 1);
    assert_false(house_rows_good(&r));
    house_rows_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_house__an_address_is_taken_apart),
        cmocka_unit_test(test_house__a_wrong_address_is_told),
        cmocka_unit_test(test_house__a_password_file_that_is_missing),
        cmocka_unit_test(test_house__rows_come_in_any_pieces),
        cmocka_unit_test(test_house__binary_rows_come_in_any_pieces),
        cmocka_unit_test(test_house__an_error_among_binary_rows_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
