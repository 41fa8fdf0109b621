/* What the device does in one instruction: above all fp16 and bf16, two in a
 * 32-bit word. */
#ifndef CLIENT_STATS_CUDA_PACKED_CUH
#define CLIENT_STATS_CUDA_PACKED_CUH

#include "client/stats/cuda_warp.cuh"

#if defined(__CUDA_ARCH__)
#define PAIR_OP(name, instruction)                                            \
    DEVICE uint32_t name(uint32_t a, uint32_t b)                              \
    {                                                                         \
        uint32_t r;                                                           \
        asm(instruction " %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));           \
        return r;                                                             \
    }
PAIR_OP(pair_max_f16, "max.f16x2")
PAIR_OP(pair_min_f16, "min.f16x2")
PAIR_OP(pair_max_bf16, "max.bf16x2")
PAIR_OP(pair_min_bf16, "min.bf16x2")
#undef PAIR_OP

DEVICE void prefetch_line(const unsigned char *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

DEVICE float f16_value(uint32_t code)
{
    float v;
    asm("{ .reg .b16 h, g; mov.b32 {h, g}, %1; cvt.f32.f16 %0, h; }"
        : "=f"(v)
        : "r"(code));
    return v;
}

DEVICE float one_if_zero(float x)
{
    float r;
    asm("set.eq.f32.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(0.0f));
    return r;
}

/* 0xffff for each half that is a zero: of fp16, of bf16 too. */
DEVICE uint32_t pair_zero_mask(uint32_t a)
{
    uint32_t r;
    asm("set.eq.u32.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(0));
    return r;
}
#else
/* The same for the host: of two numbers the larger or smaller, where one is a
 * NaN the other. */
DEVICE uint32_t half_pick(uint32_t a, uint32_t b, uint32_t inf, bool larger)
{
    uint32_t ma = a & 0x7fff, mb = b & 0x7fff;
    int va = a >> 15 ? -(int)ma : (int)ma;
    int vb = b >> 15 ? -(int)mb : (int)mb;

    if (ma > inf)
        return b;
    if (mb > inf)
        return a;
    return (va > vb) == larger ? a : b;
}

DEVICE uint32_t pair_pick(uint32_t a, uint32_t b, uint32_t inf, bool larger)
{
    return half_pick(a & 0xffff, b & 0xffff, inf, larger) |
           half_pick(a >> 16, b >> 16, inf, larger) << 16;
}

DEVICE uint32_t pair_max_f16(uint32_t a, uint32_t b)
{
    return pair_pick(a, b, 0x7c00, true);
}

DEVICE uint32_t pair_min_f16(uint32_t a, uint32_t b)
{
    return pair_pick(a, b, 0x7c00, false);
}

DEVICE uint32_t pair_max_bf16(uint32_t a, uint32_t b)
{
    return pair_pick(a, b, 0x7f80, true);
}

DEVICE uint32_t pair_min_bf16(uint32_t a, uint32_t b)
{
    return pair_pick(a, b, 0x7f80, false);
}

DEVICE void prefetch_line(const unsigned char *p)
{
    (void)*(const volatile unsigned char *)p; /* must be there */
}

DEVICE float one_if_zero(float x)
{
    return x == 0 ? 1.0f : 0.0f;
}

DEVICE float f16_value(uint32_t code)
{
    return small_widen(code & 0xffff, small_format(TRD_F16));
}

DEVICE uint32_t pair_zero_mask(uint32_t a)
{
    return (a & 0x7fff ? 0 : 0xffffu) | (a & 0x7fff0000u ? 0 : 0xffff0000u);
}
#endif

struct pair_f16 {
    enum { DTYPE = TRD_F16, INFINITE = 0x7c00, NORMAL = 0x400 };

    static __device__ __forceinline__ float low(uint32_t w)
    {
        return f16_value(w);
    }
    static __device__ __forceinline__ float high(uint32_t w)
    {
        return f16_value(w >> 16);
    }
    static __device__ __forceinline__ uint32_t max(uint32_t a, uint32_t b)
    {
        return pair_max_f16(a, b);
    }
    static __device__ __forceinline__ uint32_t min(uint32_t a, uint32_t b)
    {
        return pair_min_f16(a, b);
    }
};

struct pair_bf16 {
    enum { DTYPE = TRD_BF16, INFINITE = 0x7f80, NORMAL = 0x80 };

    static __device__ __forceinline__ float low(uint32_t w)
    {
        return f32_of(w << 16);
    }
    static __device__ __forceinline__ float high(uint32_t w)
    {
        return f32_of(w & 0xffff0000u);
    }
    static __device__ __forceinline__ uint32_t max(uint32_t a, uint32_t b)
    {
        return pair_max_bf16(a, b);
    }
    static __device__ __forceinline__ uint32_t min(uint32_t a, uint32_t b)
    {
        return pair_min_bf16(a, b);
    }
};

#endif
