/* Which kernel this machine runs. Any thread.
 *
 * Invariants: asked once, the answer stays; a kernel is listed only where the
 * processor and the system can run all of it. */
#include "client/stats/kernel_list.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KERNELS_MAX = 4 };

static const struct trd__kernel *list[KERNELS_MAX];
static const struct trd__kernel *best;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
/* Not every compiler's __builtin_cpu_supports() knows it. */
static bool has_f16c(void)
{
    unsigned a = 1, b, c = 0, d;

    __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return c >> 29 & 1;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("popcnt") && has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

static void find(void)
{
    const char *asked = getenv("TRACERD_KERNEL");
    int n = 0;

#if defined(__x86_64__)
    __builtin_cpu_init();
    if (has_avx512())
        list[n++] = &trd__kernel_avx512;
    if (has_avx2())
        list[n++] = &trd__kernel_avx2;
#elif defined(__aarch64__)
    list[n++] = &trd__kernel_neon; /* no such machine is without */
#endif
    list[n++] = &trd__kernel_c;
    best = list[0];
    for (int i = 0; asked && i < n; i++)
        if (!strcmp(asked, list[i]->name))
            best = list[i];
}

const struct trd__kernel *const *trd__kernels(void)
{
    pthread_once(&once, find);
    return list;
}

const struct trd__kernel *trd__kernel_best(void)
{
    pthread_once(&once, find);
    return best;
}

const char *trd_stats_kernel(void)
{
    return trd__kernel_best()->name;
}
