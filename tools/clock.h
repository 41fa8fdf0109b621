/* Times of day without a date, made into moments. */
#ifndef TOOLS_CLOCK_H
#define TOOLS_CLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* A time of day that is smaller than the one before by more than this is the
 * next day; less is a clock that was set back or lines out of order. */
#define CLOCK_BACK_US (INT64_C(2) * 3600 * 1000000)

/* The days that go by from line to line. */
struct clock_days {
    int started;
    int64_t day;      /* since the first line's */
    int64_t last_us;  /* time of day of the line before */
    int64_t least_us; /* smallest moment so far, since day 0 */
};

/* The time of day a line starts with; -1: it starts with none. */
int64_t clock_of_line(const char *line, size_t n);
/* The moment of the next line in us since day 0's midnight. */
int64_t clock_next(struct clock_days *c, int64_t of_day_us);

/* Day 0 on the calendar, and moments as ns since 1970, in local time. */
struct clock_base {
    struct tm first;  /* day 0 */
    int64_t hour;     /* the hour that hour_ns belongs to; -1 none */
    int64_t hour_ns;
};
/* YYYY-MM-DD is day 0. 0 or TRD_EINVAL. */
int clock_from_date(struct clock_base *b, const char *date);
/* The last line, at moment last_us, is the latest one that is not after
 * mtime. */
int clock_from_mtime(struct clock_base *b, time_t mtime, int64_t last_us);
int64_t clock_ns(struct clock_base *b, int64_t us);

#endif
