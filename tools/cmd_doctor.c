/* tracectl doctor: checks an installation from the directory of the sockets
 * to the Python module, and says what to do. It changes nothing. */
#include "tools/doctor.h"

#include <stdarg.h>
#include <string.h>

static const char *const state_name[] = {"ok", "note", "bad"};

static void put_text(struct doctor *d, const char *check, const char *state,
                     const char *detail, const char *mend)
{
    FILE *f = d->o->file;
    fprintf(f, "%-5s %-10s ", state, check);
    out_plain(f, slice_of(detail));
    fputc('\n', f);
    if (*mend) {
        fprintf(f, "%16s mend: ", "");
        out_plain(f, slice_of(mend));
        fputc('\n', f);
    }
}

void doctor_say(struct doctor *d, const char *check, enum doctor_state state,
                const char *mend, const char *format, ...)
{
    char detail[DOCTOR_PATH + DOCTOR_TEXT];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    d->bad += state == DOCTOR_BAD;
    if (d->o->format == &out_text) {
        put_text(d, check, state_name[state], detail, mend);
        return;
    }
    const struct cell row[4] = {
        {.type = CELL_TEXT, .s = slice_of(check)},
        {.type = CELL_TEXT, .s = slice_of(state_name[state])},
        {.type = CELL_TEXT, .s = slice_of(detail)},
        {.type = CELL_TEXT, .s = slice_of(mend)},
    };
    out_row(d->o, row);
}

int cmd_doctor(struct ctl *ctl, int argc, char **argv)
{
    static const struct option none[] = {{OPTION_END, NULL, NULL}};
    static const struct slice names[] = {
        {"check", 5}, {"state", 5}, {"detail", 6}, {"mend", 4}};
    static struct doctor d;
    struct out o;
    if (ctl_options(ctl, none, &argc, argv) ||
        out_open(&o, ctl->format, stdout))
        return CTL_BAD;
    if (argc)
        return ctl_fail(CTL_BAD, "doctor takes no words");
    d.o = &o;
    d.ctl = ctl;
    if (o.format != &out_text)
        out_table(&o, names, 4);
    doctor_directory(&d);
    doctor_sockets(&d);
    doctor_daemon(&d);
    doctor_data(&d);
    doctor_room(&d);
    doctor_limits(&d);
    doctor_python(&d);
    if (o.format != &out_text && out_close(&o))
        return CTL_FAILED;
    return d.bad ? CTL_NOTHING : CTL_FOUND;
}
