/* Journals of dead processes with a bit flipped: what is taken over is what
 * was written, to the bit, what is not is counted or set aside. */
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/journal.h"

enum { RECORDS = 3, AT_ONCE = 32, TAKE_MS = 60000 };

/* What of a journal means something: a whole one, and its parts. */
struct model {
    uint8_t *image;
    struct journal_head head;
    struct {
        size_t at, n;
    } part[5]; /* head, state, hello, dictionary, ring */
};

/* Bytes from at up to the last that is not zero. */
static size_t used(const struct model *m, size_t at, size_t end)
{
    size_t last = at;
    for (size_t i = at; i < end; i++)
        if (m->image[i])
            last = i + 1;
    return last - at;
}

static void read_model(struct model *m)
{
    char path[2 * RIG_PATH];
    struct stat st;
    size_t ring;
    int fd;
    rig_journal(&ingest.rig, "model", 77, RECORDS, 0, false);
    snprintf(path, sizeof path, "%s/model" JOURNAL_SUFFIX, ingest.rig.dir);
    fd = open(path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    m->image = malloc((size_t)st.st_size);
    assert_non_null(m->image);
    assert_int_equal(read(fd, m->image, (size_t)st.st_size), st.st_size);
    close(fd);
    unlink(path);
    assert_int_equal(
        journal_head_get(m->image, (uint64_t)st.st_size, &m->head), 0);
    ring = JOURNAL_DICT_AT + (size_t)m->head.dict_bytes;
    m->part[0].n = 128;
    m->part[1].at = JOURNAL_PAGE;
    m->part[1].n = 256;
    m->part[2].at = JOURNAL_HELLO_AT;
    m->part[2].n = m->head.hello_bytes;
    m->part[3].at = JOURNAL_DICT_AT;
    m->part[3].n = used(m, JOURNAL_DICT_AT, ring);
    m->part[4].at = ring;
    m->part[4].n = used(m, ring, (size_t)m->head.size);
}

/* A journal of another process: old, sparse, called .journal when it is
 * whole. bit: of the part, -1 for none. */
static void write_journal(struct model *m, uint64_t epoch, int part, long bit)
{
    const struct timespec old[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    char from[2 * RIG_PATH], to[2 * RIG_PATH];
    int fd;
    m->head.epoch = epoch;
    journal_head_put(m->image, &m->head);
    snprintf(from, sizeof from, "%s/new", ingest.rig.dir);
    snprintf(to, sizeof to, "%s/%d-%ld" JOURNAL_SUFFIX, ingest.rig.dir, part,
             bit);
    fd = open(from, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)m->head.size), 0);
    if (bit >= 0)
        m->image[m->part[part].at + (size_t)bit / 8] ^=
            (uint8_t)(1 << bit % 8);
    for (size_t i = 0; i < sizeof m->part / sizeof *m->part; i++)
        assert_int_equal(pwrite(fd, m->image + m->part[i].at, m->part[i].n,
                                (off_t)m->part[i].at),
                         m->part[i].n);
    if (bit >= 0)
        m->image[m->part[part].at + (size_t)bit / 8] ^=
            (uint8_t)(1 << bit % 8);
    assert_int_equal(futimens(fd, old), 0);
    close(fd);
    assert_int_equal(rename(from, to), 0);
}

static unsigned count_files(const char *tail)
{
    DIR *d = opendir(ingest.rig.dir);
    struct dirent *e;
    unsigned n = 0;
    assert_non_null(d);
    while ((e = readdir(d))) {
        size_t len = strlen(e->d_name);
        n += len > strlen(tail) &&
             strcmp(e->d_name + len - strlen(tail), tail) == 0;
    }
    closedir(d);
    return n;
}

/* One after the other, each until it is on the disk for good. */
static void wait_until_taken(unsigned left)
{
    long long end = rig_now_ms() + TAKE_MS;
    unsigned n;
    while ((n = count_files(JOURNAL_SUFFIX)) > left) {
        if (rig_now_ms() > end)
            fail_msg("%u journals stay:\n%s", n, rig_log(&ingest.rig));
        rig_pause();
    }
}

static void test_journal_bits__each_bit_flipped(void **state)
{
    const char *slow = getenv("TRD_TEST_SLOW");
    /* a step that meets every bit of a byte */
    long step = slow && *slow ? 1 : 67;
    struct model m;
    uint64_t epoch = 1000;
    unsigned bad, newer = 0; /* those stay for a daemon of their version */
    (void)state;
    memset(&m, 0, sizeof m);
    read_model(&m);
    oracle_start(&ingest.rig);
    write_journal(&m, epoch, 0, -1);
    wait_until_taken(newer);
    for (int part = 0; part < 5; part++) {
        for (long bit = part; bit < (long)(8 * m.part[part].n); bit += step) {
            write_journal(&m, ++epoch, part, bit);
            newer += part == 0 && bit / 32 == 2;
            if (epoch % AT_ONCE == 0)
                wait_until_taken(newer);
        }
    }
    wait_until_taken(newer);
    assert_true(rig_alive(&ingest.rig));
    rig_stop(&ingest.rig);
    bad = count_files(JOURNAL_SUFFIX ".bad");
    ingest_values("run", 1000);
    /* what is torn in the middle is counted; nothing else is lost but by a
     * dictionary that ends early */
    assert_int_equal(
        ingest_ask("run", "SELECT count(*) FROM loss WHERE count > 3 OR cause "
                          "NOT IN ('torn', 'store_lost')"),
        0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream WHERE seq "
                                       "> 3 OR state != 'dead'"),
                     0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream") + bad +
                         newer,
                     epoch - 999);
    assert_int_equal(count_files(JOURNAL_SUFFIX), newer);
    oracle_run(&ingest.rig, "run");
    free(m.image);
    oracle_held(21, epoch - 1000,
                "bits of a journal flipped, then taken over or set aside");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_journal_bits__each_bit_flipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
