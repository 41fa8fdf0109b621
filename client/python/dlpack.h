/* DLPack as far as it is needed: a view of a tensor, and the table through
 * which torch hands one out. Written from the DLPack specification, version
 * 1.3; a table of another major version must not be used. */
#ifndef CLIENT_PYTHON_DLPACK_H
#define CLIENT_PYTHON_DLPACK_H

#include "tracerd/record.h"

struct dl_device {
    int32_t type;
    int32_t id;
};

struct dl_dtype {
    uint8_t code, bits;
    uint16_t lanes;
};

struct dl_tensor {
    void *data;
    struct dl_device device;
    int32_t ndim;
    struct dl_dtype dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL for contiguous */
    uint64_t byte_offset;
};

struct dl_exchange_api {
    struct {
        uint32_t major, minor;
        void *prev;
    } header;
    void (*allocate)(void);
    void (*managed_from_py)(void);
    void (*managed_to_py)(void);
    int (*tensor_from_py)(void *object, struct dl_tensor *out); /* may be 0 */
    int (*work_stream)(int device_type, int32_t device_id, void **stream);
};

enum { DL_CPU = 1, DL_CUDA = 2 };

/* X(code, bits, lanes, dtype) */
#define DL_DTYPES(X)                                                          \
    X(0, 8, 1, TRD_I8)                                                        \
    X(0, 16, 1, TRD_I16)                                                      \
    X(0, 32, 1, TRD_I32)                                                      \
    X(0, 64, 1, TRD_I64)                                                      \
    X(1, 8, 1, TRD_U8)                                                        \
    X(1, 16, 1, TRD_U16)                                                      \
    X(1, 32, 1, TRD_U32)                                                      \
    X(1, 64, 1, TRD_U64)                                                      \
    X(2, 16, 1, TRD_F16)                                                      \
    X(2, 32, 1, TRD_F32)                                                      \
    X(2, 64, 1, TRD_F64)                                                      \
    X(4, 16, 1, TRD_BF16)                                                     \
    X(5, 32, 1, TRD_C32)                                                      \
    X(5, 64, 1, TRD_C64)                                                      \
    X(5, 128, 1, TRD_C128)                                                    \
    X(6, 8, 1, TRD_BOOL)                                                      \
    X(10, 8, 1, TRD_F8_E4M3FN)                                                \
    X(11, 8, 1, TRD_F8_E4M3FNUZ)                                              \
    X(12, 8, 1, TRD_F8_E5M2)                                                  \
    X(13, 8, 1, TRD_F8_E5M2FNUZ)                                              \
    X(14, 8, 1, TRD_F8_E8M0FNU)                                               \
    X(17, 4, 2, TRD_F4_E2M1X2)

static inline enum trd_dtype dtype_of_dlpack(struct dl_dtype d)
{
    uint32_t key = (uint32_t)d.code << 24 | (uint32_t)d.bits << 16 | d.lanes;
    switch (key) {
#define DL_CASE(code, bits, lanes, dtype)                                     \
    case (uint32_t)(code) << 24 | (uint32_t)(bits) << 16 | (lanes):           \
        return dtype;
        DL_DTYPES(DL_CASE)
#undef DL_CASE
    default:
        return TRD_OPAQUE;
    }
}

#endif
