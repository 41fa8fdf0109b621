/* Plain data: what a record is. No function needs a client to use these.
 *
 * A record describes one tensor at one moment: which object of the model,
 * which pass, which step, and the figures of the tensor. */
#ifndef TRACERD_RECORD_H
#define TRACERD_RECORD_H

#include "tracerd/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, code, text): the passes. */
#define TRD_PASSES(X)                                                         \
    X(TRD_FORWARD, 1, "forward")                                              \
    X(TRD_BACKWARD, 2, "backward")                                            \
    X(TRD_GRAD, 3, "grad")                                                    \
    X(TRD_PARAM, 4, "param")                                                  \
    X(TRD_USER, 5, "user")                                                    \
    X(TRD_OPTIM, 6, "optim")

enum trd_pass {
#define TRD_PASS_MEMBER(name, code, text) name = code,
    TRD_PASSES(TRD_PASS_MEMBER)
#undef TRD_PASS_MEMBER
};

/* Backward input is the gradient with respect to the module's output,
 * backward output the gradient with respect to its input. */
enum trd_io { TRD_IO_NONE = 0, TRD_INPUT = 1, TRD_OUTPUT = 2 };

/* How the bits of an element are read. */
enum trd_kind {
    TRD_KIND_FLOAT,    /* max, min, absmax, absmin are union member f */
    TRD_KIND_SIGNED,   /* max, min are i; absmax, absmin are u */
    TRD_KIND_UNSIGNED, /* all four are u; bool too */
    TRD_KIND_COMPLEX,  /* figures of |z|, all f; a sample is a pair */
    TRD_KIND_PACKED    /* no figures: bytes are counted and hashed */
};

/* X(name, code, text, bytes of one element, kind). Codes are stored. */
#define TRD_DTYPES(X)                                                         \
    X(TRD_F64, 1, "float64", 8, TRD_KIND_FLOAT)                               \
    X(TRD_F32, 2, "float32", 4, TRD_KIND_FLOAT)                               \
    X(TRD_F16, 3, "float16", 2, TRD_KIND_FLOAT)                               \
    X(TRD_BF16, 4, "bfloat16", 2, TRD_KIND_FLOAT)                             \
    X(TRD_F8_E4M3FN, 5, "float8_e4m3fn", 1, TRD_KIND_FLOAT)                   \
    X(TRD_F8_E5M2, 6, "float8_e5m2", 1, TRD_KIND_FLOAT)                       \
    X(TRD_F8_E4M3FNUZ, 7, "float8_e4m3fnuz", 1, TRD_KIND_FLOAT)               \
    X(TRD_F8_E5M2FNUZ, 8, "float8_e5m2fnuz", 1, TRD_KIND_FLOAT)               \
    X(TRD_F8_E8M0FNU, 9, "float8_e8m0fnu", 1, TRD_KIND_FLOAT)                 \
    X(TRD_I8, 10, "int8", 1, TRD_KIND_SIGNED)                                 \
    X(TRD_I16, 11, "int16", 2, TRD_KIND_SIGNED)                               \
    X(TRD_I32, 12, "int32", 4, TRD_KIND_SIGNED)                               \
    X(TRD_I64, 13, "int64", 8, TRD_KIND_SIGNED)                               \
    X(TRD_U8, 14, "uint8", 1, TRD_KIND_UNSIGNED)                              \
    X(TRD_U16, 15, "uint16", 2, TRD_KIND_UNSIGNED)                            \
    X(TRD_U32, 16, "uint32", 4, TRD_KIND_UNSIGNED)                            \
    X(TRD_U64, 17, "uint64", 8, TRD_KIND_UNSIGNED)                            \
    X(TRD_BOOL, 18, "bool", 1, TRD_KIND_UNSIGNED)                             \
    X(TRD_C32, 19, "complex32", 4, TRD_KIND_COMPLEX)                          \
    X(TRD_C64, 20, "complex64", 8, TRD_KIND_COMPLEX)                          \
    X(TRD_C128, 21, "complex128", 16, TRD_KIND_COMPLEX)                       \
    X(TRD_F4_E2M1X2, 22, "float4_e2m1fn_x2", 1, TRD_KIND_PACKED)              \
    X(TRD_TEXT, 23, "text", 8, TRD_KIND_FLOAT)                                \
    X(TRD_OPAQUE, 24, "opaque", 0, TRD_KIND_PACKED)
/* TRD_TEXT: decimal figures of a text log, kept as float64. TRD_OPAQUE: a
 * dtype this version does not know; shape only, labelled unsupported. */

enum trd_dtype {
#define TRD_DTYPE_MEMBER(name, code, text, bytes, kind) name = code,
    TRD_DTYPES(TRD_DTYPE_MEMBER)
#undef TRD_DTYPE_MEMBER
    TRD_DTYPE_LIMIT = 25
};

