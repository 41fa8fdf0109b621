/* The passes over a tile's values: S and Q; and its K. Part of kernel_simd.h,
 * which says more. */

/* ---- S and Q ---- */

/* The 64 lanes, or every other one of them, in n vectors: 4, 8, 16 or 32.
 * Spelled out, since no compiler unrolls a loop whose step halves, and the
 * lanes would go through memory. */
INLINE double halves(const vecd *lane, int n)
{
    vecd a[16], b[8], c[4], d[2];

    for (int i = 0; i < 16 && n == 32; i++)
        a[i] = lane[i] + lane[i + 16];
    for (int i = 0; i < 8 && n == 32; i++)
        b[i] = a[i] + a[i + 8];
    for (int i = 0; i < 8 && n == 16; i++)
        b[i] = lane[i] + lane[i + 8];
    for (int i = 0; i < 4 && n >= 16; i++)
        c[i] = b[i] + b[i + 4];
    for (int i = 0; i < 4 && n == 8; i++)
        c[i] = lane[i] + lane[i + 4];
    for (int i = 0; i < 2; i++)
        d[i] = n == 4 ? lane[i] + lane[i + 2] : c[i] + c[i + 2];
    return fold(d[0] + d[1]);
}

/* 1, but the compiler does not know. */
INLINE double one(void)
{
    double x = 1;
    __asm__("" : "+m"(x));
    return x;
}

/* A row as vectors: in order, but bf16 as the even and the odd elements of
 * each word, which are quicker to take apart and stay apart in the tree until
 * its last sum. */
INLINE vecf row_vector(struct form f, const unsigned char *row, int i)
{
    if (f.dtype == TRD_BF16)
        return i % 2 ? odd_bf16(load(row + i / 2 * VEC))
                     : even_bf16(load(row + i / 2 * VEC));
    return load_f32(f.dtype, row + (unsigned)(i * LANES_F) * f.size);
}

/* Where the adder is the busiest part of a processor, as it often is here, a
 * multiplication by 1 lets the multiplier subtract. So every other vector of a
 * narrow tile, and all of a wide one, whose conversions keep the adder. */
INLINE void narrow(struct form f, const unsigned char *p, float k,
                   double *sum, double *square)
{
    enum {
        N = TRD__LANES / LANES_F,
        PART = N / NARROW_PARTS,
        ROWS = TRD__HALF / TRD__LANES
    };
    unsigned row = TRD__LANES * f.size;
    vecf scale = allf(scale_of(f) == 1 ? (float)one() : scale_of(f));
    vecf s[2][N], q[N];
    vecd ds[2 * N], dq[2 * N];

    for (int first = 0; first < N; first += PART) {
        vecf square_of[PART];

        for (int i = 0; i < PART; i++)
            square_of[i] = allf(0);
        for (int half = 0; half < 2; half++) {
            vecf sum_of[PART];

            for (int i = 0; i < PART; i++)
                sum_of[i] = allf(0);
            for (int r = half * ROWS; r < (half + 1) * ROWS; r++)
                for (int i = 0; i < PART; i++) {
                    vecf x = row_vector(f, p + (unsigned)r * row, first + i);
                    vecf d = fmaf_(x, scale, allf(-k));

                    if (scale_of(f) == 1 && f.dtype != TRD_F16 && i % 2)
                        d = x - allf(k);
                    sum_of[i] += d;
                    square_of[i] = fmaf_(d, d, square_of[i]);
                }
            for (int i = 0; i < PART; i++)
                s[half][first + i] = sum_of[i];
        }
        for (int i = 0; i < PART; i++)
            q[first + i] = square_of[i];
    }
    for (int i = 0; i < N; i++) {
        int at = f.dtype == TRD_BF16 ? i % 2 * N + i / 2 * 2 : 2 * i;
        ds[at] = lower(s[0][i]) + lower(s[1][i]);
        ds[at + 1] = upper(s[0][i]) + upper(s[1][i]);
        dq[at] = lower(q[i]);
        dq[at + 1] = upper(q[i]);
    }
    if (f.dtype == TRD_BF16) {
        *sum = halves(ds, N) + halves(ds + N, N);
        *square = halves(dq, N) + halves(dq + N, N);
    } else {
        *sum = halves(ds, 2 * N);
        *square = halves(dq, 2 * N);
    }
}

/* 2 LANES_D values from element i on. */
INLINE void load_pair(struct form f, const unsigned char *p, unsigned i,
                      vecd x[2])
{
    if (f.size == 1 || f.dtype == TRD_I16 || f.dtype == TRD_U16) {
        vecf few = load_f32(f.dtype, p + i * f.size);
        x[0] = lower(few);
        x[1] = upper(few);
    } else {
        x[0] = load_f64(f.dtype, p + i * f.size);
        x[1] = load_f64(f.dtype, p + (i + LANES_D) * f.size);
    }
}

