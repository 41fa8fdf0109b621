/* What the CUDA host half knows of dtypes: it is a library of its own, without
 * the tables of proto. */
#ifndef CLIENT_STATS_CUDA_DTYPES_H
#define CLIENT_STATS_CUDA_DTYPES_H

#include "client/stats/cuda_types.h"

static uint32_t bytes_of(uint32_t dtype)
{
    switch (dtype) {
#define BYTES_CASE(name, code, text, bytes, kind)                             \
    case name:                                                                \
        return name == TRD_TEXT ? 0 : bytes;
        TRD_DTYPES(BYTES_CASE)
#undef BYTES_CASE
    default:
        return 0;
    }
}

/* trd__is_narrow(). */
static bool is_narrow(uint32_t dtype)
{
    switch (dtype) {
    case TRD_F64:
    case TRD_I32:
    case TRD_I64:
    case TRD_U32:
    case TRD_U64:
    case TRD_C32:
    case TRD_C64:
    case TRD_C128:
    case TRD_F4_E2M1X2:
        return false;
    default:
        return true;
    }
}

static bool is_packed(uint32_t dtype)
{
    return dtype == TRD_F4_E2M1X2;
}

/* The kernel for aligned, contiguous elements. */
static int class_of(uint32_t dtype)
{
    switch (dtype) {
    case TRD_F32:
        return CUDA_F32;
    case TRD_F16:
        return CUDA_F16;
    case TRD_BF16:
        return CUDA_BF16;
    case TRD_F8_E4M3FN:
    case TRD_F8_E5M2:
    case TRD_F8_E4M3FNUZ:
    case TRD_F8_E5M2FNUZ:
    case TRD_F8_E8M0FNU:
    case TRD_I8:
    case TRD_U8:
    case TRD_BOOL:
        return CUDA_BYTE;
    default:
        return CUDA_GENERAL;
    }
}

/* Tiles that a warp does at once. */
static uint32_t pass_of(int which)
{
    return which == CUDA_GENERAL ? 1 : which == CUDA_F32 ? 2 : 4;
}

#endif
