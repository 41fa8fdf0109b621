/* The tables and views of a database, made where they are missing. */
#include "proto/clickhouse/house.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clickhouse_tables.h"
#include "clickhouse_views.h"

/* Runs the statements of text one by one; each '$' becomes tail. */
static enum house_result run_all(struct house *h, const char *text,
                                 const char *tail)
{
    size_t room = strlen(text) + 64;
    enum house_result rc = HOUSE_OK;
    char *sql = malloc(room);
    while (sql && rc == HOUSE_OK && (text = strstr(text, "CREATE "))) {
        size_t n = 0;
        for (; *text && *text != ';'; text++) {
            if (*text == '$')
                n += (size_t)snprintf(sql + n, room - n, "%s", tail);
            else
                sql[n++] = *text;
        }
        sql[n] = '\0';
        rc = house_ask(h, sql, NULL, 0, NULL, NULL);
    }
    free(sql);
    return sql ? rc : HOUSE_DOWN;
}

/* Over the shards, by rank, so that what is sent again meets itself. */
static enum house_result distribute(struct house *h,
                                    const struct house_place *p)
{
    static const char *const names[] = {"record", "stream", "loss",
                                        "object"};
    enum house_result rc = HOUSE_OK;
    char sql[512];
    for (size_t i = 0; rc == HOUSE_OK && i < sizeof names / sizeof *names;
         i++) {
        snprintf(sql, sizeof sql,
                 "CREATE TABLE IF NOT EXISTS %s AS %s_local ENGINE = "
                 "Distributed(%s, %s, %s_local, rank)",
                 names[i], names[i], p->cluster, p->database, names[i]);
        rc = house_ask(h, sql, NULL, 0, NULL, NULL);
    }
    return rc;
}

static int on_answer(void *to, const char *bytes, size_t n)
{
    bool *good = to;
    *good = n == 2 && memcmp(bytes, "1\n", 2) == 0;
    return 0;
}

/* Some servers say to everything that it is well: what they are sent would be
 * lost. */
static enum house_result is_an_engine(struct house *h)
{
    bool good = false;
    enum house_result rc =
        house_ask(h, "SELECT 1", NULL, 0, on_answer, &good);
    return rc == HOUSE_OK && !good ? house_is_none(h) : rc;
}

enum house_result house_make_tables(struct house *h,
                                    const struct house_place *p)
{
    char sql[256];
    snprintf(sql, sizeof sql, "CREATE DATABASE IF NOT EXISTS %s",
             p->database);
    enum house_result rc = house_ask(h, sql, NULL, 0, NULL, NULL);
    if (rc == HOUSE_OK)
        rc = is_an_engine(h);
    if (rc == HOUSE_OK)
        rc = run_all(h, clickhouse_tables, *p->cluster ? "_local" : "");
    if (rc == HOUSE_OK && *p->cluster)
        rc = distribute(h, p);
    if (rc == HOUSE_OK)
        rc = run_all(h, clickhouse_views, "");
    return rc;
}
