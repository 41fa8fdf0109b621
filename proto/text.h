/* The original script's text log, one tensor a line:
 *
 *   HHMMSSffffff,counter,name,index,[shape]-max,min,mean,std,sample,...
 *
 * Numbers are %.5f or nan, inf, -inf. Nothing here depends on the locale of
 * the host program (H51): parse and print run in the C locale of this
 * thread, which is put back before they return. */
#ifndef PROTO_TEXT_H
#define PROTO_TEXT_H

#include "proto/bytes.h"
#include "tracerd/record.h"

struct text_line {
    int64_t time_us;     /* of the day */
    uint64_t counter;    /* of the call */
    struct slice name;
    uint64_t index;      /* place in the call */
    uint32_t ndim;
    int64_t shape[TRD_MAX_DIMS];
    uint64_t n;          /* product of shape */
    double figure[4];    /* max, min, mean, std */
    int no_figures;      /* 1: an empty tensor, nothing behind "]-" */
    uint32_t sample_n;
    double sample[TRD_MAX_SAMPLES];
};

/* Parses one line without its line end (a final CR is dropped). k is the
 * number of samples the log was made with: exactly min(k, n) must follow.
 * TRD_EINVAL with *why a static sentence and *column (from 1) the place. */
int text_parse(const char *line, size_t n, uint32_t k, struct text_line *out,
               const char **why, size_t *column);

/* Prints a line without a line end, NUL-terminated. The result is its
 * length; TRD_ELIMIT if cap is too small. */
int text_print(const struct text_line *line, char *out, size_t cap);

/* What a name of the log means: pass-Class-n-step-io or grad-path.
 * TRD_ENAME for anything else. */
struct text_name {
    int pass, io;
    struct slice class_name, path;
    uint64_t instance, step; /* 0 for grad: the log has none */
};
int text_name(struct slice name, struct text_name *out);

#endif
