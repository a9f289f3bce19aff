/* A preload: append to the file that SYNCED_LOG names what a program has made durable, a line for each event.
 *
 *   F <inode> <size>   the file has been synced when it had this size
 *   T <inode> <size>   the file has been truncated to this size
 *   U <inode> 0        the last name of the file has been removed
 *
 * power.py truncates the files to what has been synced. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int log_fd = -1;

__attribute__((constructor)) static void open_log(void)
{
    const char *name = getenv("SYNCED_LOG");
    if (name != NULL)
        log_fd = open(name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

/* One write to a file that is opened to append is atomic, also for the threads and the children of a program. */
static void note(char event, ino_t inode, off_t size)
{
    char line[64];
    int length = snprintf(line, sizeof line, "%c %llu %lld\n", event, (unsigned long long)inode, (long long)size);
    int before = errno;
    if (log_fd >= 0 && write(log_fd, line, length) != length)
        abort();
    errno = before;
}

static int synced(int fd, int (*sync)(int))
{
    struct stat before;
    /* What is written during the sync may not be durable. */
    int is_known = fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
    int result = sync(fd);
    if (result == 0 && is_known)
        note('F', before.st_ino, before.st_size);
    return result;
}

int fsync(int fd)
{
    static int (*next)(int);
    if (next == NULL)
        next = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return synced(fd, next);
}

int fdatasync(int fd)
{
    static int (*next)(int);
    if (next == NULL)
        next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return synced(fd, next);
}

static int truncated(int fd, off_t size, int (*truncate)(int, off_t))
{
    struct stat found;
    int result = truncate(fd, size);
    if (result == 0 && fstat(fd, &found) == 0)
        note('T', found.st_ino, size);
    return result;
}

int ftruncate(int fd, off_t size)
{
    static int (*next)(int, off_t);
    if (next == NULL)
        next = (int (*)(int, off_t))dlsym(RTLD_NEXT, "ftruncate");
    return truncated(fd, size, next);
}

int ftruncate64(int fd, off_t size)
{
    return ftruncate(fd, size);
}

static ino_t last_name_of(const char *name)
{
    struct stat found;
    return lstat(name, &found) == 0 && found.st_nlink == 1 ? found.st_ino : 0;
}

int unlink(const char *name)
{
    static int (*next)(const char *);
    if (next == NULL)
        next = (int (*)(const char *))dlsym(RTLD_NEXT, "unlink");
    ino_t removed = last_name_of(name);
    int result = next(name);
    if (result == 0 && removed != 0)
        note('U', removed, 0);
    return result;
}

int rename(const char *from, const char *to)
{
    static int (*next)(const char *, const char *);
    if (next == NULL)
        next = (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    ino_t replaced = last_name_of(to);
    int result = next(from, to);
    if (result == 0 && replaced != 0)
        note('U', replaced, 0);
    return result;
}
