/* What a dead process left in its spool, whole and damaged, and what others put
 * in its place: by the daemon, by the process that reads it back, by tracectl.
 */
#include "tests/lib/outage.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/crc32c.h"
#include "proto/journal.h"
#include "proto/spool.h"

/* ---- what a dead process left ---- */

struct image {
    char path[4 * RIG_PATH];
    uint8_t *bytes;
    size_t n;
};

static struct image load(const char *path)
{
    struct image m;
    struct stat st;
    int fd;
    assert_non_null(path);
    snprintf(m.path, sizeof m.path, "%s", path);
    fd = open(m.path, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    m.n = (size_t)st.st_size;
    m.bytes = malloc(m.n);
    assert_non_null(m.bytes);
    assert_int_equal(read(fd, m.bytes, m.n), m.n);
    close(fd);
    return m;
}

static void save(const struct image *m)
{
    int fd = open(m->path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, m->bytes, m->n), m->n);
    close(fd);
}

/* Leaves a journal and a spool. */
static void leave(uint64_t records)
{
    told->records = records;
    outage_start(NULL);
    assert_int_equal(outage_end(), 0);
    assert_int_equal(told->accepted, records);
    assert_non_null(outage_spool());
    assert_non_null(outage_journal());
}

/* With a daemon: nothing stays. */
static void leave_more(void)
{
    told->stay = 1;
    told->go = 1;
    outage_start(NULL);
    assert_int_equal(outage_end(), 0);
    outage_check(0);
}

/* The last record that the journal says is in the spool. */
static uint64_t moved(void)
{
    struct image m = load(outage_journal());
    struct journal_state state;
    assert_int_equal(journal_state_get(m.bytes, &state), 0);
    free(m.bytes);
    return state.durable_seq;
}

/* The daemon counts what the spool had as lost, and takes the rest. */
static void check_lost(uint64_t lost)
{
    oracle_start(&ingest.rig);
    outage_until(!outage_journal());
    assert_int_equal(outage_lost("store_lost"), lost);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"),
                     OUTAGE_MANY - lost);
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
}

static void test_spool__file_that_is_gone(void **state)
{
    uint64_t n;
    (void)state;
    leave(OUTAGE_MANY);
    n = moved();
    assert_true(n > OUTAGE_MANY / 2);
    assert_int_equal(unlink(outage_spool()), 0);
    check_lost(n);
    oracle_held(36, 1, "a spool that was deleted");
}

/* Its disk is not mounted when the daemon starts. */
static void test_spool__directory_that_comes_later(void **state)
{
    char aside[3 * RIG_PATH];
    (void)state;
    leave(OUTAGE_MANY);
    snprintf(aside, sizeof aside, "%s.aside", outage_dir);
    assert_int_equal(rename(outage_dir, aside), 0);
    oracle_start(&ingest.rig);
    rig_logged(&ingest.rig, "No such file or directory");
    assert_non_null(outage_journal());
    assert_int_equal(rename(aside, outage_dir), 0);
    outage_check(0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    rig_stop(&ingest.rig);
}

static void test_spool__file_that_was_cut(void **state)
{
    struct image m;
    uint64_t n;
    (void)state;
    leave(OUTAGE_MANY);
    n = moved();
    m = load(outage_spool());
    assert_int_equal(truncate(m.path, (off_t)m.n / 2), 0);
    oracle_start(&ingest.rig);
    outage_until(!outage_journal());
    assert_null(outage_spool());
    assert_in_range(outage_lost("store_lost"), n / 2 - 2, n / 2 + 2);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record") +
                         outage_lost("store_lost"),
                     OUTAGE_MANY);
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
    free(m.bytes);
    oracle_held(36, 1, "a spool that was cut");
}

/* The journal names another path. */
static void rename_in_journal(const char *path)
{
    struct image m = load(outage_journal());
    struct journal_head head;
    struct hello h;
    static uint8_t hello[JOURNAL_HELLO_MAX];
    size_t n;
    assert_int_equal(journal_head_get(m.bytes, m.n, &head), 0);
    assert_int_equal(journal_hello_get(m.bytes, &head, &h), 0);
    h.spool = slice_of(path);
    assert_int_equal(hello_put(&h, hello, sizeof hello, &n), 0);
    memcpy(m.bytes + JOURNAL_HELLO_AT, hello, n);
    head.hello_bytes = (uint32_t)n;
    head.hello_crc = crc32c(0, hello, n);
    journal_head_put(m.bytes, &head);
    save(&m);
    free(m.bytes);
}

