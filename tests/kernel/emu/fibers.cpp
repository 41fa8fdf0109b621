/* Threads of a grid as fibers: a block's threads take turns on this one, and
 * a few blocks are under way at once, in an order that the seed chooses.
 *
 * A thread runs until it needs others: for an exchange of its warp it lets the
 * next thread of the warp run, at a barrier whole warps. So everything between
 * two such points happens at once, in every order of threads that comes up;
 * what only real memory can do is not shown here. */
#include "emu/cuda_runtime_api.h"
#include "emu/control.h"

#undef threadIdx
#include <stdio.h>
#include <sys/mman.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

enum { WARP = 32, MOST_THREADS = 256, MOST_BLOCKS = 4, STACK = 256 << 10 };

struct fiber {
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    unsigned char *stack;
    struct block *block;
    unsigned thread;
    bool done;
};

struct warp {
    unsigned lane;    /* that runs, or ran last */
    unsigned live;    /* lanes that are not done */
    unsigned arrived; /* at the exchange */
    unsigned waiting; /* at the barrier */
    uint64_t phase;
    uint64_t word[2][WARP];
};

struct block {
    bool busy;
    unsigned index, warps, live; /* live: warps that are not done */
    unsigned at;                 /* warp that runs, or ran last */
    unsigned arrived;            /* threads at the barrier */
    uint64_t phase;
    std::vector<unsigned char> shared;
    struct warp warp[MOST_THREADS / WARP];
    struct fiber fiber[MOST_THREADS];
};

static struct block *blocks[MOST_BLOCKS];
static unsigned most_blocks = 2;
static unsigned order = 0;
static uint64_t seed = 1;
static struct fiber *now;
static struct fiber scheduler;
static const void *grid_kernel;
static void *grid_parameters;
static unsigned grid_threads;
static uint64_t idle; /* switches since something came about */

static uint32_t random32(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33);
}

/* ---- switching ---- */

#if defined(__x86_64__)
extern "C" void emu_switch(void **save, void *to);
asm(".text\n"
    ".globl emu_switch\n"
    ".hidden emu_switch\n"
    ".type emu_switch, @function\n"
    "emu_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size emu_switch, . - emu_switch\n");
#endif

static void switch_to(struct fiber *to)
{
    struct fiber *from = now;

    if (to == from)
        return;
    if (idle++ > 200000000) {
        fprintf(stderr, "emulated threads wait for each other for good\n");
        abort();
    }
    now = to;
#if defined(__x86_64__)
    emu_switch(&from->sp, to->sp);
#else
    swapcontext(&from->context, &to->context);
#endif
}

static void finish(void);

static void thread_main(void)
{
    emu_call(grid_kernel, grid_parameters);
    finish();
}

static void start_fiber(struct fiber *f)
{
    f->done = false;
#if defined(__x86_64__)
    void **top = (void **)(f->stack + STACK);
    *--top = NULL; /* where thread_main would return to; keeps alignment */
    *--top = (void *)thread_main;
    for (int i = 0; i < 6; i++)
        *--top = NULL;
    f->sp = top;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, thread_main, 0);
#endif
}

/* ---- whose turn it is ---- */

static struct fiber *current_of(struct block *b)
{
    struct warp *w = &b->warp[b->at];
    return &b->fiber[b->at * WARP + w->lane];
}

static void next_lane(struct block *b)
{
    struct warp *w = &b->warp[b->at];
    do
        w->lane = (w->lane + 1) % WARP;
    while (b->fiber[b->at * WARP + w->lane].done);
}

static void next_warp(struct block *b)
{
    do
        b->at = (b->at + 1) % b->warps;
    while (!b->warp[b->at].live);
}

/* Another warp of this block, or another block. */
static struct fiber *elsewhere(struct block *b)
{
    if (random32() % 4 == 0) {
        struct block *o = blocks[random32() % most_blocks];
        if (o && o->busy)
            b = o;
    }
    next_warp(b);
    return current_of(b);
}

