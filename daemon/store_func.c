/* SQL functions whose time is the product of two lengths, once more. Any
 * thread.
 *
 * SQLite looks at the clock between its steps and never within one, and a
 * call of a function is one. Its own instr(), replace() and trim() compare
 * at each place of one text with all of the other: with texts as long as
 * they may be that takes minutes. These give the same results in time that
 * grows with the sum, or, for trim() and printf(), take little only. */
#include "daemon/store_ask.h"

#include <stdlib.h>

#include "proto/sql.h"

enum {
    TRIM_MAX_BYTES = 256,
    TRIM_LEFT = 1,
    TRIM_RIGHT = 2,
    PRINT_MAX_WIDTH = 1000,
    PRINT_MAX_ARGUMENTS = 32
};

struct text {
    const char *at;
    size_t n;
};

static struct text text_of(sqlite3_value *v, bool blob)
{
    struct text t;
    t.at = blob ? sqlite3_value_blob(v) : (const char *)sqlite3_value_text(v);
    t.n = t.at ? (size_t)sqlite3_value_bytes(v) : 0;
    return t;
}

static bool has_null(int n, sqlite3_value **v)
{
    for (int i = 0; i < n; i++) {
        if (sqlite3_value_type(v[i]) == SQLITE_NULL)
            return true;
    }
    return false;
}

