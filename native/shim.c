/* The part of the binding that has to be C: see guards.py, logs.py and mapping.py. */

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#if defined(_MSC_VER) && !defined(__clang__)
#define PER_THREAD __declspec(thread)
#else
#define PER_THREAD _Thread_local
#endif

/* _setjmp does not save the signal mask, which would cost a system call; Windows has no such mask,
   and its _setjmp takes other arguments. */
#ifdef _WIN32
#define SAVE_PLACE setjmp
#else
#define SAVE_PLACE _setjmp
#endif

/* Asserts: each thread has its own way back and its own text. */

static PER_THREAD struct {
    jmp_buf back;
    bool    armed;
    char    text[2048];
} guard;

#define GUARD_ENTER(failure)   \
    do {                       \
        guard.text[0] = 0;     \
        if (SAVE_PLACE(guard.back)) \
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
static PER_THREAD int log_current;

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

/* Mapped files that change. The Python side has a range for each mapping, and asks whether the size
   or the time of modification of its file is another. */

#ifdef _WIN32

/* Files of Windows do not shrink while they are mapped, so that no page is ever lost. All functions
   run under Python's GIL. Files are handles of the system: numbers of files belong to one of the C
   libraries that a process may have. */

struct ggmodel_range {
    bool lost;
    HANDLE file;
    int64_t size;
    int64_t modified; /* nanoseconds; the time up to which its content is known */
};

/* Size and time of a file, as Python has them; false if they cannot be had. */
static bool look_at(HANDLE file, int64_t * size, int64_t * modified) {
    LARGE_INTEGER bytes;
    FILETIME time;
    if (!GetFileSizeEx(file, &bytes) || !GetFileTime(file, NULL, NULL, &time)) {
        return false;
    }
    *size = bytes.QuadPart;
    *modified = ((int64_t) time.dwHighDateTime << 32) + time.dwLowDateTime; /* 100 ns, since 1601 */
    *modified = (*modified - INT64_C(116444736000000000)) * 100;
    return true;
}

static void * ggmodel_guard(void * address, size_t size, int64_t file) {
    struct ggmodel_range * r = calloc(1, sizeof(*r));
    (void) address, (void) size;
    if (r) {
        r->file = (HANDLE) (intptr_t) file;
        r->lost = !look_at(r->file, &r->size, &r->modified);
    }
    return r;
}

static void ggmodel_end_guard(void * range) {
    free(range);
}

static bool ggmodel_suspect(void ** ranges, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct ggmodel_range * r = ranges[i];
        int64_t size = 0, modified = 0;
        if (!look_at(r->file, &size, &modified) || size != r->size) {
            r->lost = true;
        }
        if (r->lost || modified != r->modified) {
            return true;
        }
    }
    return false;
}

static bool ggmodel_compared(void * range, bool same, int64_t modified) {
    struct ggmodel_range * r = range;
    r->lost = r->lost || !same;
    r->modified = modified;
    return r->lost;
}

#else

/* Lost pages: a file that shrinks while it is mapped loses pages, and whoever reads one is sent
   SIGBUS. Inside of a guarded range the rest of the range reads as zeros from then on, and is marked
   as lost; all other signals go to the handlers that were installed before this one.

   The handler runs in any thread and at any time. So ranges are entries of a list that only grows:
   an ended range is taken over by the next one. */

struct ggmodel_range {
    _Atomic uintptr_t begin; /* 0: not in use; 1: about to be */
    _Atomic uintptr_t end;   /* 0 whenever begin is no address */
    atomic_bool lost;
    int fd;
    off_t size;               /* of the file */
    _Atomic int64_t modified; /* nanoseconds; the time up to which its content is known */
    struct ggmodel_range * next;
};

static struct ggmodel_range * _Atomic guarded_ranges;

#ifdef __APPLE__
#define MODIFIED(s) ((s).st_mtimespec.tv_sec * INT64_C(1000000000) + (s).st_mtimespec.tv_nsec)
#else
#define MODIFIED(s) ((s).st_mtim.tv_sec * INT64_C(1000000000) + (s).st_mtim.tv_nsec)
#endif

#define MOST_HANDLERS 16
#define MOST_RETRIES  1000

static struct sigaction earlier_handlers[MOST_HANDLERS]; /* the oldest first */
static atomic_int earlier_count;
static atomic_flag installing = ATOMIC_FLAG_INIT;
static PER_THREAD struct {
    int       nested; /* handlers under way */
    uintptr_t address;
    int       retries; /* how often it failed in a row */
} bus;

static bool has_address(const siginfo_t * info) {
    return info->si_code > 0; /* from the kernel, not by kill() or raise() */
}

static bool hide_loss(uintptr_t address) {
    for (struct ggmodel_range * r = atomic_load(&guarded_ranges); r; r = r->next) {
        uintptr_t end = atomic_load(&r->end), begin = atomic_load(&r->begin);
        if (begin <= 1 || address < begin || address >= end || end != atomic_load(&r->end)) {
            continue;
        }
        uintptr_t page = address & ~((uintptr_t) sysconf(_SC_PAGESIZE) - 1);
        /* All that follows is lost, too, if the file is shorter. One mapping a page would exceed the
           number that a process may have. */
        int flags = MAP_FIXED | MAP_PRIVATE | MAP_ANON;
        if (mmap((void *) page, end - page, PROT_READ, flags, -1, 0) == MAP_FAILED) {
            return false;
        }
        atomic_store(&r->lost, true);
        return true;
    }
    return false;
}

