/* What tells one process from another, out of the text of /proc. */
#include <stdio.h>

#include "tests/lib/unit.h"

#include "proto/proc.h"
#include "tracerd/base.h"

static void test_proc__names_may_hold_anything(void **state)
{
    (void)state;
    const char *const names[] = {"cat", "a b", "x) S 1 (y", "", ")"};
    for (unsigned i = 0; i < sizeof names / sizeof names[0]; i++) {
        char text[256], what = 0;
        uint64_t start = 0;
        snprintf(text, sizeof text,
                 "42 (%s) Z 1 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 "
                 "987654321 1 2 3",
                 names[i]);
        assert_int_equal(proc_stat(text, &what, &start), 0);
        assert_int_equal(what, 'Z');
        assert_int_equal(start, 987654321);
    }
}

static void test_proc__cut_text_is_an_error(void **state)
{
    (void)state;
    char what;
    uint64_t start;
    assert_int_equal(proc_stat("", &what, &start), TRD_ECORRUPT);
    assert_int_equal(proc_stat("42 (cat", &what, &start), TRD_ECORRUPT);
    assert_int_equal(proc_stat("42 (cat) S 1 2", &what, &start),
                     TRD_ECORRUPT);
}

static void test_proc__boot_id_of_either_case(void **state)
{
    (void)state;
    const uint8_t expected[16] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab,
                                  0xcd, 0xef, 0x01, 0x23, 0x45, 0x67,
                                  0x89, 0xab, 0xcd, 0xef};
    const uint8_t zero[16] = {0};
    uint8_t id[16];
    proc_boot_id("01234567-89ab-cdef-0123-456789ABCDEF\n", id);
    assert_memory_equal(id, expected, 16);
    proc_boot_id("", id);
    assert_memory_equal(id, zero, 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_proc__names_may_hold_anything),
        cmocka_unit_test(test_proc__cut_text_is_an_error),
        cmocka_unit_test(test_proc__boot_id_of_either_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
