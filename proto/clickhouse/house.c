/* One connection to a ClickHouse by libcurl, and what its answers mean. */
#include "proto/clickhouse/house.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tracerd/base.h"

struct house {
    struct house_options o;
    CURL *curl;
    struct curl_slist *headers;
    char error[CURL_ERROR_SIZE];
    char why[HOUSE_WHY_BYTES];
    int code;
    /* of the statement under way */
    house_take *take;
    void *to;
    char head[HOUSE_WHY_BYTES]; /* the first bytes of a bad answer */
    size_t head_n;
};

static size_t on_bytes(char *bytes, size_t one, size_t n, void *context)
{
    struct house *h = context;
    long status = 0;
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200 && h->take)
        return h->take(h->to, bytes, one * n) ? 0 : one * n;
    size_t room = sizeof h->head - 1 - h->head_n;
    size_t some = one * n < room ? one * n : room;
    memcpy(h->head + h->head_n, bytes, some);
    h->head_n += some;
    h->head[h->head_n] = '\0';
    return one * n;
}

static int on_progress(void *context, curl_off_t a, curl_off_t b,
                       curl_off_t c, curl_off_t d)
{
    struct house *h = context;
    (void)a, (void)b, (void)c, (void)d;
    return h->o.stop && h->o.stop(h->o.context);
}

static bool add_header(struct house *h, const char *name, const char *value)
{
    char line[512];
    struct curl_slist *more;
    snprintf(line, sizeof line, *value ? "%s: %s" : "%s:", name, value);
    more = curl_slist_append(h->headers, line);
    if (more)
        h->headers = more;
    return more != NULL;
}

static bool set_up(struct house *h)
{
    const struct house_place *p = h->o.place;
    CURL *c = h->curl;
    if (!add_header(h, "Expect", "") ||
        !add_header(h, "Content-Type", "application/octet-stream") ||
        (*p->user && !add_header(h, "X-ClickHouse-User", p->user)) ||
        (*p->password && !add_header(h, "X-ClickHouse-Key", p->password)))
        return false;
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, h->headers);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->error);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)HOUSE_CONNECT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)HOUSE_SILENT_S);
    curl_easy_setopt(c, CURLOPT_POST, 1L);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, h);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, h);
    /* an address may be that of another user's server by a mistake: it gets
       no other protocol, and no password by a redirect */
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_PROXY, "");
    if (*p->ca)
        curl_easy_setopt(c, CURLOPT_CAINFO, p->ca);
    return true;
}

int house_open(const struct house_options *o, struct house **out,
               char why[HOUSE_WHY_BYTES])
{
    struct house *h = calloc(1, sizeof *h);
    if (!h || curl_global_init(CURL_GLOBAL_DEFAULT) ||
        !(h->curl = curl_easy_init())) {
        free(h);
        snprintf(why, HOUSE_WHY_BYTES, "out of memory");
        return TRD_ENOMEM;
    }
    h->o = *o;
    if (!set_up(h)) {
        house_close(h);
        snprintf(why, HOUSE_WHY_BYTES, "out of memory");
        return TRD_ENOMEM;
    }
    *out = h;
    return 0;
}

void house_close(struct house *h)
{
    if (!h)
        return;
    curl_easy_cleanup(h->curl);
    curl_slist_free_all(h->headers);
    free(h);
}

/* The errors that mean the data and not the state of the engine: it cannot
 * parse them, or a rule of the table is against them. */
static bool is_about_data(int code)
{
    static const int codes[] = {6,  27,  33,  38,  41,  43,  53, 69,
                                70, 72,  117, 131, 321, 349, 395, 469};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i] == code)
            return true;
    return false;
}

enum house_result house_is_none(struct house *h)
{
    h->code = 0;
    snprintf(h->why, sizeof h->why, "what answers there is no ClickHouse");
    return HOUSE_DOWN;
}

/* "Code: 73, e.displayText() = DB::Exception: text, e.what() = ..." */
static enum house_result judge(struct house *h, long status)
{
    const char *at = strstr(h->head, "DB::Exception: ");
    at = at ? at + 15 : h->head;
    size_t n = strcspn(at, "\n");
    const char *tail = strstr(at, ", e.what()");
    if (tail && (size_t)(tail - at) < n)
        n = (size_t)(tail - at);
    h->code = 0;
    if (sscanf(h->head, "Code: %d", &h->code) != 1)
        h->code = 0;
    if (h->code)
        snprintf(h->why, sizeof h->why, "%.*s (code %d)", (int)n, at, h->code);
    else if (status == 200)
        return house_is_none(h);
    else
        snprintf(h->why, sizeof h->why, "HTTP status %ld", status);
    return is_about_data(h->code) ? HOUSE_REFUSED : HOUSE_DOWN;
}

/* The address of a statement; who only reads may set nothing. NULL: out of
 * memory. */
static char *address(struct house *h, const char *sql, bool with_body)
{
    const struct house_place *p = h->o.place;
    char *escaped = with_body ? curl_easy_escape(h->curl, sql, 0) : NULL;
    size_t n = strlen(p->base) + 256 + (escaped ? strlen(escaped) : 0);
    char *url = with_body && !escaped ? NULL : malloc(n);
    if (url)
        snprintf(url, n, "%s?database=%s%s%s", p->base,
                 strncmp(sql, "CREATE DATABASE", 15) ? p->database
                                                     : "default",
                 escaped ? "&insert_distributed_sync=1&query=" : "",
                 escaped ? escaped : "");
    curl_free(escaped);
    return url;
}

enum house_result house_ask(struct house *h, const char *sql,
                            const void *body, size_t n, house_take *take,
                            void *to)
{
    char *url = address(h, sql, body != NULL);
    long status = 0;
    if (!url) {
        snprintf(h->why, sizeof h->why, "out of memory");
        return HOUSE_DOWN;
    }
    h->take = take;
    h->to = to;
    h->head_n = 0;
    h->code = 0;
    h->head[0] = h->error[0] = '\0';
    curl_easy_setopt(h->curl, CURLOPT_URL, url);
    curl_easy_setopt(h->curl, CURLOPT_POSTFIELDS, body ? body : sql);
    curl_easy_setopt(h->curl, CURLOPT_POSTFIELDSIZE_LARGE,
                     (curl_off_t)(body ? n : strlen(sql)));
    CURLcode rc = curl_easy_perform(h->curl);
    free(url);
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    /* a statement without an answer may still fail behind its status */
    if (rc == CURLE_OK && status == 200 && !h->head_n)
        return HOUSE_OK;
    if (rc == CURLE_OK)
        return judge(h, status);
    if (rc == CURLE_PEER_FAILED_VERIFICATION || rc == CURLE_SSL_CACERT_BADFILE)
        h->code = HOUSE_UNTRUSTED;
    snprintf(h->why, sizeof h->why, "%s",
             *h->error ? h->error : curl_easy_strerror(rc));
    return HOUSE_DOWN;
}

const char *house_why(const struct house *h)
{
    return h->why;
}

int house_code(const struct house *h)
{
    return h->code;
}
