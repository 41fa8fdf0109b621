/* Tensors for the emulated device, and the comparison with the reference. */
#include "tests/lib/unit.h"

#include "tests/kernel/emu_rig.h"

#include <dlfcn.h>
#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

struct emu emu;
uint64_t emu_compared;

bool emu_load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    size_t bad = 0;

    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
    emu.half = dlsym(library, TRD__CUDA_SYMBOL);
    emu.geometry = dlsym(library, "trd_cuda_emulated_geometry");
#define FIND(member, name)                                                    \
    do {                                                                      \
        void *f = dlsym(library, name);                                       \
        bad += !f;                                                            \
        memcpy(&emu.member, &f, sizeof f);                                    \
    } while (0)
    FIND(order, "emu_control_order");
    FIND(stream_new, "emu_stream_new");
    FIND(stream_free, "emu_stream_free");
    FIND(stream_hold, "emu_stream_hold");
    FIND(capture_begin, "emu_capture_begin");
    FIND(capture_end, "emu_capture_end");
    FIND(graph_run, "emu_graph_run");
    FIND(graph_free, "emu_graph_free");
    FIND(fail_launches, "emu_fail_launches");
    FIND(fail_memory, "emu_fail_memory");
    FIND(allocations, "emu_allocations");
    FIND(launches, "emu_launches");
    FIND(device, "emu_device");
    FIND(device_set, "emu_device_set");
#undef FIND
    return emu.half && emu.geometry && !bad;
}

uint64_t emu_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* ---- fills ---- */

/* About normal, by the sum of twelve. */
static double normal(uint64_t *rng)
{
    double sum = -6;

    for (int i = 0; i < 3; i++) {
        uint64_t r = emu_random(rng);
        for (int j = 0; j < 4; j++, r >>= 16)
            sum += (double)(r & 0xffff) / 65536;
    }
    return sum;
}

static double value(const struct emu_case *c, uint64_t i, uint64_t *rng)
{
    double x = normal(rng);

    switch (c->fill) {
    case FILL_OFFSET:
        return x * 0.01 + 1000;
    case FILL_CONSTANT:
        return 3.25;
    case FILL_ZERO:
        return emu_random(rng) & 1 ? -0.0 : 0.0;
    case FILL_SPARSE:
        return emu_random(rng) % 9 ? 0 : x;
    case FILL_ALL_NAN:
        return NAN;
    case FILL_TINY:
        return x * (c->dtype == TRD_F64 || c->dtype == TRD_C128 ? 1e-308
                    : c->dtype == TRD_F16 || c->dtype == TRD_C32
                        ? 3e-5
                        : 1e-38);
    case FILL_HUGE:
        return x * (c->dtype == TRD_F64 || c->dtype == TRD_C128 ? 1e307
                    : c->dtype == TRD_F16 || c->dtype == TRD_C32
                        ? 2e4
                        : 5e37);
    case FILL_OUTLIER:
        return i % 4096 == 331 ? x + 1e6 : x;
    case FILL_NAN_TILE:
        return i < TRD__TILE ? (i % 3 ? NAN : INFINITY) : x;
    case FILL_STEP:
        return x + (double)(i / TRD__TILE % 7) * 100;
    case FILL_RANGE:
        return ldexp(x, (int)(i % TRD__LANES * 7 % 5) * 10 - 20);
    default:
        return x;
    }
}

static uint16_t half_of(double x)
{
    float f = (float)x;
    uint32_t u, sign, e, m;

    memcpy(&u, &f, sizeof u);
    sign = u >> 16 & 0x8000;
    e = u >> 23 & 255;
    m = u & 0x7fffff;
    if (e == 255)
        return (uint16_t)(sign | 0x7c00 | (m ? 1 : 0));
    if (e > 142)
        return (uint16_t)(sign | 0x7bff);
    if (e < 103)
        return (uint16_t)sign;
    if (e < 113)
        return (uint16_t)(sign | (m | 0x800000) >> (126 - e));
    return (uint16_t)(sign | (e - 112) << 10 | m >> 13);
}

