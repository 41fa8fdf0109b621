/* Stride walking: an odometer over the dimensions that differ. Any thread.
 *
 * Invariants: reads the bytes of the tensor's elements and no others; address
 * arithmetic is modulo 2^64, so that strides may be negative and a stride of
 * a dimension that has only one index may be anything. */
#include "client/stats/walk.h"

#include <string.h>

static const uint64_t max_n = UINT64_C(1) << 62;

static int count_elements(const struct trd_tensor *t, uint64_t *n)
{
    bool empty = false;

    if (t->ndim < 0 || t->ndim > TRD_MAX_DIMS || (t->ndim && !t->shape))
        return TRD_EINVAL;
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 0)
            return TRD_EINVAL;
        empty = empty || t->shape[i] == 0;
    }
    *n = !empty;
    for (int i = 0; i < t->ndim && !empty; i++) {
        if ((uint64_t)t->shape[i] > max_n / *n)
            return TRD_ELIMIT;
        *n *= (uint64_t)t->shape[i];
    }
    return 0;
}

int trd__walk_init(struct trd__walk *walk, const struct trd_tensor *tensor,
                   size_t size)
{
    uint64_t dense = size; /* stride of a contiguous tensor, bytes */
    int r = count_elements(tensor, &walk->n);

    if (r < 0)
        return r;
    if (walk->n && !tensor->data)
        return TRD_ENODATA;
    walk->data = tensor->data;
    walk->size = size;
    walk->ndim = 0;
    for (int i = tensor->ndim; walk->n && i-- > 0;) {
        uint64_t extent = (uint64_t)tensor->shape[i];
        uint64_t stride = dense;
        struct walk_dim *in = &walk->dim[walk->ndim - (walk->ndim > 0)];

        dense *= extent;
        if (extent == 1)
            continue;
        if (tensor->strides)
            stride = (uint64_t)tensor->strides[i] * size;
        if (walk->ndim && stride == in->stride * in->extent) {
            in->extent *= extent;
            continue;
        }
        walk->dim[walk->ndim++] = (struct walk_dim){extent, stride, 0};
    }
    if (!walk->ndim) /* one element, or none */
        walk->dim[walk->ndim++] = (struct walk_dim){1, size, 0};
    return 0;
}

bool trd__walk_is_contiguous(const struct trd__walk *walk)
{
    return walk->ndim == 1 && walk->dim[0].stride == walk->size;
}

void trd__walk_seek(struct trd__walk *walk, uint64_t index)
{
    for (int i = 0; i < walk->ndim; i++) {
        walk->dim[i].index = index % walk->dim[i].extent;
        index /= walk->dim[i].extent;
    }
}

static const unsigned char *address(const struct trd__walk *walk)
{
    uint64_t offset = 0;

    for (int i = 0; i < walk->ndim; i++)
        offset += walk->dim[i].index * walk->dim[i].stride;
    return (const unsigned char *)((uintptr_t)walk->data + (uintptr_t)offset);
}

/* The copies have a size that the compiler knows. */
#define COPY_EACH(bytes)                                                       \
    for (uint64_t i = 0; i < count; i++) {                                     \
        memcpy(out + i * (bytes), (const void *)(at + i * step), (bytes));     \
    }                                                                          \
    break

static void copy_row(unsigned char *out, const unsigned char *from,
                     uint64_t stride, uint64_t count, size_t size)
{
    uintptr_t at = (uintptr_t)from;
    uintptr_t step = (uintptr_t)stride;

    if (stride == size) {
        memcpy(out, from, count * size);
        return;
    }
    switch (size) {
    case 1:
        COPY_EACH(1);
    case 2:
        COPY_EACH(2);
    case 4:
        COPY_EACH(4);
    case 8:
        COPY_EACH(8);
    default:
        COPY_EACH(size);
    }
}

/* As COPY_EACH, for `rows` rows of a matrix that lies the other way round. */
#define TURN_EACH(bytes)                                                       \
    for (uint64_t i = 0; i < columns; i++) {                                   \
        for (uint64_t r = 0; r < rows; r++)                                    \
            memcpy(out + (r * columns + i) * (bytes),                          \
                   (const void *)(at + i * step + r * down), (bytes));         \
    }                                                                          \
    break

/* Rows whose neighbours lie side by side: by columns of a few, so that what
 * one access brings into the cache is used before it leaves. */
static void turn_rows(unsigned char *out, const unsigned char *from,
                      const struct walk_dim *in, const struct walk_dim *over,
                      uint64_t rows, size_t size)
{
    uint64_t columns = in->extent;
    uintptr_t at = (uintptr_t)from;
    uintptr_t step = (uintptr_t)in->stride;
    uintptr_t down = (uintptr_t)over->stride;

    switch (size) {
    case 1:
        TURN_EACH(1);
    case 2:
        TURN_EACH(2);
    case 4:
        TURN_EACH(4);
    case 8:
        TURN_EACH(8);
    default:
        TURN_EACH(size);
    }
}

/* How many whole rows a read of `count` elements may turn at once; 0 where
 * the elements of a row lie closer together than the rows. */
static uint64_t rows_to_turn(const struct trd__walk *walk, uint64_t count)
{
    const struct walk_dim *in = &walk->dim[0], *over = &walk->dim[1];
    uint64_t rows = count / in->extent;

    if (walk->ndim < 2 || in->index || over->stride != walk->size ||
        in->stride == walk->size)
        return 0;
    if (rows > over->extent - over->index)
        rows = over->extent - over->index;
    return rows > 1 ? rows : 0;
}

/* Carries into the dimensions above one that has come to its end. */
static void carry(struct trd__walk *walk, int i)
{
    for (; walk->dim[i].index == walk->dim[i].extent; i++) {
        walk->dim[i].index = 0;
        if (i + 1 == walk->ndim)
            return; /* behind the last element */
        walk->dim[i + 1].index++;
    }
}

void trd__walk_read(struct trd__walk *walk, void *out, uint64_t count)
{
    unsigned char *to = out;

    while (count) {
        struct walk_dim *in = &walk->dim[0];
        uint64_t rows = rows_to_turn(walk, count);
        if (rows) {
            turn_rows(to, address(walk), in, in + 1, rows, walk->size);
            to += rows * in->extent * walk->size;
            count -= rows * in->extent;
            walk->dim[1].index += rows;
            carry(walk, 1);
            continue;
        }
        uint64_t left = in->extent - in->index;
        uint64_t row = left < count ? left : count;

        copy_row(to, address(walk), in->stride, row, walk->size);
        to += row * walk->size;
        count -= row;
        in->index += row;
        carry(walk, 0);
    }
}
