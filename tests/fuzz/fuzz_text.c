/* Lines of the hand-written log, and names.
 *
 * Input: u8 samples, then a line. A line that is read is printed, and what
 * was printed is read again to the same; the line's text is also taken as a
 * question for records. */
#include "tests/fuzz/fuzz.h"

#include "proto/name.h"
#include "proto/text.h"

static void check_line(const char *line, size_t n, uint32_t k)
{
    static struct text_line a, b;
    static char printed[1 << 20];
    const char *why = NULL;
    struct text_name name;
    size_t column = 0;
    int length;
    if (text_parse(line, n, k, &a, &why, &column)) {
        FUZZ_CHECK(why && column >= 1 && column <= n + 1);
        return;
    }
    FUZZ_CHECK(a.ndim <= TRD_MAX_DIMS && a.sample_n <= TRD_MAX_SAMPLES);
    text_name(a.name, &name);
    length = text_print(&a, printed, sizeof printed);
    FUZZ_CHECK(length > 0);
    FUZZ_CHECK(text_parse(printed, (size_t)length, k, &b, &why, &column) ==
               0);
    FUZZ_CHECK(a.n == b.n && a.counter == b.counter && a.index == b.index);
    FUZZ_CHECK(a.sample_n == b.sample_n && a.time_us == b.time_us);
}

static void check_question(struct slice text)
{
    struct name_query q;
    const char *why = NULL;
    for (int as = NAME_AS_ANY; as <= NAME_AS_MODULE; as++) {
        if (name_parse(text, (enum name_as)as, &q, &why)) {
            FUZZ_CHECK(why);
            continue;
        }
        FUZZ_CHECK(q.n <= NAME_MAX_READINGS);
        for (unsigned i = 0; i < q.n; i++)
            name_has_wildcard(q.reading[i].who);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *line = (const char *)data + 1;
    struct slice text;
    if (!size--)
        return 0;
    check_line(line, size, data[0]);
    if (memchr(line, 0, size))
        return 0; /* no name holds NUL */
    text.text = line;
    text.n = size;
    check_question(text);
    /* a pattern of many stars must not take for ever */
    text.n = size / 2;
    name_match(text, (struct slice){line + size / 2, size - size / 2});
    return 0;
}
