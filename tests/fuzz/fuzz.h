/* What the fuzz targets share: the entry that libFuzzer and replay.c call, a
 * cursor over the input, memory that ends where it says. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Returns 0; ends the process where something is wrong. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(holds)                                                      \
    do {                                                                       \
        if (!(holds)) {                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__,         \
                    #holds);                                                   \
            abort();                                                           \
        }                                                                      \
    } while (0)

/* The input from front to back; behind its end there are zeros. */
struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

static inline uint64_t fuzz_take(struct fuzz_input *in, unsigned bytes)
{
    uint64_t v = 0;

    for (unsigned i = 0; i < bytes && in->left; i++, in->left--)
        v |= (uint64_t)*in->at++ << 8 * i;
    return v;
}

/* At least `bytes` bytes, rounded up to pages, between two pages that nobody
 * may touch. *end is behind the last one. */
static inline unsigned char *fuzz_guarded(size_t bytes, unsigned char **end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = (bytes + page - 1) / page * page;
    unsigned char *m = mmap(NULL, inner + 2 * page, PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    FUZZ_CHECK(m != MAP_FAILED);
    FUZZ_CHECK(!mprotect(m + page, inner, PROT_READ | PROT_WRITE));
    *end = m + page + inner;
    return m + page;
}

#endif
