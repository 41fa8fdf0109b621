/* Fuzzes the statistics of one tensor: any description of one, over memory
 * between two pages that must not be touched.
 *
 * The bytes of an input, which may end anywhere (zeros follow):
 *   1  dtype: 1 + v mod 23, where 23 takes the next byte as it is
 *   1  flags: enum flag
 *   1  threads - 1, mod 4
 *   1  samples: v, from 200 on 75 (v - 199): too many for 254 and 255
 *   1  sampling, mod 4     1  its argument; 255: 8 bytes that follow
 *   1  histogram, mod 4    1  dimensions: v mod 9, from 250 on as it is - 256
 *   a tame tensor: 1 byte, elements at most: 16 v, or ELEMENTS for 255; for
 *     each dimension 2 bytes extent and 2 bytes stride, brought into what that
 *     and the memory allow; then 8 bytes that mask the noise in the elements,
 *     and their pattern, which repeats
 *   a wild one: 8 bytes extent for each dimension
 *
 * A tame tensor lies within the memory, at its very end or beginning: it must
 * give the figures, samples and histogram of its contiguous copy on every
 * kernel of this machine. A wild one must be refused for a reason that it
 * gives, and nothing written. */
#include "tests/fuzz/fuzz.h"

#include "client/stats/kernel.h"

enum flag {
    WILD = 1,          /* extents are any; data is NULL */
    AT_BEGIN = 2,      /* not at the end of the memory */
    NO_DATA = 4,       /* NULL */
    NO_STRIDES = 8,    /* NULL: contiguous */
    NO_SAMPLES = 16,   /* NULL */
    NO_HISTOGRAM = 32, /* NULL */
    NO_SHAPE = 64      /* NULL */
};

enum {
    MEMORY = 1 << 20,
    ELEMENTS = 3 << 15, /* of a tame tensor, at most: more than TRD__WIDE_N */
    ASKED = 4200,       /* samples, at most: too many */
    DIMS = 80           /* more than any tensor may have */
};

static unsigned char *memory, *memory_end, *copy_end;

/* One call: its arguments and where its results go. */
struct attempt {
    struct trd_tensor t;
    int64_t shape[DIMS], strides[DIMS];
    struct trd_want want;
    unsigned flags, threads;
};

struct results {
    struct trd_stats stats;
    struct trd_histogram histogram;
    unsigned char samples[(ASKED + 1) * TRD__MAX_ELEMENT];
};

static void take_arguments(struct fuzz_input *in, struct attempt *a)
{
    unsigned v;

    v = 1 + (unsigned)fuzz_take(in, 1) % 23;
    a->t.dtype = (enum trd_dtype)(v == 23 ? (int)fuzz_take(in, 1) - 8 : (int)v);
    a->flags = (unsigned)fuzz_take(in, 1);
    a->threads = 1 + (unsigned)fuzz_take(in, 1) % 4;
    v = (unsigned)fuzz_take(in, 1);
    a->want.samples = v < 200 ? v : 75 * (v - 199);
    a->want.sampling = (enum trd_sampling)(fuzz_take(in, 1) % 4);
    a->want.sampling_arg = fuzz_take(in, 1);
    if (a->want.sampling_arg == 255)
        a->want.sampling_arg = fuzz_take(in, 8);
    a->want.histogram = (enum trd_histogram_kind)(fuzz_take(in, 1) % 4);
    v = (unsigned)fuzz_take(in, 1);
    a->t.ndim = v < 250 ? (int)v % 9 : (int)v - 256;
    if (v == 250)
        a->t.ndim = TRD_MAX_DIMS + 1;
    if (v == 251)
        a->t.ndim = TRD_MAX_DIMS;
    a->t.shape = a->flags & NO_SHAPE ? NULL : a->shape;
    a->t.strides = a->flags & NO_STRIDES ? NULL : a->strides;
}

/* ---- what must not succeed ---- */

/* Elements of the shape, exact up to 2^62, above it anything above. */
static unsigned __int128 count(const struct attempt *a)
{
    unsigned __int128 n = 1;

    for (int i = 0; i < a->t.ndim; i++)
        if (!a->shape[i])
            return 0;
    for (int i = 0; i < a->t.ndim && n <= UINT64_C(1) << 62; i++)
        n *= (uint64_t)a->shape[i];
    return n;
}

/* Whether `code` is among the reasons for refusal that the header lists;
 * 0 is one where there is no other. */
