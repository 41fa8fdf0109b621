/* A hash table over classes and paths. */
#include "tools/modules.h"

#include <stdlib.h>

#include "tools/tracectl.h"

struct modules {
    struct module **at; /* in their order */
    size_t n, room;
    size_t *table;      /* index and 1, 0: free; a power of two */
    size_t table_room;
    uint64_t dump;      /* that is counted now, from 1 */
};

static int no_memory(void)
{
    return ctl_fail(CTL_FAILED, "out of memory");
}

int modules_open(struct modules **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return no_memory();
    (*out)->dump = 1;
    return 0;
}

void modules_close(struct modules *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->n; i++) {
        free(m->at[i]->key);
        free(m->at[i]);
    }
    free(m->at);
    free(m->table);
    free(m);
}

static uint64_t hash_of(struct slice s, uint64_t h)
{
    for (size_t i = 0; i < s.n; i++)
        h = (h ^ (unsigned char)s.text[i]) * UINT64_C(0x100000001b3);
    return h ^ h >> 32;
}

static void put(struct modules *m, size_t index)
{
    size_t i = (size_t)m->at[index]->hash & (m->table_room - 1);
    while (m->table[i])
        i = (i + 1) & (m->table_room - 1);
    m->table[i] = index + 1;
}

static int grow(struct modules *m)
{
    size_t room = m->room ? 2 * m->room : 64;
    struct module **at = realloc(m->at, room * sizeof *at);
    size_t *table;
    if (!at)
        return no_memory();
    m->at = at;
    table = calloc(2 * room, sizeof *table);
    if (!table)
        return no_memory();
    free(m->table);
    m->table = table;
    m->table_room = 2 * room;
    m->room = room;
    for (size_t i = 0; i < m->n; i++)
        put(m, i);
    return 0;
}

static bool is_it(const struct module *x, struct slice class_name,
                  struct slice path)
{
    return x->class_n == class_name.n && x->n == class_name.n + path.n &&
           memcmp(x->key, class_name.text, class_name.n) == 0 &&
           memcmp(x->key + class_name.n, path.text, path.n) == 0;
}

static int make(struct modules *m, uint64_t hash, struct slice class_name,
                struct slice path, struct module **out)
{
    struct module *x;
    if (m->n == m->room && grow(m))
        return CTL_FAILED;
    x = calloc(1, sizeof *x);
    if (!x || !(x->key = malloc(class_name.n + path.n + 1))) {
        free(x);
        return no_memory();
    }
    memcpy(x->key, class_name.text, class_name.n);
    memcpy(x->key + class_name.n, path.text, path.n);
    x->class_n = class_name.n;
    x->n = class_name.n + path.n;
    x->hash = hash;
    x->instance = 1;
    for (size_t i = 0; i < m->n; i++)
        x->instance += m->at[i]->class_n == class_name.n &&
                       memcmp(m->at[i]->key, x->key, class_name.n) == 0;
    m->at[m->n++] = x;
    put(m, m->n - 1);
    *out = x;
    return 0;
}

int modules_find(struct modules *m, struct slice class_name,
                 struct slice path, struct module **out)
{
    uint64_t hash = hash_of(path, hash_of(class_name, 0xcbf29ce484222325u));
    size_t i = m->table_room ? (size_t)hash & (m->table_room - 1) : 0;
    for (; m->table_room && m->table[i]; i = (i + 1) & (m->table_room - 1)) {
        *out = m->at[m->table[i] - 1];
        if ((*out)->hash == hash && is_it(*out, class_name, path))
            return 0;
    }
    return make(m, hash, class_name, path, out);
}

void modules_count(struct modules *m, struct module *x, bool grad, uint64_t n)
{
    uint64_t *count = grad ? &x->grads : &x->calls;
    if (x->dump != m->dump) {
        x->calls = x->grads = 0;
        x->dump = m->dump;
    }
    if (*count < n)
        *count = n;
}

void modules_next(struct modules *m, uint64_t step)
{
    for (size_t i = 0; i < m->n; i++) {
        struct module *x = m->at[i];
        if (x->dump != m->dump)
            continue;
        x->before = x->was ? x->before + (step - x->step) * x->was
                           : step * x->calls;
        x->was = x->calls;
        x->step = step;
    }
    m->dump++;
}