/* Of n elements, full rows. */
INLINE void wide(struct form f, const unsigned char *p, uint32_t n, double k,
                 double *sum, double *square)
{
    enum { N = TRD__LANES / LANES_D, PART = N / WIDE_PARTS };
    vecd scale =
        alld(scale_of(f) == 1 ? one() : (double)scale_of(f));
    vecd s[N], q[N];

    for (int first = 0; first < N; first += PART) {
        vecd sum_of[PART], square_of[PART];

        for (int i = 0; i < PART; i++)
            sum_of[i] = square_of[i] = alld(0);
        for (unsigned r = 0; r < n; r += TRD__LANES)
            for (int i = 0; i < PART; i += 2) {
                vecd x[2];

                load_pair(f, p, r + (unsigned)(first + i) * LANES_D, x);
                for (int j = 0; j < 2; j++) {
                    vecd d = fmad_(x[j], scale, alld(-k));
                    sum_of[i + j] += d;
                    square_of[i + j] = fmad_(d, d, square_of[i + j]);
                }
            }
        for (int i = 0; i < PART; i++) {
            s[first + i] = sum_of[i];
            q[first + i] = square_of[i];
        }
    }
    *sum = halves(s, N);
    *square = halves(q, N);
}

/* int64 and uint64, of which x - k is an int64 throughout: otherwise false. */
INLINE bool wide_int64(struct form f, const unsigned char *p, uint32_t n,
                       uint64_t k, double *sum, double *square)
{
    enum { N = TRD__LANES / LANES_D, PART = N / WIDE_PARTS };
    vec bias = all(f.order == SIGNED ? 0 : f.sign, 8);
    vec shift = xor(all(k, 8), bias);
    vec beyond = all(0, 8);
    vecd s[N], q[N];

    for (int first = 0; first < N; first += PART) {
        for (int i = first; i < first + PART; i++)
            s[i] = q[i] = alld(0);
        for (unsigned r = 0; r < n; r += TRD__LANES)
            for (int i = first; i < first + PART; i++) {
                vec x = xor(load(p + 8 * (r + (unsigned)i * LANES_D)), bias);
                vec diff = sub64(x, shift);
                vecd d = of_i64(diff);

                beyond = max_u(beyond, and(xor(x, shift), xor(x, diff)), 4);
                s[i] += d;
                q[i] = fmad_(d, d, q[i]);
            }
    }
    if (any_at_least(beyond, UINT64_C(1) << 63, 8))
        return false;
    *sum = halves(s, N);
    *square = halves(q, N);
    return true;
}

/* ---- K ---- */

INLINE uint32_t probe(uint32_t m, int which)
{
    return which == 0 ? 0 : (which == 1 ? 331 : 677) * m / TRD__TILE;
}

INLINE float probe_f32(struct form f, const unsigned char *p, int which)
{
    return firstf(
               load_f32(f.dtype, p + probe(TRD__TILE, which) * f.size)) *
           scale_of(f);
}

INLINE double probe_f64(struct form f, const unsigned char *p, int which)
{
    vecd x[2];

    load_pair(f, p, probe(TRD__TILE, which), x);
    return firstd(x[0]) * (double)scale_of(f);
}

INLINE uint64_t code_at(struct form f, const unsigned char *p, uint32_t i)
{
    uint64_t code = 0;
    memcpy(&code, p + i * f.size, f.size);
    return code;
}

INLINE uint64_t median_code(struct form f, const unsigned char *p, uint32_t m)
{
    uint64_t bias = f.order == SIGNED ? f.sign : 0;
    uint64_t a = code_at(f, p, 0) ^ bias;
    uint64_t b = code_at(f, p, probe(m, 1)) ^ bias;
    uint64_t c = code_at(f, p, probe(m, 2)) ^ bias;
    uint64_t lo = a < b ? a : b;
    uint64_t hi = a < b ? b : a;

    hi = hi < c ? hi : c;
    return (lo > hi ? lo : hi) ^ bias;
}

/* K of a tile of m elements as a code and a value; false where none of them
 * is finite. */
INLINE bool find_k(struct form f, const unsigned char *p, uint32_t m,
                   uint64_t *code, double *k)
{
    uint64_t codes[3];
    double x[3];

    *code = 0;
    *k = 0;
    if (is_int64(f)) {
        *code = median_code(f, p, m);
        return true;
    }
    for (int i = 0; i < 3; i++)
        codes[i] = code_at(f, p, probe(m, i));
    if (!is_special(f, codes[0]) && !is_special(f, codes[1]) &&
        !is_special(f, codes[2])) {
        for (int i = 0; i < 3; i++)
            x[i] = value_of(f, codes[i]);
        *k = median_f64(x[0], x[1], x[2]);
        for (int i = 0; i < 3; i++)
            if (x[i] == *k)
                *code = codes[i];
        return true;
    }
    for (uint32_t i = 0; i < m; i++) {
        *code = code_at(f, p, i);
        if (!is_special(f, *code)) {
            *k = value_of(f, *code);
            return true;
        }
    }
    return false;
}
