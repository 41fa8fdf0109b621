/* The query endpoint of a real tracerd, asked by libnanomsg and by peers
 * that mean no good. */
#include "tests/component/query_rig.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <unistd.h>

static const uint8_t req[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};

static int by_hand(void)
{
    uint8_t greeting[8];
    int fd = rig_connect(rig.dir, PLACE_QUERY);
    assert_true(fd >= 0);
    rig_write(fd, req, sizeof req);
    assert_true(rig_read(fd, greeting, sizeof greeting));
    assert_int_equal(greeting[5], 0x31);
    return fd;
}

/* Sends and does not wait for the answer. */
static int send_only(const struct query *q)
{
    uint8_t message[2048];
    size_t n;
    int fd = by_hand();
    assert_int_equal(query_put(q, message + 13, sizeof message - 13, &n), 0);
    memset(message, 0, 13);
    message[0] = 1;
    message[8] = (uint8_t)((n + 4) & 0xff);
    message[7] = (uint8_t)((n + 4) >> 8);
    message[9] = 0x80;
    rig_write(fd, message, n + 13);
    return fd;
}

static void test_query_endpoint__records_by_name(void **state)
{
    struct query q;
    struct row row;
    (void)state;
    fill(20);
    q = records("forward-Linear-1-7-input");
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 1);
    assert_int_equal(page.columns, ROW_COLUMN_COUNT);
    assert_int_equal(page_row(&page, cells), 1);
    assert_int_equal(row_get(cells, &row), 0);
    assert_int_equal(row.step, 7);
    assert_int_equal(row.seq, 7);
    assert_int_equal(row.stats.sample_n, 16);
    assert_true(row.stats.max.f == 2.5);
    q = records("forward-layer1-7"); /* the module */
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 1);
    q = records("forward-Lin*");
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 20);
    q = records("");
    q.run = slice_of(""); /* the newest */
    q.limit = 5;
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 5);
    assert_int_equal(page.cursor.n, 0);
}

static void test_query_endpoint__nothing_says_what_there_is(void **state)
{
    struct query q = records("forward-Linear-1-1");
    (void)state;
    assert_int_equal(ask(&q), PAGE_NOTHING);
    message_has("no run 'run'");
    q.run = slice_of("");
    assert_int_equal(ask(&q), PAGE_NOTHING);
    fill(20);
    q = records("forward-Liner-1-1");
    assert_int_equal(ask(&q), PAGE_NOTHING);
    message_has("'Linear'");
    q = records("forward-Linear-1-99");
    assert_int_equal(ask(&q), PAGE_NOTHING);
    message_has("1 to 20");
    q = records("sideways-Linear-1-1");
    assert_int_equal(ask(&q), PAGE_BAD);
    q = records("forward-Linear-1-1");
    q.run = slice_of("../../etc/passwd");
    assert_int_equal(ask(&q), PAGE_BAD);
}

static void check_pages(struct query q, uint64_t n)
{
    static char cursor[256];
    uint64_t rows = 0, last = 0, pages = 0;
    do {
        assert_int_equal(ask(&q), PAGE_OK);
        while (page_row(&page, cells)) {
            struct row row;
            assert_int_equal(row_get(cells, &row), 0);
            assert_int_equal(row.seq, last + 1);
            last = row.seq;
            rows++;
        }
        memcpy(cursor, page.cursor.text, page.cursor.n);
        q.cursor.text = cursor;
        q.cursor.n = page.cursor.n;
        pages++;
    } while (page.cursor.n);
    assert_int_equal(rows, n);
    assert_true(pages > 1);
}

static void test_query_endpoint__many_records_come_by_pages(void **state)
{
    struct query q;
    (void)state;
    fill(5000);
    q = records("");
    check_pages(q, 5000);
    q.order = ORDER_SEQ;
    check_pages(q, 5000);
    q = records("forward-Linear-1");
    check_pages(q, 5000);
}

