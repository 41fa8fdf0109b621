/* Reading samples in SQL. Any thread.
 *
 * The view v_sample reads them in plain SQL, which any program can do, bit
 * by bit; these are some hundred times faster. A call reads the samples of
 * one record, which are bounded, so none is long. */
#include "proto/sql.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/bytes.h"
#include "proto/figures.h"
#include "tracerd/record.h"

enum { NUMBER_BYTES = 32 };

struct samples {
    const uint8_t *at;
    int dtype, kind;
    int bytes; /* of a part */
    int parts; /* of a sample */
    int n;
};

static int dtype_of(sqlite3_value *v)
{
    const char *name;
    sqlite3_int64 code = sqlite3_value_int64(v);
    if (sqlite3_value_type(v) == SQLITE_INTEGER)
        return code > 0 && code <= INT8_MAX ? (int)code : 0;
    name = (const char *)sqlite3_value_text(v);
    return name ? trd_dtype_parse(name) : 0;
}

/* False: there are none, and the result is NULL or an error. */
static bool samples_of(sqlite3_context *c, sqlite3_value **v, struct samples *s)
{
    if (sqlite3_value_type(v[0]) == SQLITE_NULL ||
        sqlite3_value_type(v[1]) == SQLITE_NULL)
        return false;
    s->dtype = dtype_of(v[1]);
    s->kind = trd_dtype_kind(s->dtype);
    if (s->kind < 0) {
        sqlite3_result_error(c, "the second argument is not a dtype", -1);
        return false;
    }
    s->parts = s->kind == TRD_KIND_COMPLEX ? 2 : 1;
    s->bytes = (int)trd_dtype_bytes(s->dtype) / s->parts;
    s->at = sqlite3_value_blob(v[0]);
    s->n = sqlite3_value_bytes(v[0]) / (s->bytes * s->parts);
    if (s->n > TRD_MAX_SAMPLES) {
        sqlite3_result_error(c, "no record has so many samples", -1);
        return false;
    }
    return true;
}

static const uint8_t *part_at(const struct samples *s, int i, int part)
{
    return s->at + (size_t)(i * s->parts + part) * (size_t)s->bytes;
}

static bool is_whole(const struct samples *s)
{
    return s->kind == TRD_KIND_SIGNED || s->kind == TRD_KIND_UNSIGNED ||
           s->kind == TRD_KIND_PACKED;
}

static double real_at(const struct samples *s, int i, int part)
{
    struct reader r = reader_of(part_at(s, i, part), (size_t)s->bytes);
    if (s->kind == TRD_KIND_COMPLEX)
        return float_from_bits(s->dtype, get_le(&r, (unsigned)s->bytes));
    return element_f64(s->dtype, part_at(s, i, part));
}

static void func_sample(sqlite3_context *c, int n, sqlite3_value **v)
{
    struct samples s;
    sqlite3_int64 i = sqlite3_value_int64(v[2]);
    sqlite3_int64 part = n > 3 ? sqlite3_value_int64(v[3]) : 0;

    if (!samples_of(c, v, &s) || i < 0 || i >= s.n || part < 0 ||
        part >= s.parts)
        return;
    if (is_whole(&s)) {
        uint64_t bits = element_bits(s.dtype, part_at(&s, (int)i, 0));
        if (s.kind != TRD_KIND_SIGNED && bits > INT64_MAX)
            sqlite3_result_double(c, (double)bits);
        else
            sqlite3_result_int64(c, (sqlite3_int64)bits);
    } else {
        sqlite3_result_double(c, real_at(&s, (int)i, (int)part));
    }
}

static void func_sample_count(sqlite3_context *c, int n, sqlite3_value **v)
{
    struct samples s;
    (void)n;
    if (samples_of(c, v, &s))
        sqlite3_result_int(c, s.n);
}

/* The shortest text that reads as the same number; the C locale's. */
static int print_real(double x, char out[NUMBER_BYTES])
{
    int n = 0;
    if (isnan(x))
        return snprintf(out, NUMBER_BYTES, "\"nan\"");
    if (isinf(x))
        return snprintf(out, NUMBER_BYTES, x < 0 ? "\"-inf\"" : "\"inf\"");
    for (int digits = 6; digits <= 17; digits += digits < 15 ? 9 : 1) {
        n = snprintf(out, NUMBER_BYTES, "%.*g", digits, x);
        if (strtod(out, NULL) == x)
            break;
    }
    return n;
}

static int print_sample(const struct samples *s, int i, char *out)
{
    int n;
    if (s->parts == 2) {
        out[0] = '[';
        n = 1 + print_real(real_at(s, i, 0), out + 1);
        out[n++] = ',';
        n += print_real(real_at(s, i, 1), out + n);
        out[n++] = ']';
        return n;
    }
    if (!is_whole(s))
        return print_real(real_at(s, i, 0), out);
    return snprintf(out, NUMBER_BYTES,
                    s->kind == TRD_KIND_SIGNED ? "%lld" : "%llu",
                    (long long)element_bits(s->dtype, part_at(s, i, 0)));
}

static void func_sample_list(sqlite3_context *c, int n, sqlite3_value **v)
{
    struct samples s;
    char *out;
    size_t used = 1;
    (void)n;
    if (!samples_of(c, v, &s))
        return;
    /* two numbers, brackets and commas each, at most */
    out = sqlite3_malloc64((size_t)s.n * (2 * NUMBER_BYTES + 4) + 3);
    if (!out) {
        sqlite3_result_error_nomem(c);
        return;
    }
    out[0] = '[';
    for (int i = 0; i < s.n; i++) {
        if (i)
            out[used++] = ',';
        used += (size_t)print_sample(&s, i, out + used);
    }
    out[used++] = ']';
    sqlite3_result_text64(c, out, used, sqlite3_free, SQLITE_UTF8);
    sqlite3_result_subtype(c, 'J'); /* json_each() and others take it as is */
}

int sql_add_functions(sqlite3 *db)
{
    static const struct {
        const char *name;
        int arguments;
        void (*call)(sqlite3_context *, int, sqlite3_value **);
    } all[] = {
        {"sample", 3, func_sample},
        {"sample", 4, func_sample},
        {"sample_count", 2, func_sample_count},
        {"sample_list", 2, func_sample_list},
    };
    int rc = SQLITE_OK;
    for (size_t i = 0; rc == SQLITE_OK && i < sizeof all / sizeof *all; i++)
        rc = sqlite3_create_function_v2(
            db, all[i].name, all[i].arguments,
            SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS, NULL,
            all[i].call, NULL, NULL, NULL);
    return rc;
}
