/* The query socket's byte stream, in pieces as the input cuts them.
 *
 * Input: pieces of u8 length and that many bytes. No message is longer than
 * the limit, and what is taken is never more than what was given. */
#include "tests/fuzz/fuzz.h"

#include "daemon/sp.h"

enum { LIMIT = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    struct sp_reader r;
    enum sp_result result = SP_MORE;
    sp_reader_init(&r, LIMIT);
    while (in.left && (result == SP_MORE || result == SP_MESSAGE)) {
        size_t n = fuzz_take(&in, 1), used = 0;
        if (n > in.left)
            n = in.left;
        while (used < n) {
            size_t took = 0;
            result = sp_reader_feed(&r, in.at + used, n - used, &took);
            FUZZ_CHECK(took <= n - used);
            used += took;
            if (result == SP_MESSAGE) {
                size_t length = 0;
                uint8_t *message = sp_reader_take(&r, &length);
                FUZZ_CHECK(length <= LIMIT);
                FUZZ_CHECK(sp_back_bytes(message, length) <= SP_BACK_MAX);
                free(message);
            } else if (result != SP_MORE) {
                break;
            } else {
                FUZZ_CHECK(used == n);
            }
        }
        in.at += n;
        in.left -= n;
    }
    sp_reader_fini(&r);
    return 0;
}
