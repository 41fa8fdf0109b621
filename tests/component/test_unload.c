/* The library loaded and unloaded by hand, as a plug-in does: threads that
 * helped with a large tensor must not find their code gone. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/unit.h"

#include "tracerd/stats.h"

static void test_unload__after_threads_have_helped(void **state)
{
    enum { N = 4 << 20, ROUNDS = 3 };
    const int64_t shape[1] = {N};
    float *data = calloc(N, sizeof *data);
    (void)state;
    assert_non_null(data);
    for (int i = 0; i < ROUNDS; i++) {
        struct trd_tensor t = {data, TRD_F32, 1, shape, NULL};
        struct trd_stats s;
        int (*threads)(unsigned n);
        int (*stats)(const struct trd_tensor *tensor, uint32_t k,
                     struct trd_stats *out, void *samples);
        void *library = dlopen(getenv("TRD_LIBRARY"), RTLD_NOW);
        assert_non_null(library);
        *(void **)&threads = dlsym(library, "trd_stats_threads");
        *(void **)&stats = dlsym(library, "trd_stats_cpu");
        assert_int_equal(threads(4), 0);
        assert_int_equal(stats(&t, 0, &s, NULL), 0);
        assert_int_equal(s.zero, N);
        assert_int_equal(dlclose(library), 0);
        usleep(50000); /* time for a helper to run into nothing */
    }
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unload__after_threads_have_helped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