static bool begins_character(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

/* The first y in x; NULL: none. y is not empty. */
static const char *find(struct text x, struct text y)
{
    if (x.n < y.n)
        return NULL;
    return y.n == 1 ? memchr(x.at, y.at[0], x.n) : memmem(x.at, x.n, y.at, y.n);
}

/* instr(X, Y): the place of Y in X from 1, in bytes of two blobs, else in
 * characters; 0: nowhere. */
static void func_instr(sqlite3_context *c, int n, sqlite3_value **v)
{
    bool blob = !has_null(n, v) && sqlite3_value_type(v[0]) == SQLITE_BLOB &&
                sqlite3_value_type(v[1]) == SQLITE_BLOB;
    struct text x = text_of(v[0], blob), y = text_of(v[1], blob);
    const char *found;
    sqlite3_int64 place = 1;

    if (has_null(n, v))
        return;
    found = y.n ? find(x, y) : x.at;
    for (const char *p = x.at; y.n && found && p < found; p++)
        place += blob || begins_character(p[1]);
    sqlite3_result_int64(c, found || !y.n ? place : 0);
}

static size_t occurrences(struct text x, struct text y)
{
    size_t n = 0;
    const char *p;
    while ((p = find(x, y))) {
        n++;
        p += y.n;
        x.n -= (size_t)(p - x.at);
        x.at = p;
    }
    return n;
}

static void substitute(char *out, struct text x, struct text y, struct text z)
{
    const char *p;
    while ((p = find(x, y))) {
        size_t before = (size_t)(p - x.at);
        memcpy(out, x.at, before);
        memcpy(out + before, z.at, z.n);
        out += before + z.n;
        x.at = p + y.n;
        x.n -= before + y.n;
    }
    memcpy(out, x.at, x.n);
}

/* replace(X, Y, Z): X with Z for each Y. */
static void func_replace(sqlite3_context *c, int n, sqlite3_value **v)
{
    struct text x = text_of(v[0], false), y = text_of(v[1], false),
                z = text_of(v[2], false);
    size_t limit = (size_t)sqlite3_limit(sqlite3_context_db_handle(c),
                                         SQLITE_LIMIT_LENGTH, -1);
    size_t out_n;
    char *out;

    if (has_null(n, v) || !x.at || !y.at || !z.at)
        return;
    if (y.n == 0) {
        sqlite3_result_value(c, v[0]);
        return;
    }
    /* all three are below the limit, so this does not overflow */
    out_n = occurrences(x, y);
    out_n = x.n - out_n * y.n + out_n * z.n;
    if (out_n > limit) {
        sqlite3_result_error_toobig(c);
        return;
    }
    out = sqlite3_malloc64(out_n + 1);
    if (!out) {
        sqlite3_result_error_nomem(c);
        return;
    }
    substitute(out, x, y, z);
    sqlite3_result_text64(c, out, out_n, sqlite3_free, SQLITE_UTF8);
}

/* Bytes of the character of set that x begins, or ends, with; 0: none. */
static size_t matching(struct text x, struct text set, bool at_end)
{
    for (size_t i = 0, len; i < set.n; i += len) {
        len = 1;
        while (i + len < set.n && !begins_character(set.at[i + len]))
            len++;
        if (len <= x.n &&
            memcmp(at_end ? x.at + x.n - len : x.at, set.at + i, len) == 0)
            return len;
    }
    return 0;
}

/* trim(X, Y), ltrim(X, Y), rtrim(X, Y): X without characters of Y at its
 * ends. */
static void func_trim(sqlite3_context *c, int n, sqlite3_value **v)
{
    struct text x = text_of(v[0], false), set = text_of(v[1], false);
    const int *sides = sqlite3_user_data(c);
    size_t len;

    if (has_null(n, v) || !x.at || !set.at)
        return;
    if (set.n > TRIM_MAX_BYTES) {
        sqlite3_result_error(c, "too many characters to trim", -1);
        return;
    }
    while ((*sides & TRIM_LEFT) && (len = matching(x, set, false))) {
        x.at += len;
        x.n -= len;
    }
    while ((*sides & TRIM_RIGHT) && (len = matching(x, set, true)))
        x.n -= len;
    sqlite3_result_text64(c, x.at, x.n, SQLITE_TRANSIENT, SQLITE_UTF8);
}

/* ---- printf ---- */

/* SQLite's own, asked through a connection that has nothing else. */
struct printer {
    sqlite3 *db;
    sqlite3_stmt *with[PRINT_MAX_ARGUMENTS + 1]; /* so many arguments */
};

static void printer_free(void *data)
{
    struct printer *p = data;
    for (size_t i = 0; i <= PRINT_MAX_ARGUMENTS; i++)
        sqlite3_finalize(p->with[i]);
    sqlite3_close(p->db);
    free(p);
}

/* Of one conversion, from behind its '%' on: the bytes up to its letter. False
 * where it is too wide or too precise; *next is the argument it takes first,
 * and then the one behind. */
static bool read_conversion(struct text c, int n, sqlite3_value **v, int *next,
                            size_t *used)
{
    sqlite3_int64 number = 0;
    size_t i = 0;
    for (; i < c.n && !((c.at[i] | 32) >= 'a' && (c.at[i] | 32) <= 'z') &&
           c.at[i] != '%';
         i++) {
        if (c.at[i] == '*') {
            number = *next < n ? sqlite3_value_int64(v[*next]) : 0;
            ++*next;
        } else {
            number = c.at[i] >= '0' && c.at[i] <= '9'
                         ? 10 * number + (c.at[i] - '0')
                         : 0;
        }
        if (number > PRINT_MAX_WIDTH || number < -PRINT_MAX_WIDTH)
            return false;
    }
    *next += i < c.n && c.at[i] != '%' && c.at[i] != 'n';
    *used = i < c.n ? i + 1 : i;
    return true;
}

/* Writes a character as often as it is told, one at a time: not too often. */
static bool is_wide(struct text format, int n, sqlite3_value **v)
{
    int next = 1;
    for (size_t used; format.n; format.at += used, format.n -= used) {
        struct text rest = {format.at + 1, format.n - 1};
        used = 0;
        if (*format.at == '%' && !read_conversion(rest, n, v, &next, &used))
            return true;
        used++;
    }
    return false;
}

static sqlite3_stmt *print_with(struct printer *p, int n)
{
    char sql[32 + 2 * PRINT_MAX_ARGUMENTS] = "SELECT printf(?";
    if (!p->db && sqlite3_open_v2(":memory:", &p->db,
                                  SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX,
                                  NULL) != SQLITE_OK)
        return NULL;
    for (int i = 1; i < n; i++)
        strcat(sql, ",?");
    strcat(sql, ")");
    if (!p->with[n] &&
        sqlite3_prepare_v2(p->db, sql, -1, &p->with[n], NULL) != SQLITE_OK)
        return NULL;
    return p->with[n];
}

/* printf(FORMAT, ...), of which format() is another name. */
static void func_printf(sqlite3_context *c, int n, sqlite3_value **v)
{
    struct printer *p = sqlite3_user_data(c);
    struct text format;
    sqlite3_stmt *s;

    if (n < 1)
        return;
    format = text_of(v[0], false);
    if (n > PRINT_MAX_ARGUMENTS) {
        sqlite3_result_error(c, "printf() prints at most 31 values", -1);
        return;
    }
    if (is_wide(format, n, v)) {
        sqlite3_result_error(c, "a width or precision of printf() may be at "
                                "most 1000", -1);
        return;
    }
    s = print_with(p, n);
    for (int i = 0; s && i < n; i++)
        sqlite3_bind_value(s, i + 1, v[i]);
    if (s && sqlite3_step(s) == SQLITE_ROW)
        sqlite3_result_value(c, sqlite3_column_value(s, 0));
    else
        sqlite3_result_error_nomem(c);
    if (s) {
        sqlite3_reset(s);
        sqlite3_clear_bindings(s);
    }
}

static int add_printf(sqlite3 *db)
{
    static const char *const names[] = {"printf", "format"};
    int rc = SQLITE_OK;
    for (size_t i = 0; rc == SQLITE_OK && i < 2; i++) {
        struct printer *p = calloc(1, sizeof *p);
        if (!p)
            return SQLITE_NOMEM;
        /* it frees p, too, where it fails */
        rc = sqlite3_create_function_v2(
            db, names[i], -1,
            SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS, p,
            func_printf, NULL, NULL, printer_free);
    }
    return rc;
}

int ask_functions(sqlite3 *db)
{
    static const int left = TRIM_LEFT, right = TRIM_RIGHT,
                     both = TRIM_LEFT | TRIM_RIGHT;
    static const struct {
        const char *name;
        int arguments;
        const int *data;
        void (*call)(sqlite3_context *, int, sqlite3_value **);
    } all[] = {
        {"instr", 2, NULL, func_instr},  {"replace", 3, NULL, func_replace},
        {"trim", 2, &both, func_trim},   {"ltrim", 2, &left, func_trim},
        {"rtrim", 2, &right, func_trim},
    };
    int rc = SQLITE_OK;
    for (size_t i = 0; rc == SQLITE_OK && i < sizeof all / sizeof *all; i++)
        rc = sqlite3_create_function_v2(
            db, all[i].name, all[i].arguments,
            SQLITE_UTF8 | SQLITE_DETERMINISTIC | SQLITE_INNOCUOUS,
            (void *)(uintptr_t)all[i].data, all[i].call, NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = add_printf(db);
    return rc == SQLITE_OK ? sql_add_functions(db) : rc;
}
