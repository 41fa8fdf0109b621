/* The seed log's lines: parse and print.
 *
 * The parser accepts what the script prints and nothing near it: twelve
 * digits of time, numbers without leading zeros, figures with exactly five
 * decimals, exactly min(k, n) samples. So a line that was cut, or glued to
 * another one, is refused and never read as a shorter or longer record.
 *
 * Decimal numbers below 2^53 units of 1e-5 are an exact integer divided by
 * an exact 100000, which IEEE division rounds correctly; only longer ones go
 * to strtod, in the C locale of this thread. */
#include "proto/text.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    TIME_DIGITS = 12,
    DECIMALS = 5,
    NUMBER_MAX = 320, /* bytes of the longest finite double in %.5f */
    NAME_TEXT_MAX = TRD_MAX_NAME + 64
};
#define ELEMENTS_MAX (UINT64_C(1) << 62)

/* A place in the line, and the first fault. */
struct cursor {
    const char *start, *at, *end;
    const char *why;
    const char *place;
};

static int fault(struct cursor *c, const char *place, const char *why)
{
    if (!c->why) {
        c->why = why;
        c->place = place;
    }
    return TRD_EINVAL;
}

static int is_digit(char b)
{
    return b >= '0' && b <= '9';
}

static char lower(char b)
{
    return b >= 'A' && b <= 'Z' ? (char)(b - 'A' + 'a') : b;
}

static int take(struct cursor *c, char want, const char *why)
{
    if (c->at == c->end || *c->at != want)
        return fault(c, c->at, why);
    c->at++;
    return 0;
}

/* Digits without a leading zero, at most max. */
static int take_count(struct cursor *c, uint64_t max, uint64_t *out,
                      const char *why)
{
    const char *first = c->at;
    uint64_t v = 0;
    for (; c->at < c->end && is_digit(*c->at); c->at++) {
        uint64_t digit = (uint64_t)(*c->at - '0');
        if (v > (max - digit) / 10)
            return fault(c, first, why);
        v = v * 10 + digit;
    }
    if (c->at == first || (*first == '0' && c->at - first > 1))
        return fault(c, first, why);
    *out = v;
    return 0;
}

static int two_digits(const char *p)
{
    return (p[0] - '0') * 10 + (p[1] - '0');
}

static int take_time(struct cursor *c, int64_t *out)
{
    static const char why[] = "the time is not HHMMSS and six digits";
    int64_t micro = 0;
    if (c->end - c->at < TIME_DIGITS)
        return fault(c, c->at, why);
    for (int i = 0; i < TIME_DIGITS; i++)
        if (!is_digit(c->at[i]))
            return fault(c, c->at + i, why);
    int hour = two_digits(c->at), minute = two_digits(c->at + 2);
    int second = two_digits(c->at + 4);
    if (hour > 23 || minute > 59 || second > 59)
        return fault(c, c->at, "the time is not a time of day");
    for (int i = 6; i < TIME_DIGITS; i++)
        micro = micro * 10 + (c->at[i] - '0');
    *out = ((int64_t)hour * 3600 + minute * 60 + second) * 1000000 + micro;
    c->at += TIME_DIGITS;
    return 0;
}

