/* Old and new side by side: what has something in common works, and what has
 * not is refused with the numbers and left alone. */
#include "tests/lib/ingest.h"
#include "tests/lib/oracle.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/crc32c.h"
#include "proto/journal.h"
#include "proto/place.h"
#include "proto/query.h"
#include "tracerd/client.h"

static uint8_t bytes[RIG_FRAME_BYTES];

/* ---- frames ---- */

static void refused(const struct hello *h, const char *why)
{
    char text[WIRE_REASON_MAX + 1];
    assert_false(rig_greet(&ingest.rig, &ingest.c, 77, h));
    assert_int_equal(ingest.c.refusal.reason, REASON_VERSION);
    assert_int_equal(ingest.c.refusal.retry_ms, 0);
    snprintf(text, sizeof text, "%.*s", (int)ingest.c.refusal.text.n,
             ingest.c.refusal.text.text);
    assert_string_equal(text, why);
    rig_hung_up(ingest.c.fd);
    rig_close(&ingest.c);
}

static void test_versions__clients_of_other_versions(void **state)
{
    struct hello h = rig_hello();
    (void)state;
    oracle_start(&ingest.rig);
    h.version_min = 2;
    h.version_max = 3;
    refused(&h, "the client speaks versions 2 to 3, this daemon version 1");
    h.version_min = h.version_max = 0;
    refused(&h, "the client speaks versions 0 to 0, this daemon version 1");
    h.version_min = 1;
    h.version_max = 5;
    h.required = 0x80000004;
    refused(&h,
            "the client requires features 0x80000004, which this daemon has "
            "not");
    h.required = 0;
    h.features = 0xffffffff; /* it can do without */
    assert_true(rig_greet(&ingest.rig, &ingest.c, 77, &h));
    assert_int_equal(ingest.c.welcome.version, 1);
    assert_int_equal(ingest.c.welcome.features & ~h.features, 0);
    ingest_send_dict();
    ingest_send_records(1, 3);
    rig_committed(&ingest.c, 3);
    rig_close(&ingest.c);
    /* a hello may come in a frame of any version: it tells what it can */
    ingest.c.fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
    rig_hello_frame(bytes, 78, &h);
    {
        struct frame f;
        assert_int_equal(frame_get(bytes, &f), 0);
        f.version = 2;
        frame_put(bytes, &f);
        rig_write(ingest.c.fd, bytes, FRAME_HEADER_BYTES + f.len);
    }
    rig_expect(&ingest.c, FRAME_WELCOME);
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
    oracle_run(&ingest.rig, "run");
    oracle_held(41, 5, "clients of versions 0 to 5, required features");
}

static void send_version(uint16_t version, uint16_t type, uint32_t flags)
{
    struct frame f = {.version = version,
                      .type = type,
                      .len = 16,
                      .epoch = 77,
                      .flags = flags};
    static const uint8_t clocks[16];
    f.crc = crc32c(0, clocks, sizeof clocks);
    frame_put(bytes, &f);
    memcpy(bytes + FRAME_HEADER_BYTES, clocks, sizeof clocks);
    rig_write(ingest.c.fd, bytes, FRAME_HEADER_BYTES + sizeof clocks);
}

static void test_versions__frames_of_other_versions_and_types(void **state)
{
    uint64_t cases = 0;
    (void)state;
    oracle_start(&ingest.rig);
    for (unsigned version = 0; version < 5; version++) {
        rig_open(&ingest.rig, &ingest.c, 77);
        send_version((uint16_t)version, FRAME_PING, 0);
        if (version == 1) {
            rig_expect(&ingest.c, FRAME_PONG);
        } else {
            char why[64];
            snprintf(why, sizeof why,
                     "a frame of version %u; this daemon speaks version 1",
                     version);
            rig_expect(&ingest.c, FRAME_NACK);
            assert_int_equal(ingest.c.refusal.reason, REASON_VERSION);
            assert_slice(ingest.c.refusal.text, why);
            rig_hung_up(ingest.c.fd);
        }
        rig_close(&ingest.c);
        cases++;
    }
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    for (uint64_t seq = 1; seq < 4; seq++) {
        send_version(1, (uint16_t)(FRAME_BYE + seq * seq), FRAME_OPTIONAL);
        ingest_send_records(seq, 1);
        rig_committed(&ingest.c, seq);
        cases++;
    }
    send_version(1, 99, 0);
    ingest_nack(REASON_MALFORMED);
    rig_stop(&ingest.rig);
    oracle_run(&ingest.rig, "run");
    oracle_held(41, cases, "frames of versions 0 to 4, unknown types");
}