static int is_reason(const struct attempt *a, int code)
{
    int dtype = (int)a->t.dtype;
    int known = dtype > 0 && dtype < TRD_DTYPE_LIMIT && dtype != TRD_TEXT &&
                dtype != TRD_OPAQUE;
    int packed = known && trd_dtype_kind(dtype) == TRD_KIND_PACKED;
    int bad_shape =
        a->t.ndim < 0 || a->t.ndim > TRD_MAX_DIMS || (a->t.ndim && !a->t.shape);
    int invalid = a->want.samples > TRD_MAX_SAMPLES ||
                  a->want.sampling >= TRD_SAMPLING_COUNT ||
                  a->want.histogram >= TRD_HISTOGRAM_COUNT ||
                  (a->want.sampling == TRD_EVERY && !a->want.sampling_arg);
    int too_many = 0, nothing = 0;

    for (int i = 0; !bad_shape && i < a->t.ndim; i++)
        bad_shape = a->shape[i] < 0;
    if (!bad_shape) {
        unsigned __int128 n = count(a);
        too_many = n > UINT64_C(1) << 62;
        nothing = n && !a->t.data;
        invalid |= n && !packed && a->want.samples && a->flags & NO_SAMPLES;
    }
    invalid |= bad_shape;
    invalid |= !packed && a->want.histogram && a->flags & NO_HISTOGRAM;
    switch (code) {
    case TRD_EINVAL:
        return invalid;
    case TRD_ELIMIT:
        return too_many;
    case TRD_ENODATA:
        return nothing;
    case TRD_EUNSUPPORTED:
        return !known;
    default:
        return !code && !invalid && !too_many && !nothing && known;
    }
}

enum { UNTOUCHED = 0x5a };

/* Of struct results, what a call with so many samples might touch, and some
 * more. */
static size_t touchable(const struct attempt *a)
{
    return offsetof(struct results, samples) +
           (a->want.samples + 1) * TRD__MAX_ELEMENT;
}

static int call(const struct trd__kernel *kernel, unsigned threads,
                const struct attempt *a, const struct trd_tensor *t,
                struct results *r)
{
    memset(r, UNTOUCHED, touchable(a));
    return trd__stats_with(kernel, threads, t, &a->want, &r->stats,
                           a->flags & NO_SAMPLES ? NULL : r->samples,
                           a->flags & NO_HISTOGRAM ? NULL : &r->histogram);
}

/* Makes the call, and checks its answer unless that is 0. */
static int refused(const struct attempt *a, struct results *r)
{
    static unsigned char untouched[sizeof *r];
    int code = call(trd__kernel_best(), a->threads, a, &a->t, r);

    FUZZ_CHECK(is_reason(a, code));
    if (!*untouched)
        memset(untouched, UNTOUCHED, sizeof untouched);
    FUZZ_CHECK(!code || !memcmp(r, untouched, touchable(a)));
    return code;
}

static void run_wild(struct fuzz_input *in, struct attempt *a)
{
    static struct results r;

    for (int i = 0; i < DIMS; i++) {
        a->shape[i] = in->left ? (int64_t)fuzz_take(in, 8) : 1;
        a->strides[i] = a->shape[i];
    }
    a->t.data = NULL;
    refused(a, &r);
}

/* ---- what must succeed ---- */

/* Extents and strides that keep within MEMORY and ELEMENTS; the bytes from
 * the lowest to behind the highest element, and those below the first. */
static size_t take_layout(struct fuzz_input *in, struct attempt *a,
                          size_t *below)
{
    size_t size = trd_dtype_bytes((int)a->t.dtype);
    int64_t v = (int64_t)fuzz_take(in, 1);
    int64_t most = v < 255 ? 16 * v : ELEMENTS;
    int64_t room = MEMORY / (int64_t)(size ? size : 1) - 1;
    size_t up = 0, down = 0;

    if (v < 255 && room > 4 * most)
        room = 4 * most;
    if (most > room)
        most = room;
    for (int i = 0; i < a->t.ndim; i++) {
        int64_t extent = (int64_t)fuzz_take(in, 2) % (most + 1);
        int64_t stride = (int16_t)fuzz_take(in, 2);
        if (extent > 1) {
            int64_t way;
            most /= extent;
            stride %= room / (extent - 1) + 1;
            way = (extent - 1) * (stride < 0 ? -stride : stride);
            room -= way;
            *(stride < 0 ? &down : &up) += (size_t)way;
        }
        a->shape[i] = extent;
        a->strides[i] = stride;
    }
    if (a->flags & NO_STRIDES) {
        up = (size_t)count(a) - 1;
        down = 0;
    }
    *below = count(a) ? down * size : 0;
    return count(a) ? (up + down + 1) * size : 0;
}

static void fill(struct fuzz_input *in, unsigned char *to, size_t bytes)
{
    uint64_t mask = fuzz_take(in, 8);
    const uint8_t *pattern = in->left ? in->at : (const uint8_t *)"";
    size_t length = in->left ? in->left : 1;

    for (size_t i = 0; i < bytes; i += length)
        memcpy(to + i, pattern, bytes - i < length ? bytes - i : length);
    for (size_t i = 0; mask && i + 8 <= bytes; i += 8) {
        uint64_t v;
        memcpy(&v, to + i, 8);
        v ^= hash_mix(i) & mask;
        memcpy(to + i, &v, 8);
    }
}

