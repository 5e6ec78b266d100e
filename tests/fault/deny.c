/* Preloaded into every process of a job: nobody may read or trace another process, as where ptrace is not permitted
 * (containers, kernel.yama.ptrace_scope). */
#include <errno.h>
#include <sys/types.h>
#include <sys/uio.h>

long ptrace(int request, ...)
{
    (void)request;
    errno = EPERM;
    return -1;
}

ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long n_local, const struct iovec *remote,
                         unsigned long n_remote, unsigned long flags)
{
    (void)pid, (void)local, (void)n_local, (void)remote, (void)n_remote, (void)flags;
    errno = EPERM;
    return -1;
}

ssize_t process_vm_writev(pid_t pid, const struct iovec *local, unsigned long n_local, const struct iovec *remote,
                          unsigned long n_remote, unsigned long flags)
{
    return process_vm_readv(pid, local, n_local, remote, n_remote, flags);
}
