/* The part of the binding that has to be C: see guards.py and logs.py. */

#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Asserts: each thread has its own way back and its own text. */

static _Thread_local struct {
    jmp_buf back;
    bool    armed;
    char    text[2048];
} guard;

/* _setjmp does not save the signal mask, which would cost a system call. */
#define GUARD_ENTER(failure)   \
    do {                       \
        guard.text[0] = 0;     \
        if (_setjmp(guard.back)) \
            return failure;    \
        guard.armed = true;    \
    } while (0)

#define GUARD_LEAVE() (guard.armed = false)

static void ggmodel_on_abort(const char * message) {
    if (!guard.armed) {
        /* Not while a graph is built: ggml calls abort() when this returns. */
        fprintf(stderr, "%s\n", message);
        fflush(stderr);
        return;
    }
    guard.armed = false;
    strncpy(guard.text, message, sizeof(guard.text) - 1);
    longjmp(guard.back, 1);
}

static const char * ggmodel_last_abort(void) {
    return guard.text;
}

/* Logging: lines below the level never reach Python, which they would cost the GIL. */

static void ggmodel_log_line(int level, const char * text); /* in Python */

static int log_level;
static _Thread_local int log_current;

static void ggmodel_on_log(enum ggml_log_level level, const char * text, void * to_stderr) {
    if (level != GGML_LOG_LEVEL_CONT) {
        log_current = level;
    }
    if (log_current < log_level) {
        return;
    }
    if (to_stderr) {
        fputs(text, stderr);
    } else {
        ggmodel_log_line(log_current, text);
    }
}

static void ggmodel_set_log_level(int level) {
    log_level = level;
}

static void ggmodel_install(void) {
    ggml_set_abort_callback(ggmodel_on_abort);
    ggml_log_set(ggmodel_on_log, NULL);
}

/* Python is about to end: from here on other threads must not call into it. */
static void ggmodel_detach(void) {
    static char yes;
    ggml_log_set(ggmodel_on_log, &yes);
}