static void finish(void)
{
    struct fiber *me = now;
    struct block *b = me->block;
    struct warp *w = &b->warp[b->at];

    me->done = true;
    idle = 0;
    if (--w->live) {
        next_lane(b);
        switch_to(current_of(b));
    } else if (--b->live) {
        switch_to(elsewhere(b));
    } else {
        b->busy = false;
        switch_to(&scheduler);
    }
    abort(); /* nobody resumes a thread that is done */
}

const uint64_t *emu_exchange(uint64_t mine)
{
    struct block *b = now->block;
    struct warp *w = &b->warp[now->thread / WARP];
    uint64_t phase = w->phase;
    uint64_t *word = w->word[phase % 2];

    word[now->thread % WARP] = mine;
    if (++w->arrived == WARP) {
        w->arrived = 0;
        w->phase++;
        idle = 0;
        return word;
    }
    while (w->phase == phase) {
        next_lane(b);
        switch_to(current_of(b));
    }
    return word;
}

void emu_barrier(void)
{
    struct block *b = now->block;
    struct warp *w = &b->warp[now->thread / WARP];
    uint64_t phase = b->phase;

    if (++b->arrived == b->warps * WARP) {
        b->arrived = 0;
        for (unsigned i = 0; i < b->warps; i++)
            b->warp[i].waiting = 0;
        b->phase++;
        idle = 0;
        return;
    }
    w->waiting++;
    while (b->phase == phase) {
        if (w->waiting < w->live) {
            next_lane(b);
            switch_to(current_of(b));
        } else {
            switch_to(elsewhere(b));
        }
    }
}

struct emu_index emu_thread_index(void)
{
    return {now->thread};
}

struct emu_index emu_block_index(void)
{
    return {now->block->index};
}

struct emu_index emu_block_size(void)
{
    return {grid_threads};
}

unsigned char *emu_shared(void)
{
    unsigned char *p = now->block->shared.data();
    return p + (16 - (uintptr_t)p % 16) % 16;
}

/* ---- a grid ---- */

static struct block *new_block(void)
{
    struct block *b = new struct block();
    unsigned char *stacks = (unsigned char *)mmap(
        NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (stacks == MAP_FAILED)
        abort();
    for (unsigned i = 0; i < MOST_THREADS; i++) {
        b->fiber[i].stack = stacks + (size_t)i * STACK;
        b->fiber[i].block = b;
        b->fiber[i].thread = i;
    }
    return b;
}

static void start_block(struct block *b, unsigned index, size_t shared)
{
    b->busy = true;
    b->index = index;
    b->warps = b->live = grid_threads / WARP;
    b->at = random32() % b->warps;
    b->arrived = 0;
    b->phase = 0;
    b->shared.assign(shared + 16, 0xa5); /* nobody clears it on a device */
    for (unsigned i = 0; i < b->warps; i++) {
        memset(&b->warp[i], 0, sizeof b->warp[i]);
        b->warp[i].live = WARP;
        b->warp[i].lane = random32() % WARP;
    }
    for (unsigned i = 0; i < grid_threads; i++)
        start_fiber(&b->fiber[i]);
}

void emu_run_grid(const void *kernel, void *parameters, unsigned n,
                  unsigned threads, size_t shared)
{
    unsigned left = n, started = 0;

    if (!threads || threads > MOST_THREADS || threads % WARP)
        abort();
    grid_kernel = kernel;
    grid_parameters = parameters;
    grid_threads = threads;
    now = &scheduler;
    while (left) {
        struct block *b = NULL;
        for (unsigned i = 0; i < most_blocks; i++) {
            if (!blocks[i])
                blocks[i] = new_block();
            if (!blocks[i]->busy && started < n) {
                unsigned at = order == 1 ? n - 1 - started : started;
                start_block(blocks[i], at, shared);
                started++;
            }
        }
        do
            b = blocks[random32() % most_blocks];
        while (!b->busy);
        if (!b->warp[b->at].live)
            next_warp(b);
        switch_to(current_of(b)); /* comes back when a block is done */
        left--;
    }
}

extern "C" void emu_control_order(unsigned resident, unsigned how,
                                  uint64_t with_seed)
{
    most_blocks = resident;
    order = how;
    seed = with_seed;
}
