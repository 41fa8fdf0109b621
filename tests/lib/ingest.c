/* One tracerd, one raw client, and questions to the run's file. */
#include "tests/lib/ingest.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>

struct ingest ingest;

int ingest_set_up(void **state)
{
    (void)state;
    ingest.c.fd = -1;
    rig_init(&ingest.rig);
    return 0;
}

int ingest_tear_down(void **state)
{
    (void)state;
    rig_close(&ingest.c);
    rig_fini(&ingest.rig);
    return 0;
}

int64_t ingest_ask(const char *run, const char *sql)
{
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int64_t v = -1;
    snprintf(path, sizeof path, "%s/%s.db", ingest.rig.data, run);
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK) {
        sqlite3_busy_timeout(db, 5000);
        if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
            sqlite3_step(s) == SQLITE_ROW)
            v = sqlite3_column_int64(s, 0);
        sqlite3_finalize(s);
    }
    sqlite3_close(db);
    return v;
}

char *ingest_ask_text(const char *run, const char *sql)
{
    static char text[512];
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    snprintf(path, sizeof path, "%s/%s.db", ingest.rig.data, run);
    text[0] = '\0';
    if (sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL) == SQLITE_OK &&
        sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK &&
        sqlite3_step(s) == SQLITE_ROW)
        snprintf(text, sizeof text, "%s",
                 (const char *)sqlite3_column_text(s, 0));
    sqlite3_finalize(s);
    sqlite3_close(db);
    return text;
}

void ingest_values(const char *run, uint64_t epoch)
{
    static const char other[] =
        "SELECT count(*) FROM record r JOIN path p ON p.id = r.path"
        " JOIN shape h ON h.id = r.shape JOIN object o ON o.id = r.object"
        " WHERE step != seq OR iteration != seq OR t_ns != 1000 * seq OR"
        " microbatch != 1 OR labels != 0 OR note IS NOT NULL OR r.n IS NOT"
        " NULL OR zero != 1 OR nan != 0 OR max != 2.5 OR min != -2.5 OR"
        " absmin != 0.25 OR mean != 0.125 OR std != 1.5 OR l2 != 8 OR"
        " p.text != '0' OR h.dims != '4 8' OR o.class != 'Linear' OR"
        " o.module != 'layer1' OR o.instance != 1 OR"
        " hash != (-81985529216486896 | seq) - (-81985529216486896 & seq) OR"
        " samples != (SELECT samples FROM record a JOIN stream s ON"
        " s.id = a.stream WHERE s.epoch = %" PRIu64 " AND a.seq = r.seq)";
    char sql[2048];
    snprintf(sql, sizeof sql, other, epoch);
    assert_int_equal(ingest_ask(run, sql), 0);
    snprintf(sql, sizeof sql,
             "SELECT count(*) FROM record r JOIN stream s ON s.id = r.stream "
             "WHERE s.epoch = %" PRIu64 " AND r.seq BETWEEN 1 AND 3",
             epoch);
    assert_int_equal(ingest_ask(run, sql), 3);
}

void ingest_send_dict(void)
{
    rig_fill_dict(&ingest.e);
    rig_send_dict(&ingest.c, &ingest.e, 1);
}

void ingest_send_records(uint64_t seq, uint32_t n)
{
    rig_fill_data(&ingest.e, seq, n);
    rig_send_data(&ingest.c, &ingest.e, seq);
}

void ingest_send_gap(uint64_t first, uint64_t last, uint32_t cause)
{
    struct gap g = {first, last, 100, cause};
    uint8_t payload[64];
    size_t n;
    assert_int_equal(gap_put(&g, payload, sizeof payload, &n), 0);
    rig_send(&ingest.c, FRAME_GAP, first, payload, n);
}

void ingest_contiguous(const char *run, int64_t last)
{
    assert_int_equal(
        ingest_ask(run, "SELECT (SELECT count(*) FROM record) + (SELECT "
                        "coalesce(sum(last - seq + 1), 0) FROM loss)"),
        last);
    assert_int_equal(ingest_ask(run, "SELECT count(DISTINCT stream || '.' || "
                                     "seq) = count(*) FROM record"),
                     1);
}

void ingest_nack(unsigned reason)
{
    rig_expect(&ingest.c, FRAME_NACK);
    assert_int_equal(ingest.c.refusal.reason, reason);
    rig_hung_up(ingest.c.fd);
    rig_close(&ingest.c);
}
