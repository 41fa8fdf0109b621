/* Entries: records, losses, words of the dictionary.
 *
 * Input: u8 kind, then the body. The entry is sealed here, or no input would
 * come past its checksum; a second one is read as it lies. What decodes can
 * be written again, and what was written decodes to the same. */
#include "tests/fuzz/fuzz.h"

#include "proto/histogram.h"
#include "proto/record.h"

static void check_record(const struct entry *e)
{
    static uint8_t again[ENTRY_MAX_BYTES];
    struct writer w = writer_of(again, sizeof again);
    struct wire_record a, b;
    struct entry copy = *e;
    if (record_get(e, &a))
        return;
    FUZZ_CHECK(record_figures_ok(a.dtype, &a.stats));
    FUZZ_CHECK(record_put(&w, &a) == 0);
    copy.body = again;
    copy.body_n = (size_t)(w.at - again);
    FUZZ_CHECK(record_get(&copy, &b) == 0);
    FUZZ_CHECK(a.stats.n == b.stats.n && a.stats.has == b.stats.has);
    FUZZ_CHECK(a.stats.sample_n == b.stats.sample_n);
    FUZZ_CHECK(a.stats.hash == b.stats.hash);
    FUZZ_CHECK(a.when.step == b.when.step && a.when.labels == b.when.labels);
}

static void check(const struct entry *e)
{
    struct wire_loss loss;
    struct wire_object object;
    struct wire_site site;
    struct wire_shape shape;
    struct slice note;
    check_record(e);
    loss_get(e, &loss);
    object_get(e, &object);
    site_get(e, &site);
    if (!shape_get(e, &shape))
        FUZZ_CHECK(shape.ndim <= TRD_MAX_DIMS);
    note_get(e, &note);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct entry e;
    size_t len = ENTRY_HEADER_BYTES + (size ? size - 1 : 0);
    uint8_t *bytes = malloc(len);
    uint32_t word;
    FUZZ_CHECK(bytes);
    if (size > 1)
        memcpy(bytes + ENTRY_HEADER_BYTES, data + 1, size - 1);
    if (len <= ENTRY_MAX_BYTES) {
        struct writer w = writer_of(bytes, 4);
        word = entry_seal(bytes, size ? data[0] : 0, (uint32_t)len, 1);
        put_u32(&w, word);
        FUZZ_CHECK(entry_get(bytes, len, &e) == 0);
        check(&e);
        FUZZ_CHECK(entry_get(bytes, len - 1, &e) != 0);
    }
    free(bytes);
    if (!entry_get(data, size, &e))
        check(&e);
    return 0;
}
