/* A preload: a program that wants to be told when the machine's network changes is refused.
 *
 * Chromium breaks off all requests, also to 127.0.0.1, when an address is added (ERR_NETWORK_CHANGED); without
 * this news it takes the network as it is. Other tests add addresses all the time (network.py). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <sys/socket.h>

int bind(int fd, const struct sockaddr *address, socklen_t size)
{
    static int (*next)(int, const struct sockaddr *, socklen_t);
    if (next == NULL)
        next = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    if (address->sa_family == AF_NETLINK) {
        errno = EPERM;
        return -1;
    }
    return next(fd, address, size);
}
