/* Which kernel is used. The environment is read once a process, so that each
 * question is asked in a child of its own; nobody asks before the fork. */
#include "tests/unit/stats_rig.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* The answer where TRACERD_KERNEL is `asked`, or is not set; and once more
 * after the variable has changed, which must be the same. */
static void name_where(const char *asked, char name[32])
{
    int ends[2], status;
    ssize_t n;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = fork();
    assert_true(child >= 0);
    if (!child) {
        const char *first, *second;
        if (asked)
            setenv("TRACERD_KERNEL", asked, 1);
        else
            unsetenv("TRACERD_KERNEL");
        first = trd_stats_kernel();
        setenv("TRACERD_KERNEL", strcmp(first, "c") ? "c" : "avx2", 1);
        second = trd_stats_kernel();
        n = write(ends[1], first, strlen(first));
        _exit(n < 0 || strcmp(first, second) ||
              strcmp(first, trd__kernel_best()->name));
    }
    close(ends[1]);
    n = read(ends[0], name, 31);
    assert_true(n > 0);
    name[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_cpu__an_unknown_name_is_as_none(void **state)
{
    static const char *const odd[] = {"",        "C",        "c ",   "avx",
                                      "avx5120", "\xff\xfe", "../c", "%s%n"};
    char usual[32], got[32];
    (void)state;
    name_where(NULL, usual);
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        name_where(odd[i], got);
        assert_string_equal(got, usual);
    }
}

static void test_cpu__the_reference_can_always_be_asked_for(void **state)
{
    char got[32];
    (void)state;
    name_where("c", got);
    assert_string_equal(got, "c");
}

/* From here on this process has asked, too. */
static void test_cpu__each_kernel_of_the_list_can_be_asked_for(void **state)
{
    const struct trd__kernel *const *list = trd__kernels();
    int n = 0;
    (void)state;
    for (; list[n]; n++) {
        int status;
        pid_t child;
        fflush(NULL);
        child = fork();
        assert_true(child >= 0);
        if (!child) { /* a new process, that has not asked */
            setenv("TRACERD_KERNEL", list[n]->name, 1);
            execl("/proc/self/exe", "test_cpu", list[n]->name, (char *)NULL);
            _exit(127);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_ptr_equal(list[n - 1], &trd__kernel_c);
    assert_ptr_equal(list[0], trd__kernel_best());
}

static void test_cpu__the_reference_has_every_dtype(void **state)
{
    (void)state;
    assert_string_equal(trd__kernel_c.name, "c");
    for (int d = 1; d < TRD_DTYPE_LIMIT; d++)
        assert_int_equal(trd__kernel_c.tiles[d] == NULL,
                         d == TRD_TEXT || d == TRD_OPAQUE);
}

/* With an argument: whether the kernel of that name is the one in use. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu__an_unknown_name_is_as_none),
        cmocka_unit_test(test_cpu__the_reference_can_always_be_asked_for),
        cmocka_unit_test(test_cpu__each_kernel_of_the_list_can_be_asked_for),
        cmocka_unit_test(test_cpu__the_reference_has_every_dtype),
    };

    if (argc == 2)
        return strcmp(trd_stats_kernel(), argv[1]) != 0;
    unsetenv("TRACERD_KERNEL");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