/* Bytes of the UTF-8 character at p, 0 when it is none. */
static int utf8_length(const char *p, const char *end)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t b = (uint8_t)*p;
    int n = b < 0x80 ? 1 : b < 0xc0 ? 0 : b < 0xe0 ? 2 : b < 0xf0 ? 3
          : b < 0xf8 ? 4 : 0;
    if (n < 2 || end - p < n)
        return n == 1;
    uint32_t code = b & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) {
        uint8_t next = (uint8_t)p[i];
        if ((next & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (next & 0x3f);
    }
    if (code < smallest[n] || code > 0x10ffff ||
        (code >= 0xd800 && code < 0xe000))
        return 0;
    return n;
}

/* The name ends at the next comma; a name cannot hold one, or two lines
 * that were cut into each other could look like one record. */
static int take_name(struct cursor *c, struct slice *out)
{
    const char *first = c->at;
    while (c->at < c->end && *c->at != ',') {
        int n = utf8_length(c->at, c->end);
        if (n == 0)
            return fault(c, c->at, "the name is not UTF-8");
        if ((uint8_t)*c->at < 0x20 || *c->at == 0x7f)
            return fault(c, c->at, "the name holds a control character");
        c->at += n;
    }
    if (c->at == first)
        return fault(c, first, "the name is missing");
    if (c->at - first > NAME_TEXT_MAX)
        return fault(c, first, "the name is too long");
    out->text = first;
    out->n = (size_t)(c->at - first);
    return 0;
}

/* [16, 12, 512] as Python prints a list; [] is a scalar. */
static int take_shape(struct cursor *c, struct text_line *out)
{
    static const char why[] = "the shape is not a list of numbers";
    uint64_t n = 1;
    uint32_t ndim = 0;
    if (take(c, '[', why))
        return TRD_EINVAL;
    while (c->at == c->end || *c->at != ']') {
        const char *first = c->at;
        uint64_t dim;
        if (ndim && (take(c, ',', why) || take(c, ' ', why)))
            return TRD_EINVAL;
        if (ndim == TRD_MAX_DIMS)
            return fault(c, first, "the shape has too many dimensions");
        if (take_count(c, ELEMENTS_MAX, &dim, why))
            return TRD_EINVAL;
        if (dim && n > ELEMENTS_MAX / dim)
            return fault(c, first, "the shape has too many elements");
        n *= dim;
        out->shape[ndim++] = (int64_t)dim;
    }
    c->at++;
    out->ndim = ndim;
    out->n = n;
    return 0;
}

/* 1 if the word stands at p, whatever its case; it must end there. */
static int is_word(const char *p, const char *end, const char *word)
{
    size_t n = strlen(word);
    if ((size_t)(end - p) < n)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (lower(p[i]) != word[i])
            return 0;
    return (size_t)(end - p) == n || p[n] == ',';
}

/* nan, inf and infinity. 0 when it is none of them. */
static int take_word(struct cursor *c, int negative, double *out)
{
    static const char *const words[] = {"nan", "inf", "infinity"};
    for (int i = 0; i < 3; i++)
        if (is_word(c->at, c->end, words[i])) {
            *out = i == 0 ? (double)NAN : negative ? -HUGE_VAL : HUGE_VAL;
            c->at += strlen(words[i]);
            return 1;
        }
    return 0;
}

/* The exact value of text, a checked decimal number, in any locale. */
static int long_number(const char *text, size_t n, double *out)
{
    char copy[NUMBER_MAX + 1];
    if (n > NUMBER_MAX)
        return TRD_EINVAL;
    memcpy(copy, text, n);
    copy[n] = '\0';
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return TRD_EINVAL;
    locale_t before = uselocale(plain);
    double v = strtod(copy, NULL);
    uselocale(before);
    freelocale(plain);
    if (!isfinite(v))
        return TRD_EINVAL;
    *out = v;
    return 0;
}

static int take_figure(struct cursor *c, double *out)
{
    static const char why[] = "not a number with five decimals";
    const char *first = c->at;
    int negative = c->at < c->end && *c->at == '-';
    uint64_t units = 0;
    int decimals = -1;
    c->at += negative;
    if (take_word(c, negative, out))
        return 0;
    const char *digits = c->at;
    for (; c->at < c->end && *c->at != ','; c->at++) {
        if (*c->at == '.' && decimals < 0 && c->at > digits) {
            decimals = 0;
            continue;
        }
        if (!is_digit(*c->at) || decimals == DECIMALS)
            return fault(c, first, why);
        if (units <= (UINT64_C(1) << 53) / 10)
            units = units * 10 + (uint64_t)(*c->at - '0');
        else
            units = UINT64_MAX; /* too long for the fast way */
        decimals += decimals >= 0;
    }
    if (decimals != DECIMALS || (*digits == '0' && digits[1] != '.'))
        return fault(c, first, why);
    if (units < UINT64_C(1) << 53) {
        double v = (double)units / 100000.0;
        *out = negative ? -v : v;
        return 0;
    }
    if (long_number(first, (size_t)(c->at - first), out))
        return fault(c, first, "the number is out of range");
    return 0;
}

/* max, min, mean, std and the samples. */
static int take_figures(struct cursor *c, uint32_t k, struct text_line *out)
{
    uint64_t want = out->n < k ? out->n : k;
    for (int i = 0; i < 4; i++) {
        if (i && take(c, ',', "a figure is missing"))
            return TRD_EINVAL;
        if (take_figure(c, &out->figure[i]))
            return TRD_EINVAL;
    }
    for (out->sample_n = 0; out->sample_n < want; out->sample_n++) {
        if (take(c, ',', "fewer samples than the shape and --samples ask"))
            return TRD_EINVAL;
        if (take_figure(c, &out->sample[out->sample_n]))
            return TRD_EINVAL;
    }
    if (c->at < c->end)
        return fault(c, c->at, "more samples than the shape and --samples ask");
    return 0;
}

static int take_line(struct cursor *c, uint32_t k, struct text_line *out)
{
    if (take_time(c, &out->time_us) ||
        take(c, ',', "no comma after the time") ||
        take_count(c, INT64_MAX, &out->counter, "the counter is no number") ||
        take(c, ',', "no comma after the counter") ||
        take_name(c, &out->name) || take(c, ',', "the line ends too early") ||
        take_count(c, UINT32_MAX, &out->index, "the index is no number") ||
        take(c, ',', "no comma after the index") || take_shape(c, out) ||
        take(c, '-', "no '-' after the shape"))
        return TRD_EINVAL;
    out->no_figures = out->n == 0;
    out->sample_n = 0;
    if (!out->no_figures)
        return take_figures(c, k, out);
    if (c->at < c->end)
        return fault(c, c->at, "an empty tensor has no figures");
    return 0;
}

int text_parse(const char *line, size_t n, uint32_t k, struct text_line *out,
               const char **why, size_t *column)
{
    struct cursor c = {line, line, line + n, NULL, NULL};
    if (n && line[n - 1] == '\r')
        c.end--;
    if (k > TRD_MAX_SAMPLES)
        k = TRD_MAX_SAMPLES;
    if (take_line(&c, k, out) == 0)
        return 0;
    *why = c.why;
    *column = (size_t)(c.place - line) + 1;
    return TRD_EINVAL;
}

/* Text being printed; n counts on behind the end. */
struct print {
    char *out;
    size_t cap, n;
};

static void print_bytes(struct print *p, const char *text, size_t n)
{
    if (p->n < p->cap && n < p->cap - p->n)
        memcpy(p->out + p->n, text, n);
    p->n += n;
}

static void print_count(struct print *p, uint64_t v, int width)
{
    char digits[20];
    int n = 0;
    do
        digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) || n < width);
    while (n > 0)
        print_bytes(p, &digits[--n], 1);
}