static void test_query_endpoint__runs_are_listed(void **state)
{
    struct query q;
    struct hello h = rig_hello();
    struct rig_client other;
    (void)state;
    query_init(&q, QUERY_RUNS);
    assert_int_equal(ask(&q), PAGE_NOTHING);
    fill(20);
    h.run = slice_of("another");
    assert_true(rig_greet(&rig, &other, 5, &h));
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.rows, 2);
    assert_int_equal(page_row(&page, cells), 1);
    assert_int_equal(cells[0].s.n, 7);
    assert_int_equal(page_row(&page, cells), 1);
    assert_memory_equal(cells[0].s.text, "run", 3);
    assert_int_equal(cells[6].i, 20); /* records */
    rig_close(&other);
}

/* Long questions have all places but one. */
static void test_query_endpoint__short_questions_pass_long_ones(void **state)
{
    struct query forever = sql("WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL "
                               "SELECT i + 1 FROM n) SELECT count(*) FROM n");
    struct query q;
    int fds[6];
    long long start;
    (void)state;
    fill(1);
    for (int i = 0; i < 6; i++)
        fds[i] = send_only(&forever);
    start = rig_now_ms();
    for (int i = 0; i < 20; i++) {
        query_init(&q, i % 2 ? QUERY_STATUS : QUERY_RUNS);
        assert_int_equal(ask(&q), PAGE_OK);
    }
    assert_in_range(rig_now_ms() - start, 0, 3000);
    rig_stop(&rig);
    for (int i = 0; i < 6; i++)
        close(fds[i]);
}

/* A file that another program has for itself: whoever opens it waits. */
static void test_query_endpoint__stop_leaves_a_stuck_worker_behind(void **state)
{
    char path[2 * RIG_PATH];
    struct query q = sql("SELECT count(*) FROM record");
    sqlite3 *db = NULL;
    int fd;
    (void)state;
    fill(10);
    snprintf(path, sizeof path, "%s/stuck.db", rig.data);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "CREATE TABLE t(x); BEGIN EXCLUSIVE",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    q.run = slice_of("stuck");
    fd = send_only(&q);
    rig_pause();
    rig_stop(&rig);
    rig_logged(&rig, "left=");
    close(fd);
    sqlite3_close(db);
    rig_durable(&c, 10);
    assert_int_equal(rig_connect(rig.dir, PLACE_QUERY), -1);
}

/* In place, as by cp: the file is the same and what it holds is not. */
static void test_query_endpoint__newest_is_looked_for_in_what_is_there(void **s)
{
    char command[2 * RIG_PATH];
    struct rig_client other;
    struct hello h = rig_hello();
    struct query q = sql("SELECT name FROM v_run");
    (void)s;
    q.run = slice_of("");
    fill(1);
    h.run = slice_of("second");
    assert_true(rig_greet(&rig, &other, 5, &h));
    rig_close(&other);
    h.run = slice_of("third");
    assert_true(rig_greet(&rig, &other, 6, &h));
    rig_close(&other);
    rig_close(&c);
    rig_stop(&rig);
    rig_start(&rig);
    assert_int_equal(ask(&q), PAGE_OK);
    page_row(&page, cells);
    assert_memory_equal(cells[0].s.text, "third", 5);
    snprintf(command, sizeof command, "cd %s && cat run.db > third.db",
             rig.data);
    assert_int_equal(system(command), 0);
    assert_int_equal(ask(&q), PAGE_OK);
    page_row(&page, cells);
    assert_memory_equal(cells[0].s.text, "second", 6);
}

static void test_query_endpoint__stop_does_not_wait_for_a_question(void **s)
{
    struct query q = sql("WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT "
                         "i + 1 FROM n) SELECT count(*) FROM n");
    uint8_t message[1024];
    size_t n;
    long long start;
    (void)s;
    fill(1);
    dial(AF_SP);
    assert_int_equal(query_put(&q, message, sizeof message, &n), 0);
    assert_int_equal(nn_send(sock, message, n, 0), (int)n);
    q = sql("SELECT 1"); /* by another: the first is running by then */
    hang_up();
    assert_int_equal(ask(&q), PAGE_OK);
    start = rig_now_ms();
    rig_stop(&rig);
    assert_in_range(rig_now_ms() - start, 0, 3000);
}

