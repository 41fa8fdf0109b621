/* The client: hands records of this process to tracerd.
 *
 * It never stops, slows noticeably, prints in or exits the host process.
 * Records are appended to a mapped journal without a lock or a system call;
 * one background thread sends them and forgets what the daemon has made
 * durable. Without a daemon the journal keeps what fits and a daemon started
 * later takes it over. What to do when the journal is full is the user's
 * choice: drop the newest, wait a little for room (block_ms), or move the
 * oldest to a file on a disk (spool_dir). Whatever is lost is counted by cause.
 * After fork() every call in the child returns TRD_ECLOSED and touches
 * nothing. */
#ifndef TRACERD_CLIENT_H
#define TRACERD_CLIENT_H

#include "tracerd/record.h"

#ifdef __cplusplus
extern "C" {
#endif

struct trd_client;

/* X(name, text): why a record was lost. Order is stored: only append. */
#define TRD_CAUSES(X)                                                         \
    X(TRD_LOST_RING_FULL, "ring_full")   /* the journal had no room */        \
    X(TRD_LOST_NO_SPACE, "no_space")     /* no disk for a journal */          \
    X(TRD_LOST_OOM, "oom")               /* no memory */                      \
    X(TRD_LOST_CRC, "crc")               /* a checksum did not hold */        \
    X(TRD_LOST_TOO_BIG, "too_big")       /* longer than a record may be */    \
    X(TRD_LOST_QUOTA, "quota")           /* too many different names */       \
    X(TRD_LOST_STORE, "store_lost")      /* the daemon's file was replaced */ \
    X(TRD_LOST_FORK, "fork_child")       /* submitted in a forked child */    \
    X(TRD_LOST_TORN, "torn")             /* the process died in the middle */ \
    X(TRD_LOST_ERROR, "error")           /* the recording itself failed */    \
    X(TRD_LOST_DEVICE, "device")         /* on a GPU: no slot, or no result   \
                                            before the end */

enum trd_cause {
#define TRD_CAUSE_MEMBER(name, text) name,
    TRD_CAUSES(TRD_CAUSE_MEMBER)
#undef TRD_CAUSE_MEMBER
    TRD_CAUSE_COUNT
};

/* Where and as whom to trace. Call trd_client_options_init() first: it
 * leaves the defaults, and later versions append members. */
struct trd_client_options {
    size_t size;             /* sizeof of the caller's structure */
    const char *dir;         /* sockets and journals; NULL: TRACERD_DIR,
                                else the private directory of the user */
    const char *run;         /* letters digits . _ -; NULL: "run" */
    const char *job;         /* what the ranks of one job share; "" alone */
    const char *info;        /* JSON object kept with the stream, or NULL */
    uint64_t journal_bytes;  /* power of two, 1 MiB to 2 GiB; 32 MiB */
    uint32_t attempt;        /* restart number of an elastic job */
    uint32_t rank;           /* below 2^24 */
    uint32_t world;          /* ranks of the job, 0 unknown */
    int no_thread;           /* 1: no sender thread; the journal is left for
                                a daemon to take over (tests) */
    enum trd_sampling sampling; /* of trd_submit_cpu() and of devices, see */
    uint64_t sampling_arg;      /* struct trd_want */
    enum trd_histogram_kind histogram;
    uint32_t block_ms;       /* a submit waits so long where the journal is
                                full; 0: never */
    const char *spool_dir;   /* of a file for what the journal has no room for
                                while no daemon takes it; nobody else may
                                write there. It is made, 0700, where the
                                directory above it is there. NULL:
                                TRACERD_SPOOL; "": none */
    uint64_t spool_bytes;    /* the most that the file may have; 1 GiB;
                                0: none */
};

struct trd_counters {
    uint64_t submitted;                /* records accepted */
    uint64_t committed;                /* of them, the daemon stored */
    uint64_t durable;                  /* of them, on the disk for good */
    uint64_t lost[TRD_CAUSE_COUNT];    /* by cause */
    uint64_t connects;                 /* successful hellos */
    uint64_t journal_used_bytes;
    uint64_t journal_bytes;
    int connected;                     /* 1: a daemon answers now */
    int last_error;                    /* TRD_E of the last failed connect */
    uint64_t blocked_ns;               /* submits waited for room, in all */
    uint64_t spool_used_bytes;         /* of the file, 0: there is none */
    int spool_error;                   /* TRD_E: why there is no spool, or why
                                          nothing could be moved there when
                                          it was tried last */
};

/* Writes the defaults. Threads: any. Blocks: never. Owns: nothing. */
TRD_API void trd_client_options_init(struct trd_client_options *options);

/* Opens the journal and starts the sender; needs no daemon. The strings of
 * options are copied. Where the directory or the disk fails, the client
 * opens all the same with a journal in private memory: records then reach
 * a running daemon but do not survive this process (trd_counters tells by
 * last_error). Where the spool's directory fails there is none (spool_error).
 * Threads: any. Blocks: for file creation. Owns: *out until
 * trd_client_close(). Errors: TRD_EINVAL, TRD_ENAME (run), TRD_ENOMEM. */
TRD_API int trd_client_open(const struct trd_client_options *options,
                            struct trd_client **out);

/* Interns a site or a note (free text such as "placements=Shard(0)") and
 * gives its number. The same content gives the same number.
 * Threads: any. Blocks: for another interning thread. Owns: nothing.
 * Errors: TRD_EINVAL, TRD_ELIMIT (dictionary full or name too long),
 * TRD_ECLOSED. */
TRD_API int trd_site(struct trd_client *client, const struct trd_site *site,
                     uint32_t *id);
TRD_API int trd_note(struct trd_client *client, const char *text,
                     uint32_t *id);

/* Appends one record: figures that are already computed, for a tensor of
 * which only dtype, ndim and shape are read. samples holds stats->sample_n
 * elements; a histogram is copied.
 * Threads: any, at once, and signal handlers. Blocks: never, unless block_ms
 * asks for it and the journal is full: then at most so long, and after a wait
 * in vain not again before something was freed. No lock, no system call (a
 * shape seen for the first time is interned under a lock). Owns: nothing.
 * Errors: TRD_EFULL, TRD_ELIMIT, TRD_EINVAL, TRD_ECLOSED; each is counted. */
TRD_API int trd_submit(struct trd_client *client, uint32_t site,
                       const struct trd_when *when,
                       const struct trd_tensor *tensor,
                       const struct trd_stats *stats, const void *samples);

/* trd_stats_cpu_as() with k samples and the rule and histogram of the
 * options, then trd_submit(). A tensor that cannot be read (TRD_EUNSUPPORTED,
 * TRD_ENODATA) is kept as shape and label.
 * Threads: any, at once. Blocks: as trd_submit(). Owns: nothing.
 * Errors: as both. */
TRD_API int trd_submit_cpu(struct trd_client *client, uint32_t site,
                           const struct trd_when *when,
                           const struct trd_tensor *tensor, uint32_t k);

/* One tensor of trd_submit_cuda(). */
struct trd_item {
    uint32_t site;
    struct trd_when when;
    struct trd_tensor tensor; /* data: device memory */
    uint32_t k;               /* samples, at most those of trd_cuda_open() */
};

/* Gets a GPU ready: memory for results of up to k samples, kernels.
 * Everything that could wait or allocate happens here and never later. Again
 * for the same device is nothing.
 * Threads: any. Blocks: some milliseconds, for the driver. Owns: nothing.
 * Errors: TRD_EINVAL, TRD_EUNSUPPORTED (no CUDA half of the library beside
 * this one, no driver, no such device), TRD_ENOMEM, TRD_ECLOSED. */
TRD_API int trd_cuda_open(struct trd_client *client, int device, uint32_t k);

/* Queues the statistics of n tensors of one device on a stream (a
 * cudaStream_t), in one launch where they fit, and returns. Records follow
 * when the stream has come so far. The memory may be freed or written in
 * stream order at once, also while the stream is captured into a graph; each
 * replay of the graph then makes records, labelled graph. Tensors that the
 * kernel does not read (more than TRD_CUDA_DIMS dimensions that do not merge,
 * an unknown dtype, NULL) are kept as shape and label.
 * Threads: any, at once. Blocks: never. Owns: nothing.
 * Errors: TRD_EUNSUPPORTED (device not opened), TRD_EINVAL, TRD_ELIMIT (too
 * many streams), TRD_ECLOSED; each item is then counted as lost. */
TRD_API int trd_submit_cuda(struct trd_client *client,
                            const struct trd_item *items, uint32_t n,
                            int device, void *stream);

/* Counts a record that could not be made (cause TRD_LOST_ERROR and so on),
 * so that the run tells of it. Threads: any. Blocks: never. */
TRD_API void trd_lost(struct trd_client *client, enum trd_cause cause,
                      uint64_t count);

/* Waits until all that was submitted before is committed by the daemon.
 * Threads: any. Blocks: up to timeout_ms. Owns: nothing.
 * Errors: TRD_ETIMEDOUT, TRD_ECLOSED. */
TRD_API int trd_flush(struct trd_client *client, int timeout_ms);

/* Threads: any. Blocks: never. Owns: nothing. Errors: none. */
TRD_API void trd_counters(struct trd_client *client,
                          struct trd_counters *out);

/* The run's name as the daemon gave it (it may end in -2), or as asked for
 * while none has answered. cap is the size of out, at least 1.
 * Threads: any. Blocks: never. Owns: nothing. Errors: none. */
TRD_API void trd_run_name(struct trd_client *client, char *out, size_t cap);

/* Says goodbye and frees everything; waits at most 100 ms for the daemon.
 * What it has not confirmed by then stays in the journal. NULL is fine.
 * Threads: one, and no other call may be running or follow. Blocks: 100 ms.
 * Owns: takes client. Errors: none. */
TRD_API void trd_client_close(struct trd_client *client);

#ifdef __cplusplus
}
#endif
#endif
