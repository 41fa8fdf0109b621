/* The calendar of a log that has times of day only. Pure but for the time
 * zone of the process. */
#include "tools/clock.h"

#include <string.h>

#include "tracerd/base.h"

#define DAY_US (INT64_C(86400) * 1000000)
#define HOUR_US (INT64_C(3600) * 1000000)

enum { TIME_DIGITS = 12 };

int64_t clock_of_line(const char *line, size_t n)
{
    int64_t v = 0;
    if (n <= TIME_DIGITS || line[TIME_DIGITS] != ',')
        return -1;
    for (int i = 0; i < TIME_DIGITS; i++) {
        if (line[i] < '0' || line[i] > '9')
            return -1;
        v = v * 10 + (line[i] - '0');
    }
    int64_t hour = v / 10000000000, minute = v / 100000000 % 100;
    int64_t second = v / 1000000 % 100;
    if (hour > 23 || minute > 59 || second > 59)
        return -1;
    return ((hour * 60 + minute) * 60 + second) * 1000000 + v % 1000000;
}

int64_t clock_next(struct clock_days *c, int64_t of_day_us)
{
    int64_t forward = of_day_us - c->last_us;
    if (c->started && forward < -CLOCK_BACK_US)
        c->day++;
    else if (c->started && forward > DAY_US - CLOCK_BACK_US)
        c->day--; /* back over midnight */
    int64_t us = c->day * DAY_US + of_day_us;
    if (!c->started || us < c->least_us)
        c->least_us = us;
    c->started = 1;
    c->last_us = of_day_us;
    return us;
}

int clock_from_date(struct clock_base *b, const char *date)
{
    struct tm tm = {.tm_hour = 12, .tm_isdst = -1};
    const char *end = strptime(date, "%Y-%m-%d", &tm);
    int day = tm.tm_mday, month = tm.tm_mon;
    tm.tm_hour = 12;
    tm.tm_isdst = -1;
    if (!end || *end || strlen(date) != 10 || mktime(&tm) == (time_t)-1 ||
        tm.tm_mday != day || tm.tm_mon != month)
        return TRD_EINVAL;
    memset(b, 0, sizeof *b);
    b->hour = -1;
    b->first = tm;
    return 0;
}

int clock_from_mtime(struct clock_base *b, time_t mtime, int64_t last_us)
{
    int64_t day = last_us / DAY_US - (last_us % DAY_US < 0);
    int64_t of_day = last_us - day * DAY_US;
    struct tm tm;
    if (!localtime_r(&mtime, &tm))
        return TRD_EINVAL;
    int64_t now = ((int64_t)tm.tm_hour * 3600 + tm.tm_min * 60 + tm.tm_sec) *
                  1000000;
    memset(b, 0, sizeof *b);
    b->hour = -1;
    b->first.tm_year = tm.tm_year;
    b->first.tm_mon = tm.tm_mon;
    /* mktime() takes days outside the month */
    b->first.tm_mday = tm.tm_mday - (int)day - (of_day > now + 1000000);
    return 0;
}

int64_t clock_ns(struct clock_base *b, int64_t us)
{
    int64_t hour = us / HOUR_US - (us % HOUR_US < 0);
    if (b->hour != hour || b->hour == -1) {
        int64_t day = hour / 24 - (hour % 24 < 0);
        struct tm tm = {.tm_year = b->first.tm_year,
                        .tm_mon = b->first.tm_mon,
                        .tm_mday = b->first.tm_mday + (int)day,
                        .tm_hour = (int)(hour - day * 24),
                        .tm_isdst = -1};
        b->hour = hour;
        b->hour_ns = (int64_t)mktime(&tm) * 1000000000;
    }
    return b->hour_ns + (us - hour * HOUR_US) * 1000;
}
