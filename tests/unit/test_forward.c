/* Records of a queue, and the rows that a ClickHouse gets of them. */
#include "tests/lib/unit.h"

#include <sqlite3.h>
#include <stdlib.h>

#include "daemon/chunk.h"
#include "daemon/forward.h"

static const char tables[] =
    "CREATE TABLE queue(id INTEGER PRIMARY KEY, n, total, records);"
    "CREATE TABLE stream(id INTEGER PRIMARY KEY, real_ns, epoch, attempt,"
    " rank);"
    "CREATE TABLE object(id INTEGER PRIMARY KEY, class, instance, module);"
    "CREATE TABLE path(id INTEGER PRIMARY KEY, text);"
    "CREATE TABLE shape(id INTEGER PRIMARY KEY, dims);"
    "CREATE TABLE note(id INTEGER PRIMARY KEY, text);"
    "INSERT INTO stream VALUES(4096, 1000, 77, 0, 1), (8192, 2000, 78, 0, 2);"
    "INSERT INTO object VALUES(1, 'Linear', 2, 'fc');"
    "INSERT INTO path VALUES(1, '0');"
    "INSERT INTO shape VALUES(1, '2 3');";

static sqlite3 *db;
static struct names *names;
static struct block block;

static int open_queue(void **state)
{
    (void)state;
    assert_int_equal(sqlite3_open(":memory:", &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, tables, NULL, NULL, NULL), SQLITE_OK);
    names = names_new("run");
    return names ? 0 : -1;
}

static int close_queue(void **state)
{
    (void)state;
    names_free(names);
    block_free(&block);
    memset(&block, 0, sizeof block);
    sqlite3_close(db);
    return 0;
}

/* A record of float32, its entry in place; the length. */
static uint32_t make(uint8_t entry[512], uint64_t seq)
{
    static const uint8_t samples[8] = {0, 0, 128, 63, 0, 0, 128, 63};
    struct wire_record m = {.site = 1, .shape = 1, .dtype = TRD_F32,
                            .t_ns = 5, .samples = samples};
    struct writer w = writer_of(entry + ENTRY_HEADER_BYTES,
                                512 - ENTRY_HEADER_BYTES);
    uint32_t len, word;
    m.when.step = seq;
    m.stats.n = 6;
    m.stats.has = TRD_HAS_COUNTS | TRD_HAS_RANGE;
    m.stats.max.f = m.stats.min.f = 1;
    m.stats.sample_n = 2;
    assert_int_equal(record_put(&w, &m), 0);
    len = (uint32_t)(w.at - entry);
    word = entry_seal(entry, ENTRY_RECORD, len, (uint32_t)seq);
    w = writer_of(entry, 4);
    put_u32(&w, word);
    return len;
}

static void add(struct chunk *c, int64_t stream, uint64_t seq)
{
    uint8_t bytes[512];
    struct pending p = {.stream = stream, .seq = (int64_t)seq, .object = 1,
                        .path = 1, .shape = 1, .pass = 1, .io = 2,
                        .entry = bytes};
    struct entry e = {.kind = ENTRY_RECORD, .len = make(bytes, seq)};
    assert_true(chunk_add(c, &p, &e));
}

static void queue(struct chunk *c, int64_t id)
{
    sqlite3_stmt *q = NULL;
    sqlite3_prepare_v2(db, "INSERT INTO queue VALUES(?, ?, ?, ?)", -1, &q,
                       NULL);
    sqlite3_bind_int64(q, 1, id);
    sqlite3_bind_int64(q, 2, c->rows);
    sqlite3_bind_int64(q, 3, 100 * id);
    sqlite3_bind_blob(q, 4, c->at, (int)c->n, SQLITE_TRANSIENT);
    assert_int_equal(sqlite3_step(q), SQLITE_DONE);
    sqlite3_finalize(q);
    c->n = c->rows = 0;
}

static void test_forward__records_of_a_chunk_come_back(void **state)
{
    struct chunk c = {.at = NULL};
    struct wire_record m;
    struct pending p;
    struct reader r;
    (void)state;
    for (uint64_t seq = 1; seq <= 3000; seq++)
        add(&c, 4096, seq);
    assert_int_equal(c.rows, 3000);
    assert_true(c.n > CHUNK_BYTES);
    r = reader_of(c.at, c.n);
    for (int64_t seq = 1; seq <= 3000; seq++) {
        assert_true(chunk_next(&r, &p, &m));
        assert_int_equal(p.seq, seq);
        assert_int_equal(p.step, seq);
        assert_int_equal(p.io, 2);
        assert_int_equal(m.stats.n, 6);
    }
    assert_int_equal(reader_left(&r), 0);
    assert_false(chunk_next(&r, &p, &m));
    free(c.at);
}

static void test_forward__a_changed_byte_of_a_chunk_is_noticed(void **state)
{
    struct chunk c = {.at = NULL};
    struct wire_record m;
    struct pending p;
    (void)state;
    add(&c, 4096, 1);
    c.at[c.n - 1] ^= 1;
    struct reader r = reader_of(c.at, c.n);
    assert_false(chunk_next(&r, &p, &m));
    free(c.at);
}

