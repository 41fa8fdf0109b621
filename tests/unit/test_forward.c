/* Records of a queue, and the rows that a ClickHouse gets of them. */
#include "tests/lib/unit.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/chunk.h"
#include "daemon/forward.h"
#include "proto/bytes.h"

#include "clickhouse_tables.h"

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
static struct message message;

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
    free(message.at);
    memset(&message, 0, sizeof message);
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

/* Reads all of it as an engine does. The values of a column, or NULL: there is
 * none; and its bytes that say what is NULL. */
static const uint8_t *find(const struct message *m, const char *column,
                           const uint8_t **nulls)
{
    struct reader r = reader_of(m->at, m->n);
    uint64_t columns = get_varint(&r), rows = get_varint(&r);
    const uint8_t *found = NULL;
    while (columns-- > 0 && !r.bad) {
        size_t name_n = (size_t)get_varint(&r);
        const uint8_t *name = get_bytes(&r, name_n);
        size_t type_n = (size_t)get_varint(&r);
        const uint8_t *bytes = get_bytes(&r, type_n);
        const uint8_t *map = NULL;
        char type[32] = "";
        const char *digits;
        assert_non_null(name);
        assert_non_null(bytes);
        assert_in_range(type_n, 5, sizeof type - 1);
        memcpy(type, bytes, type_n);
        digits = type + strcspn(type, "0123456789");
        if (strncmp(type, "Nullable(", 9) == 0)
            map = get_bytes(&r, (size_t)rows);
        if (strlen(column) == name_n && memcmp(column, name, name_n) == 0) {
            found = r.at;
            *nulls = map;
        }
        for (uint64_t i = 0; i < rows; i++)
            get_bytes(&r, *digits ? (size_t)atoi(digits) / 8
                                  : (size_t)get_varint(&r));
    }
    assert_false(r.bad);
    assert_int_equal(reader_left(&r), 0);
    return found;
}

static void holds(const char *column, const void *bytes, size_t n)
{
    const uint8_t *nulls = NULL, *at = find(&message, column, &nulls);
    assert_non_null(at);
    assert_memory_equal(at, bytes, n);
}

static void test_forward__rows_say_all_about_themselves(void **state)
{
    struct chunk c = {.at = NULL};
    const uint8_t *nulls = NULL;
    (void)state;
    add(&c, 4096, 9);
    add(&c, 8192, 7);
    queue(&c, 2);
    assert_int_equal(block_read(db, names, 0, &block), SQLITE_OK);
    assert_int_equal(block.rows, 2);
    assert_true(block_native(&block, 0, 2, &message));
    assert_in_range(block.n, message.n / 4, message.n);
    holds("run", "\3run\3run", 8);
    holds("epoch", "\x4d\0\0\0\0\0\0\0" "\x4e\0\0\0\0\0\0\0", 16);
    holds("attempt", "\0\0\0\0\0\0\0\0", 8);
    holds("rank", "\1\0\0\0\2\0\0\0", 8);
    holds("class", "\6Linear\6Linear", 14);
    holds("instance", "\2\0\0\0\2\0\0\0", 8);
    holds("module", "\2fc\2fc", 6);
    holds("path", "\1" "0\1" "0", 4);
    holds("shape", "\3" "2 3\3" "2 3", 8);
    holds("note", "\0\0", 2);
    holds("step", "\x09\0\0\0\0\0\0\0" "\7\0\0\0\0\0\0\0", 16);
    holds("pass", "\1\1", 2);
    holds("stream", "\0\x10\0\0\0\0\0\0" "\0\x20\0\0\0\0\0\0", 16);
    holds("io", "\2\2", 2);
    holds("ts_ns", "\xed\3\0\0\0\0\0\0" "\xd5\7\0\0\0\0\0\0", 16);
    holds("t_ns", "\5\0\0\0\0\0\0\0" "\5\0\0\0\0\0\0\0", 16);
    holds("max", "\0\0\0\0\0\0\xf0\x3f" "\0\0\0\0\0\0\xf0\x3f", 16);
    holds("max_int", "\0\0\0\0\0\0\0\0" "\0\0\0\0\0\0\0\0", 16);
    holds("samples", "\x08\0\0\x80\x3f", 5);
    find(&message, "max", &nulls);
    assert_memory_equal(nulls, "\0\0", 2);
    find(&message, "max_int", &nulls);
    assert_memory_equal(nulls, "\1\1", 2);
    free(c.at);
}

static void test_forward__any_rows_of_a_block_are_a_block(void **state)
{
    struct message part = {.at = NULL};
    struct chunk c = {.at = NULL};
    (void)state;
    for (uint64_t seq = 1; seq <= 5; seq++) {
        add(&c, seq == 2 ? 8192 : 4096, seq);
        queue(&c, (int64_t)seq);
    }
    assert_int_equal(block_read(db, names, 0, &block), SQLITE_OK);
    assert_true(block_native(&block, 3, 5, &part));
    assert_int_equal(block_read(db, names, 3, &block), SQLITE_OK);
    assert_true(block_native(&block, 0, 2, &message));
    assert_int_equal(part.n, message.n);
    assert_memory_equal(part.at, message.at, part.n);
    free(part.at);
    free(c.at);
}

static void test_forward__what_is_sent_again_is_the_same_bytes(void **state)
{
    struct message again = {.at = NULL};
    struct chunk c = {.at = NULL};
    (void)state;
    for (uint64_t seq = 1; seq <= 3000; seq++)
        add(&c, 4096, seq);
    queue(&c, 3000);
    assert_int_equal(block_read(db, names, 0, &block), SQLITE_OK);
    assert_true(block_native(&block, 0, block.rows, &message));
    names_free(names);
    names = names_new("run");
    assert_int_equal(block_read(db, names, 0, &block), SQLITE_OK);
    assert_true(block_native(&block, 0, block.rows, &again));
    assert_int_equal(again.n, message.n);
    assert_memory_equal(again.at, message.at, again.n);
    free(again.at);
    free(c.at);
}

/* Columns are named with their types, one behind the other. */
static void agrees(const struct layout *of, const char *table)
{
    char head[64];
    snprintf(head, sizeof head, "CREATE TABLE IF NOT EXISTS %s$(", table);
    const char *text = strstr(clickhouse_tables, head);
    assert_non_null(text);
    const char *end = strstr(text, "\n) ENGINE");
    unsigned columns = 1;
    for (const char *p = text; p < end; p++)
        columns += *p == ',';
    assert_int_equal(of->n, columns);
    for (unsigned i = 0; i < of->n; i++) {
        char words[64];
        int n = snprintf(words, sizeof words, " %s %s", of->column[i].name,
                         of->column[i].type);
        const char *at = strstr(text, words);
        while (at && at < end && at[n] != ',' && at[n] != '\n')
            at = strstr(at + 1, words);
        if (!at || at > end)
            fail_msg("table %s has no%s", table, words);
    }
}

static void test_forward__columns_are_those_of_the_tables(void **state)
{
    (void)state;
    agrees(&record_layout, "record");
    agrees(&stream_layout, "stream");
    agrees(&loss_layout, "loss");
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
        TEST(test_forward__rows_say_all_about_themselves),
        TEST(test_forward__any_rows_of_a_block_are_a_block),
        TEST(test_forward__what_is_sent_again_is_the_same_bytes),
        cmocka_unit_test(test_forward__columns_are_those_of_the_tables),
        TEST(test_forward__what_no_dictionary_has_is_damage),
        TEST(test_forward__what_was_read_ahead_is_taken_once),
        TEST(test_forward__what_could_not_be_read_ahead_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