/* In the C locale of this thread. */
static void print_figure(struct print *p, double v)
{
    char text[NUMBER_MAX + 1];
    if (isnan(v)) {
        print_bytes(p, "nan", 3);
        return;
    }
    int n = snprintf(text, sizeof text, "%.5f", v);
    if (n > 0)
        print_bytes(p, text, (size_t)n);
}

static void print_head(struct print *p, const struct text_line *line)
{
    uint64_t us = (uint64_t)line->time_us % (UINT64_C(86400) * 1000000);
    uint64_t s = us / 1000000;
    print_count(p, s / 3600, 2);
    print_count(p, s / 60 % 60, 2);
    print_count(p, s % 60, 2);
    print_count(p, us % 1000000, 6);
    print_bytes(p, ",", 1);
    print_count(p, line->counter, 1);
    print_bytes(p, ",", 1);
    print_bytes(p, line->name.text, line->name.n);
    print_bytes(p, ",", 1);
    print_count(p, line->index, 1);
    print_bytes(p, ",[", 2);
    for (uint32_t i = 0; i < line->ndim; i++) {
        if (i)
            print_bytes(p, ", ", 2);
        print_count(p, (uint64_t)line->shape[i], 1);
    }
    print_bytes(p, "]-", 2);
}

static void print_figures(struct print *p, const struct text_line *line)
{
    for (int i = 0; i < 4; i++) {
        if (i)
            print_bytes(p, ",", 1);
        print_figure(p, line->figure[i]);
    }
    for (uint32_t i = 0; i < line->sample_n; i++) {
        print_bytes(p, ",", 1);
        print_figure(p, line->sample[i]);
    }
}

int text_print(const struct text_line *line, char *out, size_t cap)
{
    struct print p = {out, cap, 0};
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return TRD_ENOMEM;
    locale_t before = uselocale(plain);
    print_head(&p, line);
    if (!line->no_figures)
        print_figures(&p, line);
    uselocale(before);
    freelocale(plain);
    if (p.n >= cap || p.n > INT32_MAX)
        return TRD_ELIMIT;
    out[p.n] = '\0';
    return (int)p.n;
}

/* Takes "-digits" off the right end of *s. */
static int take_tail(struct slice *s, uint64_t *out)
{
    size_t at = s->n;
    while (at > 0 && is_digit(s->text[at - 1]))
        at--;
    if (at == 0 || s->text[at - 1] != '-')
        return TRD_ENAME;
    struct cursor c = {s->text, s->text + at, s->text + s->n, NULL, NULL};
    if (take_count(&c, INT64_MAX, out, "") || *out == 0)
        return TRD_ENAME;
    s->n = at - 1;
    return 0;
}

static int take_end(struct slice *s, const char *end)
{
    size_t n = strlen(end);
    if (s->n < n || memcmp(s->text + s->n - n, end, n) != 0)
        return TRD_ENAME;
    s->n -= n;
    return 0;
}

static int take_start(struct slice *s, const char *start)
{
    size_t n = strlen(start);
    if (s->n < n || memcmp(s->text, start, n) != 0)
        return TRD_ENAME;
    s->text += n;
    s->n -= n;
    return 0;
}

int text_name(struct slice name, struct text_name *out)
{
    struct text_name t = {0};
    struct slice s = name;
    t.path = t.class_name = slice_of("");
    if (take_start(&s, "grad-") == 0) {
        if (s.n == 0 || s.n > TRD_MAX_NAME)
            return TRD_ENAME;
        t.pass = TRD_GRAD;
        t.path = s;
        *out = t;
        return 0;
    }
    if (take_start(&s, "forward-") == 0)
        t.pass = TRD_FORWARD;
    else if (take_start(&s, "backward-") == 0)
        t.pass = TRD_BACKWARD;
    else
        return TRD_ENAME;
    if (take_end(&s, "-input") == 0)
        t.io = TRD_INPUT;
    else if (take_end(&s, "-output") == 0)
        t.io = TRD_OUTPUT;
    else
        return TRD_ENAME;
    if (take_tail(&s, &t.step) || take_tail(&s, &t.instance) || s.n == 0 ||
        s.n > TRD_MAX_NAME)
        return TRD_ENAME;
    t.class_name = s;
    *out = t;
    return 0;
}
