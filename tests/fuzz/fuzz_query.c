/* Questions and pages: both are read as the input lies; a question that is
 * read can be written and read again, and the rows of a page are there. */
#include "tests/fuzz/fuzz.h"

#include "proto/query.h"
#include "proto/row.h"

static void check_question(const uint8_t *data, size_t size)
{
    static uint8_t again[1 << 17];
    struct query a, b;
    size_t n = 0;
    if (query_get(data, size, &a) || query_put(&a, again, sizeof again, &n))
        return;
    FUZZ_CHECK(query_get(again, n, &b) == 0);
    FUZZ_CHECK(a.verb == b.verb && a.limit == b.limit && a.rank == b.rank);
    FUZZ_CHECK(a.name.n == b.name.n && a.sql.n == b.sql.n);
}

static void check_page(const uint8_t *data, size_t size)
{
    struct cell cells[PAGE_MAX_COLUMNS];
    struct page p;
    uint32_t rows = 0, all;
    if (page_get(data, size, &p))
        return;
    FUZZ_CHECK(p.columns <= PAGE_MAX_COLUMNS);
    all = p.rows;
    while (page_row(&p, cells)) {
        struct row row;
        rows++;
        if (p.columns == ROW_COLUMN_COUNT)
            row_get(cells, &row);
    }
    FUZZ_CHECK(rows == all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_question(data, size);
    check_page(data, size);
    return 0;
}
