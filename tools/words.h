/* A dictionary made on the way: the same word gets the same number. */
#ifndef TOOLS_WORDS_H
#define TOOLS_WORDS_H

#include "tools/ingest.h"

struct words;

int words_open(struct ingest *in, struct words **out);
void words_close(struct words *w);

/* The number of the word of this kind and body; a new one is sent. The
 * functions give 0 or an exit code, told on stderr. */
int words_object(struct words *w, const struct wire_object *o, uint32_t *id);
int words_site(struct words *w, const struct wire_site *s, uint32_t *id);
int words_shape(struct words *w, const struct wire_shape *s, uint32_t *id);

/* How often this word was counted, with this time: 1, 2, ... */
int words_count(struct words *w, uint32_t id, uint64_t *out);

#endif
