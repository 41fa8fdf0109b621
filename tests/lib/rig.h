/* A tracerd of one's own, and a raw client to speak to it.
 *
 * A rig is a private directory under /tmp with a tracerd in it, started from
 * TRD_TRACERD. Everything fails the running test by itself (cmocka) unless
 * it says that it returns a code. Waiting is polling with a limit. */
#ifndef TESTS_LIB_RIG_H
#define TESTS_LIB_RIG_H

#include <stdbool.h>
#include <sys/types.h>

#include "proto/frame.h"
#include "proto/record.h"

/* What a program may grow by: a sanitizer keeps what was freed. */
#if defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define RIG_SANITIZED 1
#endif
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define RIG_SANITIZED 1
#endif
#ifdef RIG_SANITIZED
#define RIG_GROWTH_KB(kb) ((kb) + 2 * 1024 * 1024)
#else
#define RIG_GROWTH_KB(kb) (kb)
#endif

enum { RIG_PATH = 512, RIG_WAIT_MS = 10000, RIG_ARGS = 16 };

struct rig {
    char base[RIG_PATH]; /* removed by rig_fini() */
    char dir[RIG_PATH];  /* --dir */
    char data[RIG_PATH]; /* --data */
    char log[RIG_PATH];  /* its stderr, over all starts */
    const char *args[RIG_ARGS]; /* more options, NULL-terminated */
    pid_t pid;           /* 0: not running */
    uid_t uid;           /* that it runs as; 0: ours */
    bool journals_alive; /* rig_journal() makes them of this process */
    uint32_t journals_unreadable; /* this record of them does not decode */
};

/* ---- the daemon ---- */

void rig_init(struct rig *r);
void rig_fini(struct rig *r);   /* kills what still runs */

/* Starts and waits until it is ready. */
void rig_start(struct rig *r);
/* Starts and gives the exit code of one that does not get ready; -1 when it
 * did get ready (it runs then). What it printed is at the log's end. */
int rig_try(struct rig *r);
/* SIGTERM; the exit code must be 0. */
void rig_stop(struct rig *r);
void rig_kill(struct rig *r);   /* SIGKILL */
bool rig_alive(struct rig *r);
/* The log holds this text (waits for it). */
void rig_logged(struct rig *r, const char *text);
char *rig_log(struct rig *r);   /* all of it; free() */