static void put(int dtype, double x, uint64_t bits, unsigned char *to)
{
    float f = (float)x;
    float pair[2] = {f, (float)(bits % 1000) / 500 * f};
    double wide[2] = {x, (double)(bits % 1000) / 500 * x};
    uint16_t halves[2] = {half_of(x), half_of(wide[1])};
    int64_t i = isfinite(x) ? (int64_t)(fabs(x) < 1e17 ? x * 16 : 7) : 0;
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    switch (dtype) {
    case TRD_F64:
        memcpy(to, &x, 8);
        break;
    case TRD_F32:
        memcpy(to, &f, 4);
        break;
    case TRD_F16:
        memcpy(to, halves, 2);
        break;
    case TRD_BF16:
        halves[0] = (uint16_t)(u >> 16 | (isnan(f) ? 1 : 0));
        memcpy(to, halves, 2);
        break;
    case TRD_C32:
        memcpy(to, halves, 4);
        break;
    case TRD_C64:
        memcpy(to, pair, 8);
        break;
    case TRD_C128:
        memcpy(to, wide, 16);
        break;
    case TRD_F8_E4M3FN:
    case TRD_F8_E5M2:
    case TRD_F8_E4M3FNUZ:
    case TRD_F8_E5M2FNUZ:
        *to = (unsigned char)(isnan(x)    ? 0x7f
                              : x == 0    ? 0
                              : bits % 97 ? bits & 0xbf
                                          : bits);
        break;
    case TRD_F8_E8M0FNU:
        *to = (unsigned char)(isnan(x) ? 255 : 120 + bits % 16);
        break;
    case TRD_BOOL:
        *to = (unsigned char)(x > 0 ? bits % 3 : 0);
        break;
    default:
        memcpy(to, &i, trd_dtype_bytes(dtype));
        break;
    }
}

static void fill(const struct emu_case *c, unsigned char *memory,
                 uint64_t elements)
{
    size_t size = trd_dtype_bytes(c->dtype);
    uint64_t rng = c->seed;

    for (uint64_t i = 0; i < elements; i++) {
        uint64_t bits = emu_random(&rng), more = emu_random(&rng);
        unsigned char any[16];
        bool special = c->fill == FILL_SPECIAL && bits % 700 < 2;

        if (c->fill == FILL_CONSTANT)
            bits = more = c->seed;
        memcpy(any, &bits, 8);
        memcpy(any + 8, &more, 8);
        if (c->fill == FILL_BITS || c->dtype == TRD_F4_E2M1X2)
            memcpy(memory + i * size, any, size);
        else if (special)
            put(c->dtype,
                more % 4 == 0   ? NAN
                : more % 4 == 1 ? INFINITY
                : more % 4 == 2 ? -INFINITY
                                : 1e-41,
                bits, memory + i * size);
        else
            put(c->dtype, value(c, i, &rng), bits, memory + i * size);
    }
}

/* ---- views ---- */

static void contiguous(struct emu_tensor *e, uint64_t n)
{
    e->t.ndim = 1;
    e->shape[0] = (int64_t)n;
    e->strides[0] = 1;
}

/* The nearest shape that the view has; n may come out smaller. */
static void lay(const struct emu_case *c, struct emu_tensor *e, int64_t *first,
                uint64_t *elements)
{
    int64_t n = (int64_t)c->n;
    int64_t side = (int64_t)sqrt((double)n);

    *first = 0;
    *elements = c->n;
    contiguous(e, c->n);
    switch (c->view) {
    case VIEW_EVERY_OTHER:
        e->strides[0] = 2;
        *elements = 2 * c->n;
        break;
    case VIEW_TRANSPOSED:
        if (n < 4)
            break;
        e->t.ndim = 2;
        e->shape[0] = side - 1;
        e->shape[1] = side + 1;
        e->strides[0] = 1;
        e->strides[1] = side;
        *elements = (uint64_t)(side * (side + 1));
        break;
    case VIEW_REVERSED:
        e->strides[0] = -1;
        *first = n ? n - 1 : 0;
        break;
    case VIEW_REPEATED:
        if (n < 3)
            break;
        e->t.ndim = 3;
        e->shape[0] = 3;
        e->shape[1] = n / 3;
        e->shape[2] = 1;
        e->strides[0] = 0;
        e->strides[1] = 1;
        e->strides[2] = 77;
        break;
    case VIEW_NHWC:
        if (n < 64)
            break;
        e->t.ndim = 4;
        e->shape[0] = 2;
        e->shape[1] = 5;
        e->shape[2] = 3;
        e->shape[3] = n / 30;
        e->strides[0] = 15 * e->shape[3];
        e->strides[1] = 1;
        e->strides[2] = 5 * e->shape[3];
        e->strides[3] = 5;
        break;
    default:
        break;
    }
}

/* Aligned memory whose end is, but for alignment, that of what may be read. */
static void map_before_nothing(struct emu_tensor *e)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t bytes = (e->bytes + 15) / 16 * 16;
    size_t pages = (bytes + page - 1) / page * page;

    e->map_bytes = pages + page;
    e->map = mmap(NULL, e->map_bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(e->map != MAP_FAILED);
    assert_int_equal(mprotect((char *)e->map + pages, page, PROT_NONE), 0);
    e->memory = (unsigned char *)e->map + pages - bytes;
}