/* Every message with more behind it than this daemon knows. */
static void test_versions__more_in_every_message(void **state)
{
    enum { MORE = 50 };
    struct hello h = rig_hello();
    struct gap g = {4, 5, 0, TRD_LOST_OOM};
    struct ping p = {1, 2};
    uint8_t payload[1024];
    size_t n;
    (void)state;
    memset(payload, 0x5a, sizeof payload);
    oracle_start(&ingest.rig);
    h.block_ms = 250; /* the last field that there is */
    assert_int_equal(hello_put(&h, payload, sizeof payload, &n), 0);
    memset(&ingest.c, 0, sizeof ingest.c);
    ingest.c.epoch = 77;
    ingest.c.fd = rig_connect(ingest.rig.dir, PLACE_INGEST);
    rig_send(&ingest.c, FRAME_HELLO, 0, payload, n + MORE);
    rig_expect(&ingest.c, FRAME_WELCOME);
    ingest_send_dict();
    ingest_send_records(1, 3);
    assert_int_equal(gap_put(&g, payload, sizeof payload, &n), 0);
    rig_send(&ingest.c, FRAME_GAP, 4, payload, n + MORE);
    assert_int_equal(ping_put(&p, payload, sizeof payload, &n), 0);
    rig_send(&ingest.c, FRAME_PING, 0, payload, n + MORE);
    rig_expect(&ingest.c, FRAME_PONG);
    rig_send(&ingest.c, FRAME_BYE, 5, payload, MORE);
    rig_durable(&ingest.c, 5);
    rig_hung_up(ingest.c.fd);
    rig_stop(&ingest.rig);
    ingest_values("run", 77);
    oracle_run(&ingest.rig, "run");
    oracle_held(41, 4, "unknown fields behind hello, gap, ping, bye");
}

/* ---- questions ---- */

static void test_versions__a_question_of_another_version(void **state)
{
    static const uint8_t greeting[] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct query q;
    struct page page;
    uint8_t request[512], head[9] = {1}, got[1024];
    size_t n;
    int fd;
    (void)state;
    oracle_start(&ingest.rig);
    query_init(&q, QUERY_RUNS);
    assert_int_equal(query_put(&q, request + 4, sizeof request - 4, &n), 0);
    memcpy(request, "\x80\0\0\0", 4);
    request[8] = 2; /* behind the magic */
    head[8] = (uint8_t)(n + 4);
    fd = rig_connect(ingest.rig.dir, PLACE_QUERY);
    rig_write(fd, greeting, sizeof greeting);
    rig_write(fd, head, sizeof head);
    rig_write(fd, request, n + 4);
    assert_true(rig_read(fd, got, sizeof greeting + sizeof head));
    n = got[sizeof greeting + 8] + 256u * got[sizeof greeting + 7];
    assert_true(n <= sizeof got && rig_read(fd, got, n));
    assert_int_equal(page_get(got + 4, n - 4, &page), 0);
    assert_int_equal(page.status, PAGE_BAD);
    assert_slice(page.message,
                 "a request of version 2; this daemon answers version 1");
    close(fd);
    rig_stop(&ingest.rig);
    oracle_held(41, 1, "a question of version 2");
}

/* ---- files ---- */

