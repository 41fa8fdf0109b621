/* Columns of SQLite as cells. */
#include "tools/db_cell.h"

struct cell db_cell(sqlite3_stmt *s, int i)
{
    struct cell c = {.type = CELL_NULL, .s = {"", 0}};
    switch (sqlite3_column_type(s, i)) {
    case SQLITE_INTEGER:
        c.type = CELL_INT;
        c.i = sqlite3_column_int64(s, i);
        break;
    case SQLITE_FLOAT:
        c.type = CELL_REAL;
        c.f = sqlite3_column_double(s, i);
        break;
    case SQLITE_TEXT:
        c.type = CELL_TEXT;
        c.s.text = (const char *)sqlite3_column_text(s, i);
        c.s.n = (size_t)sqlite3_column_bytes(s, i);
        break;
    case SQLITE_BLOB:
        c.type = CELL_BLOB;
        c.s.text = sqlite3_column_blob(s, i);
        c.s.n = (size_t)sqlite3_column_bytes(s, i);
        break;
    default:
        break;
    }
    if (!c.s.text)
        c.s = slice_of("");
    return c;
}