void emu_make(const struct emu_case *c, struct emu_tensor *e)
{
    size_t size = trd_dtype_bytes(c->dtype);
    size_t shift = c->view == VIEW_SHIFTED ? size : c->view == VIEW_BYTE;
    uint64_t elements;
    int64_t first;

    lay(c, e, &first, &elements);
    e->bytes = shift + elements * size;
    map_before_nothing(e);
    fill(c, e->memory + shift, elements);
    e->t.data = e->memory + shift + (size_t)first * size;
    e->t.dtype = (enum trd_dtype)c->dtype;
    e->t.shape = e->shape;
    e->t.strides = e->strides;
}

void emu_free(struct emu_tensor *e)
{
    munmap(e->map, e->map_bytes);
}

void emu_item(const struct trd_tensor *t, uint32_t k, uint64_t tag,
              struct trd__cuda_item *out)
{
    struct trd__walk walk;

    memset(out, 0, sizeof *out);
    assert_int_equal(
        trd__walk_init(&walk, t, trd_dtype_bytes((int)t->dtype)), 0);
    assert_true(walk.ndim <= TRD_CUDA_DIMS);
    out->data = t->data;
    out->n = walk.n;
    out->tag = tag;
    out->dtype = (uint32_t)t->dtype;
    out->k = k;
    out->ndim = (uint32_t)walk.ndim;
    for (int i = 0; i < walk.ndim; i++) {
        out->dim[i].extent = walk.dim[i].extent;
        out->dim[i].stride = walk.dim[i].stride;
    }
}

/* ---- comparison ---- */

static bool differs(const char *what, double got, double expected)
{
    fprintf(stderr, "  %s is %a, not %a\n", what, got, expected);
    return false;
}

static bool same_stats(const struct trd_stats *a, const struct trd_stats *b)
{
    bool same = true;

#define COMPARE(field)                                                        \
    if (memcmp(&a->field, &b->field, sizeof a->field)) {                      \
        uint64_t x = 0, y = 0;                                                \
        memcpy(&x, &a->field, sizeof a->field);                               \
        memcpy(&y, &b->field, sizeof b->field);                               \
        fprintf(stderr, "  %s is %#llx, not %#llx\n", #field,                 \
                (unsigned long long)x, (unsigned long long)y);                \
        same = false;                                                         \
    }
    COMPARE(n)
    COMPARE(nan)
    COMPARE(pinf)
    COMPARE(ninf)
    COMPARE(zero)
    COMPARE(subnormal)
    COMPARE(max)
    COMPARE(min)
    COMPARE(absmax)
    COMPARE(absmin)
    COMPARE(mean)
    COMPARE(std)
    COMPARE(l2)
    COMPARE(hash)
    COMPARE(has)
#undef COMPARE
    return same;
}

bool emu_same(const struct trd__cuda_config *config,
              const struct trd_tensor *t, uint32_t k,
              const struct trd__cuda_result *result, const void *samples,
              const uint64_t *bins)
{
    static struct trd_histogram got_bins, expected_bins;
    static unsigned char expected_samples[TRD_MAX_SAMPLES * 16];
    struct trd_want want = {k, config->sampling, config->sampling_arg,
                            config->histogram};
    struct trd_stats got, expected;
    int dtype = (int)t->dtype;
    trd__modes modes;

    emu_compared++;
    assert_int_equal(trd__stats_with(&trd__kernel_c, 1, t, &want, &expected,
                                     expected_samples, &expected_bins),
                     0);
    trd__modes_enter(&modes);
    trd__finish(&result->job, result->n, &result->tally, &result->sum, &got);
    trd__modes_leave(&modes);
    if (result->job.dtype != dtype)
        return differs("dtype", result->job.dtype, dtype);
    if (!same_stats(&got, &expected))
        return false;
    if (result->sample_n != expected.sample_n)
        return differs("samples", result->sample_n, expected.sample_n);
    if (memcmp(samples, expected_samples,
               expected.sample_n * trd_dtype_bytes(dtype)))
        return differs("sample", 0, 0);
    if (!expected.histogram)
        return true;
    trd__bins_finish(dtype, config->histogram, bins, &got_bins);
    if (got_bins.first != expected_bins.first || got_bins.n != expected_bins.n)
        return differs("first bin", got_bins.first, expected_bins.first);
    if (memcmp(got_bins.count, expected_bins.count,
               got_bins.n * sizeof *got_bins.count))
        return differs("bins", 0, 0);
    return true;
}