/* X(name, bit, text): what the figures are not plainly. Bits are stored. */
#define TRD_LABELS(X)                                                         \
    X(TRD_L_RECOMPUTE, 0, "recompute")                                        \
    X(TRD_L_EVAL, 1, "eval")                                                  \
    X(TRD_L_LOCAL, 2, "local")                                                \
    X(TRD_L_FINAL, 3, "final")                                                \
    X(TRD_L_SCALED, 4, "scaled")                                              \
    X(TRD_L_SKIPPED, 5, "skipped")                                            \
    X(TRD_L_EXACT, 6, "exact")                                                \
    X(TRD_L_TOTAL, 7, "total")                                                \
    X(TRD_L_SPARSE, 8, "sparse")                                              \
    X(TRD_L_COMPLEX, 9, "complex")                                            \
    X(TRD_L_QUANTIZED, 10, "quantized")                                       \
    X(TRD_L_SHARD, 11, "shard")                                               \
    X(TRD_L_MATERIALIZED, 12, "materialized")                                 \
    X(TRD_L_UNSUPPORTED, 13, "unsupported")                                   \
    X(TRD_L_NODATA, 14, "nodata")                                             \
    X(TRD_L_TEXT, 15, "text")                                                 \
    X(TRD_L_COPIED, 16, "copied")                                             \
    X(TRD_L_REPEATED, 17, "repeated")                                         \
    X(TRD_L_RAISED, 18, "raised")                                             \
    X(TRD_L_PACKED, 19, "packed")                                             \
    X(TRD_L_SAME, 20, "same")                                                 \
    X(TRD_L_OPERATORS, 21, "operators")                                       \
    X(TRD_L_GRAPH, 22, "graph")
/* same: the tensor was not read again, since it is the one of an earlier
 * record and has not been written to. operators: computed by operators of the
 * framework, whose mean, std and l2 are not exact to the bit. graph: of a
 * replayed CUDA graph; step and iteration count the replays. */

enum trd_label {
#define TRD_LABEL_MEMBER(name, bit, text) name = 1 << bit,
    TRD_LABELS(TRD_LABEL_MEMBER)
#undef TRD_LABEL_MEMBER
};

/* Limits of a record; the wire checks them again. */
enum {
    TRD_MAX_NAME = 1024,    /* bytes of a class, path or module path */
    TRD_MAX_DIMS = 64,      /* dimensions of a tensor */
    TRD_MAX_SAMPLES = 4096, /* samples of a tensor */
    TRD_MAX_BINS = 2048,    /* bins of an exponent histogram */
    TRD_MAX_RUN = 200,      /* bytes of a run's name */
    TRD_CUDA_DIMS = 6       /* dimensions that a GPU kernel walks */
};

/* Where in the model a tensor was seen. Interned once, see trd_site(). */
struct trd_site {
    enum trd_pass pass;
    enum trd_io io;       /* TRD_IO_NONE for grad, param, optim, user */
    uint32_t position;    /* among the flattened tensors of the call, from 0 */
    uint32_t instance;    /* n of Class-n, from 1; 0 where there is no object */
    const char *class_name; /* "" where there is no object */
    const char *module;   /* path in the model, "" for its root */
    const char *path;     /* in the call ("0", "1.cache.key"), the parameter's
                             full path for grad and param, that and the name of
                             the optimizer's state ("a.weight.exp_avg") for
                             optim, the name for user */
};

/* When it was seen. */
struct trd_when {
    uint64_t step;       /* the object's own count; iteration for grad */
    uint64_t iteration;  /* from 1 */
    uint32_t microbatch; /* from 1; 0 with label eval */
    uint32_t labels;     /* enum trd_label, or-ed */
    uint32_t note;       /* from trd_note(), 0 for none */
};

/* A tensor in memory. strides are in elements and may be NULL for
 * contiguous; they may be zero or negative. data points at the element of
 * index (0, ..., 0). The memory must stay readable during the call only. */
struct trd_tensor {
    const void *data;
    enum trd_dtype dtype;
    int ndim;
    const int64_t *shape;
    const int64_t *strides;
};

union trd_value {
    double f;
    int64_t i;
    uint64_t u;
};

/* X(name, code, text): which elements are samples; i counts from 0. Codes are
 * stored. */
#define TRD_SAMPLINGS(X)                                                      \
    X(TRD_EQUIDISTANT, 0, "equidistant")                                      \
    X(TRD_EVERY, 1, "every")                                                  \
    X(TRD_RANDOM, 2, "random")
/* equidistant: numpy.linspace(0, n - 1, min(k, n), dtype=int).
 * every: elements 0, a, 2a, ... below n, at most k of them.
 * random: min(k, n) in ascending order; one drawn from each of as many parts
 * of the tensor, which differ by one element at most, by the seed a. */

enum trd_sampling {
#define TRD_SAMPLING_MEMBER(name, code, text) name = code,
    TRD_SAMPLINGS(TRD_SAMPLING_MEMBER)
#undef TRD_SAMPLING_MEMBER
    TRD_SAMPLING_COUNT
};

/* X(name, code, text): of which elements the exponents are counted. */
#define TRD_HISTOGRAMS(X)                                                     \
    X(TRD_HISTOGRAM_NONE, 0, "none")                                          \
    X(TRD_HISTOGRAM_ROWS, 1, "rows")                                          \
    X(TRD_HISTOGRAM_EXACT, 2, "exact")
