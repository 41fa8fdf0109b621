/* The figures of a record as columns: see schema.sql for what is left out. */
#include "daemon/columns.h"

#include <math.h>

#include "proto/row.h"

static bool is_whole(int kind)
{
    return kind == TRD_KIND_SIGNED || kind == TRD_KIND_UNSIGNED;
}

static struct cell whole(int64_t v)
{
    struct cell c = {.type = CELL_INT, .i = v};
    return c;
}

/* SQL has no NaN. */
static struct cell real(double v)
{
    struct cell c = {.type = isnan(v) ? CELL_NULL : CELL_REAL, .f = v};
    return c;
}

static struct cell value(int kind, union trd_value v)
{
    return is_whole(kind) ? whole(v.i) : real(v.f);
}

static bool is_zero(int kind, union trd_value v)
{
    return is_whole(kind) ? v.u == 0 : v.f == 0;
}

static void figures(const struct trd_stats *s, int kind, struct columns *out)
{
    out->counts = s->has & TRD_HAS_COUNTS;
    if (s->has & TRD_HAS_RANGE) {
        out->max = value(kind, s->max);
        out->min = value(kind, s->min);
    }
    if (s->has & TRD_HAS_ABS && !is_zero(kind, s->absmin))
        out->absmin = value(kind, s->absmin);
    if (s->has & TRD_HAS_MEAN) {
        out->mean = real(s->mean);
        out->std = real(s->std);
    }
}

/* A figure of a text log: the code says what the column cannot. */
static uint32_t given(double v, unsigned place, struct cell *out)
{
    uint32_t code = given_code(v);
    if (code == GIVEN_NUMBER)
        *out = real(v);
    return code << (2 * place);
}

/* A dump that has l2 has no std. */
static void text_log(const struct trd_stats *s, int kind, struct columns *out)
{
    bool floats = kind == TRD_KIND_FLOAT || kind == TRD_KIND_COMPLEX;
    uint32_t codes = 0;
    if (s->has & TRD_HAS_RANGE && floats) {
        codes |= given(s->max.f, 0, &out->max);
        codes |= given(s->min.f, 1, &out->min);
    } else if (s->has & TRD_HAS_RANGE) {
        out->max = value(kind, s->max);
        out->min = value(kind, s->min);
    }
    if (s->has & TRD_HAS_MEAN)
        codes |= given(s->mean, 2, &out->mean);
    if (s->has & TRD_HAS_MEAN && !(s->has & TRD_HAS_L2))
        codes |= given(s->std, 3, &out->std);
    out->given = whole(codes);
}

void columns_of(const struct wire_record *m, struct columns *out)
{
    static const struct columns none;
    const struct trd_stats *s = &m->stats;
    int kind = trd_dtype_kind((int)m->dtype);
    *out = none;
    if (s->has & TRD_IS_GIVEN)
        text_log(s, kind, out);
    else
        figures(s, kind, out);
    if (s->has & TRD_HAS_L2)
        out->l2 = real(s->l2);
}
