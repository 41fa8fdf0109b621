/* One tracerd, one raw client, and questions to the run's file. */
#include "tests/lib/ingest.h"

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
