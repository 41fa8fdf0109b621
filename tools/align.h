/* Which object of one run is which of another.
 *
 * Objects are paired by module path, class and instance; then by path and
 * class; then by path alone, so that a replaced layer meets what it replaced;
 * and where a side knows no paths, as a text log does, by class and instance.
 * Parts of a path that belong to wrappers are left out. A map gives other
 * names to what is called differently in the second run. */
#ifndef TOOLS_ALIGN_H
#define TOOLS_ALIGN_H

#include "tools/layout.h"
#include "tools/scan.h"

struct align;

/* Room for a name that align_name() gives. */
enum { ALIGN_NAME = TRD_MAX_NAME + 64 };

/* Lines "PATTERN_A PATTERN_B" of a file, read with align_open(): a module
 * path or Class-n of the first run, and what it is called in the second; `*`
 * stands for any text, the same on both sides. A word DIMENSION=PLACE before
 * a pattern, such as pp=1 or rank=2, says that it is so on those ranks only.
 * Empty lines and what follows `#` are left out. map NULL: none. 0 or an exit
 * code, told with file and line. */
int align_open(const struct scan *a, const struct scan *b, const char *map,
               struct align **out);
void align_close(struct align *m);

/* The index in scan_objects(b) of the object with index i of a, and back;
 * -1: it has none there. */
long align_object(const struct align *m, size_t i);
long align_back(const struct align *m, size_t i);
/* The path of a parameter, or of a tensor in its call, as b calls it;
 * -1: it is not there. */
int64_t align_path(struct align *m, int64_t path);

/* Says the map something of some ranks only? */
bool align_is_by_rank(const struct align *m);
/* What a path without wrappers, or a Class-n, of a rank of the first run is
 * called in the second, and of the second run. Names are those of the same
 * thing if they are equal. */
void align_name(const struct align *m, bool second,
                const struct layout_rank *on, const char *name,
                char out[ALIGN_NAME]);
/* A path without the parts of wrappers. out has room for the text. */
void align_strip(const char *path, char *out);
/* A class as it was called before FSDP2 made one of its own of it. */
const char *align_class(const char *name);

#endif