/* rows: all of a tensor of at most 65536 elements; of a larger one, of each
 * tile of 1024 elements the 64 from element 64 r on, where r = (t + t / 16)
 * mod 16 for tile t. */

enum trd_histogram_kind {
#define TRD_HISTOGRAM_MEMBER(name, code, text) name = code,
    TRD_HISTOGRAMS(TRD_HISTOGRAM_MEMBER)
#undef TRD_HISTOGRAM_MEMBER
    TRD_HISTOGRAM_COUNT
};

/* How many elements have which exponent. Bins are counted from 0:
 * float     the exponent field of the element: bin 0 has zeros and
 *           subnormals, the last one infinities and NaN where the dtype has
 *           them; the others are 2^(bin - bias) <= |x| < 2^(bin - bias + 1)
 * integer   the bits that |x| needs: bin 0 has zeros, bin b has
 *           2^(b - 1) <= |x| < 2^b; bool is 0 or 1
 * complex   the exponent field of |z| in float64
 * packed    none
 * count[0] belongs to bin `first`; the first and the last of the n counts are
 * not zero, but where n is 0. */
struct trd_histogram {
    enum trd_histogram_kind kind;
    uint32_t first, n;
    uint64_t count[TRD_MAX_BINS];
};

/* What to compute beside the figures. */
struct trd_want {
    uint32_t samples;           /* at most, k */
    enum trd_sampling sampling;
    uint64_t sampling_arg;      /* every: the distance, from 1; random: seed */
    enum trd_histogram_kind histogram;
};

/* Which figures of struct trd_stats hold. */
enum {
    TRD_HAS_COUNTS = 1, /* nan, pinf, ninf, zero, subnormal */
    TRD_HAS_RANGE = 2,  /* max, min */
    TRD_HAS_ABS = 4,    /* absmax, absmin */
    TRD_HAS_MEAN = 8,   /* mean, std */
    TRD_HAS_L2 = 16,
    TRD_HAS_HASH = 32,
    TRD_HAS_ALL = 63,
    TRD_IS_GIVEN = 64   /* max, min, mean, std as a text log had them: they
                           may be NaN or infinite, and the counts are unknown.
                           With l2, as a dump had them: std is unknown, NaN */
};

/* The figures of one tensor. max, min, absmax, absmin, mean, std and l2 are
 * over finite elements and hold only where there is one; absmin is 0 where
 * no finite element is non-zero. -0 counts as zero and becomes +0.
 * std has ddof 0; l2 is the square root of the sum of squares. */
struct trd_stats {
    uint64_t n;         /* elements */
    uint64_t nan, pinf, ninf, zero, subnormal;
    union trd_value max, min, absmax, absmin; /* member by enum trd_kind */
    double mean, std, l2;
    uint64_t hash;      /* of the element bits in row-major order */
    uint32_t has;       /* TRD_HAS_*, TRD_IS_GIVEN */
    uint32_t sample_n;  /* samples written beside it */
    enum trd_sampling sampling;            /* where they were taken */
    uint64_t sampling_arg;
    const struct trd_histogram *histogram; /* of whoever filled it; NULL or
                                              of kind none: there is none */
};

/* Name of a dtype, pass or label bit; NULL for an unknown code.
 * Threads: any. Blocks: never. Owns: static memory. Errors: none. */
TRD_API const char *trd_dtype_name(int dtype);
TRD_API const char *trd_pass_name(int pass);
TRD_API const char *trd_label_name(unsigned bit);
TRD_API const char *trd_sampling_name(int sampling);
TRD_API const char *trd_histogram_name(int kind);

/* Bytes of one element, 0 for an unknown dtype; its enum trd_kind, -1 for
 * an unknown one; the dtype of a name, 0 for an unknown one.
 * Threads: any. Blocks: never. Owns: nothing. Errors: none. */
TRD_API unsigned trd_dtype_bytes(int dtype);
TRD_API int trd_dtype_kind(int dtype);
TRD_API int trd_dtype_parse(const char *name);

/* Bins of a dtype's exponent histogram, 0 where it has none; the exponent
 * that bin stands for, |x| < 2^(exponent + 1): bin - bias for floats, bin - 1
 * for integers.
 * Threads: any. Blocks: never. Owns: nothing. Errors: none. */
TRD_API unsigned trd_dtype_bins(int dtype);
TRD_API int trd_bin_exponent(int dtype, unsigned bin);

/* Element of sample i, i < trd_sample_count(n, want): n elements, i counts
 * from 0. Only the samples and sampling of *want are looked at.
 * Threads: any. Blocks: never. Owns: nothing. Errors: none. */
TRD_API uint32_t trd_sample_count(uint64_t n, const struct trd_want *want);
TRD_API uint64_t trd_sample_index(uint64_t n, const struct trd_want *want,
                                  uint32_t i);

#ifdef __cplusplus
}
#endif
#endif
