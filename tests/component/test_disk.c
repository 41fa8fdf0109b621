/* A full data disk: a small tmpfs over the data directory, in a mount
 * namespace of this program's own. Needs the right to mount; without it the
 * program is skipped. */
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include <errno.h>
#include <fcntl.h>
#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "proto/query.h"
#include "tracerd/client.h"

enum { DISK_MIB = 16 };

static int set_up(void **state)
{
    char size[32];
    ingest_set_up(state);
    assert_int_equal(mkdir(ingest.rig.data, 0700), 0);
    snprintf(size, sizeof size, "size=%dm,mode=0700", (int)DISK_MIB);
    assert_int_equal(mount("tmpfs", ingest.rig.data, "tmpfs", 0, size), 0);
    return 0;
}

static int tear_down(void **state)
{
    if (ingest.rig.pid)
        rig_kill(&ingest.rig);
    umount2(ingest.rig.data, MNT_DETACH);
    umount2(ingest.rig.dir, MNT_DETACH);
    return ingest_tear_down(state);
}

static uint64_t free_bytes(void)
{
    struct statvfs v;
    assert_int_equal(statvfs(ingest.rig.data, &v), 0);
    return (uint64_t)v.f_bavail * v.f_frsize;
}

static const char *ballast(void)
{
    static char path[2 * RIG_PATH];
    snprintf(path, sizeof path, "%s/ballast", ingest.rig.data);
    return path;
}

/* Somebody else fills the disk but for so many bytes. */
static void fill_disk(uint64_t left)
{
    uint64_t want = free_bytes();
    struct stat st = {.st_size = 0};
    int fd = open(ballast(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    assert_true(want > left);
    assert_int_equal(posix_fallocate(fd, st.st_size, (off_t)(want - left)), 0);
    close(fd);
}

static void clear_disk(void)
{
    assert_int_equal(unlink(ballast()), 0);
}

static bool has_reserve(void)
{
    char path[2 * RIG_PATH];
    struct stat st;
    snprintf(path, sizeof path, "%s/.reserve", ingest.rig.data);
    return stat(path, &st) == 0 && st.st_blocks > 0;
}

/* A question over the socket: the first cell of the page, -1 for none; of
 * the status the value of key. */
static int64_t ask(uint32_t verb, const char *sql, const char *key)
{
    char url[RIG_PATH + 64];
    uint8_t request[1024];
    struct cell cell[PAGE_MAX_COLUMNS];
    struct query q;
    struct page page;
    void *reply;
    size_t n;
    int64_t v = -1;
    int got, sock = nn_socket(AF_SP, NN_REQ);
    query_init(&q, verb);
    q.run = slice_of(sql ? "run" : "");
    q.sql = slice_of(sql ? sql : "");
    snprintf(url, sizeof url, "ipc://%s/query.sock", ingest.rig.dir);
    assert_int_equal(query_put(&q, request, sizeof request, &n), 0);
    assert_true(nn_connect(sock, url) >= 0);
    assert_int_equal(nn_send(sock, request, n, 0), n);
    got = nn_recv(sock, &reply, NN_MSG, 0);
    assert_true(got > 0);
    assert_int_equal(page_get(reply, (size_t)got, &page), 0);
    if (page.status != PAGE_OK)
        print_message("status %d: %.*s\n", (int)page.status,
                      (int)page.message.n, page.message.text);
    while (page.status == PAGE_OK && page_row(&page, cell)) {
        if (!key && v < 0)
            v = cell[0].i;
        if (key && cell[0].s.n == strlen(key) &&
            !memcmp(cell[0].s.text, key, cell[0].s.n))
            v = cell[1].type == CELL_INT ? cell[1].i : 1;
    }
    nn_freemsg(reply);
    nn_close(sock);
    return v;
}

/* The run is whole and has all that this process sent. Stops the daemon. */
static void all_held(const char *how, uint64_t sent)
{
    oracle_process(&ingest.rig, "run", getpid(), sent, 0, 0);
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
    oracle_held(11, 1, how);
}

static int64_t state_of(const char *key)
{
    return ask(QUERY_STATUS, NULL, key);
}

/* Reads acknowledgements until the credit is, or is not, zero. */
static void wait_credit(bool some)
{
    while ((ingest.c.ack.credit_bytes > 0) != some)
        rig_expect(&ingest.c, FRAME_ACK);
}

static void test_disk__full_while_records_come(void **state)
{
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
    assert_true(ingest.c.ack.credit_bytes > 0);
    assert_true(has_reserve());
    assert_int_equal(state_of("disk_full"), 0);
    assert_int_equal(state_of("problem"), -1);

    fill_disk(4096);
    /* what is in hand goes where the reserve was, and then nothing */
    ingest_send_records(11, 500);
    ingest_send_records(511, 500);
    rig_durable(&ingest.c, 1010);
    wait_credit(false);
    assert_false(has_reserve());
    rig_logged(&ingest.rig, "disk_full");
    assert_int_equal(state_of("disk_full"), 1);
    assert_int_equal(state_of("problem"), 1);
    assert_int_equal(state_of("store_failures"), 0);
    assert_int_equal(ask(QUERY_SQL, "SELECT count(*) FROM record", NULL),
                     1010);

    clear_disk();
    wait_credit(true);
    rig_logged(&ingest.rig, "disk_room");
    assert_true(has_reserve());
    assert_int_equal(state_of("disk_full"), 0);
    assert_int_equal(state_of("problem"), -1);
    ingest_send_records(1011, 10);
    rig_durable(&ingest.c, 1020);
    ingest_contiguous("run", 1020);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    rig_close(&ingest.c);
    all_held("the disk runs full while records come", 1020);
}

/* A client that does not mind its credit comes to the disk's true end. */
static void test_disk__nothing_fits_any_more(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
    fill_disk(4096);
    wait_credit(false);
    fill_disk(4096);
    ingest_send_records(11, 500);
    rig_expect(&ingest.c, FRAME_NACK);
    assert_int_equal(ingest.c.refusal.reason, REASON_STORE);
    rig_close(&ingest.c);
    assert_true(rig_alive(&ingest.rig));
    clear_disk();
    rig_logged(&ingest.rig, "disk_room");
    rig_until(rig_greet(&ingest.rig, &ingest.c, 77, &h) ||
              (rig_close(&ingest.c), false));
    assert_int_equal(ingest.c.welcome.committed_seq, 10);
    ingest_send_records(11, 500);
    rig_durable(&ingest.c, 510);
    ingest_contiguous("run", 510);
    rig_close(&ingest.c);
    all_held("no byte is free for what comes", 510);
}

static void fill_run(void)
{
    rig_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
}

/* Serves questions, refuses new runs, and recovers. */
static void start_full(void)
{
    struct hello h = rig_hello();
    rig_start(&ingest.rig);
    rig_logged(&ingest.rig, "disk_full");
    assert_int_equal(state_of("disk_full"), 1);
    assert_int_equal(state_of("problem"), 1);
    assert_int_equal(ask(QUERY_SQL, "SELECT count(*) FROM record", NULL), 10);
    h.run = slice_of("other");
    assert_false(rig_greet(&ingest.rig, &ingest.c, 78, &h));
    assert_int_equal(ingest.c.refusal.reason, REASON_STORE);
    assert_true(ingest.c.refusal.retry_ms > 0);
    assert_non_null(memmem(ingest.c.refusal.text.text,
                           ingest.c.refusal.text.n, "full", 4));
    rig_close(&ingest.c);
    clear_disk();
    rig_logged(&ingest.rig, "disk_room");
    assert_true(rig_greet(&ingest.rig, &ingest.c, 78, &h));
    assert_true(ingest.c.welcome.credit_bytes > 0);
    ingest_send_dict();
    ingest_send_records(1, 10);
    rig_durable(&ingest.c, 10);
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
    ingest_contiguous("other", 10);
    oracle_run(&ingest.rig, "other");
    rig_start(&ingest.rig);
    all_held("a start with a full disk", 10);
}

static void test_disk__a_start_when_it_is_full(void **state)
{
    (void)state;
    fill_run();
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
    assert_true(has_reserve());
    fill_disk(0);
    start_full();
}

/* After a kill the WAL is there and its index is not; no byte is free. */
static void test_disk__a_start_without_room_for_anything(void **state)
{
    char command[4 * RIG_PATH];
    (void)state;
    fill_run();
    rig_close(&ingest.c);
    rig_kill(&ingest.rig);
    snprintf(command, sizeof command,
             "cd %s && rm -f .reserve run.db-shm tracerd.lock && "
             "test -s run.db-wal",
             ingest.rig.data);
    assert_int_equal(system(command), 0);
    fill_disk(0);
    start_full();
}

/* Journals stay where they are until there is room. */
static void test_disk__a_journal_waits_for_room(void **state)
{
    (void)state;
    fill_run();
    rig_close(&ingest.c);
    fill_disk(4096);
    rig_until(state_of("disk_full") == 1);
    rig_journal(&ingest.rig, "left", 99, 50, 0, false);
    usleep(3500 * 1000);
    assert_int_equal(state_of("journals_adopted"), 0);
    assert_int_equal(state_of("journals_bad"), 0);
    clear_disk();
    rig_until(state_of("journals_adopted") == 1);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), 60);
    oracle_process(&ingest.rig, "run", 1, 50, 0, 0);
    all_held("a journal waits for room", 10);
}

