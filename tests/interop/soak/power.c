/* A disk whose power can fail: what a program has not synced is gone when it is killed.
 *
 * Loaded with LD_PRELOAD. Files below $POWER_DATA are written as always. Beside them, below $POWER_DISK, there is
 * what has reached the medium: fsync and fdatasync copy there what was written since the last one; removals and
 * new names reach it when a folder is synced. After kill -9 the test puts $POWER_DISK in the place of $POWER_DATA.
 *
 * Of one write in $POWER_EARLY (32) some sectors reach the medium at once, because a kernel may write whenever it
 * likes. With $POWER_LIES=N one sync in N does nothing, which the test must notice.
 *
 * Memory maps are not followed: SQLite's index of its log is one, and need not survive. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FD 65536
#define SECTOR 512

struct range { off_t from, to; };

/* A file below $POWER_DATA by its name, which is NULL once it is removed. Never freed: they are few. */
struct file {
    char *name;
    int folder, cut;
    struct range *dirty;
    size_t count, room;
    struct file *next;
};

/* A change of names that no sync of a folder has made lasting; a removal has no `to`, a second name is a link. */
struct change { char *from, *to; int link; struct change *next; };

static struct file *files, *by_fd[MAX_FD];
static struct change *changes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *data, *disk;
static unsigned long early = 32, lies, syncs, drawn;

#define REAL(name) real_##name
#define WRAP(type, name, ...) static type (*REAL(name))(__VA_ARGS__);
WRAP(int, open, const char *, int, ...)
WRAP(int, openat, int, const char *, int, ...)
WRAP(int, close, int)
WRAP(ssize_t, write, int, const void *, size_t)
WRAP(ssize_t, pwrite, int, const void *, size_t, off_t)
WRAP(ssize_t, writev, int, const struct iovec *, int)
WRAP(ssize_t, copy_file_range, int, off_t *, int, off_t *, size_t, unsigned)
WRAP(int, ftruncate, int, off_t)
WRAP(int, fsync, int)
WRAP(int, rename, const char *, const char *)
WRAP(int, linkat, int, const char *, int, const char *, int)
WRAP(int, unlink, const char *)

