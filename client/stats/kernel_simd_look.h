/* The passes over a tile's bits as they lie, without decoding: hash, extremes,
 * counts. Part of kernel_simd.h, which says more. */

#include <string.h>

enum {
    LINE = 64, /* bytes looked at in a turn */
    LANES_F = VEC / 4,
    LANES_D = VEC / 8
};

#define KEY(i) (HASH_K((i) % 16) ^ HASH_K(16 + (i) / 16))
#define KEY_4(i) KEY(i), KEY((i) + 1), KEY((i) + 2), KEY((i) + 3)
#define KEY_16(i) KEY_4(i), KEY_4((i) + 4), KEY_4((i) + 8), KEY_4((i) + 12)
#define KEY_64(i)                                                             \
    KEY_16(i), KEY_16((i) + 16), KEY_16((i) + 32), KEY_16((i) + 48)
#define KEY_256(i)                                                            \
    KEY_64(i), KEY_64((i) + 64), KEY_64((i) + 128), KEY_64((i) + 192)

/* Of the words of a tile of up to 8 bytes an element. */
static const _Alignas(64) uint64_t keys[TRD__TILE] = {
    KEY_256(0), KEY_256(256), KEY_256(512), KEY_256(768)};

/* ---- dtypes ---- */

/* How codes are ordered. A float's: as integers where positive, against that
 * where negative. */
enum order { FLOAT, SIGNED, UNSIGNED };

struct form {
    int dtype;
    enum order order;
    unsigned size;    /* bytes */
    uint64_t sign;    /* the bit */
    uint64_t special; /* ranks from here on are not finite, see rank() */
    uint64_t inf;     /* code of +inf, 0 for none */
    uint64_t normal;  /* smallest code in full precision; integers: 1 */
    bool nan_is_sign; /* the code of -0 is the only NaN */
};

INLINE struct form form_of(int dtype)
{
    switch (dtype) {
#define FORM(order, size, special, inf, normal, nan_is_sign)                  \
    (struct form)                                                             \
    {                                                                         \
        dtype, order, size, UINT64_C(1) << (8 * (size)-1), special, inf,      \
            normal, nan_is_sign                                               \
    }
    case TRD_F64:
        return FORM(FLOAT, 8, UINT64_C(0x7ff) << 52, UINT64_C(0x7ff) << 52,
                    UINT64_C(1) << 52, false);
    case TRD_F32:
        return FORM(FLOAT, 4, 0x7f800000, 0x7f800000, 1 << 23, false);
    case TRD_F16:
        return FORM(FLOAT, 2, 0x7c00, 0x7c00, 1 << 10, false);
    case TRD_BF16:
        return FORM(FLOAT, 2, 0x7f80, 0x7f80, 1 << 7, false);
    case TRD_F8_E4M3FN:
        return FORM(FLOAT, 1, 0x7f, 0, 1 << 3, false);
    case TRD_F8_E5M2:
        return FORM(FLOAT, 1, 0x7c, 0x7c, 1 << 2, false);
    case TRD_F8_E4M3FNUZ:
        return FORM(FLOAT, 1, 0xff, 0, 1 << 3, true);
    case TRD_F8_E5M2FNUZ:
        return FORM(FLOAT, 1, 0xff, 0, 1 << 2, true);
    case TRD_F8_E8M0FNU:
        return FORM(UNSIGNED, 1, 0xff, 0, 0, false);
    case TRD_I8:
        return FORM(SIGNED, 1, 0, 0, 1, false);
    case TRD_I16:
        return FORM(SIGNED, 2, 0, 0, 1, false);
    case TRD_I32:
        return FORM(SIGNED, 4, 0, 0, 1, false);
    case TRD_I64:
        return FORM(SIGNED, 8, 0, 0, 1, false);
    case TRD_U16:
        return FORM(UNSIGNED, 2, 0, 0, 1, false);
    case TRD_U32:
        return FORM(UNSIGNED, 4, 0, 0, 1, false);
    case TRD_U64:
        return FORM(UNSIGNED, 8, 0, 0, 1, false);
    default: /* uint8, bool */
        return FORM(UNSIGNED, 1, 0, 0, 1, false);
#undef FORM
    }
}