static void test_forward__a_block_is_whole_rows_of_the_queue(void **state)
{
    struct chunk c = {.at = NULL};
    (void)state;
    add(&c, 4096, 1);
    add(&c, 8192, 1);
    queue(&c, 2);
    for (uint64_t seq = 2; seq < 2 + BLOCK_ROWS; seq++)
        add(&c, 4096, seq);
    queue(&c, 2 + BLOCK_ROWS);
    add(&c, 8192, 2);
    queue(&c, 3 + BLOCK_ROWS);
    assert_int_equal(block_read(db, names, 0, &block), SQLITE_OK);
    assert_true(block.full);
    assert_int_equal(block.rows, 2 + BLOCK_ROWS);
    assert_int_equal(block.id[block.rows - 1], 2 + BLOCK_ROWS);
    assert_int_equal(block.total, 100 * (2 + BLOCK_ROWS));
    assert_int_equal(block_read(db, names, 2 + BLOCK_ROWS, &block),
                     SQLITE_OK);
    assert_false(block.full);
    assert_int_equal(block.rows, 1);
    assert_int_equal(block_read(db, names, 3 + BLOCK_ROWS, &block),
                     SQLITE_OK);
    assert_int_equal(block.rows, 0);
    free(c.at);
}

static void test_forward__a_row_says_all_about_itself(void **state)
{
    /* run, epoch, attempt, rank, class, instance, module, path, shape, note */
    static const char head[] = "\3run" "\x4e\0\0\0\0\0\0\0" "\0\0\0\0"
                               "\2\0\0\0" "\6Linear" "\2\0\0\0" "\2fc" "\1" "0"
                               "\3" "2 3" "\0";
    struct chunk c = {.at = NULL};
    (void)state;
    add(&c, 4096, 9);
    add(&c, 8192, 7);
    queue(&c, 2);
    assert_int_equal(block_read(db, names, 0, &block), SQLITE_OK);
    assert_int_equal(block.rows, 2);
    const uint8_t *row = block.at + block.start[1];
    assert_memory_equal(row, head, sizeof head - 1);
    row += sizeof head - 1;
    assert_memory_equal(row, "\7\0\0\0\0\0\0\0" "\1\0\0\0\0\0\0\0" "\1", 17);
    /* stream, io, position, seq, ts_ns, t_ns */
    assert_memory_equal(row + 17, "\0\x20\0\0\0\0\0\0" "\2" "\0\0\0\0", 13);
    assert_memory_equal(row + 38, "\xd5\7\0\0\0\0\0\0" "\5", 9);
    free(c.at);
}

static void test_forward__what_no_dictionary_has_is_damage(void **state)
{
    struct chunk c = {.at = NULL};
    (void)state;
    add(&c, 12288, 1);
    queue(&c, 1);
    assert_int_equal(block_read(db, names, 0, &block), SQLITE_CORRUPT);
    free(c.at);
}

static void test_forward__what_was_read_ahead_is_taken_once(void **state)
{
    const struct forward_run *one = (void *)tables, *other = (void *)&block;
    struct ahead a = {.of = NULL};
    struct chunk c = {.at = NULL};
    (void)state;
    add(&c, 4096, 1);
    queue(&c, 1);
    add(&c, 4096, 2);
    queue(&c, 2);
    assert_false(ahead_take(&a, one, 0, &block));
    ahead_start(&a, one, db, names, 1);
    ahead_wait(&a);
    assert_false(ahead_take(&a, other, 1, &block));
    ahead_start(&a, one, db, names, 1);
    ahead_wait(&a);
    assert_false(ahead_take(&a, one, 0, &block));
    ahead_start(&a, one, db, names, 1);
    ahead_wait(&a);
    assert_true(ahead_take(&a, one, 1, &block));
    assert_int_equal(block.rows, 1);
    assert_int_equal(block.id[0], 2);
    assert_false(ahead_take(&a, one, 1, &block));
    block_free(&a.block);
    free(c.at);
}

static void
test_forward__what_could_not_be_read_ahead_is_not_taken(void **state)
{
    const struct forward_run *one = (void *)tables;
    struct ahead a = {.of = NULL};
    struct chunk c = {.at = NULL};
    (void)state;
    add(&c, 12288, 1);
    queue(&c, 1);
    ahead_start(&a, one, db, names, 0);
    ahead_wait(&a);
    assert_false(ahead_take(&a, one, 0, &block));
    block_free(&a.block);
    free(c.at);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, open_queue, close_queue)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward__records_of_a_chunk_come_back),
        cmocka_unit_test(test_forward__a_changed_byte_of_a_chunk_is_noticed),
        TEST(test_forward__a_block_is_whole_rows_of_the_queue),
        TEST(test_forward__a_row_says_all_about_itself),
        TEST(test_forward__what_no_dictionary_has_is_damage),
        TEST(test_forward__what_was_read_ahead_is_taken_once),
        TEST(test_forward__what_could_not_be_read_ahead_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
