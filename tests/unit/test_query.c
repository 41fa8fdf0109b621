/* Requests and pages of the query endpoint. */
#include <math.h>

#include "tests/lib/unit.h"

#include "proto/query.h"

static uint8_t message[65536];

static void test_query__survives_the_way(void **state)
{
    (void)state;
    struct query q, r;
    size_t n;
    query_init(&q, QUERY_RECORDS);
    q.name = slice_of("forward-L-1-2");
    q.rank = 0;
    q.iteration = 7;
    q.limit = 10;
    q.order = ORDER_SEQ;
    assert_int_equal(query_put(&q, message, sizeof message, &n), 0);
    assert_int_equal(query_get(message, n, &r), 0);
    assert_slice(r.name, "forward-L-1-2");
    assert_int_equal(r.rank, 0);
    assert_int_equal(r.attempt, -1);
    assert_int_equal(r.iteration, 7);
    assert_int_equal(r.order, ORDER_SEQ);
    for (size_t cut = 0; cut < n; cut++)
        assert_true(query_get(message, cut, &r) < 0);
}

static void test_query__wrong_values_are_refused(void **state)
{
    (void)state;
    struct query q, r;
    size_t n;
    query_init(&q, QUERY_STATUS + 1);
    assert_int_equal(query_put(&q, message, sizeof message, &n), 0);
    assert_int_equal(query_get(message, n, &r), TRD_EINVAL);
    query_init(&q, QUERY_RECORDS);
    q.order = 9;
    assert_int_equal(query_put(&q, message, sizeof message, &n), 0);
    assert_int_equal(query_get(message, n, &r), TRD_EINVAL);
    message[0] ^= 1;
    assert_int_equal(query_get(message, n, &r), TRD_ECORRUPT);
}

static size_t a_page(size_t cap, unsigned *rows)
{
    static const char *const names[] = {"a", "b"};
    struct page_writer p;
    page_open(&p, message, cap, PAGE_OK, slice_of("hi"));
    page_columns(&p, names, 2);
    for (*rows = 0;; ++*rows) {
        struct cell i = {.type = CELL_INT, .i = *rows};
        struct cell s = {.type = CELL_TEXT, .s = slice_of("text")};
        if (*rows == 1000 || page_cell(&p, &i) || page_cell(&p, &s))
            break;
    }
    return page_close(&p, slice_of("go on"));
}

static void test_page__holds_whole_rows_whatever_the_room(void **state)
{
    (void)state;
    for (size_t cap = 4096; cap < 4140; cap++) {
        struct page p;
        struct cell c[PAGE_MAX_COLUMNS];
        unsigned rows;
        size_t n = a_page(cap, &rows);
        assert_true(n > 0 && n <= cap);
        assert_int_equal(page_get(message, n, &p), 0);
        assert_int_equal(p.rows, rows);
        assert_slice(p.cursor, "go on");
        assert_slice(p.message, "hi");
        assert_slice(p.name[1], "b");
        for (unsigned i = 0; i < rows; i++) {
            assert_true(page_row(&p, c));
            assert_int_equal(c[0].i, i);
            assert_slice(c[1].s, "text");
        }
        assert_false(page_row(&p, c));
    }
}

static void test_page__cells_of_every_type_survive(void **state)
{
    (void)state;
    static const char *const names[] = {"n", "i", "f", "t", "b"};
    const struct cell in[] = {{.type = CELL_NULL},
                              {.type = CELL_INT, .i = INT64_MIN},
                              {.type = CELL_REAL, .f = -(double)INFINITY},
                              {.type = CELL_TEXT, .s = slice_of("é")},
                              {.type = CELL_BLOB, .s = {"\0\1", 2}}};
    struct cell out[PAGE_MAX_COLUMNS];
    struct page_writer w;
    struct page p;
    page_open(&w, message, sizeof message, PAGE_OK, slice_of(""));
    page_columns(&w, names, 5);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(page_cell(&w, &in[i]), 0);
    size_t n = page_close(&w, slice_of(""));
    assert_int_equal(page_get(message, n, &p), 0);
    assert_true(page_row(&p, out));
    assert_int_equal(out[0].type, CELL_NULL);
    assert_true(out[1].i == INT64_MIN && isinf(out[2].f));
    assert_slice(out[3].s, "é");
    assert_int_equal(out[4].s.n, 2);
}

static void test_page__cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct page p;
    unsigned rows;
    size_t n = a_page(4096, &rows);
    for (size_t cut = 0; cut < n; cut++)
        assert_true(page_get(message, cut, &p) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_query__survives_the_way),
        cmocka_unit_test(test_query__wrong_values_are_refused),
        cmocka_unit_test(test_page__holds_whole_rows_whatever_the_room),
        cmocka_unit_test(test_page__cells_of_every_type_survive),
        cmocka_unit_test(test_page__cut_anywhere_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
