/* What the host half and the kernels share: a launch's parameters and the
 * memory that outlives it. */
#ifndef CLIENT_STATS_CUDA_TYPES_H
#define CLIENT_STATS_CUDA_TYPES_H

#include "client/stats/cuda.h"
#include "client/stats/decode.h"

typedef unsigned long long cuda_u64; /* what atomics take */

/* One kernel each. The general one takes every dtype and layout; the others
 * take memory that is contiguous and aligned to 16 bytes. */
enum cuda_class {
    CUDA_GENERAL,
    CUDA_F32,
    CUDA_F16,
    CUDA_BF16,
    CUDA_BYTE, /* every narrow dtype of one byte */
    CUDA_CLASSES
};

enum {
    CUDA_WARP = 32,
    CUDA_WARPS = 8,     /* most warps of a block */
    CUDA_RESIDENT = 2,  /* blocks a multiprocessor is to hold at least */
    CUDA_CHUNKS = 2048, /* most chunks of one launch */
    CUDA_LEVELS = 20,   /* of the tree over one warp's batches */
    CUDA_STAGE = 32768, /* bytes of a block for gathered tiles */
    CUDA_ALIGN = 16
};

/* Everything that adds up in any order, in a form whose start is all zeros,
 * so that one loop merges and clears it. */
enum cuda_word {
    CUDA_NAN,
    CUDA_PINF,
    CUDA_NINF,
    CUDA_ZERO,
    CUDA_SUBNORMAL,
    CUDA_FINITE,
    CUDA_HASH,
    CUDA_ADDED, /* the words below add, those from here on take the larger */
    CUDA_MAX = CUDA_ADDED, /* key of the largest */
    CUDA_MIN,              /* ~ key of the smallest */
    CUDA_ABSMAX,           /* |x| */
    CUDA_ABSMIN,           /* ~ the smallest |x| that is not 0 */
    CUDA_WORDS
};

/* One tensor as a kernel sees it. Chunk c holds tiles c << chunk_log2 on. */
struct cuda_item {
    const unsigned char *data;
    uint64_t n, tiles, tag;
    uint32_t chunk0, chunks; /* among the chunks of the launch */
    uint32_t chunk_log2;
    uint32_t k;
    uint16_t dtype, size;    /* size: bytes of an element */
    uint8_t narrow, dense, ndim, packed;
    struct {
        uint64_t extent, stride;
    } dim[TRD_CUDA_DIMS];
};

/* Scratch of one stream or one captured launch, in device memory. Whoever
 * finishes an item clears its part. */
struct cuda_area {
    uint32_t items_done;
    uint32_t ticket[TRD__CUDA_BATCH];
    cuda_u64 runs; /* that are over */
    cuda_u64 word[TRD__CUDA_BATCH][CUDA_WORDS];
};

/* The ring's device part: its end is moved there. */
struct cuda_head {
    cuda_u64 head;
    cuda_u64 tail; /* as last seen: behind the true one or at it */
    cuda_u64 dropped;
};

/* Pinned: what host and device tell each other. */
struct cuda_shared_words {
    volatile uint64_t tail;                       /* by the host */
    volatile uint64_t dropped;                    /* by the device */
    volatile uint64_t done[TRD__CUDA_STREAMS];    /* runs of an area */
};

/* Pinned: one place of the ring; samples follow, then bins. */
struct cuda_slot {
    volatile uint64_t sequence; /* its number + 1 once written */
    struct trd__cuda_result result;
};

struct cuda_launch {
    uint32_t items;
    uint32_t captured;
    struct cuda_area *area;
    struct trd__sum *part; /* of each chunk */
    cuda_u64 *bins;        /* TRD_MAX_BINS of each item; NULL: none */
    volatile uint64_t *done;
    struct cuda_head *head;
    struct cuda_shared_words *words;
    unsigned char *ring;
    uint64_t slots, slot_bytes;
    uint32_t samples_at, bins_at; /* in a slot */
    uint32_t sampling, histogram;
    uint64_t sampling_arg;
    struct cuda_item item[TRD__CUDA_BATCH];
};

/* Kernels as the host launches them. */
const void *trd__cuda_kernel(int which);

/* Bytes of shared memory for `warps` warps, without the stage. */
uint32_t trd__cuda_shared_bytes(bool histogram);

#endif
