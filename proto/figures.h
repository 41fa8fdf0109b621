/* Elements and figures: reading the bits of any dtype, numpy's form. */
#ifndef PROTO_FIGURES_H
#define PROTO_FIGURES_H

#include "tracerd/stats.h"

/* An element as double: exact for floats; integers above 2^53 are rounded;
 * |z| for complex; for packed dtypes the byte. element needs no alignment. */
double element_f64(int dtype, const void *element);

/* An element of an integer dtype, bool included, as 64 bits (two's
 * complement, sign-extended for signed ones). */
uint64_t element_bits(int dtype, const void *element);

/* A half-precision, bfloat16 or fp8 code as double, exact. */
double float_from_bits(int dtype, uint64_t bits);

#endif