static unsigned long number(const char *name, unsigned long otherwise) {
    const char *text = getenv(name);
    return text ? strtoul(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void begin(void) {
#define FIND(name) *(void **)&REAL(name) = dlsym(RTLD_NEXT, #name)
    FIND(open); FIND(openat); FIND(close); FIND(write); FIND(pwrite); FIND(writev); FIND(copy_file_range);
    FIND(ftruncate); FIND(fsync); FIND(rename); FIND(linkat); FIND(unlink);
    data = getenv("POWER_DATA");
    disk = getenv("POWER_DISK");
    early = number("POWER_EARLY", 32);
    lies = number("POWER_LIES", 0);
    drawn = (unsigned long)getpid() * 2654435761u + 1;
    if (!data || !disk) abort();
}

static unsigned long draw(unsigned long below) {
    drawn ^= drawn << 13; drawn ^= drawn >> 7; drawn ^= drawn << 17;
    return drawn % below;
}

/* The name of a path below $POWER_DATA, or NULL. */
static const char *name_of(const char *path) {
    size_t length = data ? strlen(data) : 0;
    if (!length || !path || strncmp(path, data, length) || (path[length] != '/' && path[length])) return NULL;
    return path + length;
}

static struct file *find(const char *name) {
    for (struct file *file = files; file; file = file->next)
        if (file->name && !strcmp(file->name, name)) return file;
    return NULL;
}

static void opened(int fd, const char *path, int flags) {
    const char *name = name_of(path);
    struct stat status;
    if (fd < 0 || fd >= MAX_FD || !name || fstat(fd, &status)) return;
    if (!S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) return;
    pthread_mutex_lock(&lock);
    struct file *file = find(name);
    if (!file) {
        file = calloc(1, sizeof *file);
        if (!file || !(file->name = strdup(name))) abort();
        file->folder = S_ISDIR(status.st_mode);
        file->next = files;
        files = file;
    }
    if (flags & O_TRUNC) { file->count = 0; file->cut = 1; }
    __atomic_store_n(&by_fd[fd], file, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}

static struct file *tracked(int fd) {
    return fd >= 0 && fd < MAX_FD ? __atomic_load_n(&by_fd[fd], __ATOMIC_ACQUIRE) : NULL;
}

static int disk_fd(const char *name, int flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s", disk, name);
    if (flags & O_CREAT)
        for (char *at = path + strlen(disk) + 1; (at = strchr(at, '/')); at++) {
            *at = 0;
            mkdir(path, 0700);
            *at = '/';
        }
    return REAL(open)(path, flags | O_CLOEXEC, 0600);
}

/* Copies [from, to) of `fd` to the medium. */
static void copy(int fd, int to_fd, off_t from, off_t to) {
    char buffer[65536];
    while (from < to) {
        size_t want = to - from < (off_t)sizeof buffer ? (size_t)(to - from) : sizeof buffer;
        ssize_t got = pread(fd, buffer, want, from);
        if (got <= 0) return;
        if (REAL(pwrite)(to_fd, buffer, got, from) != got) abort();
        from += got;
    }
}

/* Bytes [from, to) of a file were written. The lock is held. */
static void wrote(int fd, struct file *file, off_t from, off_t to) {
    struct range *last = file->count ? &file->dirty[file->count - 1] : NULL;
    if (last && last->to == from) {
        last->to = to;
    } else {
        if (file->count == file->room) {
            file->room = file->room ? 2 * file->room : 64;
            file->dirty = realloc(file->dirty, file->room * sizeof *file->dirty);
            if (!file->dirty) abort();
        }
        file->dirty[file->count++] = (struct range){from, to};
    }
    if (!early || !file->name || draw(early)) return;
    int to_fd = disk_fd(file->name, O_WRONLY);
    if (to_fd < 0) return;
    for (off_t at = from; at < to;) {
        off_t end = (at / SECTOR + 1) * SECTOR;
        if (end > to) end = to;
        if (draw(2)) copy(fd, to_fd, at, end);
        at = end;
    }
    REAL(close)(to_fd);
}

static void apply_changes(void) {
    char from[4096], to[4096];
    while (changes) {
        struct change *change = changes;
        changes = change->next;
        snprintf(from, sizeof from, "%s%s", disk, change->from);
        if (change->to) {
            snprintf(to, sizeof to, "%s%s", disk, change->to);
            if (change->link) REAL(linkat)(AT_FDCWD, from, AT_FDCWD, to, 0);
            else REAL(rename)(from, to);
        } else {
            REAL(unlink)(from);
        }
        free(change->from); free(change->to); free(change);
    }
}

static void note(const char *from, const char *to, int link) {
    struct change *change = calloc(1, sizeof *change), **end = &changes;
    if (!change) abort();
    change->from = strdup(from);
    change->to = to ? strdup(to) : NULL;
    change->link = link;
    while (*end) end = &(*end)->next;
    *end = change;
}

static int synced(int fd) {
    struct file *file = tracked(fd);
    if (!file) return REAL(fsync)(fd);
    pthread_mutex_lock(&lock);
    int lie = lies && ++syncs % lies == 0;
    if (!lie && file->folder) apply_changes();
    if (!lie && !file->folder && file->name) {
        /* A file of this name that was removed before is not removed again. */
        for (struct change **at = &changes; *at; at = &(*at)->next)
            if (!(*at)->to && !strcmp((*at)->from, file->name)) { *at = (*at)->next; break; }
        struct stat status;
        int to_fd = disk_fd(file->name, O_CREAT | O_WRONLY), from_fd = fd;
        if (to_fd < 0 || fstat(fd, &status)) abort();
        if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY) {
            char path[4096];
            snprintf(path, sizeof path, "%s%s", data, file->name);
            from_fd = REAL(open)(path, O_RDONLY | O_CLOEXEC);
        }
        for (size_t at = 0; at < file->count; at++) copy(from_fd, to_fd, file->dirty[at].from, file->dirty[at].to);
        if (REAL(ftruncate)(to_fd, status.st_size)) abort();
        if (from_fd != fd) REAL(close)(from_fd);
        REAL(close)(to_fd);
        file->count = file->cut = 0;
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int fd = REAL(open)(path, flags, va_arg(rest, int));
    va_end(rest);
    opened(fd, path, flags);
    return fd;
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

int openat(int folder, const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int fd = REAL(openat)(folder, path, flags, va_arg(rest, int));
    va_end(rest);
    opened(fd, path, flags);
    return fd;
}

int openat64(int folder, const char *path, int flags, ...) __attribute__((alias("openat")));

int close(int fd) {
    if (tracked(fd)) __atomic_store_n(&by_fd[fd], NULL, __ATOMIC_RELEASE);
    return REAL(close)(fd);
}

ssize_t write(int fd, const void *bytes, size_t length) {
    struct file *file = tracked(fd);
    if (!file) return REAL(write)(fd, bytes, length);
    pthread_mutex_lock(&lock);
    ssize_t done = REAL(write)(fd, bytes, length);
    off_t end = lseek(fd, 0, SEEK_CUR);
    if (done > 0) wrote(fd, file, end - done, end);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    struct file *file = tracked(fd);
    if (!file) return REAL(writev)(fd, parts, count);
    pthread_mutex_lock(&lock);
    ssize_t done = REAL(writev)(fd, parts, count);
    off_t end = lseek(fd, 0, SEEK_CUR);
    if (done > 0) wrote(fd, file, end - done, end);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) {
    struct file *file = tracked(fd);
    if (!file) return REAL(pwrite)(fd, bytes, length, at);
    pthread_mutex_lock(&lock);
    ssize_t done = REAL(pwrite)(fd, bytes, length, at);
    if (done > 0) wrote(fd, file, at, at + done);
    pthread_mutex_unlock(&lock);
    return done;
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off_t at) __attribute__((alias("pwrite")));

ssize_t copy_file_range(int from, off_t *from_at, int to, off_t *to_at, size_t length, unsigned flags) {
    struct file *file = tracked(to);
    ssize_t done = REAL(copy_file_range)(from, from_at, to, to_at, length, flags);
    if (file && done > 0) {
        off_t end = to_at ? *to_at : lseek(to, 0, SEEK_CUR);
        pthread_mutex_lock(&lock);
        wrote(to, file, end - done, end);
        pthread_mutex_unlock(&lock);
    }
    return done;
}

/* The length reaches the medium with the next sync, which takes it from the file. */
int ftruncate(int fd, off_t length) {
    struct file *file = tracked(fd);
    if (file) file->cut = 1;
    return REAL(ftruncate)(fd, length);
}

int ftruncate64(int fd, off_t length) __attribute__((alias("ftruncate")));

int fsync(int fd) { return synced(fd); }

int fdatasync(int fd) { return synced(fd); }

int rename(const char *from, const char *to) {
    int result = REAL(rename)(from, to);
    const char *old = name_of(from), *new = name_of(to);
    if (result || !old || !new) return result;
    pthread_mutex_lock(&lock);
    struct file *gone = find(new), *moved = find(old);
    if (gone) gone->name = NULL;
    if (moved) moved->name = strdup(new);
    note(old, new, 0);
    pthread_mutex_unlock(&lock);
    return 0;
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    int result = REAL(linkat)(from_folder, from, to_folder, to, flags);
    const char *old = name_of(from), *new = name_of(to);
    if (result || !old || !new) return result;
    pthread_mutex_lock(&lock);
    note(old, new, 1);
    pthread_mutex_unlock(&lock);
    return 0;
}

int unlink(const char *path) {
    int result = REAL(unlink)(path);
    const char *name = name_of(path);
    if (result || !name) return result;
    pthread_mutex_lock(&lock);
    struct file *gone = find(name);
    if (gone) gone->name = NULL;
    note(name, NULL, 0);
    pthread_mutex_unlock(&lock);
    return 0;
}