static void copy_elements(const struct attempt *a, size_t n, size_t size,
                          unsigned char *to)
{
    int64_t index[DIMS] = {0};

    for (size_t e = 0; e < n; e++, to += size) {
        int64_t at = (int64_t)e;
        if (a->t.strides) {
            at = 0;
            for (int i = 0; i < a->t.ndim; i++)
                at += index[i] * a->strides[i];
        }
        memcpy(to, (const unsigned char *)a->t.data + at * (int64_t)size, size);
        for (int i = a->t.ndim; i-- > 0 && ++index[i] == a->shape[i];)
            index[i] = 0;
    }
}

/* What holds for any figures. */
static void check_figures(const struct attempt *a, const struct results *r,
                          const unsigned char *copy, size_t n, size_t size)
{
    const struct trd_stats *s = &r->stats;
    uint64_t counted = 0;

    FUZZ_CHECK(s->n == n);
    FUZZ_CHECK(s->nan + s->pinf + s->ninf + s->zero + s->subnormal <= n);
    if (s->has & TRD_HAS_MEAN) {
        FUZZ_CHECK(isfinite(s->mean) && isfinite(s->std) && s->std >= 0);
        FUZZ_CHECK(s->l2 >= 0);
    }
    if (trd_dtype_kind((int)a->t.dtype) == TRD_KIND_PACKED)
        return;
    for (uint32_t i = 0; i < s->sample_n; i++)
        FUZZ_CHECK(!memcmp(r->samples + i * size,
                           copy + trd_sample_index(n, &a->want, i) * size,
                           size));
    FUZZ_CHECK(s->sample_n == trd_sample_count(n, &a->want));
    FUZZ_CHECK(r->samples[s->sample_n * size] == UNTOUCHED);
    if (!a->want.histogram)
        return;
    FUZZ_CHECK(s->histogram == &r->histogram);
    for (uint32_t i = 0; i < r->histogram.n; i++)
        counted += r->histogram.count[i];
    FUZZ_CHECK(counted <= n);
    FUZZ_CHECK(counted == n ||
               (n > TRD__WIDE_N && a->want.histogram != TRD_HISTOGRAM_EXACT));
}

static void check_same(const struct attempt *t, const struct results *a,
                       const struct results *b)
{
    struct trd_stats s = b->stats;

    if (a->stats.histogram) {
        uint32_t n = a->histogram.n;
        FUZZ_CHECK(a->histogram.first == b->histogram.first &&
                   n == b->histogram.n);
        FUZZ_CHECK(!memcmp(a->histogram.count, b->histogram.count,
                           n * sizeof(uint64_t)));
        s.histogram = a->stats.histogram;
    }
    FUZZ_CHECK(!memcmp(&a->stats, &s, sizeof s));
    FUZZ_CHECK(!memcmp(a->samples, b->samples,
                       (t->want.samples + 1) * TRD__MAX_ELEMENT));
}

static void run_tame(struct fuzz_input *in, struct attempt *a)
{
    static struct results got, want;
    size_t size = trd_dtype_bytes((int)a->t.dtype);
    size_t below, bytes, n;
    unsigned char *at, *copy;
    struct trd_tensor dense;

    bytes = take_layout(in, a, &below);
    at = a->flags & AT_BEGIN ? memory : memory_end - bytes;
    fill(in, at, bytes);
    a->t.data = a->flags & NO_DATA ? NULL : at + below;
    if (refused(a, &got))
        return;
    n = (size_t)count(a);
    copy = copy_end - n * size;
    if (n)
        copy_elements(a, n, size, copy);
    check_figures(a, &got, copy, n, size);
    dense = a->t;
    dense.data = copy;
    dense.strides = NULL;
    FUZZ_CHECK(!call(&trd__kernel_c, 1, a, &dense, &want));
    check_same(a, &got, &want);
    for (int i = 0; trd__kernels()[i]; i++) {
        FUZZ_CHECK(!call(trd__kernels()[i], a->threads, a, &dense, &got));
        check_same(a, &got, &want);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    static struct attempt a;

    if (!memory) {
        memory = fuzz_guarded(MEMORY, &memory_end);
        fuzz_guarded(ELEMENTS * TRD__MAX_ELEMENT, &copy_end);
    }
    take_arguments(&in, &a);
    if (a.flags & WILD || a.t.ndim < 0 || a.t.ndim > DIMS)
        run_wild(&in, &a);
    else
        run_tame(&in, &a);
    return 0;
}