/* No file but the one of the stream is opened, let alone removed. */
static void test_spool__hostile_paths(void **state)
{
    static const char *const forms[] = {
        "/etc/passwd", "%s/../spool/x.spool", "relative.spool", "%s",
        "/", "%s/",
    };
    size_t n_forms = sizeof forms / sizeof *forms;
    for (size_t i = 0; i < n_forms; i++) {
        struct oracle_file file;
        char path[3 * RIG_PATH];
        uint64_t n;
        if (i) {
            outage_tear_down(state);
            outage_set_up(state);
        }
        leave(OUTAGE_MANY);
        n = moved();
        oracle_file(&file, outage_spool());
        /* every form but the first names the directory or not */
        if (strstr(forms[i], "%s")) {
            const char *tail = strchr(forms[i], 's') + 1;
            snprintf(path, sizeof path, "%s%s", outage_dir, tail);
        } else {
            snprintf(path, sizeof path, "%s", forms[i]);
        }
        rename_in_journal(path);
        check_lost(n);
        oracle_untouched(&file);
        rig_logged(&ingest.rig, "its path is not that of a spool");
        unlink(outage_spool());
    }
    oracle_held(33, n_forms, "a journal that names a foreign spool");
}

/* The right name, but something else is there. */
static void test_spool__hostile_files(void **state)
{
    enum { LINK, FIFO, OPEN, OWNER, DIRECTORY, EPOCH, HEAD, KINDS };
    for (int kind = LINK; kind < KINDS; kind++) {
        struct image m;
        uint64_t n;
        char aside[3 * RIG_PATH];
        struct oracle_file file;
        if (kind) {
            outage_tear_down(state);
            outage_set_up(state);
        }
        if (kind == OWNER && geteuid() != 0)
            continue;
        leave(OUTAGE_MANY);
        n = moved();
        m = load(outage_spool());
        snprintf(aside, sizeof aside, "%s/aside", outage_dir);
        switch (kind) {
        case LINK:
            assert_int_equal(rename(m.path, aside), 0);
            assert_int_equal(symlink(aside, m.path), 0);
            break;
        case FIFO:
            unlink(m.path);
            assert_int_equal(mkfifo(m.path, 0600), 0);
            break;
        case OPEN:
            assert_int_equal(chmod(m.path, 0644), 0);
            break;
        case OWNER:
            assert_int_equal(chown(m.path, 12345, 12345), 0);
            break;
        case DIRECTORY:
            assert_int_equal(chmod(outage_dir, 0777), 0);
            break;
        case EPOCH: {
            struct spool_head h;
            assert_int_equal(spool_head_get(m.bytes, m.n, &h), 0);
            h.epoch ^= UINT64_C(1) << 40; /* its name stays */
            spool_head_put(m.bytes, &h);
            save(&m);
            break;
        }
        default:
            m.bytes[9] ^= 1;
            save(&m);
        }
        oracle_file(&file, m.path);
        check_lost(n);
        oracle_untouched(&file);
        unlink(m.path);
        unlink(aside);
        free(m.bytes);
    }
    oracle_held(33, KINDS, "something else in the place of a spool");
}

/* ---- flipped bits ---- */

/* Each entry that is read is one of the file, at its number. */
static void walk_flipped(const uint8_t *bytes, size_t n, uint64_t records,
                         const uint32_t *crc)
{
    struct spool_head h;
    struct spool_walk w;
    struct hello hello;
    struct entry e;
    uint64_t seq, last = 0;
    size_t at, used;
    enum spool_step step;
    if (spool_head_get(bytes, n, &h))
        return;
    assert_int_equal(h.first_seq, 1);
    spool_hello_get(bytes, n, &h, &hello);
    spool_walk_init(&w, &h);
    for (at = spool_entries_at(&h);; at += used) {
        step = spool_next(&w, bytes + at, n - at, true, &used, &e, &seq);
        if (step == SPOOL_END)
            break;
        if (step == SPOOL_WORD)
            continue;
        assert_int_equal(seq, last + 1);
        last = step == SPOOL_HOLE ? w.seq - 1 : seq;
        assert_in_range(last, 1, records);
        if (step == SPOOL_ENTRY)
            assert_int_equal(crc32c(0, e.body, e.body_n), crc[seq]);
    }
    assert_true(last + 1 >= records);
}

