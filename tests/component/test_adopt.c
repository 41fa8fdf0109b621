/* Journals of processes that are gone: a real tracerd takes them over, or puts
 * them aside. */
#include "tests/lib/ingest.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static bool gone(const char *name)
{
    char path[2 * RIG_PATH];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", ingest.rig.dir, name);
    return lstat(path, &st) != 0;
}

static void test_adopt__a_journal_is_adopted(void **state)
{
    (void)state;
    rig_journal(&ingest.rig, "a", 77, 5000, 0, false);
    rig_start(&ingest.rig);
    rig_until(gone("a.journal"));
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 5000);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    assert_string_equal(ingest_ask_text("run", "SELECT state FROM stream"),
                        "dead");
    ingest_contiguous("run", 5000);
    rig_stop(&ingest.rig);
}

static void test_adopt__a_clean_journal_ends_its_stream(void **state)
{
    (void)state;
    rig_journal(&ingest.rig, "a", 77, 10, 0, true);
    rig_start(&ingest.rig);
    rig_until(gone("a.journal"));
    assert_string_equal(ingest_ask_text("run", "SELECT state FROM stream"),
                        "ended");
    rig_stop(&ingest.rig);
}

static void test_adopt__a_journal_does_not_repeat_what_was_sent(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    rig_start(&ingest.rig);
    h.pid = 1;
    h.start_time = 12345678;
    assert_true(rig_greet(&ingest.rig, &ingest.c, 77, &h));
    ingest_send_dict();
    ingest_send_records(1, 60);
    rig_committed(&ingest.c, 60);
    rig_close(&ingest.c);
    rig_journal(&ingest.rig, "a", 77, 100, 0, false);
    rig_until(gone("a.journal"));
    ingest_contiguous("run", 100);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 100);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream"), 1);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM dict"),
                     RIG_DICT_N);
    rig_stop(&ingest.rig);
}

static void test_adopt__a_torn_record_of_a_journal_is_a_loss(void **state)
{
    (void)state;
    rig_journal(&ingest.rig, "a", 77, 50, 20, false);
    rig_start(&ingest.rig);
    rig_until(gone("a.journal"));
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 49);
    assert_int_equal(
        ingest_ask(
            "run",
            "SELECT seq = 20 AND last = 20 AND cause = 'torn' FROM loss"),
        1);
    ingest_contiguous("run", 50);
    rig_stop(&ingest.rig);
}

static void test_adopt__an_unreadable_record_of_a_journal_is_a_loss(void **s)
{
    (void)s;
    ingest.rig.journals_unreadable = 20;
    rig_journal(&ingest.rig, "a", 77, 50, 0, false);
    rig_start(&ingest.rig);
    rig_until(gone("a.journal"));
    assert_true(gone("a.journal.bad"));
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 49);
    assert_int_equal(
        ingest_ask("run", "SELECT seq = 20 AND last = 20 AND count = 1 AND "
                          "cause = 'error' FROM loss"),
        1);
    ingest_contiguous("run", 50);
    rig_stop(&ingest.rig);
}

/* Of streams that somebody else speaks for: they fail again and again. */
static void test_adopt__failing_journals_hold_up_no_others(void **state)
{
    enum { N = 6 };
    static struct rig_client owner[N];
    char name[32];
    long long start;
    (void)state;
    rig_start(&ingest.rig);
    for (unsigned i = 0; i < N; i++) {
        struct hello h = rig_hello();
        h.rank = 100 + i;
        assert_true(rig_greet(&ingest.rig, &owner[i], 1000 + i, &h));
        snprintf(name, sizeof name, "failing%u", i);
        rig_journal(&ingest.rig, name, 1000 + i, 10, 0, false);
    }
    rig_logged(&ingest.rig, "alive elsewhere");
    for (unsigned i = 0; i < N; i++) {
        snprintf(name, sizeof name, "good%u", i);
        rig_journal(&ingest.rig, name, 2000 + i, 10, 0, false);
    }
    start = rig_now_ms();
    for (unsigned i = 0; i < N; i++) {
        snprintf(name, sizeof name, "good%u.journal", i);
        rig_until(gone(name));
    }
    assert_in_range(rig_now_ms() - start, 0, 6000);
    for (unsigned i = 0; i < N; i++)
        rig_close(&owner[i]);
    for (unsigned i = 0; i < N; i++) {
        snprintf(name, sizeof name, "failing%u.journal", i);
        rig_until(gone(name)); /* they were not forgotten */
    }
    rig_stop(&ingest.rig);
}