/* A journal that does not fit is none: records are kept in memory, and come
 * to a daemon that is there. */
static void test_disk__no_room_for_a_journal(void **state)
{
    struct trd_client_options o;
    struct trd_client *c = NULL;
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    uint32_t id = 0;
    char command[2 * RIG_PATH];
    (void)state;
    assert_int_equal(mkdir(ingest.rig.dir, 0700), 0);
    assert_int_equal(mount("tmpfs", ingest.rig.dir, "tmpfs", 0,
                           "size=4m,mode=0700"),
                     0);
    rig_start(&ingest.rig);
    trd_client_options_init(&o);
    o.dir = ingest.rig.dir;
    o.run = "run";
    o.journal_bytes = 8 << 20;
    assert_int_equal(trd_client_open(&o, &c), 0);
    assert_int_equal(trd_site(c, &s, &id), 0);
    snprintf(command, sizeof command, "! ls %s | grep journal",
             ingest.rig.dir);
    assert_int_equal(system(command), 0);
    for (uint64_t i = 1; i <= 500; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        assert_int_equal(trd_submit_cpu(c, id, &when, &t, 4), 0);
    }
    assert_int_equal(trd_flush(c, RIG_WAIT_MS), 0);
    trd_client_close(c);
    oracle_process(&ingest.rig, "run", getpid(), 500, 0, 0);
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
    umount2(ingest.rig.dir, MNT_DETACH);
    oracle_held(10, 1, "a journal on a disk that is too small");
}

int main(void)
{
#define DISK(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        DISK(test_disk__full_while_records_come),
        DISK(test_disk__nothing_fits_any_more),
        DISK(test_disk__a_start_when_it_is_full),
        DISK(test_disk__a_start_without_room_for_anything),
        DISK(test_disk__a_journal_waits_for_room),
        DISK(test_disk__no_room_for_a_journal),
    };
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) {
        print_message("not allowed to mount: %s\n", strerror(errno));
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
