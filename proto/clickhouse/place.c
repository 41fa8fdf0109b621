/* The address of a ClickHouse, taken apart. Any thread. */
#include "proto/clickhouse/house.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tracerd/base.h"

static const char plain[] = "clickhouse://", secure[] = "clickhouses://";

static bool starts(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

bool house_is_url(const char *text)
{
    return starts(text, plain) || starts(text, secure);
}

static int wrong(char why[HOUSE_WHY_BYTES], const char *url, const char *what)
{
    snprintf(why, HOUSE_WHY_BYTES,
             "'%.200s' is no store: %s; it is "
             "clickhouse://user@host:port/database",
             url, what);
    return TRD_EINVAL;
}

/* A name that can stand in SQL and in an address as it is. */
static bool is_name(const char *s, size_t n, size_t cap)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    return n > 0 && n < cap && strspn(s, letters) >= n;
}

static void take(char *out, const char *s, size_t n)
{
    memcpy(out, s, n);
    out[n] = '\0';
}

static int read_file(const char *file, struct house_place *out,
                     char why[HOUSE_WHY_BYTES])
{
    FILE *f = fopen(file, "re");
    if (!f || !fgets(out->password, sizeof out->password, f)) {
        snprintf(why, HOUSE_WHY_BYTES,
                 "cannot read the store's password from '%.200s': %s", file,
                 f ? "it is empty" : strerror(errno));
        if (f)
            fclose(f);
        return TRD_EIO;
    }
    fclose(f);
    out->password[strcspn(out->password, "\r\n")] = '\0';
    return 0;
}

static int find_password(struct house_place *out, char why[HOUSE_WHY_BYTES])
{
    const char *word = getenv("TRACERD_STORE_PASSWORD");
    const char *file = getenv("TRACERD_STORE_PASSWORD_FILE");
    if (!word && file && *file)
        return read_file(file, out, why);
    if (word && strlen(word) >= sizeof out->password) {
        snprintf(why, HOUSE_WHY_BYTES, "TRACERD_STORE_PASSWORD is too long");
        return TRD_EINVAL;
    }
    if (word)
        take(out->password, word, strlen(word));
    return 0;
}

static int find_ca(struct house_place *out, char why[HOUSE_WHY_BYTES])
{
    const char *file = getenv("TRACERD_STORE_CA");
    if (!file || !*file)
        return 0;
    if (strlen(file) >= sizeof out->ca) {
        snprintf(why, HOUSE_WHY_BYTES, "TRACERD_STORE_CA is too long");
        return TRD_EINVAL;
    }
    take(out->ca, file, strlen(file));
    return 0;
}

/* user@host:port, in n bytes. */
static int read_host(const char *url, const char *at, size_t n,
                     struct house_place *out, char why[HOUSE_WHY_BYTES])
{
    const char *sign = memchr(at, '@', n);
    size_t user_n = sign ? (size_t)(sign - at) : 0;
    if (sign && memchr(at, ':', user_n))
        return wrong(why, "clickhouse://...",
                     "a password does not belong there, where others see it; "
                     "TRACERD_STORE_PASSWORD has it");
    if (user_n >= sizeof out->user)
        return wrong(why, url, "the user's name is too long");
    take(out->user, at, user_n);
    if (sign)
        at += user_n + 1, n -= user_n + 1;
    if (n == 0 || strcspn(at, " \"'<>\\?#") < n)
        return wrong(why, url, "it has no host");
    if (n > 300)
        return wrong(why, url, "the host's name is too long");
    bool port = memchr(at, ':', n) && at[n - 1] != ']';
    snprintf(out->base, sizeof out->base, "%s://%.*s%s/",
             starts(url, secure) ? "https" : "http", (int)n, at,
             port                  ? ""
             : starts(url, secure) ? ":8443"
                                   : ":8123");
    return 0;
}

int house_place_read(const char *url, struct house_place *out,
                     char why[HOUSE_WHY_BYTES])
{
    static const char cluster[] = "?cluster=";
    const char *at = strstr(url, "://"), *slash, *question;
    int rc;
    memset(out, 0, sizeof *out);
    if (!house_is_url(url) || !at)
        return wrong(why, url, "this is another kind of address");
    at += 3;
    slash = strchr(at, '/');
    if (!slash)
        return wrong(why, url, "it names no database");
    rc = read_host(url, at, (size_t)(slash - at), out, why);
    if (rc)
        return rc;
    question = strchr(slash, '?');
    if (!question)
        question = slash + strlen(slash);
    if (!is_name(slash + 1, (size_t)(question - slash - 1),
                 sizeof out->database))
        return wrong(why, url, "a database's name has letters and digits");
    take(out->database, slash + 1, (size_t)(question - slash - 1));
    if (starts(question, cluster)) {
        question += sizeof cluster - 1;
        if (!is_name(question, strlen(question), sizeof out->cluster))
            return wrong(why, url, "a cluster's name has letters and digits");
        take(out->cluster, question, strlen(question));
    } else if (*question) {
        return wrong(why, url, "after '?' only cluster=NAME can stand");
    }
    snprintf(out->shown, sizeof out->shown, "%.500s", url);
    rc = find_ca(out, why);
    return rc ? rc : find_password(out, why);
}
