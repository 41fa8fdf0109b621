/* An exponent histogram for eyes: the exponents' range and a character for
 * each, the darker the more elements, on a logarithmic scale; zeros and what
 * is not finite by themselves. */
#include <inttypes.h>

#include "tools/out.h"

enum { BAR_MAX = 64 };

/* Bins from..to-1 of a histogram's own count. */
struct range {
    uint32_t from, to;
};

static uint64_t sum_of(const struct histogram *h, uint32_t from, uint32_t to)
{
    uint64_t sum = 0;
    for (uint32_t i = from; i < to; i++)
        sum += histogram_count(h, i);
    return sum;
}

/* Whether the dtype's last bin has infinities and NaN only. */
static int ends_with_specials(int dtype)
{
    switch (trd_dtype_kind(dtype)) {
    case TRD_KIND_COMPLEX:
        return 1;
    case TRD_KIND_FLOAT:
        return dtype != TRD_F8_E4M3FN && dtype != TRD_F8_E4M3FNUZ &&
               dtype != TRD_F8_E5M2FNUZ;
    default:
        return 0;
    }
}

/* Splits off bin 0 and the bin of infinities; the rest without empty ends. */
static struct range split(const struct histogram *h, int dtype,
                          uint64_t *zeros, uint64_t *specials)
{
    struct range r = {0, h->n};
    *zeros = *specials = 0;
    if (r.from < r.to && h->first == 0 && dtype != TRD_F8_E8M0FNU)
        *zeros = histogram_count(h, r.from++);
    if (r.from < r.to && ends_with_specials(dtype) &&
        h->first + h->n == trd_dtype_bins(dtype))
        *specials = histogram_count(h, --r.to);
    while (r.from < r.to && !histogram_count(h, r.from))
        r.from++;
    while (r.from < r.to && !histogram_count(h, r.to - 1))
        r.to--;
    return r;
}

static unsigned bits_of(uint64_t v)
{
    unsigned bits = 0;
    for (; v; v >>= 1)
        bits++;
    return bits;
}

static void say_bar(struct out *o, const struct histogram *h, struct range r)
{
    static const char shades[] = " .:-=+*#%@";
    enum { DARKEST = sizeof shades - 2 };
    uint64_t column[BAR_MAX], most = 1;
    uint32_t by = (r.to - r.from + BAR_MAX - 1) / BAR_MAX, n = 0;
    for (uint32_t i = r.from; i < r.to; i += by) {
        column[n] = sum_of(h, i, r.to - i < by ? r.to : i + by);
        if (column[n] > most)
            most = column[n];
        n++;
    }
    fputs(" [", o->file);
    for (uint32_t i = 0; i < n; i++) {
        unsigned shade = bits_of(column[i]) * DARKEST / bits_of(most);
        putc(shades[column[i] && !shade ? 1 : shade], o->file);
    }
    putc(']', o->file);
    if (by > 1)
        fprintf(o->file, " by %" PRIu32, by);
}

void out_text_histogram(struct out *o, const struct row *r)
{
    const struct histogram *h = &r->histogram;
    uint64_t zeros, specials;
    int is_float = trd_dtype_kind(r->dtype) == TRD_KIND_FLOAT ||
                   trd_dtype_kind(r->dtype) == TRD_KIND_COMPLEX;
    if (!h->kind)
        return;
    struct range range = split(h, r->dtype, &zeros, &specials);
    fprintf(o->file, "    exponents (%s):", trd_histogram_name(h->kind));
    if (range.from < range.to) {
        fprintf(o->file, " %d to %d",
                trd_bin_exponent(r->dtype, h->first + range.from),
                trd_bin_exponent(r->dtype, h->first + range.to - 1));
        say_bar(o, h, range);
    }
    if (zeros)
        fprintf(o->file, "  %s %" PRIu64,
                is_float ? "zero or subnormal" : "zero", zeros);
    if (specials)
        fprintf(o->file, "  inf or nan %" PRIu64, specials);
    if (h->n == 0)
        fputs(" none", o->file);
    fputc('\n', o->file);
}
