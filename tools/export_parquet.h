/* A run as a Parquet file, through the Python package. */
#ifndef TOOLS_EXPORT_PARQUET_H
#define TOOLS_EXPORT_PARQUET_H

#include <stdint.h>

#include "tools/tracectl.h"

/* Writes the file of a run to out; rank and attempt -1: all. The interpreter
 * is TRACERD_PYTHON, else the python3 beside this program, else that of PATH.
 * 0 or an exit code, told. */
int export_parquet(const char *path, const char *out, int64_t rank,
                   int64_t attempt);

#endif
