/* A column of a result of SQLite as a cell of an answer. */
#ifndef TOOLS_DB_CELL_H
#define TOOLS_DB_CELL_H

#include <sqlite3.h>

#include "proto/query.h"

/* Column i of the row; texts stay until the next step. */
struct cell db_cell(sqlite3_stmt *s, int i);

#endif
