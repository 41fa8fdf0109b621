/* What a user says of the pairs whose names fit a pattern. */
#ifndef TOOLS_RULES_H
#define TOOLS_RULES_H

#include "tools/compare.h"

struct rules;

/* Lines "PATTERN WORD..." of a file; `*` and `?` in a record's name or a
 * module path, the first line that fits counts. Words: `ignore` leaves the
 * pair out; `rtol=R` and `atol=A`: figures and samples no farther apart than
 * A + R * |that of the second run| are equal, others differ; `noise=N`: errors
 * are N times smaller. 0 or an exit code, told with file and line. */
int rules_open(const char *file, struct rules **out);
void rules_close(struct rules *r);

/* Changes p->diff by the rule for it. False: it is to be left out. */
bool rules_apply(const struct rules *r, const struct scan *a,
                 struct compare_pair *p, const struct diff_side *x,
                 const struct diff_side *y);

/* The name of a pair's record; cap of at least 2 * TRD_MAX_NAME + 128. */
void compare_name(const struct scan *a, const struct compare_pair *p,
                  char *out, size_t cap);

#endif
