/* What the tests of the query endpoint share: a real tracerd, asked by
 * libnanomsg. */
#ifndef TESTS_COMPONENT_QUERY_RIG_H
#define TESTS_COMPONENT_QUERY_RIG_H

#include "tests/lib/rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>

#include "proto/place.h"
#include "proto/row.h"

static struct rig rig;
static struct rig_client c;
static struct rig_entries e;
static int sock = -1;
static char *reply; /* the last answer; of nanomsg */
static struct page page;
static struct cell cells[PAGE_MAX_COLUMNS];

static inline int set_up(void **state)
{
    (void)state;
    c.fd = -1;
    rig_init(&rig);
    rig_start(&rig);
    return 0;
}

static inline void hang_up(void)
{
    if (reply)
        nn_freemsg(reply);
    reply = NULL;
    if (sock >= 0)
        nn_close(sock);
    sock = -1;
}

static inline int tear_down(void **state)
{
    (void)state;
    hang_up();
    rig_close(&c);
    rig_fini(&rig);
    return 0;
}

static inline void dial(int domain)
{
    char url[RIG_PATH + 32];
    int ms = RIG_WAIT_MS;
    hang_up();
    snprintf(url, sizeof url, "ipc://%s/" PLACE_QUERY, rig.dir);
    sock = nn_socket(domain, NN_REQ);
    assert_true(sock >= 0);
    nn_setsockopt(sock, NN_SOL_SOCKET, NN_RCVTIMEO, &ms, sizeof ms);
    nn_setsockopt(sock, NN_SOL_SOCKET, NN_SNDTIMEO, &ms, sizeof ms);
    assert_true(nn_connect(sock, url) >= 0);
}

/* Asks and reads the page. */
static inline enum page_status ask(const struct query *q)
{
    uint8_t message[SP_REQUEST_MAX_BYTES];
    size_t n;
    int got;
    if (sock < 0)
        dial(AF_SP);
    if (reply)
        nn_freemsg(reply);
    reply = NULL;
    assert_int_equal(query_put(q, message, sizeof message, &n), 0);
    assert_int_equal(nn_send(sock, message, n, 0), (int)n);
    got = nn_recv(sock, &reply, NN_MSG, 0);
    if (got < 0)
        fail_msg("no answer: %s", nn_strerror(nn_errno()));
    assert_int_equal(page_get(reply, (size_t)got, &page), 0);
    return page.status;
}

static inline struct query records(const char *name)
{
    struct query q;
    query_init(&q, QUERY_RECORDS);
    q.run = slice_of("run");
    q.name = slice_of(name);
    return q;
}

static inline struct query sql(const char *text)
{
    struct query q;
    query_init(&q, QUERY_SQL);
    q.sql = slice_of(text);
    return q;
}

static inline void message_has(const char *text)
{
    char copy[2048];
    snprintf(copy, sizeof copy, "%.*s", (int)page.message.n, page.message.text);
    if (!strstr(copy, text))
        fail_msg("'%s' does not say '%s'", copy, text);
}

/* A run with n records of one object. */
static inline void fill(uint64_t n)
{
    rig_open(&rig, &c, 77);
    rig_fill_dict(&e);
    rig_send_dict(&c, &e, 1);
    for (uint64_t seq = 1; seq <= n; seq += 500) {
        uint64_t left = n - seq + 1;
        rig_fill_data(&e, seq, left < 500 ? (uint32_t)left : 500);
        rig_send_data(&c, &e, seq);
    }
    rig_committed(&c, n);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

#endif