INLINE bool is_narrow(struct form f) /* as trd__is_narrow() */
{
    return f.size < 4 || f.dtype == TRD_F32;
}

INLINE bool is_int64(struct form f)
{
    return f.dtype == TRD_I64 || f.dtype == TRD_U64;
}

/* What load_f32() gives is x / scale. What it gives for codes that are not
 * finite is of no account: those are found by their bits. */
INLINE float scale_of(struct form f)
{
    switch (f.dtype) {
    case TRD_F8_E4M3FN:
        return 256;
    case TRD_F8_E4M3FNUZ:
        return 128;
    case TRD_F8_E5M2FNUZ:
        return 0x1p111f;
    default:
        return 1;
    }
}

/* Of a finite element. */
INLINE double value_of(struct form f, uint64_t code)
{
    unsigned char copies[VEC];

    store(copies, all(code, f.size));
    if (is_narrow(f))
        return (double)(firstf(load_f32(f.dtype, copies)) * scale_of(f));
    return firstd(load_f64(f.dtype, copies));
}

INLINE bool is_special(struct form f, uint64_t code)
{
    if (f.nan_is_sign)
        return code == f.sign;
    if (f.order == FLOAT)
        code &= f.sign - 1;
    return f.special && code >= f.special;
}

/* What orders by magnitude: the code without its sign. */
INLINE vec magnitude(struct form f, vec w)
{
    if (f.order == FLOAT)
        return and(w, all(f.sign - 1, f.size));
    return f.order == SIGNED ? abs_s(w, f.size) : w;
}

/* What is at least f.special for elements that are not finite. */
INLINE vec rank(struct form f, vec w)
{
    if (f.nan_is_sign)
        return add(xor(w, all(f.sign, f.size)), all(UINT64_MAX, f.size),
                   f.size);
    return f.order == FLOAT ? magnitude(f, w) : w;
}

/* ---- look: hash and extremes ---- */

/* Floats: `up` is the largest code as a signed number, which is the largest
 * value where any is positive; `down` the largest one as unsigned, which is
 * the smallest value where any is negative. Two operations, and what is not
 * finite shows as an extreme. Integers: the largest and the smallest. */
struct seen {
    vec up, down;
    vec least; /* magnitude, zeros included */
};

INLINE struct seen seen_none(struct form f)
{
    struct seen s;

    s.up = all(f.order == UNSIGNED ? 0 : f.sign, f.size);
    s.down = all(f.order == FLOAT      ? 0
                 : f.order == SIGNED ? f.sign - 1
                                     : UINT64_MAX,
                 f.size);
    s.least = all(UINT64_MAX, f.size);
    return s;
}

INLINE void seen_merge(struct form f, struct seen *s, const struct seen *o)
{
    s->up = f.order == UNSIGNED ? max_u(s->up, o->up, f.size)
                                : max_s(s->up, o->up, f.size);
    if (f.order == FLOAT)
        s->down = max_u(s->down, o->down, f.size);
    else if (f.order == SIGNED)
        s->down = min_s(s->down, o->down, f.size);
    s->least = min_u(s->least, o->least, f.size);
}

INLINE void seen_add(struct form f, struct seen *s, vec w)
{
    struct seen one = {w, w, magnitude(f, w)};
    seen_merge(f, s, &one);
}

INLINE struct seen look(struct form f, const unsigned char *p, uint64_t *h)
{
    struct seen s = seen_none(f);
    struct hash hash = hash_none();
    const uint64_t *end = keys + TRD__TILE / 8 * f.size;

    for (const uint64_t *key = keys; key < end; key += LINE / 8) {
        for (int at = 0; at < LINE; at += VEC) {
            vec w = load(p + at);
            hash_add(&hash, w, key + at / 8);
            seen_add(f, &s, w);
        }
        p += LINE;
    }
    *h = hash_total(&hash);
    return s;
}

