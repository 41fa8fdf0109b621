/* What a comparison found, as text, json or csv. */
#ifndef TOOLS_COMPARE_OUT_H
#define TOOLS_COMPARE_OUT_H

#include "tools/compare.h"

struct compare_names {
    const struct scan *a, *b;
    bool all;  /* everything that is missing, not the first few */
};

/* format: text, json or csv, NULL for text. 0 or an exit code, told. */
int compare_out(const struct compare_names *n, const struct compare_result *r,
                const char *format);

const char *compare_verdict_name(enum compare_verdict v);

#endif
