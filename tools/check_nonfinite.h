/* Where NaN and infinities of a run come from.
 *
 * A call that gives one and got none made it. Of those only the first
 * iteration that has any counts: later it is in the parameters. Where no
 * traced call made it, it came from outside: with the data, out of the loss,
 * or as a gradient that was added up too far. Then the first record that has
 * it is told. Iterations whose step a gradient scaler skipped are meant to have
 * infinities: they are a note, and hide none that comes after. */
#ifndef TOOLS_CHECK_NONFINITE_H
#define TOOLS_CHECK_NONFINITE_H

#include "tools/check.h"
#include "tools/check_repeat.h"

struct nonfinite;

/* Of a row, its place in the run. */
struct compare_pair check_place(const struct check_row *s);
bool check_is_earlier(const struct compare_pair *a,
                      const struct compare_pair *b);
/* One finding for a kind and object: its first record and their number. 0 or
 * an exit code, told. */
int check_find(struct check_result *r, enum check_kind kind,
               const struct compare_pair *at, const char *detail);

/* 0 or an exit code, told. */
int nonfinite_open(struct nonfinite **out);
void nonfinite_close(struct nonfinite *x);
/* Row i of the n of an object's step. */
int nonfinite_look(struct nonfinite *x, const struct check_row *row, size_t n,
                   size_t i);
/* All rows were looked at. */
int nonfinite_end(struct nonfinite *x, const struct scan *s,
                  struct check_result *out);

#endif
