/* Statistics of one tensor, without a client and without a daemon.
 *
 * The result is a function of the element sequence (row-major order) alone:
 * the same bits for every stride, instruction set and thread count. The
 * arithmetic is stated in client/stats/kernel.h. */
#ifndef TRACERD_STATS_H
#define TRACERD_STATS_H

#include "tracerd/record.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TRD_MAX_THREADS = 64 };

/* Fills *out and, for k > 0, writes min(k, n) samples to samples: elements
 * at numpy.linspace(0, n - 1, min(k, n), dtype=int), each in the bits of the
 * source dtype, trd_dtype_bytes() apart; samples must hold that many. An
 * empty tensor gives n 0, counts of 0 and no figures. Packed dtypes give n, the count of
 * bytes, and a hash only. The caller's floating-point modes (flush to zero,
 * rounding, exception flags) neither change a figure nor are changed.
 * Threads: any. Blocks: no; it reads the whole tensor. Owns: nothing.
 * Errors: TRD_EINVAL (NULL, ndim, a negative extent, k above
 * TRD_MAX_SAMPLES), TRD_ELIMIT (n above 2^62), TRD_ENODATA (data NULL with
 * n > 0), TRD_EUNSUPPORTED (dtype). */
TRD_API int trd_stats_cpu(const struct trd_tensor *tensor, uint32_t k,
                          struct trd_stats *out, void *samples);

/* The same with other samples and with a histogram: samples must hold
 * trd_sample_count() elements, *histogram is filled and out->histogram points
 * to it unless want->histogram is TRD_HISTOGRAM_NONE (or the dtype has none);
 * then it may be NULL. Rounding, order and blocking as above.
 * Errors: as above, and TRD_EINVAL for a rule or a distance of 0. */
TRD_API int trd_stats_cpu_as(const struct trd_tensor *tensor,
                             const struct trd_want *want,
                             struct trd_stats *out, void *samples,
                             struct trd_histogram *histogram);

/* How many threads may work on one tensor of more than 4 MiB, the caller's
 * one included; 1 to TRD_MAX_THREADS, at first 1. The others are started when
 * first needed, sleep between tensors and block every signal. They serve one
 * caller at a time: whoever finds them at work does without. They change no
 * figure. A forked child starts its own.
 * Threads: any. Blocks: never. Owns: nothing. Errors: TRD_EINVAL. */
TRD_API int trd_stats_threads(unsigned n);

/* The same of a tensor in the memory of a CUDA device: tensor->data is a
 * device pointer, and the figures are those of the moment at which the stream
 * (a cudaStream_t, NULL for the default one) has come so far. For single
 * tensors; a training hands its tensors to trd_submit_cuda().
 * Threads: any. Blocks: until the stream has come so far, and for the driver.
 * Owns: nothing. Errors: those of trd_stats_cpu_as(); TRD_EUNSUPPORTED also
 * where there is no CUDA half of the library, no driver, no such device, or
 * where more than TRD_CUDA_DIMS dimensions do not merge; TRD_ENOMEM; TRD_EIO
 * (the launch failed); TRD_ETIMEDOUT after ten minutes. */
TRD_API int trd_stats_cuda(const struct trd_tensor *tensor,
                           const struct trd_want *want, int device,
                           void *stream, struct trd_stats *out, void *samples,
                           struct trd_histogram *histogram);

/* Name of the instruction set that trd_stats_cpu() uses here: "avx512",
 * "avx2", "neon" or "c". TRACERD_KERNEL in the environment, read once, asks
 * for another one; what the machine cannot do is not taken.
 * Threads: any. Blocks: never. Owns: static memory. Errors: none. */
TRD_API const char *trd_stats_kernel(void);

/* max, min, mean, std, l2 in numpy's form: NaN where nan > 0, infinities as
 * IEEE says, and as given where TRD_IS_GIVEN. out[0..4] in that order; for
 * integer dtypes max and min are rounded to double here. Figures that do not
 * hold (n 0) are NaN with the bit i of the result clear.
 * Threads: any. Blocks: never. Owns: nothing. Errors: none; the result is
 * the mask of figures that hold. */
TRD_API unsigned trd_stats_numpy(const struct trd_stats *stats, int dtype,
                                 double out[5]);

#ifdef __cplusplus
}
#endif
#endif