/* The front of a real one: head, hello, words and some records. */
static void test_spool__each_bit_flipped(void **state)
{
    struct image m;
    struct spool_head h;
    struct spool_walk w;
    struct entry e;
    uint64_t seq, records = 0;
    uint32_t crc[8] = {0};
    size_t at, used = 0;
    (void)state;
    leave(OUTAGE_MANY);
    m = load(outage_spool());
    assert_int_equal(spool_head_get(m.bytes, m.n, &h), 0);
    spool_walk_init(&w, &h);
    for (at = spool_entries_at(&h); records < 3; at += used)
        if (spool_next(&w, m.bytes + at, m.n - at, true, &used, &e, &seq) ==
            SPOOL_ENTRY)
            crc[++records] = crc32c(0, e.body, e.body_n);
    walk_flipped(m.bytes, at, records, crc);
    for (size_t bit = 0; bit < 8 * at; bit++) {
        m.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        walk_flipped(m.bytes, at, records, crc);
        m.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    unlink(m.path);
    free(m.bytes);
    oracle_held(21, 8 * at, "each bit of a spool segment");
}

/* By the daemon, at some places. */
static void test_spool__flipped_bits_are_counted(void **state)
{
    enum { FLIPS = 12 };
    for (int i = 0; i < FLIPS; i++) {
        struct image m;
        size_t at;
        if (i) {
            outage_tear_down(state);
            outage_set_up(state);
        }
        leave(OUTAGE_MANY);
        m = load(outage_spool());
        /* of records: behind the words, before the last of them */
        at = m.n / 4 + (size_t)i * (m.n / 2 / FLIPS);
        m.bytes[at] ^= (uint8_t)(1u << i % 8);
        save(&m);
        free(m.bytes);
        oracle_start(&ingest.rig);
        outage_until(!outage_journal());
        assert_null(outage_spool());
        assert_int_equal(outage_lost("torn") + outage_lost("error") +
                             ingest_ask("run",
                                        "SELECT count(*) FROM record"),
                         OUTAGE_MANY);
        assert_in_range(outage_lost("torn"), 0, 1);
        oracle_run(&ingest.rig, "run");
        rig_stop(&ingest.rig);
    }
    oracle_held(21, FLIPS, "a bit of a spool that the daemon takes");
}

/* By its own process, which reads it back. */
static void test_spool__flipped_while_its_process_lives(void **state)
{
    struct image m;
    int fd;
    (void)state;
    told->stay = 1;
    outage_start(NULL);
    outage_until(told->submitted);
    m = load(outage_spool());
    fd = open(m.path, O_WRONLY);
    m.bytes[m.n / 2] ^= 4;
    assert_int_equal(pwrite(fd, m.bytes + m.n / 2, 1, (off_t)(m.n / 2)), 1);
    close(fd);
    oracle_start(&ingest.rig);
    outage_until(!outage_spool());
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    outage_check(0);
    assert_int_equal(outage_lost("torn"), 1);
    rig_stop(&ingest.rig);
    free(m.bytes);
}

static void test_spool__cut_while_its_process_lives(void **state)
{
    (void)state;
    told->stay = 1;
    outage_start(NULL);
    outage_until(told->submitted);
    assert_int_equal(truncate(outage_spool(), OUTAGE_RING), 0);
    oracle_start(&ingest.rig);
    outage_until(!outage_spool());
    told->go = 1;
    assert_int_equal(outage_end(), 0);
    outage_check(0);
    assert_true(outage_lost("torn") > 0);
    rig_stop(&ingest.rig);
}

/* ---- tracectl ---- */

/* Its exit code; what it says goes to a file of the rig. */
static int tracectl(const char *verb, const char *file)
{
    const char *program = getenv("TRD_TRACECTL");
    char said[2 * RIG_PATH];
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        snprintf(said, sizeof said, "%s/said", ingest.rig.base);
        int fd = open(said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        execl(program, program, "-s", ingest.rig.dir, verb, file,
              (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* Whether the last one wrote so. */
static int said(const char *text)
{
    char path[2 * RIG_PATH], all[4096];
    snprintf(path, sizeof path, "%s/said", ingest.rig.base);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    all[fread(all, 1, sizeof all - 1, f)] = '\0';
    fclose(f);
    return strstr(all, text) != NULL;
}

/* A restart of the machine took the journal. */
static void test_spool__imported_without_its_journal(void **state)
{
    char behind[64];
    uint64_t n;
    (void)state;
    leave(OUTAGE_MANY);
    n = moved();
    assert_int_equal(unlink(outage_journal()), 0);
    assert_int_equal(tracectl("verify", outage_spool()), 0);
    rig_start(&ingest.rig);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tracectl("import", outage_spool()), 0);
        assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), n);
        assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
        assert_int_equal(
            ingest_ask("run", "SELECT state = 'dead' FROM stream"), 1);
        snprintf(behind, sizeof behind, "ends with record %llu of rank 0",
                 (unsigned long long)n);
        assert_true(said(behind));
    }
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
    unlink(outage_spool());
}

static void test_spool__imported_cut_without_its_journal(void **state)
{
    struct image m;
    uint64_t n;
    (void)state;
    leave(OUTAGE_MANY);
    n = moved();
    assert_int_equal(unlink(outage_journal()), 0);
    m = load(outage_spool());
    assert_int_equal(truncate(outage_spool(), (off_t)m.n - 20), 0);
    rig_start(&ingest.rig);
    assert_int_equal(tracectl("import", outage_spool()), 0);
    assert_true(said("ends in the middle of what came behind record"));
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), n - 1);
    assert_int_equal(ingest_ask("run", "SELECT state = 'dead' FROM stream"),
                     1);
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
    free(m.bytes);
    unlink(outage_spool());
}

