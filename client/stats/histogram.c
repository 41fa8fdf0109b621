/* Exponent histograms: how many elements have which exponent. Any thread.
 *
 * The elements are those of struct trd_histogram's definition; a pass of its
 * own over a few rows, or over all, of a tile that is in the cache already.
 *
 * Invariants: reads only the elements it is given; keeps nothing. */
#include "client/stats/kernel.h"

#include <string.h>

enum { ROWS = TRD__TILE / TRD__LANES };

unsigned trd__bin_row(uint64_t tile)
{
    return (unsigned)((tile + tile / ROWS) % ROWS);
}

/* The bits that v needs; no branch, which nobody could predict. */
static inline unsigned bits_of(uint64_t v)
{
#if defined(__GNUC__)
    return 64 - (unsigned)__builtin_clzll(v | 1) - !v;
#else
    unsigned bits = 0;

    for (; v; v >>= 1)
        bits++;
    return bits;
#endif
}

static inline uint64_t magnitude_of(int64_t v)
{
    uint64_t sign = 0 - (uint64_t)(v < 0);

    return ((uint64_t)v ^ sign) - sign;
}

#define TAKE(type, value)                                                      \
    for (uint32_t i = 0; i < m; i++) {                                         \
        type v;                                                                \
        memcpy(&v, p + i * sizeof v, sizeof v);                                \
        bin[i] = (uint8_t)(value);                                             \
    }                                                                          \
    break

/* The bins of m elements of a dtype that has FEW at most. */
enum { FEW = 256 };

static void take_bins(int dtype, const unsigned char *p, uint32_t m,
                      uint8_t *bin)
{
    switch (dtype) {
    case TRD_F32:
        TAKE(uint32_t, v >> 23);
    case TRD_BF16:
        TAKE(uint16_t, v >> 7);
    case TRD_F16:
        TAKE(uint16_t, v >> 10 & 31);
    case TRD_F8_E4M3FN:
    case TRD_F8_E4M3FNUZ:
        TAKE(uint8_t, v >> 3 & 15);
    case TRD_F8_E5M2:
    case TRD_F8_E5M2FNUZ:
        TAKE(uint8_t, v >> 2 & 31);
    case TRD_F8_E8M0FNU:
        TAKE(uint8_t, v);
    case TRD_I8:
        TAKE(int8_t, bits_of(magnitude_of(v)));
    case TRD_I16:
        TAKE(int16_t, bits_of(magnitude_of(v)));
    case TRD_I32:
        TAKE(int32_t, bits_of(magnitude_of(v)));
    case TRD_I64:
        TAKE(int64_t, bits_of(magnitude_of(v)));
    case TRD_U8:
        TAKE(uint8_t, bits_of(v));
    case TRD_U16:
        TAKE(uint16_t, bits_of(v));
    case TRD_U32:
        TAKE(uint32_t, bits_of(v));
    case TRD_U64:
        TAKE(uint64_t, bits_of(v));
    default: /* bool */
        TAKE(uint8_t, v != 0);
    }
}

/* Neighbours often share a bin, and a counter that was just stored is slow to
 * load again: so for many elements four tables take turns. */
enum { TURNS = 4, MANY = 4 * TRD__LANES };

static void count_few(int dtype, const unsigned char *p, uint32_t m,
                      uint64_t *bins)
{
    uint32_t turn[TURNS][FEW];
    uint8_t bin[TRD__TILE];
    unsigned n = trd_dtype_bins(dtype);

    take_bins(dtype, p, m, bin);
    if (m < MANY) {
        for (uint32_t i = 0; i < m; i++)
            bins[bin[i]]++;
        return;
    }
    for (int t = 0; t < TURNS; t++)
        memset(turn[t], 0, n * sizeof **turn);
    for (uint32_t i = 0; i < m; i++)
        turn[i % TURNS][bin[i]]++;
    for (unsigned b = 0; b < n; b++)
        bins[b] += (uint64_t)turn[0][b] + turn[1][b] + turn[2][b] + turn[3][b];
}

/* float64 itself, and |z| of complex numbers. */
static void count_fp64(int dtype, const unsigned char *p, uint32_t m,
                       uint64_t *bins)
{
    unsigned size = trd_dtype_bytes(dtype);

    while (m) {
        double x[TRD__LANES];
        uint32_t few = m < TRD__LANES ? m : TRD__LANES;
        trd__decode64(dtype, p, few, x);
        for (uint32_t i = 0; i < few; i++) {
            uint64_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            bins[bits >> 52 & 2047]++;
        }
        p += (size_t)few * size;
        m -= few;
    }
}

void trd__bins_add(int dtype, const void *elements, uint32_t m, uint64_t *bins)
{
    const unsigned char *p = elements;
    uint32_t n = trd_dtype_bins(dtype);

    for (uint32_t few; n && m; m -= few) {
        few = m < TRD__TILE ? m : TRD__TILE;
        if (n <= FEW)
            count_few(dtype, p, few, bins);
        else
            count_fp64(dtype, p, few, bins);
        p += (size_t)few * trd_dtype_bytes(dtype);
    }
}

void trd__bins_finish(int dtype, enum trd_histogram_kind kind,
                      const uint64_t *bins, struct trd_histogram *out)
{
    uint32_t n = trd_dtype_bins(dtype);
    uint32_t first = 0;

    while (n && !bins[n - 1])
        n--;
    while (first < n && !bins[first])
        first++;
    out->kind = kind;
    out->first = n ? first : 0;
    out->n = n - first;
    memcpy(out->count, bins + first, out->n * sizeof *bins);
}