static void test_query_endpoint__status_tells_of_the_daemon(void **state)
{
    struct query q;
    bool version = false, stream = false, number = false;
    (void)state;
    fill(20);
    query_init(&q, QUERY_STATUS);
    assert_int_equal(ask(&q), PAGE_OK);
    assert_int_equal(page.columns, 2);
    while (page_row(&page, cells)) {
        if (cells[0].s.n == 7 && !memcmp(cells[0].s.text, "version", 7))
            version = cells[1].s.n == strlen(TRD_VERSION);
        if (cells[0].s.n == 7 && !memcmp(cells[0].s.text, "records", 7))
            number = cells[1].type == CELL_INT && cells[1].i == 20;
        if (cells[0].s.n == 6 && !memcmp(cells[0].s.text, "stream", 6))
            stream = memmem(cells[1].s.text, cells[1].s.n, "committed=20",
                            12) != NULL;
    }
    assert_true(version);
    assert_true(number);
    assert_true(stream);
}

static void test_query_endpoint__not_a_request_is_answered_so(void **state)
{
    int got;
    (void)state;
    dial(AF_SP);
    assert_int_equal(nn_send(sock, "hello", 5, 0), 5);
    got = nn_recv(sock, &reply, NN_MSG, 0);
    assert_true(got > 0);
    assert_int_equal(page_get(reply, (size_t)got, &page), 0);
    assert_int_equal(page.status, PAGE_BAD);
}

/* A raw REQ socket sends many before it reads one. */
static void test_query_endpoint__raw_req_with_many_on_the_way(void **state)
{
    enum { N = 200 };
    uint8_t message[1024];
    struct query q = sql("SELECT 1");
    bool seen[N] = {false};
    size_t n;
    (void)state;
    fill(1);
    dial(AF_SP_RAW);
    assert_int_equal(query_put(&q, message + 4, sizeof message - 4, &n), 0);
    for (unsigned sent = 0, got = 0; got < N;) {
        if (sent < N && sent - got < 16) {
            struct writer w = writer_of(message, 4);
            put_u8(&w, 0x80);
            put_u8(&w, 0);
            put_u8(&w, 0);
            put_u8(&w, (uint8_t)sent);
            assert_int_equal(nn_send(sock, message, n + 4, 0), (int)n + 4);
            sent++;
            continue;
        }
        char *text = NULL;
        struct nn_iovec iov = {&text, NN_MSG};
        char control[64];
        struct nn_msghdr head = {.msg_iov = &iov,
                                 .msg_iovlen = 1,
                                 .msg_control = control,
                                 .msg_controllen = sizeof control};
        int rc = nn_recvmsg(sock, &head, 0);
        assert_true(rc > 0);
        nn_freemsg(text);
        got++;
        seen[got - 1] = true;
    }
    assert_true(seen[N - 1]);
}

/* ---- by hand ---- */

static void hostile(const void *bytes, size_t n)
{
    int fd = by_hand();
    rig_write_any(fd, bytes, n);
    rig_hung_up(fd);
    close(fd);
    assert_true(rig_alive(&rig));
}

