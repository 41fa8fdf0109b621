/* The kernels beside the reference, each in a file of its own that is
 * compiled for the machines that can run it. cpu.c chooses. */
#ifndef CLIENT_STATS_KERNEL_LIST_H
#define CLIENT_STATS_KERNEL_LIST_H

#include "client/stats/kernel.h"

extern const struct trd__kernel trd__kernel_avx512; /* F, BW, DQ, VL */
extern const struct trd__kernel trd__kernel_avx2;   /* and FMA, F16C */
extern const struct trd__kernel trd__kernel_neon;

#endif