static void test_versions__a_journal_of_another_version(void **state)
{
    static const uint8_t two[4] = {2};
    struct oracle_file file;
    char path[2 * RIG_PATH];
    int fd;
    (void)state;
    rig_journal(&ingest.rig, "newer", 77, 3, 0, false);
    snprintf(path, sizeof path, "%s/newer" JOURNAL_SUFFIX, ingest.rig.dir);
    fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, two, 4, 8), 4);
    close(fd);
    oracle_file(&file, path);
    rig_journal(&ingest.rig, "ours", 78, 3, 0, false);
    oracle_start(&ingest.rig);
    rig_logged(&ingest.rig, "version 2; this daemon reads version 1");
    snprintf(path, sizeof path, "%s/ours" JOURNAL_SUFFIX, ingest.rig.dir);
    rig_until(access(path, F_OK) != 0); /* it holds up no other */
    oracle_untouched(&file);
    rig_stop(&ingest.rig);
    oracle_untouched(&file);
    ingest_values("run", 78);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream"), 1);
    oracle_run(&ingest.rig, "run");
    oracle_held(41, 1, "a journal of version 2 in the directory");
}

static void test_versions__a_run_of_another_version(void **state)
{
    struct oracle_file file;
    char path[2 * RIG_PATH], command[4 * RIG_PATH], text[1024] = "";
    sqlite3 *db = NULL;
    FILE *said;
    (void)state;
    oracle_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77);
    ingest_send_dict();
    ingest_send_records(1, 3);
    rig_committed(&ingest.c, 3);
    rig_close(&ingest.c);
    rig_stop(&ingest.rig);
    snprintf(path, sizeof path, "%s/run.db", ingest.rig.data);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "PRAGMA user_version = 2; PRAGMA "
                                      "wal_checkpoint(TRUNCATE)",
                                  NULL, NULL, NULL),
                     SQLITE_OK);
    sqlite3_close(db);
    oracle_file(&file, path);
    oracle_start(&ingest.rig);
    rig_open(&ingest.rig, &ingest.c, 77); /* the same stream */
    assert_string_equal(ingest.c.run, "run-2");
    assert_int_equal(ingest.c.welcome.committed_seq, 0);
    ingest_send_dict();
    ingest_send_records(1, 3);
    rig_committed(&ingest.c, 3);
    rig_close(&ingest.c);
    oracle_untouched(&file);
    snprintf(command, sizeof command, "%s -d %s runs 2>&1",
             getenv("TRD_TRACECTL"), path);
    said = popen(command, "r");
    assert_non_null(said);
    while (fgets(text + strlen(text), (int)(sizeof text - strlen(text)), said))
        continue;
    assert_int_equal(WEXITSTATUS(pclose(said)), 3);
    assert_non_null(strstr(text, "has format 2, this tracectl reads format 1"));
    rig_stop(&ingest.rig);
    oracle_untouched(&file);
    ingest_values("run-2", 77);
    oracle_run(&ingest.rig, "run-2");
    oracle_held(41, 1, "a run of version 2 in the daemon's and our hands");
}

/* ---- a client with another daemon ---- */

enum answer { ANSWER_REFUSE, ANSWER_WELCOME, ANSWER_FRAME, ANSWER_GARBAGE };

/* A daemon of another version. */
static struct {
    int fd;
    enum answer answer;
    _Atomic unsigned hellos, stop;
} fake;

static size_t fake_answer(uint64_t epoch)
{
    uint8_t payload[1024];
    struct welcome w = {.version = fake.answer == ANSWER_WELCOME ? 2 : 1,
                        .max_len = FRAME_MAX_BYTES,
                        .credit_bytes = FRAME_MAX_BYTES,
                        .idle_ms = IDLE_MS,
                        .run = slice_of("run")};
    struct refusal r = {REASON_VERSION, 20, slice_of("version 2 only")};
    size_t n = 0;
    if (fake.answer == ANSWER_REFUSE) {
        refusal_put(&r, payload, sizeof payload, &n);
        return rig_frame(bytes, epoch, FRAME_REFUSE, 0, payload, n);
    }
    welcome_put(&w, payload, sizeof payload, &n);
    n = rig_frame(bytes, epoch, FRAME_WELCOME, 0, payload, n);
    if (fake.answer == ANSWER_FRAME) {
        struct frame f = {.version = 2,
                          .type = FRAME_WELCOME,
                          .len = (uint32_t)n - FRAME_HEADER_BYTES,
                          .epoch = epoch};
        f.crc = crc32c(0, bytes + FRAME_HEADER_BYTES, f.len);
        frame_put(bytes, &f);
    }
    if (fake.answer == ANSWER_GARBAGE)
        memset(bytes, 0xee, n);
    return n;
}

