/* See fake_daemon.h. */
#include "tests/lib/fake_daemon.h"

#include <nanomsg/nn.h>
#include <nanomsg/reqrep.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/query.h"
#include "tests/lib/rig.h"
#include "tests/lib/unit.h"

static size_t fill(uint8_t *page, size_t cap, const struct fake_row *rows,
                   size_t n)
{
    static const char *const names[] = {"key", "value"};
    struct page_writer p;
    page_open(&p, page, cap, PAGE_OK, slice_of(""));
    page_columns(&p, names, 2);
    for (size_t i = 0; i < n; i++) {
        struct cell key = {.type = CELL_TEXT, .s = slice_of(rows[i].key)};
        struct cell value = {.type = CELL_INT, .s = {"", 0}};
        value.i = rows[i].number;
        if (rows[i].text) {
            value.type = CELL_TEXT;
            value.s = slice_of(rows[i].text);
        }
        page_cell(&p, &key);
        page_cell(&p, &value);
    }
    return page_close(&p, slice_of(""));
}

static void serve(const char *dir, const struct fake_row *rows, size_t n,
                  int ready)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char url[RIG_PATH + 64];
    uint8_t page[16384];
    size_t page_n = fill(page, sizeof page, rows, n);
    void *question;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), sock = nn_socket(AF_SP, NN_REP);
    umask(077);
    snprintf(a.sun_path, sizeof a.sun_path, "%.90s/ingest.sock", dir);
    snprintf(url, sizeof url, "ipc://%s/query.sock", dir);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || listen(fd, 8) ||
        nn_bind(sock, url) < 0 || write(ready, "r", 1) != 1)
        _exit(1);
    while (nn_recv(sock, &question, NN_MSG, 0) >= 0) {
        nn_freemsg(question);
        nn_send(sock, page, page_n, 0);
    }
    _exit(0);
}

pid_t fake_daemon(const char *dir, const struct fake_row *rows, size_t n)
{
    int fds[2];
    char byte;
    pid_t pid;
    assert_int_equal(mkdir(dir, 0700), 0);
    assert_int_equal(pipe(fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(dir, rows, n, fds[1]);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &byte, 1), 1);
    close(fds[0]);
    return pid;
}

void fake_daemon_end(pid_t pid, const char *dir)
{
    static const char *const names[] = {"ingest.sock", "query.sock"};
    char path[RIG_PATH + 64];
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}
