/* A disk whose syncs fail or do not return, for the broker's database.
 *
 * Loaded with LD_PRELOAD. The file named by $FAULTS says what a sync of a file with `broker.db` in its path does:
 * `error` fails with EIO, `wait` does not return before the file says something else, anything else syncs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*real_fsync)(int), (*real_fdatasync)(int);

__attribute__((constructor)) static void begin(void) {
    *(void **)&real_fsync = dlsym(RTLD_NEXT, "fsync");
    *(void **)&real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
}

static int is_database(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strstr(path, "broker.db") != NULL;
}

static char fault(void) {
    char first = 0;
    const char *name = getenv("FAULTS");
    int fd = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return 0;
    if (read(fd, &first, 1) != 1) first = 0;
    close(fd);
    return first;
}

static int sync_with(int (*real)(int), int fd) {
    if (is_database(fd)) {
        while (fault() == 'w') usleep(20000);
        if (fault() == 'e') {
            errno = EIO;
            return -1;
        }
    }
    return real(fd);
}

int fsync(int fd) { return sync_with(real_fsync, fd); }
int fdatasync(int fd) { return sync_with(real_fdatasync, fd); }