static void test_query_endpoint__hostile_peers_lose_their_connection(void **s)
{
    static const uint8_t bad_type[] = {2, 0, 0,   0,   0,   0,  0,
                                       0, 4, 'a', 'b', 'c', 'd'};
    static const uint8_t huge[] = {1, 0x40, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t all_ones[] = {1,    0xff, 0xff, 0xff, 0xff,
                                       0xff, 0xff, 0xff, 0xff};
    static const uint8_t empty[] = {1, 0, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t three[] = {1, 0, 0, 0, 0, 0, 0, 0, 3, 1, 2, 3};
    static const uint8_t wrong_protocol[] = {0, 'S', 'P', 0, 0, 0x10, 0, 0};
    uint8_t no_bottom[9 + 4096] = {1, 0, 0, 0, 0, 0, 0, 0x10, 0};
    struct query q;
    int fd;
    (void)s;
    hostile(bad_type, sizeof bad_type);
    hostile(huge, sizeof huge);
    hostile(all_ones, sizeof all_ones);
    hostile(empty, sizeof empty);
    hostile(three, sizeof three);
    hostile(no_bottom, sizeof no_bottom);
    fd = rig_connect(rig.dir, PLACE_QUERY);
    rig_write(fd, wrong_protocol, sizeof wrong_protocol);
    rig_hung_up(fd);
    close(fd);
    fd = rig_connect(rig.dir, PLACE_QUERY); /* and one that says nothing */
    rig_hung_up(fd);
    close(fd);
    fill(1);
    q = records("");
    assert_int_equal(ask(&q), PAGE_OK);
    rig_stop(&rig);
}

static void test_query_endpoint__a_request_byte_by_byte(void **state)
{
    uint8_t message[1024], head[9];
    struct query q;
    size_t n;
    int fd;
    (void)state;
    query_init(&q, QUERY_STATUS);
    assert_int_equal(query_put(&q, message + 17, sizeof message - 17, &n), 0);
    memset(message, 0, 17);
    message[0] = 1;
    message[8] = (uint8_t)(n + 8);
    message[12] = 7;    /* a hop */
    message[13] = 0x80; /* the bottom */
    message[16] = 9;
    n += 17;
    fd = by_hand();
    for (size_t i = 0; i < n; i++)
        rig_write(fd, message + i, 1);
    assert_true(rig_read(fd, head, sizeof head));
    assert_int_equal(head[0], 1);
    assert_true(rig_read(fd, message + 100, 8));
    assert_memory_equal(message + 100, message + 9, 8);
    close(fd);
    /* cut everywhere */
    for (size_t cut = 0; cut < n; cut++) {
        fd = by_hand();
        rig_write(fd, message, cut);
        close(fd);
    }
    assert_true(rig_alive(&rig));
    rig_stop(&rig);
}

static void test_query_endpoint__many_that_do_not_read(void **state)
{
    struct query q;
    uint8_t message[1024];
    size_t n;
    int fds[32];
    (void)state;
    fill(3000);
    q = records("");
    assert_int_equal(query_put(&q, message + 13, sizeof message - 13, &n), 0);
    memset(message, 0, 13);
    message[0] = 1;
    message[8] = (uint8_t)(n + 4);
    message[9] = 0x80;
    for (int i = 0; i < 32; i++) {
        fds[i] = by_hand();
        for (int k = 0; k < 8; k++)
            rig_write_any(fds[i], message, n + 13);
    }
    q = records("forward-Linear-1-1");
    assert_int_equal(ask(&q), PAGE_OK); /* others are served meanwhile */
    rig_stop(&rig);
    for (int i = 0; i < 32; i++)
        close(fds[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_query_endpoint__records_by_name),
        TEST(test_query_endpoint__nothing_says_what_there_is),
        TEST(test_query_endpoint__many_records_come_by_pages),
        TEST(test_query_endpoint__runs_are_listed),
        TEST(test_query_endpoint__short_questions_pass_long_ones),
        TEST(test_query_endpoint__stop_leaves_a_stuck_worker_behind),
        TEST(test_query_endpoint__newest_is_looked_for_in_what_is_there),
        TEST(test_query_endpoint__stop_does_not_wait_for_a_question),
        TEST(test_query_endpoint__status_tells_of_the_daemon),
        TEST(test_query_endpoint__not_a_request_is_answered_so),
        TEST(test_query_endpoint__raw_req_with_many_on_the_way),
        TEST(test_query_endpoint__hostile_peers_lose_their_connection),
        TEST(test_query_endpoint__a_request_byte_by_byte),
        TEST(test_query_endpoint__many_that_do_not_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
