/* Directories and socket paths. */
#include "tests/lib/unit.h"

#include "proto/place.h"
#include "proto/wire.h"

static void test_place__candidates_in_order(void **state)
{
    (void)state;
    struct place_env env = {NULL, "/run/user/7", 7};
    char out[256];
    size_t parent;
    const char *const expected[] = {"/run/user/7/tracerd",
                                    "/run/user/7/tracerd",
                                    "/dev/shm/tracerd-7", "/tmp/tracerd-7"};
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(place_dir(&env, i, out, sizeof out, &parent), 0);
        assert_string_equal(out, expected[i]);
    }
    assert_int_equal(parent, 4);
    assert_int_equal(place_dir(&env, 4, out, sizeof out, &parent),
                     TRD_ENOTFOUND);
    env.xdg_runtime_dir = "";
    assert_int_equal(place_dir(&env, 0, out, sizeof out, &parent), 0);
    assert_string_equal(out, "/run/user/7/tracerd");
}

static void test_place__explicit_directory_is_the_only_one(void **state)
{
    (void)state;
    struct place_env env = {"/a/b", "/run/user/7", 7};
    char out[256];
    size_t parent;
    assert_int_equal(place_dir(&env, 0, out, sizeof out, &parent), 0);
    assert_string_equal(out, "/a/b");
    assert_int_equal(parent, 2);
    assert_int_equal(place_dir(&env, 1, out, sizeof out, &parent),
                     TRD_ENOTFOUND);
    assert_int_equal(place_dir(&env, 0, out, 4, &parent), TRD_ELIMIT);
}

static void test_place__runs_below_the_home_or_where_all_may_write(void **state)
{
    (void)state;
    struct place_env env = {.uid = 7, .xdg_state_home = "/s", .home = "/h"};
    char out[256];
    int shared;
    const char *const expected[] = {"/s/tracerd", "/var/tmp/tracerd-7",
                                    "/tmp/tracerd-7-runs"};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(place_data(&env, i, out, sizeof out, &shared), 0);
        assert_string_equal(out, expected[i]);
        assert_int_equal(shared, i > 0);
    }
    assert_int_equal(place_data(&env, 3, out, sizeof out, &shared),
                     TRD_ENOTFOUND);
    env.xdg_state_home = "relative";
    assert_int_equal(place_data(&env, 0, out, sizeof out, &shared), 0);
    assert_string_equal(out, "/h/.local/state/tracerd");
    env.home = NULL;
    assert_int_equal(place_data(&env, 0, out, sizeof out, &shared), 0);
    assert_string_equal(out, "/var/tmp/tracerd-7");
    env.tracerd_data = "here";
    assert_int_equal(place_data(&env, 0, out, sizeof out, &shared), 0);
    assert_string_equal(out, "here");
    assert_int_equal(place_data(&env, 1, out, sizeof out, &shared),
                     TRD_ENOTFOUND);
    assert_int_equal(place_data(&env, 0, out, 4, &shared), TRD_ELIMIT);
}

static void test_place__socket_path_of_107_bytes_is_the_longest(void **state)
{
    (void)state;
    char dir[128], out[256];
    memset(dir, 'd', sizeof dir);
    dir[0] = '/';
    size_t longest = SOCKET_PATH_MAX - strlen("/" PLACE_INGEST);
    dir[longest] = 0;
    assert_int_equal(place_socket(dir, PLACE_INGEST, out, sizeof out), 0);
    assert_int_equal(strlen(out), 107);
    dir[longest] = 'd';
    dir[longest + 1] = 0;
    assert_int_equal(place_socket(dir, PLACE_INGEST, out, sizeof out),
                     TRD_EPATH);
}

static void test_place__run_names(void **state)
{
    (void)state;
    assert_true(place_run_ok("train-2026.12_01", 16));
    const char *const bad[] = {"", ".hidden", "a/b", "a b", "é", "a\n"};
    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(place_run_ok(bad[i], strlen(bad[i])));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_place__candidates_in_order),
        cmocka_unit_test(test_place__explicit_directory_is_the_only_one),
        cmocka_unit_test(
            test_place__runs_below_the_home_or_where_all_may_write),
        cmocka_unit_test(test_place__socket_path_of_107_bytes_is_the_longest),
        cmocka_unit_test(test_place__run_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
