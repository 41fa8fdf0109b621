/* Dumps of msprobe.
 *
 * Input: the file. Its entries come in the order of the file, each within it,
 * and their tensors have figures that a record can have; what is refused is
 * told with a line that the file has. */
#include "tests/fuzz/fuzz.h"

#include "tools/msprobe.h"

static uint64_t told;

static int take_tensor(void *to, const struct msprobe_tensor *t)
{
    const struct msprobe_entry *e = to;
    static uint8_t body[ENTRY_MAX_BYTES];
    struct writer w = writer_of(body, sizeof body);
    const struct wire_record r = {.site = 1, .shape = 1, .dtype = t->dtype,
                                  .stats = t->stats};
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->shape.ndim; i++)
        n *= (uint64_t)t->shape.dim[i];
    FUZZ_CHECK(t->shape.ndim <= TRD_MAX_DIMS && n == t->stats.n);
    FUZZ_CHECK(t->path.n <= TRD_MAX_NAME && e->name.pass);
    FUZZ_CHECK(t->stats.has & TRD_IS_GIVEN);
    FUZZ_CHECK(record_figures_ok(t->dtype, &t->stats));
    FUZZ_CHECK(record_put(&w, &r) == 0);
    return 0;
}

static void take_bad(void *to, const char *path, const char *why)
{
    (void)to;
    FUZZ_CHECK(path && *why);
    told++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *bytes = (const char *)data, *last = bytes;
    struct msprobe m;
    struct msprobe_entry e;
    const struct msprobe_take take = {take_tensor, take_bad, &e};
    uint64_t lines = 1;
    bool named;
    int got = msprobe_open(&m, bytes, size);
    for (size_t i = 0; i < size; i++)
        lines += data[i] == '\n';
    while (got >= 0 && (got = msprobe_next(&m, &e, &named)) > 0) {
        FUZZ_CHECK(e.key.text > last && e.line >= 1 && e.line <= lines);
        FUZZ_CHECK(e.value.text > e.key.text && e.value.n > 0);
        last = e.value.text + e.value.n;
        FUZZ_CHECK(last <= bytes + size);
        if (named)
            FUZZ_CHECK(msprobe_tensors(&e, &take) == 0);
    }
    if (got < 0)
        FUZZ_CHECK(*m.why && m.line >= 1 && m.line <= lines);
    return 0;
}
