/* See fates.h. */
#include "tests/lib/fates.h"

#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>

#include "tests/lib/unit.h"
#include "tracerd/client.h"

uint64_t fates_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

/* A site that refers to what comes later means nothing. */
static bool is_bad_word(uint32_t id)
{
    return id > RIG_DICT_N && id % 7 == 3;
}

struct fate fates_of(const struct fates_stream *s, uint64_t seq)
{
    uint64_t block = fates_mix(s->epoch ^ fates_mix((seq - 1) / FATES_BLOCK));
    uint64_t h = fates_mix(s->epoch + fates_mix(seq));
    struct fate f = {.hash = h, .site = RIG_SITE};
    if (block % 6 == 0) {
        f.kind = GAP;
        f.cause = (uint32_t)(block >> 8) % TRD_CAUSE_COUNT;
        return f;
    }
    switch (h % 24) {
    case 0:
        f.kind = UNREADABLE;
        return f;
    case 1:
        f.kind = LOSS;
        f.cause = (uint32_t)(h >> 8) % TRD_CAUSE_COUNT;
        f.count = 1 + (h >> 16) % 1000;
        return f;
    case 2:
        f.kind = UNKNOWN;
        f.site = 1000000;
        return f;
    default:
        if (h >> 8 & 1)
            f.site = RIG_DICT_N + 1 +
                     (uint32_t)(h >> 16) % (FATES_WORDS - RIG_DICT_N);
        f.kind = is_bad_word(f.site) ? UNKNOWN : RECORD;
        return f;
    }
}

static void add_word(struct rig_entries *e, uint32_t id)
{
    char path[16];
    snprintf(path, sizeof path, "p%u", id);
    switch (id) {
    case RIG_OBJECT:
        rig_add_object(e, id, "Linear", 1, "layer1");
        break;
    case RIG_SHAPE:
        rig_add_shape(e, id, 4, 8);
        break;
    case RIG_NOTE:
        rig_add_note(e, id, "note");
        break;
    default:
        rig_add_site(e, id, is_bad_word(id) ? id + 1 : RIG_OBJECT,
                     TRD_FORWARD, TRD_INPUT, 0, path);
        break;
    }
}

void fates_words(struct rig_entries *e, uint32_t first, uint32_t n)
{
    rig_entries_init(e);
    for (uint32_t i = 0; i < n; i++)
        add_word(e, first + i);
}

void fates_add(struct rig_entries *e, const struct fates_stream *s,
               uint64_t seq)
{
    struct fate f = fates_of(s, seq);
    struct wire_record m = rig_record(seq);
    m.site = f.site;
    m.stats.hash = f.hash;
    if (f.kind == LOSS)
        rig_add_loss(e, seq, f.cause, f.count);
    else if (f.kind == UNREADABLE)
        rig_add_unreadable(e, ENTRY_RECORD, seq);
    else
        rig_add_record(e, seq, &m);
}

/* At most n numbers from first, up to a gap. */
uint32_t fates_numbers(struct rig_entries *e, const struct fates_stream *s,
                       uint64_t first, uint32_t n)
{
    uint32_t i = 0;
    rig_entries_init(e);
    for (; i < n && fates_of(s, first + i).kind != GAP; i++)
        fates_add(e, s, first + i);
    return i;
}

static void check_losses(sqlite3 *db, const struct fates_stream *s,
                         uint8_t *seen)
{
    sqlite3_stmt *q = NULL;
    assert_int_equal(
        sqlite3_prepare_v2(db,
                           "SELECT l.seq, l.last, l.count, l.cause FROM loss l "
                           "JOIN stream s ON s.id = l.stream WHERE s.epoch = ?",
                           -1, &q, NULL),
        SQLITE_OK);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)s->epoch);
    while (sqlite3_step(q) == SQLITE_ROW) {
        uint64_t seq = (uint64_t)sqlite3_column_int64(q, 0);
        uint64_t last = (uint64_t)sqlite3_column_int64(q, 1);
        uint64_t count = (uint64_t)sqlite3_column_int64(q, 2);
        const char *cause = (const char *)sqlite3_column_text(q, 3);
        /* a number that was dropped counts for one, whatever it stood for */
        uint64_t least = 0, most = 0;
        assert_in_range(last, seq, s->sent);
        for (uint64_t i = seq; i <= last; i++) {
            struct fate f = fates_of(s, i);
            const char *must = f.kind == UNREADABLE ? "error"
                               : f.kind == UNKNOWN ? "store_lost"
                                                   : wire_cause_name(f.cause);
            bool kept = f.kind != RECORD && strcmp(cause, must) == 0;
            bool dropped = s->dropped[i] && strcmp(cause, "store_lost") == 0;
            uint64_t stood_for = kept && f.kind == LOSS ? f.count : 1;
            least += dropped ? 1 : stood_for;
            most += stood_for;
            if (!kept && !dropped)
                fail_msg("%s: %" PRIu64 " is lost by %s, not %s", s->name, i,
                         cause, f.kind == RECORD ? "at all" : must);
            assert_int_equal(seen[i]++, 0);
        }
        assert_in_range(count, least, most);
    }
    sqlite3_finalize(q);
}

static void check_records(sqlite3 *db, const struct fates_stream *s,
                          uint8_t *seen)
{
    sqlite3_stmt *q = NULL;
    assert_int_equal(
        sqlite3_prepare_v2(
            db,
            "SELECT r.seq, r.step, r.iteration, r.hash, p.text, r.max, "
            "r.t_ns, length(r.samples) FROM record r JOIN path p ON p.id = "
            "r.path JOIN stream s ON s.id = r.stream WHERE s.epoch = ?",
            -1, &q, NULL),
        SQLITE_OK);
    sqlite3_bind_int64(q, 1, (sqlite3_int64)s->epoch);
    while (sqlite3_step(q) == SQLITE_ROW) {
        uint64_t seq = (uint64_t)sqlite3_column_int64(q, 0);
        struct fate f;
        char path[16];
        assert_in_range(seq, 1, s->sent);
        f = fates_of(s, seq);
        snprintf(path, sizeof path, "p%u", f.site);
        assert_int_equal(f.kind, RECORD);
        assert_int_equal(sqlite3_column_int64(q, 1), seq);
        assert_int_equal(sqlite3_column_int64(q, 2), seq);
        assert_int_equal((uint64_t)sqlite3_column_int64(q, 3), f.hash);
        assert_string_equal((const char *)sqlite3_column_text(q, 4), path);
        assert_true(sqlite3_column_double(q, 5) == 2.5);
        assert_int_equal(sqlite3_column_int64(q, 6), seq * 1000);
        assert_int_equal(sqlite3_column_int64(q, 7), 16 * 4);
        assert_int_equal(seen[seq]++, 0);
    }
    sqlite3_finalize(q);
}

void fates_check(struct rig *r, const struct fates_stream *s)
{
    static uint8_t seen[FATES_SEQ_MAX + 1];
    char path[2 * RIG_PATH];
    sqlite3 *db = NULL;
    memset(seen, 0, sizeof seen);
    snprintf(path, sizeof path, "%s/%s.db", r->data, s->name);
    assert_int_equal(
        sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    sqlite3_busy_timeout(db, 10000);
    check_losses(db, s, seen);
    check_records(db, s, seen);
    sqlite3_close(db);
    for (uint64_t seq = 1; seq <= s->sent; seq++)
        if (!seen[seq])
            fail_msg("%s: %" PRIu64 " is not there", s->name, seq);
}
