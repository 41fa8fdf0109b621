/* The client's ring, read back by the functions a daemon uses. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/unit.h"

#include "client/journal.h"

enum { RING = 1 << 20 };

static struct trd__journal journal;

static int open_ring(void **state)
{
    (void)state;
    struct journal_head head = {.epoch = 9, .ring_bytes = 2 * RING};
    return trd__journal_open(&journal, NULL, "x", &head, "hello", 5);
}

static int close_ring(void **state)
{
    (void)state;
    trd__journal_close(&journal, 0);
    return 0;
}

static int put(uint32_t value, size_t size)
{
    static uint8_t tail[ENTRY_MAX_BYTES];
    return trd__journal_put(&journal, ENTRY_RECORD, &value, sizeof value,
                            tail, size);
}

/* Reads as a survivor would: from the newest state. */
static struct journal_walk survivor(void)
{
    struct journal_head head;
    struct journal_state state;
    struct journal_walk walk;
    assert_int_equal(
        journal_head_get(journal.map, journal.head.size, &head), 0);
    assert_int_equal(journal_state_get(journal.map, &state), 0);
    journal_walk_init(&walk, journal.map, &head, &state);
    return walk;
}

static uint32_t value_of(const struct entry *e)
{
    uint32_t v;
    memcpy(&v, e->body, sizeof v);
    return v;
}

static void test_journal__survivor_reads_all_in_order(void **state)
{
    (void)state;
    struct entry e;
    uint64_t seq;
    uint32_t n = 0;
    /* sizes that leave every kind of rest at a segment's end */
    while (!put(n + 1, (n * 37) % 3000))
        n++;
    assert_true(n > 500);
    struct journal_walk w = survivor();
    for (uint32_t i = 1; i <= n; i++) {
        assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_ENTRY);
        assert_int_equal(seq, i);
        assert_int_equal(value_of(&e), i);
    }
    assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_END);
    assert_int_equal(trd__journal_last(&journal), n);
}

static void test_journal__freed_space_is_used_again(void **state)
{
    (void)state;
    struct trd__run run;
    struct entry e;
    uint64_t pos = 0, seq = 0, number;
    uint32_t n = 0;
    for (int round = 0; round < 20; round++) {
        while (!put(n + 1, 500))
            n++;
        for (int batch = 0; batch < 3; batch++) {
            trd__journal_peek(&journal, &pos, 256 * 1024, &run);
            assert_true(run.records > 0);
            pos = run.end_pos;
            seq += run.records;
        }
        journal.state.durable_pos = pos;
        journal.state.durable_seq = seq;
        trd__journal_publish(&journal);
    }
    struct journal_walk w = survivor();
    for (uint64_t i = seq + 1; i <= n; i++) {
        assert_int_equal(journal_next(&w, &e, &number), JOURNAL_ENTRY);
        assert_int_equal(number, i);
        assert_int_equal(value_of(&e), i);
    }
    assert_int_equal(journal_next(&w, &e, &number), JOURNAL_END);
}

static void test_journal__full_ring_refuses_and_keeps_what_it_has(void **state)
{
    (void)state;
    struct entry e;
    uint64_t seq;
    uint32_t n = 0;
    while (!put(n + 1, 4000))
        n++;
    assert_int_equal(put(0, 4000), TRD_EFULL);
    struct journal_walk w = survivor();
    for (uint32_t i = 1; i <= n; i++)
        assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_ENTRY);
    assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_END);
}

/* A thread that was killed between taking its place and the last store. */
static void test_journal__torn_entry_is_a_hole_of_exact_size(void **state)
{
    (void)state;
    struct entry e;
    uint64_t seq;
    for (uint32_t i = 1; i <= 10; i++)
        put(i, 100);
    size_t span = entry_span(ENTRY_HEADER_BYTES + 4 + 100);
    memset(journal.ring + JOURNAL_SEGMENT_HEADER + 3 * span, 0, 4);
    journal.ring[JOURNAL_SEGMENT_HEADER + 4 * span + 40] ^= 1;
    struct journal_walk w = survivor();
    for (int i = 1; i <= 3; i++)
        assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_ENTRY);
    assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_HOLE);
    assert_int_equal(seq, 4);
    assert_int_equal(w.seq, 6);
    for (uint32_t i = 6; i <= 10; i++) {
        assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_ENTRY);
        assert_int_equal(value_of(&e), i);
    }
    assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_END);
}

static void test_journal__torn_tail_is_the_end(void **state)
{
    (void)state;
    struct entry e;
    uint64_t seq;
    for (uint32_t i = 1; i <= 3; i++)
        put(i, 100);
    size_t span = entry_span(ENTRY_HEADER_BYTES + 4 + 100);
    journal.ring[JOURNAL_SEGMENT_HEADER + 2 * span + 50] ^= 4;
    struct journal_walk w = survivor();
    for (int i = 1; i <= 2; i++)
        assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_ENTRY);
    assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_END);
}

static void *appender(void *arg)
{
    uint32_t base = (uint32_t)(uintptr_t)arg;
    for (uint32_t i = 0; i < 2000; i++)
        put(base + i, (base + i) % 200);
    return NULL;
}

static void test_journal__threads_append_without_a_gap(void **state)
{
    (void)state;
    pthread_t thread[4];
    struct entry e;
    uint64_t seq;
    uint32_t next[4] = {0};
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, appender, (void *)(i * 10000));
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    struct journal_walk w = survivor();
    for (uint32_t i = 1; i <= 8000; i++) {
        assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_ENTRY);
        assert_int_equal(seq, i);
        uint32_t v = value_of(&e);
        /* each thread's own order is kept */
        assert_int_equal(v % 10000, next[v / 10000]++);
    }
    assert_int_equal(journal_next(&w, &e, &seq), JOURNAL_END);
}