/* H of a short tile. */
INLINE uint64_t hash_short(const unsigned char *p, size_t bytes)
{
    struct hash hash = hash_none();
    size_t at = 0;
    uint64_t h;

    for (; bytes - at >= VEC; at += VEC)
        hash_add(&hash, load(p + at), keys + at / 8);
    h = hash_total(&hash);
    for (; at < bytes; at += 8) {
        uint64_t w = 0;
        memcpy(&w, p + at, bytes - at < 8 ? bytes - at : 8);
        h += hash_word(w, keys[at / 8]);
    }
    return h;
}

/* The same of a copy of n elements, whose hash is not wanted. */
INLINE struct seen look_again(struct form f, const unsigned char *p,
                              uint32_t n)
{
    struct seen s = seen_none(f);

    for (unsigned at = 0; at < n * f.size; at += VEC)
        seen_add(f, &s, load(p + at));
    return s;
}

INLINE bool any_at_least(vec v, uint64_t code, unsigned size)
{
    return any_eq(max_u(v, all(code, size), size), v, size);
}

/* Whether the magnitude of any element is `code` or more. Floats. */
INLINE bool any_reaches(struct form f, const struct seen *s, uint64_t code)
{
    vec up = max_s(s->up, all(0, f.size), f.size);

    return any_at_least(up, code, f.size) ||
           any_at_least(s->down, f.sign | code, f.size);
}

INLINE bool any_special(struct form f, const struct seen *s)
{
    if (!f.special || f.nan_is_sign) /* the latter shows in count() */
        return false;
    if (f.order == UNSIGNED)
        return any_at_least(s->up, f.special, f.size);
    return any_reaches(f, s, f.special);
}

/* ---- count: zeros and subnormals ---- */

struct rare {
    uint32_t zero, below; /* magnitude 0, below the normal ones */
    uint32_t sign;        /* nan_is_sign: NaN */
    vec next;             /* least magnitude - 1, where 0 is the largest */
};

INLINE struct rare count_zeros(struct form f, const unsigned char *p,
                               uint32_t n)
{
    count zero = count_none(), below = count_none(), sign = count_none();
    vec minus_one = all(UINT64_MAX, f.size);
    vec next = minus_one;
    struct rare r = {0};

    for (unsigned at = 0; at < n * f.size; at += VEC) {
        vec w = load(p + at);
        vec a = magnitude(f, w);

        zero = count_eq(zero, a, all(0, f.size), f.size);
        if (f.order == FLOAT)
            below = count_lt(below, a, all(f.normal, f.size), f.size);
        if (f.nan_is_sign)
            sign = count_eq(sign, w, all(f.sign, f.size), f.size);
        next = min_u(next, add(a, minus_one, f.size), f.size);
    }
    r.zero = count_total(zero, f.size);
    r.below = f.order == FLOAT ? count_total(below, f.size) : r.zero;
    r.sign = f.nan_is_sign ? count_total(sign, f.size) : 0;
    r.next = next;
    return r;
}

/* Where there are no zeros. */
INLINE uint32_t count_below(struct form f, const unsigned char *p, uint32_t n)
{
    count below = count_none();

    for (unsigned at = 0; at < n * f.size; at += VEC)
        below = count_lt(below, magnitude(f, load(p + at)),
                         all(f.normal, f.size), f.size);
    return count_total(below, f.size);
}

INLINE struct rare rare_of(struct form f, const unsigned char *p, uint32_t n,
                           const struct seen *s)
{
    struct rare r = {0};

    if (f.normal && any_eq(s->least, all(0, f.size), f.size))
        return count_zeros(f, p, n);
    r.next = add(s->least, all(UINT64_MAX, f.size), f.size);
    if (f.normal > 1 && any_lt(s->least, all(f.normal, f.size), f.size))
        r.below = count_below(f, p, n);
    return r;
}
