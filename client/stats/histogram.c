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

/* Neighbours often share a bin, and a counter that was just stored is slow to
 * load again: so four tables take turns. Only for few bins, or they would
 * cost more than they save. */
enum { TURNS = 4, FEW = 256 };

#define COUNT_FIELD(type, shift, mask)                                        \
    for (uint32_t i = 0; i < m; i++) {                                        \
        type v;                                                               \
        memcpy(&v, p + i * sizeof v, sizeof v);                               \
        turn[i % TURNS][v >> (shift) & (mask)]++;                             \
    }                                                                         \
    break

static void count_fields(int dtype, const unsigned char *p, uint32_t m,
                         uint64_t *bins)
{
    uint32_t turn[TURNS][FEW];
    unsigned n = trd_dtype_bins(dtype);

    for (int t = 0; t < TURNS; t++)
        memset(turn[t], 0, n * sizeof **turn);
    switch (dtype) {
    case TRD_F32:
        COUNT_FIELD(uint32_t, 23, 255);
    case TRD_BF16:
        COUNT_FIELD(uint16_t, 7, 255);
    case TRD_F16:
        COUNT_FIELD(uint16_t, 10, 31);
    case TRD_F8_E4M3FN:
    case TRD_F8_E4M3FNUZ:
        COUNT_FIELD(uint8_t, 3, 15);
    case TRD_F8_E5M2:
    case TRD_F8_E5M2FNUZ:
        COUNT_FIELD(uint8_t, 2, 31);
    default: /* e8m0 */
        COUNT_FIELD(uint8_t, 0, 255);
    }
    for (unsigned b = 0; b < n; b++)
        bins[b] += (uint64_t)turn[0][b] + turn[1][b] + turn[2][b] + turn[3][b];
}

/* The magnitude of an integer of any width. */
static uint64_t magnitude_of(int dtype, const unsigned char *p)
{
    unsigned size = trd_dtype_bytes(dtype);
    uint64_t v = 0;

    memcpy(&v, p, size);
    if (dtype == TRD_BOOL)
        return v != 0;
    if (trd_dtype_kind(dtype) == TRD_KIND_SIGNED && v >> (8 * size - 1))
        v = (0 - v) & UINT64_MAX >> (64 - 8 * size);
    return v;
}

static void count_bits(int dtype, const unsigned char *p, uint32_t m,
                       uint64_t *bins)
{
    unsigned size = trd_dtype_bytes(dtype);

    for (uint32_t i = 0; i < m; i++) {
        uint64_t v = magnitude_of(dtype, p + i * size);
        unsigned bits = 0;
        for (; v; v >>= 1)
            bits++;
        bins[bits]++;
    }
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

void trd__bins_add(int dtype, const void *elements, uint32_t m,
                   uint64_t *bins)
{
    switch (trd_dtype_kind(dtype)) {
    case TRD_KIND_SIGNED:
    case TRD_KIND_UNSIGNED:
        count_bits(dtype, elements, m, bins);
        break;
    case TRD_KIND_FLOAT:
        if (trd_dtype_bins(dtype) <= FEW) {
            count_fields(dtype, elements, m, bins);
            break;
        }
        /* fall through */
    case TRD_KIND_COMPLEX:
        count_fp64(dtype, elements, m, bins);
        break;
    default:
        break;
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
