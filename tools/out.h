/* Output: records and tables as text, json or csv.
 *
 * Text is for eyes and may change. Of json and csv the fields and their
 * order are a promise; json is one object a line. Numbers: integers as
 * integers; reals as the shortest decimal that reads back as the same
 * double, with ".0" or an exponent so that they stay reals; nan, inf and
 * -inf as these words (strings in json). A complex sample is [re, im] in
 * json and re+imj in csv. csv holds lists separated by spaces, and flags as
 * 0 and 1. A histogram is its kind, the exponent of its first bin, and counts:
 * an object in json, a list in csv. */
#ifndef TOOLS_OUT_H
#define TOOLS_OUT_H

#include <stdio.h>

#include "proto/row.h"
#include "tools/tracectl.h"

enum { OUT_NUMBER_MAX = 40, OUT_TIME_MAX = 32 };

struct out;

/* One field after the other of a record; name is NULL inside a list. */
struct out_fields {
    void (*start)(struct out *o);
    void (*null)(struct out *o, const char *name);
    void (*text)(struct out *o, const char *name, struct slice s);
    void (*flag)(struct out *o, const char *name, int v);
    void (*whole)(struct out *o, const char *name, int64_t v);
    void (*natural)(struct out *o, const char *name, uint64_t v);
    void (*real)(struct out *o, const char *name, double v);
    void (*pair)(struct out *o, const char *name, double re, double im);
    void (*list)(struct out *o, const char *name);
    void (*list_end)(struct out *o);
    void (*histogram)(struct out *o, const char *name, int dtype,
                      const struct histogram *h);
    void (*stop)(struct out *o);
};

struct out_format {
    const char *name;
    int always_all; /* every record has the fields that few need */
    const struct out_fields *fields; /* NULL: record() of its own */
    void (*record_head)(struct out *o);
    void (*record)(struct out *o, const struct row *r);
    void (*table_head)(struct out *o);
    void (*table_row)(struct out *o, const struct cell *cells);
    void (*end)(struct out *o);
};

/* Formatted cells of a text table, kept until its widths are known. */
struct out_table {
    char **cell;
    size_t n, room;
    size_t width[PAGE_MAX_COLUMNS];
    unsigned char right[PAGE_MAX_COLUMNS]; /* numbers: aligned right */
    int sized;
};

struct out {
    const struct out_format *format;
    FILE *file;
    const char *run;   /* name of the run the records are of */
    int color;
    int empty_head;    /* text: a table without rows has its head */
    uint64_t n;        /* records or rows so far */
    /* the table's columns */
    const struct slice *column;
    uint32_t columns;
    struct out_table table;
    /* state of a record's line */
    int fields;        /* fields written so far in it */
    int items;         /* items of the list, -1 outside one */
    char *list;        /* csv: the list so far */
    size_t list_n, list_room;
};

/* format NULL: text. 0, or CTL_BAD when told. */
int out_open(struct out *o, const char *format, FILE *file);
void out_record(struct out *o, const struct row *r);
/* column stays the caller's, until out_close(). */
void out_table(struct out *o, const struct slice *column, uint32_t columns);
void out_row(struct out *o, const struct cell *cells);
/* 0, or CTL_FAILED when the file could not be written (told). */
int out_close(struct out *o);

/* All fields of a record in the promised order (record_out.c). */
void out_fields_of(struct out *o, const struct row *r);
/* The name of a record; cap of at least 2 * TRD_MAX_NAME + 128. */
void out_name(const struct row *r, char *out, size_t cap);
void out_number(double v, char out[OUT_NUMBER_MAX]);
/* Nanoseconds since 1970 as a local time for eyes; null stays null. */
struct cell out_time(const struct cell *ns, char out[OUT_TIME_MAX]);
void out_text_record(struct out *o, const struct row *r);
/* A line of it where there is a histogram (histogram_out.c). */
void out_text_histogram(struct out *o, const struct row *r);
/* Text with control characters replaced, so that a name cannot steer a
 * terminal. */
void out_plain(FILE *file, struct slice s);

/* A string and a number of json, for objects in objects. */
void out_json_text(FILE *f, struct slice s);
void out_json_real(FILE *f, double v);

extern const struct out_format out_text, out_json, out_csv;

#endif
