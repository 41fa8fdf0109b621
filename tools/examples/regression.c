/* Linear regression by hand, traced through the C interface.
 *
 *     cc regression.c $(pkg-config --cflags --libs tracerd) -lm
 *     ./a.out                        five steps, run "regression"
 *     ./a.out --no-trace             the same numbers untraced
 *     tracectl -r regression query '*-Regression-1-2'
 *
 * Prints the loss of each step with all digits. A client needs no daemon: one
 * that is started later takes what is in the journal. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tracerd/client.h"

enum { ROWS = 32, FEATURES = 4, STEPS = 5, SAMPLES = 16 };

struct model {
    float weight[FEATURES];
    float x[FEATURES][ROWS]; /* a column after the other */
    float wanted[ROWS];
    float y[ROWS], grad_y[ROWS], grad_weight[FEATURES];
};

/* Where tensors are seen; 0: nothing is traced. */
struct sites {
    uint32_t input, output, grad_output, grad_weight, loss;
};

static uint32_t site_of(struct trd_client *client, enum trd_pass pass,
                        enum trd_io io, const char *path)
{
    struct trd_site site = {.pass = pass,
                            .io = io,
                            .instance = pass == TRD_USER ? 0 : 1,
                            .class_name = pass == TRD_USER ? "" : "Regression",
                            .module = "",
                            .path = path};
    uint32_t id = 0;
    int failed = trd_site(client, &site, &id);
    if (failed)
        fprintf(stderr, "regression: %s: %s\n", path, trd_strerror(failed));
    return id; /* what is submitted at site 0 is counted as lost */
}

static struct trd_client *open_client(struct sites *s)
{
    struct trd_client_options options;
    struct trd_client *client = NULL;
    trd_client_options_init(&options);
    options.run = "regression";
    options.world = 1;
    int failed = trd_client_open(&options, &client);
    if (failed) {
        fprintf(stderr, "regression: not traced: %s\n", trd_strerror(failed));
        return NULL;
    }
    s->input = site_of(client, TRD_FORWARD, TRD_INPUT, "0");
    s->output = site_of(client, TRD_FORWARD, TRD_OUTPUT, "0");
    s->grad_output = site_of(client, TRD_BACKWARD, TRD_INPUT, "0");
    s->grad_weight = site_of(client, TRD_GRAD, TRD_IO_NONE, "weight");
    s->loss = site_of(client, TRD_USER, TRD_IO_NONE, "loss");
    return client;
}

/* Statistics of the tensor are computed here; its memory may change after. */
static void trace(struct trd_client *client, uint32_t site, uint64_t step,
                  const float *data, int ndim, const int64_t *shape,
                  const int64_t *strides)
{
    struct trd_when when = {.step = step, .iteration = step, .microbatch = 1};
    struct trd_tensor tensor = {.data = data,
                                .dtype = TRD_F32,
                                .ndim = ndim,
                                .shape = shape,
                                .strides = strides};
    if (client) /* an error is counted, and the training goes on */
        (void)trd_submit_cpu(client, site, &when, &tensor, SAMPLES);
}

static void set_up(struct model *m)
{
    uint32_t state = 1;
    memset(m, 0, sizeof *m);
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < FEATURES; k++) {
            state = state * 1664525u + 1013904223u;
            m->x[k][i] = (float)(state >> 8) / (float)(1 << 24) - 0.5f;
            m->wanted[i] += m->x[k][i] * (float)(k + 1);
        }
}

static float forward(struct model *m)
{
    float loss = 0;
    for (int i = 0; i < ROWS; i++) {
        m->y[i] = 0;
        for (int k = 0; k < FEATURES; k++)
            m->y[i] += m->x[k][i] * m->weight[k];
        float error = m->y[i] - m->wanted[i];
        loss += error * error / ROWS;
    }
    return loss;
}

static void backward(struct model *m)
{
    memset(m->grad_weight, 0, sizeof m->grad_weight);
    for (int i = 0; i < ROWS; i++) {
        m->grad_y[i] = 2 * (m->y[i] - m->wanted[i]) / ROWS;
        for (int k = 0; k < FEATURES; k++)
            m->grad_weight[k] += m->grad_y[i] * m->x[k][i];
    }
}

int main(int argc, char **argv)
{
    static const int64_t x_shape[2] = {ROWS, FEATURES};
    static const int64_t x_strides[2] = {1, ROWS}; /* in elements */
    static const int64_t rows[1] = {ROWS}, features[1] = {FEATURES};
    static struct model m;
    struct sites s = {0};
    struct trd_client *client = NULL;
    int failed = 0;
    bool plain = argc == 2 && !strcmp(argv[1], "--no-trace");

    if (argc > 1 && !plain) {
        fprintf(stderr, "usage: regression [--no-trace]\n");
        return 2;
    }
    if (!plain)
        client = open_client(&s);
    set_up(&m);
    for (uint64_t step = 1; step <= STEPS; step++) {
        trace(client, s.input, step, m.x[0], 2, x_shape, x_strides);
        float loss = forward(&m);
        trace(client, s.output, step, m.y, 1, rows, NULL);
        trace(client, s.loss, step, &loss, 0, NULL, NULL);
        backward(&m);
        trace(client, s.grad_output, step, m.grad_y, 1, rows, NULL);
        trace(client, s.grad_weight, step, m.grad_weight, 1, features, NULL);
        for (int k = 0; k < FEATURES; k++)
            m.weight[k] -= 0.5f * m.grad_weight[k];
        printf("%.9g\n", (double)loss);
    }
    if (client)
        failed = trd_flush(client, 5000);
    if (failed)
        fprintf(stderr, "regression: stored later, if a daemon comes: %s\n",
                trd_strerror(failed));
    trd_client_close(client);
    return 0;
}