static void test_spool__imported_with_its_journal(void **state)
{
    char aside[2 * RIG_PATH];
    (void)state;
    leave(OUTAGE_MANY);
    snprintf(aside, sizeof aside, "%s/aside.journal", ingest.rig.base);
    assert_int_equal(rename(outage_journal(), aside), 0);
    rig_start(&ingest.rig);
    assert_int_equal(tracectl("import", aside), 0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"),
                     OUTAGE_MANY);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    rig_stop(&ingest.rig);
    unlink(outage_spool());
}

static void test_spool__journal_is_not_imported_before_its_spool(void **state)
{
    char journal[2 * RIG_PATH], spool[2 * RIG_PATH];
    (void)state;
    leave(OUTAGE_MANY);
    snprintf(journal, sizeof journal, "%s/aside.journal", ingest.rig.base);
    snprintf(spool, sizeof spool, "%s/aside.spool", ingest.rig.base);
    assert_int_equal(rename(outage_journal(), journal), 0);
    assert_int_equal(rename(outage_spool(), spool), 0);
    rig_start(&ingest.rig);
    assert_int_equal(tracectl("import", journal), 2);
    assert_int_equal(tracectl("import", spool), 0);
    assert_int_equal(tracectl("import", journal), 0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"),
                     OUTAGE_MANY);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM loss"), 0);
    rig_stop(&ingest.rig);
}

/* A journal in private memory is no file that anybody finds: at the end all of
 * it goes to the spool. */
static void test_spool__of_a_process_without_a_journal_file(void **state)
{
    (void)state;
    assert_int_equal(chmod(ingest.rig.dir, 0755), 0);
    outage_start(NULL);
    assert_int_equal(outage_end(), 0);
    assert_int_equal(told->accepted, OUTAGE_MANY);
    assert_null(outage_journal());
    assert_int_equal(chmod(ingest.rig.dir, 0700), 0);
    rig_start(&ingest.rig);
    assert_int_equal(tracectl("import", outage_spool()), 0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"),
                     OUTAGE_MANY);
    rig_stop(&ingest.rig);
    unlink(outage_spool());
}

static void test_spool__damage_is_found_and_imported_around(void **state)
{
    struct image m;
    uint64_t n;
    (void)state;
    leave(OUTAGE_MANY);
    n = moved();
    assert_int_equal(unlink(outage_journal()), 0);
    m = load(outage_spool());
    m.bytes[m.n / 2] ^= 1;
    save(&m);
    assert_int_equal(tracectl("verify", m.path), 1);
    rig_start(&ingest.rig);
    assert_int_equal(tracectl("import", m.path), 2);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM record"), n - 1);
    assert_int_equal(outage_lost("torn"), 1);
    rig_stop(&ingest.rig);
    m.bytes[9] ^= 1; /* its version */
    save(&m);
    assert_int_equal(tracectl("verify", m.path), 3);
    m.bytes[9] ^= 1;
    m.n = 100;
    save(&m);
    assert_int_equal(tracectl("verify", m.path), 1);
    assert_int_equal(tracectl("import", m.path), 2);
    unlink(m.path);
    free(m.bytes);
}