static void damage(const char *name, long at, int byte)
{
    char path[2 * RIG_PATH];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", ingest.rig.dir, name);
    f = fopen(path, "r+");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    fputc(byte, f);
    fclose(f);
}

static void put_file(const char *name)
{
    char path[2 * RIG_PATH];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", ingest.rig.dir, name);
    f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

static void make_old(const char *name)
{
    char path[2 * RIG_PATH];
    struct timespec t[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    snprintf(path, sizeof path, "%s/%s", ingest.rig.dir, name);
    assert_int_equal(utimensat(AT_FDCWD, path, t, 0), 0);
}

static void test_adopt__journals_that_do_not_hold_are_put_aside(void **state)
{
    char path[2 * RIG_PATH];
    (void)state;
    rig_journal(&ingest.rig, "head", 1, 10, 0, false);
    damage("head.journal", 20, 0x77);
    make_old("head.journal");
    rig_journal(&ingest.rig, "hello", 2, 10, 0, false);
    damage("hello.journal", 3 * 4096 + 1, 0x77);
    rig_journal(&ingest.rig, "short", 3, 10, 0, false);
    snprintf(path, sizeof path, "%s/short.journal", ingest.rig.dir);
    assert_int_equal(truncate(path, 100000), 0);
    make_old("short.journal");
    snprintf(path, sizeof path, "%s/link.journal", ingest.rig.dir);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    rig_journal(&ingest.rig, "good", 4, 10, 0, false);
    put_file("old.journal.new");
    make_old("old.journal.new");
    put_file("fresh.journal.new");
    rig_start(&ingest.rig);
    rig_until(gone("good.journal"));
    assert_false(gone("fresh.journal.new"));
    rig_until(gone("old.journal.new"));
    rig_until(!gone("head.journal.bad") && !gone("hello.journal.bad") &&
              !gone("short.journal.bad") && !gone("link.journal.bad"));
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 10);
    assert_true(rig_alive(&ingest.rig));
    rig_stop(&ingest.rig);
}

static void test_adopt__a_living_process_keeps_its_journal(void **state)
{
    char path[2 * RIG_PATH];
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int fd;
    (void)state;
    rig_journal(&ingest.rig, "mine", 77, 10, 0, false);
    rig_journal(&ingest.rig, "other", 78, 10, 0, false);
    snprintf(path, sizeof path, "%s/mine.journal", ingest.rig.dir);
    fd = open(path, O_RDWR);
    assert_int_equal(fcntl(fd, F_SETLK, &l), 0);
    rig_start(&ingest.rig);
    rig_until(gone("other.journal"));
    assert_false(gone("mine.journal"));
    close(fd); /* lets go of the lock */
    rig_until(gone("mine.journal"));
    rig_stop(&ingest.rig);
}

static void test_adopt__a_closed_journal_of_a_living_process(void **state)
{
    (void)state;
    ingest.rig.journals_alive = true;
    rig_journal(&ingest.rig, "open", 77, 10, 0, false);
    rig_journal(&ingest.rig, "closed", 78, 10, 0, true);
    rig_start(&ingest.rig);
    rig_until(gone("closed.journal"));
    assert_false(gone("open.journal"));
    assert_int_equal(
        ingest_ask("run", "SELECT state = 'ended' AND seq = 10 FROM stream"),
        1);
    rig_stop(&ingest.rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_adopt__a_journal_is_adopted),
        ingest_test(test_adopt__a_clean_journal_ends_its_stream),
        ingest_test(test_adopt__a_journal_does_not_repeat_what_was_sent),
        ingest_test(test_adopt__a_torn_record_of_a_journal_is_a_loss),
        ingest_test(test_adopt__an_unreadable_record_of_a_journal_is_a_loss),
        ingest_test(test_adopt__failing_journals_hold_up_no_others),
        ingest_test(test_adopt__journals_that_do_not_hold_are_put_aside),
        ingest_test(test_adopt__a_living_process_keeps_its_journal),
        ingest_test(test_adopt__a_closed_journal_of_a_living_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
