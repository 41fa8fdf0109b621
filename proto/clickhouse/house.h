/* ClickHouse over HTTP: where it is, one connection to it, its tables.
 *
 * A house is used by one thread at a time; its calls block, at the longest
 * for the limits below or until stop() says so. What goes wrong is left in
 * it as a sentence. Without libcurl in the build every open says so. */
#ifndef CLICKHOUSE_HOUSE_H
#define CLICKHOUSE_HOUSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HOUSE_WHY_BYTES = 512,
    HOUSE_CONNECT_S = 5, /* to be reached */
    HOUSE_SILENT_S = 30  /* without a byte: given up */
};

/* clickhouse://[user@]host[:port]/database[?cluster=NAME]; clickhouses: TLS.
 */
struct house_place {
    char base[512]; /* as HTTP has it, "http://host:port/" */
    char shown[512]; /* as it may be told: it never has a password */
    char user[128], database[128], cluster[64];
    char password[256];
    char ca[512]; /* a file of who may vouch for it; "": the system's */
};

bool house_is_url(const char *text);
/* Takes the address apart; the password from the environment
 * (TRACERD_STORE_PASSWORD, or the file of TRACERD_STORE_PASSWORD_FILE), and
 * the file of certificates of TRACERD_STORE_CA. 0 or TRD_EINVAL, TRD_EIO with
 * why. */
int house_place_read(const char *url, struct house_place *out,
                     char why[HOUSE_WHY_BYTES]);

enum house_result {
    HOUSE_OK = 0,
    HOUSE_DOWN,   /* not reached, silent, or it cannot just now: try again */
    HOUSE_REFUSED /* it does not take these data, and never will */
};

enum { HOUSE_UNTRUSTED = -1 }; /* a code: nobody vouches for the server */

struct house;
/* Bytes of an answer as they come. Not 0: enough. */
typedef int house_take(void *to, const char *bytes, size_t n);

struct house_options {
    const struct house_place *place; /* stays the caller's */
    bool (*stop)(void *context);     /* asked now and then; NULL: never */
    void *context;
};
/* Connects nothing yet. 0, TRD_ENOMEM, or TRD_EINVAL: there is none in this
 * build. */
int house_open(const struct house_options *o, struct house **out,
               char why[HOUSE_WHY_BYTES]);
void house_close(struct house *h);
/* Runs a statement; body, if any, are its data. take NULL: no answer is
 * wanted. */
enum house_result house_ask(struct house *h, const char *sql,
                            const void *body, size_t n, house_take *take,
                            void *to);
/* The answer was none of a ClickHouse; HOUSE_DOWN. */
enum house_result house_is_none(struct house *h);
/* What the last one that was not well said. */
const char *house_why(const struct house *h);
int house_code(const struct house *h); /* of its error; 0: none came */
/* A code in a few words, or "no answer". Static text. */
const char *house_meaning(int code);

/* Makes what is missing of the database, its tables and views. */
enum house_result house_make_tables(struct house *h,
                                    const struct house_place *p);

#endif