static void test_dictionary__same_body_gives_the_same_id(void **state)
{
    (void)state;
    uint32_t a, b, c;
    struct entry e;
    uint64_t at = 0;
    assert_int_equal(trd__journal_intern(&journal, ENTRY_NOTE, "abc", 3, &a),
                     0);
    assert_int_equal(trd__journal_intern(&journal, ENTRY_SHAPE, "abc", 3, &b),
                     0);
    assert_int_equal(trd__journal_intern(&journal, ENTRY_NOTE, "abc", 3, &c),
                     0);
    assert_int_equal(a, c);
    assert_int_not_equal(a, b);
    assert_int_equal(journal_dict_next(journal.map, &journal.head, &at, &e),
                     1);
    assert_int_equal(e.number, a);
    assert_int_equal(e.kind, ENTRY_NOTE);
    assert_int_equal(journal_dict_next(journal.map, &journal.head, &at, &e),
                     1);
    assert_int_equal(journal_dict_next(journal.map, &journal.head, &at, &e),
                     0);
}

static void test_dictionary__full_one_refuses_new_words_only(void **state)
{
    (void)state;
    char text[1000];
    uint32_t id, first, n = 0;
    memset(text, 'x', sizeof text);
    for (;; n++) {
        memcpy(text, &n, sizeof n);
        if (trd__journal_intern(&journal, ENTRY_NOTE, text, sizeof text, &id))
            break;
        if (!n)
            first = id;
    }
    assert_in_range(n, 1000, 1048);
    n = 0;
    memcpy(text, &n, sizeof n);
    assert_int_equal(trd__journal_intern(&journal, ENTRY_NOTE, text,
                                         sizeof text, &id),
                     0);
    assert_int_equal(id, first);
}

static void test_journal__head_with_one_bit_off_is_refused(void **state)
{
    (void)state;
    struct journal_head head;
    for (unsigned bit = 0; bit < 8 * 128; bit++) {
        journal.map[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_true(
            journal_head_get(journal.map, journal.head.size, &head) < 0);
        journal.map[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_int_equal(
        journal_head_get(journal.map, journal.head.size - 1, &head),
        TRD_ETRUNC);
}

static void test_journal__hello_with_one_bit_off_is_refused(void **state)
{
    (void)state;
    struct hello h;
    for (unsigned bit = 0; bit < 8 * 5; bit++) {
        journal.map[JOURNAL_HELLO_AT + bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(journal_hello_get(journal.map, &journal.head, &h),
                         TRD_ECORRUPT);
        journal.map[JOURNAL_HELLO_AT + bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void test_journal__newer_state_counts_unless_it_is_torn(void **state)
{
    (void)state;
    struct journal_state s;
    journal.state.committed_seq = 5;
    trd__journal_publish(&journal);
    journal.state.committed_seq = 6;
    trd__journal_publish(&journal);
    assert_int_equal(journal_state_get(journal.map, &s), 0);
    assert_int_equal(s.committed_seq, 6);
    journal.map[JOURNAL_PAGE * (1 + s.generation % 2) + 20] ^= 1;
    assert_int_equal(journal_state_get(journal.map, &s), 0);
    assert_int_equal(s.committed_seq, 5);
}

static void test_journal__file_is_private_and_complete(void **state)
{
    (void)state;
    char dir[] = "/tmp/trd-journal-XXXXXX";
    struct journal_head head = {.epoch = 9, .ring_bytes = RING};
    struct stat st;
    assert_non_null(mkdtemp(dir));
    trd__journal_close(&journal, 0);
    assert_int_equal(
        trd__journal_open(&journal, dir, "a.journal", &head, "hello", 5), 0);
    assert_int_equal(stat(journal.path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(st.st_size, journal.head.size);
    assert_true(st.st_blocks * 512 >= st.st_size);
    pid_t child = fork();
    if (!child) { /* somebody else finds it locked */
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        int fd = open(journal.path, O_RDWR);
        _exit(fcntl(fd, F_GETLK, &lock) || lock.l_type == F_UNLCK);
    }
    int status;
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    trd__journal_close(&journal, 1);
    assert_int_equal(rmdir(dir), 0);
    open_ring(NULL);
}

int main(void)
{
#define RING_TEST(name)                                                       \
    cmocka_unit_test_setup_teardown(name, open_ring, close_ring)
    const struct CMUnitTest tests[] = {
        RING_TEST(test_journal__survivor_reads_all_in_order),
        RING_TEST(test_journal__freed_space_is_used_again),
        RING_TEST(test_journal__full_ring_refuses_and_keeps_what_it_has),
        RING_TEST(test_journal__torn_entry_is_a_hole_of_exact_size),
        RING_TEST(test_journal__torn_tail_is_the_end),
        RING_TEST(test_journal__threads_append_without_a_gap),
        RING_TEST(test_dictionary__same_body_gives_the_same_id),
        RING_TEST(test_dictionary__full_one_refuses_new_words_only),
        RING_TEST(test_journal__head_with_one_bit_off_is_refused),
        RING_TEST(test_journal__hello_with_one_bit_off_is_refused),
        RING_TEST(test_journal__newer_state_counts_unless_it_is_torn),
        RING_TEST(test_journal__file_is_private_and_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
