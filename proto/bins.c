/* Samples and bins of a tensor: which elements, which exponents. Pure. */
#include "proto/sampling.h"

enum { FIELD_OF_FP64 = 2048, BITS_OF_INT = 65 };

uint32_t trd_sample_count(uint64_t n, const struct trd_want *want)
{
    return sampling_count(n, want->samples, (int)want->sampling,
                          want->sampling_arg);
}

uint64_t trd_sample_index(uint64_t n, const struct trd_want *want, uint32_t i)
{
    return sampling_index(n, trd_sample_count(n, want), (int)want->sampling,
                          want->sampling_arg, i);
}

/* Exponent bits and bias of the float formats. */
static int float_format(int dtype, int *bias)
{
    switch (dtype) {
    case TRD_F64:
    case TRD_TEXT:
        *bias = 1023;
        return 11;
    case TRD_F32:
    case TRD_BF16:
        *bias = 127;
        return 8;
    case TRD_F16:
    case TRD_F8_E5M2:
        *bias = 15;
        return 5;
    case TRD_F8_E5M2FNUZ:
        *bias = 16;
        return 5;
    case TRD_F8_E4M3FN:
        *bias = 7;
        return 4;
    case TRD_F8_E4M3FNUZ:
        *bias = 8;
        return 4;
    case TRD_F8_E8M0FNU:
        *bias = 127;
        return 8;
    default:
        return 0;
    }
}

unsigned trd_dtype_bins(int dtype)
{
    int bias;
    switch (trd_dtype_kind(dtype)) {
    case TRD_KIND_FLOAT:
        return 1u << float_format(dtype, &bias);
    case TRD_KIND_SIGNED:
    case TRD_KIND_UNSIGNED:
        return BITS_OF_INT;
    case TRD_KIND_COMPLEX:
        return FIELD_OF_FP64;
    default:
        return 0;
    }
}

int trd_bin_exponent(int dtype, unsigned bin)
{
    int bias = 1023;
    int kind = trd_dtype_kind(dtype);
    if (kind == TRD_KIND_SIGNED || kind == TRD_KIND_UNSIGNED)
        return (int)bin - 1;
    if (kind == TRD_KIND_FLOAT && !float_format(dtype, &bias))
        return 0;
    return (int)bin - bias;
}