static void *be_daemon(void *none)
{
    (void)none;
    while (!fake.stop) {
        struct pollfd p = {.fd = fake.fd, .events = POLLIN};
        uint8_t head[FRAME_HEADER_BYTES];
        struct frame f;
        int fd;
        if (poll(&p, 1, 10) <= 0)
            continue;
        fd = accept(fake.fd, NULL, NULL);
        if (fd < 0)
            continue;
        if (recv(fd, head, sizeof head, MSG_WAITALL) == (ssize_t)sizeof head &&
            !frame_get(head, &f)) {
            fake.hellos++;
            rig_write_any(fd, bytes, fake_answer(f.epoch));
        }
        close(fd);
    }
    return NULL;
}

static void listen_at(const char *dir)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    mkdir(dir, 0700);
    assert_int_equal(
        place_socket(dir, PLACE_INGEST, a.sun_path, sizeof a.sun_path), 0);
    unlink(a.sun_path);
    fake.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fake.fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fake.fd, 8), 0);
}

static int submit(struct trd_client *c, uint32_t site, uint64_t from,
                  uint64_t n)
{
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
    for (uint64_t i = from; i < from + n; i++) {
        struct trd_when when = {.step = i, .iteration = i, .microbatch = 1};
        if (trd_submit_cpu(c, site, &when, &t, 16))
            return 1;
    }
    return 0;
}

static void check_client(enum answer answer, int error, const char *run)
{
    struct trd_site s = {.pass = TRD_FORWARD, .io = TRD_OUTPUT, .instance = 1,
                         .class_name = "Linear", .module = "m", .path = "0"};
    struct trd_client_options o;
    struct trd_counters n;
    struct trd_client *c;
    pthread_t thread;
    uint32_t site;
    fake.answer = answer;
    fake.hellos = fake.stop = 0;
    listen_at(ingest.rig.dir);
    assert_int_equal(pthread_create(&thread, NULL, be_daemon, NULL), 0);
    trd_client_options_init(&o);
    o.dir = ingest.rig.dir;
    o.run = run;
    o.job = "job";
    o.journal_bytes = 1 << 20;
    assert_int_equal(trd_client_open(&o, &c), 0);
    assert_int_equal(trd_site(c, &s, &site), 0);
    assert_int_equal(submit(c, site, 1, 50), 0);
    rig_until(fake.hellos >= 3); /* again and again */
    rig_until((trd_counters(c, &n), n.last_error == error));
    assert_int_equal(n.connected, 0);
    assert_int_equal(n.connects, 0);
    assert_int_equal(n.committed, 0);
    fake.stop = 1;
    pthread_join(thread, NULL);
    close(fake.fd);
    /* another takes its place */
    oracle_start(&ingest.rig);
    assert_int_equal(submit(c, site, 51, 50), 0);
    assert_int_equal(trd_flush(c, 30000), 0);
    trd_counters(c, &n);
    assert_int_equal(n.last_error, 0);
    assert_int_equal(n.connects, 1);
    trd_client_close(c);
    oracle_process(&ingest.rig, run, getpid(), 100, 0, 0);
    rig_stop(&ingest.rig);
    oracle_run(&ingest.rig, run);
}

static void test_versions__a_client_with_another_daemon(void **state)
{
    (void)state;
    check_client(ANSWER_REFUSE, TRD_EVERSION, "a");
    check_client(ANSWER_WELCOME, TRD_EVERSION, "b");
    check_client(ANSWER_FRAME, TRD_EVERSION, "c");
    check_client(ANSWER_GARBAGE, TRD_ECORRUPT, "d");
    oracle_held(41, 4, "a client with a daemon of version 2, then of ours");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ingest_test(test_versions__clients_of_other_versions),
        ingest_test(test_versions__frames_of_other_versions_and_types),
        ingest_test(test_versions__more_in_every_message),
        ingest_test(test_versions__a_question_of_another_version),
        ingest_test(test_versions__a_journal_of_another_version),
        ingest_test(test_versions__a_run_of_another_version),
        ingest_test(test_versions__a_client_with_another_daemon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
