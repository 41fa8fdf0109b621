/* H51: a host program with a decimal comma, also in a thread. Exits 77 where
 * no such locale exists and none can be made. */
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/lib/unit.h"

#include "proto/text.h"

static const char text[] =
    "101500000003,3,forward-Linear-3-1-output,0,[2]--0.08331,-0.39990,"
    "-0.24385,0.03987,-0.21252,123456789012345.62500";

static void round_trip(void)
{
    static _Thread_local struct text_line line;
    char printed[256];
    const char *why = "";
    size_t column;
    assert_int_equal(
        text_parse(text, strlen(text), 16, &line, &why, &column), 0);
    assert_true(line.figure[0] == -0.08331);
    assert_true(line.sample[1] == 123456789012345.625);
    assert_int_equal(text_print(&line, printed, sizeof printed),
                     strlen(text));
    assert_string_equal(printed, text);
}

static int comma_rules(void)
{
    char out[16];
    snprintf(out, sizeof out, "%.1f", 1.5);
    return strcmp(out, "1,5") == 0;
}

static void test_text__in_a_comma_locale(void **state)
{
    (void)state;
    assert_true(comma_rules());
    round_trip();
    assert_true(comma_rules());
    assert_string_equal(setlocale(LC_NUMERIC, NULL), "de_DE.UTF-8");
}

static void *in_thread(void *arg)
{
    locale_t comma = duplocale(LC_GLOBAL_LOCALE);
    (void)arg;
    round_trip();
    uselocale(comma);
    round_trip();
    int kept = comma_rules() && uselocale((locale_t)0) == comma;
    uselocale(LC_GLOBAL_LOCALE);
    freelocale(comma);
    return kept ? (void *)text : NULL;
}

static void test_text__in_a_thread(void **state)
{
    (void)state;
    pthread_t thread;
    void *kept = NULL;
    assert_int_equal(pthread_create(&thread, NULL, in_thread, NULL), 0);
    assert_int_equal(pthread_join(thread, &kept), 0);
    assert_non_null(kept);
    assert_true(comma_rules());
}

/* Where the system has none: one of our own, in a directory of its own. */
static int make_locale(char *dir)
{
    char command[256];
    if (!mkdtemp(dir))
        return 0;
    snprintf(command, sizeof command,
             "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1",
             dir);
    int made = system(command) == 0;
    setenv("LOCPATH", dir, 1);
    return made && setlocale(LC_ALL, "de_DE.UTF-8");
}

static void remove_locale(const char *dir)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0)
        fprintf(stderr, "%s stays\n", dir);
}

int main(void)
{
    char dir[] = "/tmp/trd-locale-XXXXXX";
    int own = 0, failed;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text__in_a_comma_locale),
        cmocka_unit_test(test_text__in_a_thread),
    };
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) {
        own = 1;
        if (!make_locale(dir)) {
            remove_locale(dir);
            return 77;
        }
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (own)
        remove_locale(dir);
    return failed;
}
