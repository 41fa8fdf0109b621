/* Who is to blame, judged from pairs that come an object's step at a time.
 *
 * Holds an amount of memory that does not grow with the records: the gains
 * of each object, and for the first PLACES pairs of object and iteration what
 * the gradients of parameters are judged by. */
#ifndef TOOLS_VERDICT_H
#define TOOLS_VERDICT_H

#include "tools/compare.h"

struct verdict;

/* objects: how many the first run has. NULL without memory. */
struct verdict *verdict_open(size_t objects,
                             const struct compare_noise *noise);
void verdict_close(struct verdict *v);

/* A pair of the object's step that runs. False without memory. */
bool verdict_pair(struct verdict *v, const struct compare_pair *p);
/* That object's step is over. */
void verdict_group(struct verdict *v);

/* What is off first as far as it is known; false: nobody is guilty yet. */
bool verdict_first(const struct verdict *v, struct compare_pair *out);

/* Fills verdict, first, culprit, reason, most, ranked and the counts of out,
 * but for missing ones, which out has already. */
void verdict_end(struct verdict *v, struct compare_result *out);
/* The gains, for a later comparison; NULL without memory. */
struct compare_noise *verdict_learn(const struct verdict *v);

#endif
