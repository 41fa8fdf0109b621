/* A start with much to do: many journals of dead processes. The daemon is
 * ready before it has taken them over, its memory stays what one of them
 * needs, and whoever lives is served meanwhile. And journals made so that
 * reading them is as slow as can be: they cost no more than others. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/crc32c.h"
#include "proto/journal.h"
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

enum {
    JOURNALS = 64,
    RECORDS = 8000, /* of each */
    DEAD_PID = 1,   /* as rig_journal() makes them */
    ROOM_KB = 192 * 1024, /* of a daemon that takes one over at a time */
    HOSTILE_RING = 32 << 20,
    WAIT_MS = 120000
};

static void path_of(unsigned i, char path[2 * RIG_PATH])
{
    snprintf(path, 2 * RIG_PATH, "%s/left%u" JOURNAL_SUFFIX, ingest.rig.dir, i);
}

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    chmod(path, 0600);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* The first, and copies of it that are other streams. */
static uint64_t make_journals(void)
{
    char path[2 * RIG_PATH];
    struct journal_head head;
    uint8_t *image;
    FILE *f;
    rig_journal(&ingest.rig, "left0", 1000, RECORDS, 0, false);
    assert_int_equal(journal_layout(2 * JOURNAL_MIN_BYTES, &head), 0);
    image = malloc(head.size);
    assert_non_null(image);
    path_of(0, path);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fread(image, 1, head.size, f), head.size);
    fclose(f);
    for (unsigned i = 1; i < JOURNALS; i++) {
        assert_int_equal(journal_head_get(image, head.size, &head), 0);
        head.epoch = 1000 + i;
        journal_head_put(image, &head);
        path_of(i, path);
        write_file(path, image, head.size);
    }
    free(image);
    return JOURNALS * head.size;
}

static unsigned journals_left(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < JOURNALS; i++) {
        char path[2 * RIG_PATH];
        path_of(i, path);
        n += access(path, F_OK) == 0;
    }
    return n;
}

static void test_backlog__many_journals(void **state)
{
    struct rig *r = &ingest.rig;
    struct oracle_footprint begin, now;
    uint64_t bytes = make_journals(), most_kb = 0, sent = 0, meanwhile = 0;
    long long end;
    (void)state;
    oracle_start(r);
    begin = oracle_footprint(r->pid);
    assert_true(journals_left() > 0); /* it did not wait for them */
    rig_open(r, &ingest.c, 77);
    ingest_send_dict();
    end = rig_now_ms() + WAIT_MS;
    do {
        ingest_send_records(sent + 1, 10);
        sent += 10;
        rig_committed(&ingest.c, sent);
        meanwhile += journals_left() > 0;
        now = oracle_footprint(r->pid);
        most_kb = now.memory_kb > most_kb ? now.memory_kb : most_kb;
        if (rig_now_ms() > end)
            fail_msg("%u journals are left\n%s", journals_left(), rig_log(r));
    } while (journals_left() > 0);
    print_message("%d journals, %llu MB: memory %llu KB to %llu KB at the "
                  "most; %llu times served meanwhile\n",
                  JOURNALS, (unsigned long long)(bytes >> 20),
                  (unsigned long long)begin.memory_kb,
                  (unsigned long long)most_kb, (unsigned long long)meanwhile);
    assert_true(meanwhile > JOURNALS / 4);
    assert_true(most_kb < begin.memory_kb + ROOM_KB);
    rig_durable(&ingest.c, sent);
    oracle_process(r, "run", DEAD_PID, JOURNALS * RECORDS, 0, 0);
    oracle_process(r, "run", getpid(), sent, 0, 0);
    oracle_run(r, "run");
    rig_close(&ingest.c);
    rig_stop(r);
    oracle_verify(r, 0);
    oracle_held(38, JOURNALS, "journals of dead processes at a start");
}

/* Behind a record that is torn, every 8 bytes an entry seems to begin that is
 * as long as one can be and has a number that may come: each has to be looked
 * at, and none holds. The last segment has a record again. */
static void make_hostile(const char *name)
{
    char path[2 * RIG_PATH];
    struct journal_head small, head;
    struct rig_entries *e = &ingest.e;
    const uint32_t word = entry_word(ENTRY_RECORD, ENTRY_MAX_BYTES);
    const uint64_t first = word - 1; /* so that the word is such a number */
    struct journal_state state = {.generation = 2, .durable_seq = first - 1,
                                  .committed_seq = first - 1};
    uint64_t last = HOSTILE_RING - JOURNAL_SEGMENT;
    uint8_t *image, *ring;
    struct writer w;
    FILE *f;
    rig_journal(&ingest.rig, name, 1000, 1, 0, false);
    assert_int_equal(journal_layout(2 * JOURNAL_MIN_BYTES, &small), 0);
    assert_int_equal(journal_layout(HOSTILE_RING, &head), 0);
    image = calloc(1, head.size);
    assert_non_null(image);
    snprintf(path, sizeof path, "%s/%s" JOURNAL_SUFFIX, ingest.rig.dir, name);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fread(image, 1, small.size, f), small.size);
    fclose(f);
    assert_int_equal(journal_head_get(image, small.size, &small), 0);
    memset(image + JOURNAL_DICT_AT + small.dict_bytes, 0, small.ring_bytes);
    small.size = head.size;
    small.dict_bytes = head.dict_bytes;
    small.ring_bytes = head.ring_bytes;
    journal_head_put(image, &small);
    journal_state_put(image + JOURNAL_PAGE, &state);
    ring = image + JOURNAL_DICT_AT + head.dict_bytes;
    for (uint64_t at = JOURNAL_SEGMENT_HEADER; at + 8 <= last; at += 8) {
        w = writer_of(ring + at, 8);
        put_u32(&w, word);
        put_u32(&w, 0x5a5a5a5a);
    }
    w = writer_of(ring, 4);
    put_u32(&w, journal_segment_put(ring, 0, first));
    w = writer_of(ring + last, 4);
    put_u32(&w, journal_segment_put(ring + last, last, first + 1));
    rig_fill_data(e, first + 1, 1);
    memcpy(ring + last + JOURNAL_SEGMENT_HEADER, e->bytes + BATCH_BYTES,
           e->n_bytes - BATCH_BYTES);
    write_file(path, image, head.size);
    free(image);
}

static void test_backlog__a_journal_that_is_slow_to_read(void **state)
{
    struct rig *r = &ingest.rig;
    char path[2 * RIG_PATH];
    long long begin;
    (void)state;
    make_hostile("slow"); /* first: no half of it may be found */
    rig_start(r);
    snprintf(path, sizeof path, "%s/slow" JOURNAL_SUFFIX, r->dir);
    begin = rig_now_ms();
    rig_open(r, &ingest.c, 77); /* and whoever lives is served */
    ingest_send_dict();
    for (uint64_t i = 1; access(path, F_OK) == 0; i++) {
        ingest_send_records(i, 1);
        rig_committed(&ingest.c, i);
    }
    print_message("taken over after %lld ms\n", rig_now_ms() - begin);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record WHERE"
                                       " stream = (SELECT id FROM stream"
                                       " WHERE pid = 1)"),
                     1);
    assert_int_equal(ingest_ask("run", "SELECT count FROM loss WHERE"
                                       " cause = 'torn'"),
                     1);
    rig_close(&ingest.c);
    rig_stop(r);
    oracle_held(38, 1, "a journal that is as slow to read as can be");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_backlog__many_journals),
        ingest_test(test_backlog__a_journal_that_is_slow_to_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