static void on_bus_error(int number, siginfo_t * info, void * context) {
    int saved = errno;
    if (has_address(info) && hide_loss((uintptr_t) info->si_addr)) {
        errno = saved;
        return;
    }
    if (has_address(info)) {
        bool again = (uintptr_t) info->si_addr == bus.address;
        bus.retries = again ? bus.retries + 1 : 0;
        bus.address = (uintptr_t) info->si_addr;
    }
    /* A handler may restore an earlier one and raise the signal again, within this call. One that
       returns again and again, such as faulthandler's once it is disabled, is passed over. */
    int i = atomic_load(&earlier_count) - 1 - bus.nested - bus.retries / MOST_RETRIES;
    struct sigaction next = {.sa_handler = SIG_DFL};
    if (i >= 0) {
        next = earlier_handlers[i];
    }
    if (!(next.sa_flags & SA_SIGINFO) && next.sa_handler == SIG_IGN && !has_address(info)) {
        return;
    }
    if (!(next.sa_flags & SA_SIGINFO) && (next.sa_handler == SIG_DFL || next.sa_handler == SIG_IGN)) {
        signal(number, SIG_DFL);
        if (!has_address(info)) {
            raise(number);
        }
        return; /* to the instruction that failed, which ends the process now */
    }
    bus.nested++;
    if (next.sa_flags & SA_SIGINFO) {
        next.sa_sigaction(number, info, context);
    } else {
        next.sa_handler(number);
    }
    bus.nested--;
    errno = saved;
}

static bool is_ours(const struct sigaction * action) {
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_bus_error;
}

/* Puts the handler in front of those that others installed since the last call. */
static void watch_bus(void) {
    struct sigaction now;
    if (sigaction(SIGBUS, NULL, &now) || is_ours(&now) || atomic_flag_test_and_set(&installing)) {
        return;
    }
    struct sigaction ours = {.sa_sigaction = on_bus_error};
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&ours.sa_mask);
    int count = atomic_load(&earlier_count);
    int same = count;
    while (same > 0 && memcmp(&earlier_handlers[same - 1].sa_handler, &now.sa_handler,
                              sizeof(now.sa_handler))) {
        same--;
    }
    /* A handler that is known and in front again has dropped those that came after it. */
    if (same) {
        atomic_store(&earlier_count, same);
    } else {
        int last = count < MOST_HANDLERS ? count : MOST_HANDLERS - 1;
        earlier_handlers[last] = now;
        atomic_store(&earlier_count, last + 1);
    }
    sigaction(SIGBUS, &ours, NULL);
    atomic_flag_clear(&installing);
}

/* Guards the mapping of a file; NULL if memory is short. */
static void * ggmodel_guard(void * address, size_t size, int64_t file) {
    int fd = (int) file;
    struct ggmodel_range * r = atomic_load(&guarded_ranges);
    uintptr_t unused = 0;
    while (r && !atomic_compare_exchange_strong(&r->begin, &unused, 1)) {
        r = r->next;
        unused = 0;
    }
    if (!r) {
        r = calloc(1, sizeof(*r));
        if (!r) {
            return NULL;
        }
        atomic_store(&r->begin, 1);
        r->next = atomic_load(&guarded_ranges);
        while (!atomic_compare_exchange_weak(&guarded_ranges, &r->next, r)) {
        }
    }
    struct stat now = {0};
    atomic_store(&r->lost, fstat(fd, &now) != 0);
    r->fd = fd;
    r->size = now.st_size;
    atomic_store(&r->modified, MODIFIED(now));
    atomic_store(&r->begin, (uintptr_t) address);
    atomic_store(&r->end, (uintptr_t) address + size);
    watch_bus();
    return r;
}

/* Ends the guard, before the mapping does. */
static void ggmodel_end_guard(void * range) {
    struct ggmodel_range * r = range;
    atomic_store(&r->end, 0);
    atomic_store(&r->begin, 0);
}

/* Whether the file of one of these mappings may be another than at first: its size is, or its time
   of modification is another than the one that was compared last. */
static bool ggmodel_suspect(void ** ranges, size_t n) {
    watch_bus();
    for (size_t i = 0; i < n; i++) {
        struct ggmodel_range * r = ranges[i];
        struct stat now;
        if (fstat(r->fd, &now) || now.st_size != r->size) {
            atomic_store(&r->lost, true);
        }
        if (atomic_load(&r->lost) || MODIFIED(now) != atomic_load(&r->modified)) {
            return true;
        }
    }
    return false;
}

/* Takes the result of a comparison: whether the content, at a time of modification, is that of the
   beginning. Returns whether the file has changed, by this or an earlier one. */
static bool ggmodel_compared(void * range, bool same, int64_t modified) {
    struct ggmodel_range * r = range;
    if (!same) {
        atomic_store(&r->lost, true);
    }
    atomic_store(&r->modified, modified);
    return atomic_load(&r->lost);
}

#endif
