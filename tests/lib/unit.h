/* What every unit test includes: cmocka and a few comparisons. */
#ifndef TESTS_LIB_UNIT_H
#define TESTS_LIB_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/bytes.h"

/* A slice against a string. */
#define assert_slice(slice, expected)                                         \
    do {                                                                      \
        assert_int_equal((slice).n, strlen(expected));                        \
        assert_memory_equal((slice).text, expected, strlen(expected));        \
    } while (0)

#endif