/* Time in ms, and a pause between two looks. */
long long rig_now_ms(void);
void rig_pause(void);
/* Waits until the expression holds. */
#define rig_until(expression)                                                 \
    do {                                                                      \
        long long rig_end_ = rig_now_ms() + RIG_WAIT_MS;                      \
        while (!(expression)) {                                               \
            if (rig_now_ms() > rig_end_)                                      \
                fail_msg("waited in vain for %s", #expression);               \
            rig_pause();                                                      \
        }                                                                     \
    } while (0)

/* ---- sockets ---- */

/* A connected descriptor; -1 when nobody answers. */
int rig_connect(const char *dir, const char *name);
void rig_write(int fd, const void *bytes, size_t n);
/* Like rig_write, but the other side may hang up meanwhile. */
void rig_write_any(int fd, const void *bytes, size_t n);
/* Reads n bytes; false at the end of the stream. */
bool rig_read(int fd, void *bytes, size_t n);
/* Waits until the other side has hung up, dropping what it still says. */
void rig_hung_up(int fd);

/* ---- frames ---- */

/* A client: one connection of one stream. */
struct rig_client {
    int fd;
    uint64_t epoch;
    struct frame got;         /* the last frame read */
    uint8_t payload[FRAME_MAX_BYTES];
    struct welcome welcome;   /* run points into run */
    char run[TRD_MAX_RUN + 1];
    struct ack ack;           /* the newest */
    struct refusal refusal;   /* of REFUSE or NACK; text points into payload */
};

/* A hello of this process: run "run", job "job", rank 0. */
struct hello rig_hello(void);

/* Connects and says hello. True: welcome; false: refused. */
bool rig_greet(struct rig *r, struct rig_client *c, uint64_t epoch,
               const struct hello *h);
/* The same, as rank 0 of "run"; must be welcome. */
void rig_open(struct rig *r, struct rig_client *c, uint64_t epoch);
void rig_close(struct rig_client *c);

/* A frame's bytes; how many. */
enum { RIG_FRAME_BYTES = FRAME_HEADER_BYTES + FRAME_MAX_BYTES };
size_t rig_frame(uint8_t *out, uint64_t epoch, uint16_t type, uint64_t seq,
                 const void *payload, size_t n);
size_t rig_hello_frame(uint8_t *out, uint64_t epoch, const struct hello *h);

void rig_send(struct rig_client *c, uint16_t type, uint64_t seq,
              const void *payload, size_t n);
/* Reads a frame, keeps what an ACK, WELCOME, REFUSE or NACK says. False at
 * the end of the stream. */
bool rig_recv(struct rig_client *c);
/* Reads until this type comes. */
void rig_expect(struct rig_client *c, enum frame_type type);
/* Reads until the daemon says that it has (durable: on disk) all to seq. */
void rig_committed(struct rig_client *c, uint64_t seq);
void rig_durable(struct rig_client *c, uint64_t seq);

/* ---- entries ---- */

/* Entries one after the other, as in DATA, DICT and the journal. */
struct rig_entries {
    uint8_t bytes[FRAME_MAX_BYTES];
    size_t n_bytes;
    uint32_t n;
};
void rig_entries_init(struct rig_entries *e);
void rig_add_object(struct rig_entries *e, uint32_t id, const char *class_name,
                    uint32_t instance, const char *module);
void rig_add_site(struct rig_entries *e, uint32_t id, uint32_t object,
                  int pass, int io, uint32_t position, const char *path);
void rig_add_shape(struct rig_entries *e, uint32_t id, int64_t rows,
                   int64_t columns);
void rig_add_note(struct rig_entries *e, uint32_t id, const char *text);
void rig_add_record(struct rig_entries *e, uint64_t seq,
                    const struct wire_record *m);
/* Whole, whatever its body is; and one with a body that no reader takes. */
void rig_add_entry(struct rig_entries *e, uint32_t kind, uint64_t number,
                   const void *body, size_t n);
void rig_add_unreadable(struct rig_entries *e, uint32_t kind, uint64_t number);
void rig_add_loss(struct rig_entries *e, uint64_t seq, uint32_t cause,
                  uint64_t count);
/* As a frame, as bytes or sent; first: of DICT the number, of DATA the seq. */
size_t rig_dict_frame(uint8_t *out, uint64_t epoch,
                      const struct rig_entries *e, uint32_t first);
size_t rig_data_frame(uint8_t *out, uint64_t epoch,
                      const struct rig_entries *e, uint64_t first);
void rig_send_dict(struct rig_client *c, const struct rig_entries *e,
                   uint32_t first);
void rig_send_data(struct rig_client *c, const struct rig_entries *e,
                   uint64_t first);

/* The dictionary that the records below need: 1 object Linear-1 "layer1",
 * 2 site forward input "0", 3 shape 4 x 8, 4 note "note". */
enum { RIG_DICT_N = 4, RIG_OBJECT = 1, RIG_SITE, RIG_SHAPE, RIG_NOTE };
void rig_fill_dict(struct rig_entries *e);
/* A float32 record with 16 samples; step = seq. */
struct wire_record rig_record(uint64_t seq);
/* n records from seq. */
void rig_fill_data(struct rig_entries *e, uint64_t seq, uint32_t n);

/* ---- journals ---- */

/* Writes dir/NAME.journal of a process that is gone: dictionary as above,
 * records 1 to n. torn: this record is damaged (0: none). */
void rig_journal(struct rig *r, const char *name, uint64_t epoch, uint32_t n,
                 uint32_t torn, bool clean);

#endif