/* ---- runs of before ---- */

/* As the first daemons made it. */
static void make_old(void)
{
    static const char columns[] =
        "id, attempt, rank, epoch, world, pid, start_time, boot_id, host,"
        " uid, client, real_ns, mono_ns, info, seq, iteration, last_ns,"
        " dict_n, state";
    char path[2 * RIG_PATH], sql[2048];
    char *why = NULL;
    sqlite3 *db = NULL;
    snprintf(path, sizeof path, "%s/run.db", ingest.rig.data);
    snprintf(sql, sizeof sql,
             "PRAGMA legacy_alter_table = ON; DROP VIEW v_run;"
             "DROP VIEW v_sample; DROP VIEW sample_part;"
             "DROP VIEW v_pruned; DROP TABLE pruned; DROP VIEW v_record;"
             "DROP INDEX object_module; DROP TABLE sqlite_stat1;"
             "CREATE VIEW v_record AS SELECT seq FROM record WHERE 0;"
             "DELETE FROM pass WHERE name = 'optim';"
             "CREATE VIEW v_sample AS SELECT seq AS value FROM record;"
             "ALTER TABLE stream RENAME TO newer;"
             "CREATE TABLE stream(id INTEGER PRIMARY KEY, attempt, rank,"
             " epoch UNIQUE, world, pid, start_time, boot_id, host, uid,"
             " client, real_ns, mono_ns, info, seq, iteration DEFAULT 0,"
             " last_ns DEFAULT 0, dict_n, state);"
             "INSERT INTO stream SELECT %s FROM newer; DROP TABLE newer;"
             "CREATE VIEW v_run AS SELECT s.id AS stream FROM stream s",
             columns);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s", why);
    sqlite3_close(db);
    assert_int_equal(ingest_ask("run", "SELECT spool_bytes FROM stream"), -1);
}

static void test_policy__run_of_before_is_read_and_goes_on(void **state)
{
    char path[2 * RIG_PATH];
    (void)state;
    leave(OUTAGE_MANY);
    oracle_start(&ingest.rig);
    outage_check(0);
    rig_stop(&ingest.rig);
    make_old();
    snprintf(path, sizeof path, "%s/run.db", ingest.rig.data);
    assert_int_equal(tracectl("verify", path), 0);
    oracle_start(&ingest.rig);
    assert_int_equal(tracectl("runs", NULL), 0);
    told->block_ms = 5000;
    told->accepted = 0;
    leave_more();
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM stream"), 2);
    assert_int_equal(ingest_ask("run", "SELECT max(block_ms) FROM v_run"),
                     5000);
    assert_int_equal(ingest_ask("run", "SELECT min(block_ms) FROM v_run"), 0);
    assert_int_equal(
        ingest_ask("run", "SELECT count(DISTINCT of_step) FROM v_sample"),
        ingest_ask("run", "SELECT count(DISTINCT step) FROM record "
                          "WHERE samples IS NOT NULL"));
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM pass"), 6);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_pruned"), 0);
    assert_int_equal(ingest_ask("run", "SELECT max(pruned) FROM v_run"), 0);
    assert_int_equal(ingest_ask("run", "SELECT count(*) FROM v_record"),
                     ingest_ask("run", "SELECT count(*) FROM record"));
    oracle_run(&ingest.rig, "run");
    rig_stop(&ingest.rig);
    oracle_verify(&ingest.rig, 0);
    oracle_held(41, 1, "a run of before the client's policies");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        outage_test(test_spool__file_that_is_gone),
        outage_test(test_spool__directory_that_comes_later),
        outage_test(test_spool__file_that_was_cut),
        outage_test(test_spool__hostile_paths),
        outage_test(test_spool__hostile_files),
        outage_test(test_spool__each_bit_flipped),
        outage_test(test_spool__flipped_bits_are_counted),
        outage_test(test_spool__flipped_while_its_process_lives),
        outage_test(test_spool__cut_while_its_process_lives),
        outage_test(test_spool__imported_without_its_journal),
        outage_test(test_spool__imported_cut_without_its_journal),
        outage_test(test_spool__imported_with_its_journal),
        outage_test(test_spool__journal_is_not_imported_before_its_spool),
        outage_test(test_spool__of_a_process_without_a_journal_file),
        outage_test(test_spool__damage_is_found_and_imported_around),
        outage_test(test_policy__run_of_before_is_read_and_goes_on),
    };
    return outage_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
