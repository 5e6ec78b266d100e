/* Launch, the parent's side: starts the ranks of one host, watches them, and ends them all together; see launch.h.
 *
 * Every rank has a process group of its own, so that a Ctrl-C reaches this process alone and is passed on exactly
 * once, and so that what a rank started goes with it. Should this process be killed, the kernel kills the ranks. */
#include "ranks/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "ranks/store_join.h"

#include <tenon/host.h>

enum { WORLD_MAX = 4096 /* of one host */, PATH_BYTES = 4096 };

/* How long the others have to notice a death and to report; and to obey a second Ctrl-C. How long the store holds back
 * a death for which there is no reason yet: on a busy machine this process may learn late how its child ended. */
static const uint64_t grace_ns = 3000000000u, obey_ns = 1000000000u, reason_ns = 2000000000u;

struct child {
    pid_t pid;     /* 0: not running */
    int fresh;     /* ended since the last look */
    siginfo_t end; /* how it ended */
};

struct launcher {
    int32_t world, running;
    struct child *ranks; /* [world] */
    char **argv;
    char exe[PATH_BYTES];
    char token[2 * TN_LAUNCH_TOKEN_BYTES + 1];
    uint16_t port;
    struct tn_store_server *server;
    int signal_fd, null_fd;
    sigset_t watched, mask_before;
    void (*chld_before)(int);
    int interrupts, last_signal; /* passed on so far; the last one */
    int exit_code;
    int failed;          /* the first failure has been reported */
    uint64_t kill_at_ns; /* 0: not decided */
};

static void fail(struct launcher *l, const char *what, int why)
{
    tn_log(TN_LOG_ERROR, "cannot start %d ranks: %s: %s", (int)l->world, what, strerror(why));
    l->exit_code = 1;
}

/* The program's own path where that still names it, as ps and pkill show its name; else the kernel's link to it. */
static void find_exe(struct launcher *l)
{
    struct stat self, named;
    ssize_t n = readlink("/proc/self/exe", l->exe, sizeof l->exe - 1);
    l->exe[n > 0 ? n : 0] = 0;
    if (n <= 0 || stat("/proc/self/exe", &self) < 0 || stat(l->exe, &named) < 0 || self.st_dev != named.st_dev ||
        self.st_ino != named.st_ino)
        snprintf(l->exe, sizeof l->exe, "/proc/self/exe");
}

int tn_launch_token(char token[2 * TN_LAUNCH_TOKEN_BYTES + 1])
{
    unsigned char bytes[TN_LAUNCH_TOKEN_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return -1;
    for (size_t i = 0; i < sizeof bytes; i++)
        snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

/* One that the parent wants ignored (nohup) stays ignored. */
static void watched_signals(sigset_t *watched)
{
    static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGTSTP };
    sigemptyset(watched);
    sigaddset(watched, SIGCHLD);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action;
        if (sigaction(signals[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(watched, signals[i]);
    }
}

static sigset_t mask_before_hold; /* of the process, as it was started */
static int held;

void tn_launch_hold_signals(void)
{
    sigset_t watched;
    watched_signals(&watched);
    pthread_sigmask(SIG_BLOCK, &watched, &mask_before_hold);
    held = 1;
}

void tn_launch_alone(void)
{
    tn_rank_watch_interrupts();
    if (held)
        pthread_sigmask(SIG_SETMASK, &mask_before_hold, NULL);
    held = 0;
}

/* From here on signals are read from a descriptor. */
static int watch_signals(struct launcher *l)
{
    watched_signals(&l->watched);
    l->chld_before = signal(SIGCHLD, SIG_DFL); /* ignored, it would take the exit statuses */
    pthread_sigmask(SIG_BLOCK, &l->watched, &l->mask_before);
    if (held)
        l->mask_before = mask_before_hold;
    held = 0;
    l->signal_fd = signalfd(-1, &l->watched, SFD_CLOEXEC | SFD_NONBLOCK);
    return l->signal_fd < 0 ? -1 : 0;
}

static int prepare(struct launcher *l)
{
    char error[256];
    l->ranks = calloc((size_t)l->world, sizeof *l->ranks);
    l->null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    find_exe(l);
    if (watch_signals(l) < 0 || !l->ranks || l->null_fd < 0 || tn_launch_token(l->token) < 0) {
        fail(l, "preparing", errno);
        return -1;
    }
    if (tn_store_serve(&l->server, "127.0.0.1", &l->port, l->token, l->world, error, sizeof error) != TN_OK) {
        tn_log(TN_LOG_ERROR, "cannot start %d ranks: %s", (int)l->world, error);
        l->exit_code = 1;
        return -1;
    }
    tn_store_expect_reasons(l->server, reason_ns);
    return 0;
}

static int is_ours(const char *variable)
{
    static const char *const names[] = { "RANK=",          "WORLD_SIZE=",  "LOCAL_RANK=", "LOCAL_WORLD_SIZE=",
                                         "MASTER_ADDR=",   "MASTER_PORT=", "TENON_PORT=", "TENON_TOKEN=",
                                         "TENON_LAUNCHER=" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return 1;
    return 0;
}

/* The environment of one rank: this one's, with what says which rank it is. One block; NULL: no memory. */
static char **make_environment(const struct launcher *l, int32_t rank)
{
    enum { OURS = 8, OURS_BYTES = 128 };
    size_t count = 0;
    while (environ[count])
        count++;
    char **env = malloc((count + OURS + 1) * sizeof(char *) + OURS * OURS_BYTES);
    if (!env)
        return NULL;
    char *text = (char *)(env + count + OURS + 1);
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        if (!is_ours(environ[i]))
            env[n++] = environ[i];
    for (int i = 0; i < OURS; i++)
        env[n++] = text + i * OURS_BYTES;
    env[n] = NULL;
    snprintf(text + 0 * OURS_BYTES, OURS_BYTES, "RANK=%d", (int)rank);
    snprintf(text + 1 * OURS_BYTES, OURS_BYTES, "WORLD_SIZE=%d", (int)l->world);
    snprintf(text + 2 * OURS_BYTES, OURS_BYTES, "LOCAL_RANK=%d", (int)rank);
    snprintf(text + 3 * OURS_BYTES, OURS_BYTES, "LOCAL_WORLD_SIZE=%d", (int)l->world);
    snprintf(text + 4 * OURS_BYTES, OURS_BYTES, "MASTER_ADDR=127.0.0.1");
    snprintf(text + 5 * OURS_BYTES, OURS_BYTES, "MASTER_PORT=%u", (unsigned)l->port);
    snprintf(text + 6 * OURS_BYTES, OURS_BYTES, "TENON_TOKEN=%s", l->token);
    snprintf(text + 7 * OURS_BYTES, OURS_BYTES, "TENON_LAUNCHER=%d", (int)getpid());
    return env;
}

/* In the child: becomes the rank, or says over the pipe why it cannot. A rank does not read the terminal (it would be
 * stopped, being in the background) but may always write to it. */
__attribute__((noreturn)) static void become_rank(const struct launcher *l, pid_t parent, char **env, int error_fd)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    setpgid(0, 0);
    signal(SIGTTOU, SIG_IGN);
    if (dup2(l->null_fd, STDIN_FILENO) >= 0) {
        sigprocmask(SIG_SETMASK, &l->mask_before, NULL);
        execve(l->exe, l->argv, env);
    }
    int why = errno;
    ssize_t written = write(error_fd, &why, sizeof why);
    (void)written;
    _exit(1);
}

/* 0, or the errno of the step that failed. */
static int start_rank(struct launcher *l, int32_t rank, int error_fd)
{
    char **env = make_environment(l, rank);
    if (!env)
        return ENOMEM;
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become_rank(l, parent, env, error_fd);
    int why = pid < 0 ? errno : 0;
    free(env);
    if (pid < 0)
        return why;
    setpgid(pid, pid); /* both sides do it: whoever comes first */
    l->ranks[rank].pid = pid;
    l->running++;
    return 0;
}

/* Starts all and waits until each runs its program. */
static int start_all(struct launcher *l)
{
    int pipe_fds[2], why = 0, unable = 0;
    if (pipe2(pipe_fds, O_CLOEXEC) < 0) {
        fail(l, "pipe", errno);
        return -1;
    }
    int32_t rank = 0;
    while (rank < l->world && (why = start_rank(l, rank, pipe_fds[1])) == 0)
        rank++;
    close(pipe_fds[1]);
    if (why) {
        tn_log(TN_LOG_ERROR, "cannot start rank %d of %d: %s%s", (int)rank, (int)l->world, strerror(why),
               why == EAGAIN ? "; the limit on processes (ulimit -u) is reached" : "");
        l->exit_code = 1;
    } else if (read(pipe_fds[0], &unable, sizeof unable) == (ssize_t)sizeof unable) {
        tn_log(TN_LOG_ERROR, "cannot start %d ranks: running %s: %s", (int)l->world, l->exe, strerror(unable));
        l->exit_code = 1;
    }
    close(pipe_fds[0]);
    return why || unable ? -1 : 0;
}

static void signal_all(struct launcher *l, int signal_number)
{
    for (int32_t rank = 0; rank < l->world; rank++)
        if (l->ranks[rank].pid)
            kill(-l->ranks[rank].pid, signal_number);
}

static void kill_by(struct launcher *l, uint64_t when_ns)
{
    if (l->kill_at_ns == 0 || when_ns < l->kill_at_ns)
        l->kill_at_ns = when_ns;
}

static int was_killed(const siginfo_t *end)
{
    return end->si_code != CLD_EXITED;
}

static int is_failure(const siginfo_t *end)
{
    return was_killed(end) || end->si_status != 0;
}

static void describe(const siginfo_t *end, char *text, size_t text_bytes)
{
    if (was_killed(end))
        snprintf(text, text_bytes, "was killed by signal %d (%s)", end->si_status, strsignal(end->si_status));
    else
        snprintf(text, text_bytes, "exited with code %d", end->si_status);
}

/* Reports the first failure and gives the others time to do the same. */
static void report_first(struct launcher *l, int32_t rank)
{
    const siginfo_t *end = &l->ranks[rank].end;
    char what[128];
    describe(end, what, sizeof what);
    l->failed = 1;
    l->exit_code = was_killed(end) ? 1 : end->si_status;
    if (l->interrupts && (!was_killed(end) || end->si_status == l->last_signal))
        tn_log(TN_LOG_ERROR, "interrupted by signal %d (%s)", l->last_signal, strsignal(l->last_signal));
    else
        tn_log(TN_LOG_ERROR, "rank %d %s%s", (int)rank, what, l->running > 0 ? "; ending the others" : "");
    kill_by(l, tn_now_ns() + grace_ns);
}

/* How the rank ended, if it has; what it left running in its group goes too. 1: it has just ended. */
static int reap(struct launcher *l, int32_t rank)
{
    struct child *child = &l->ranks[rank];
    if (!child->pid || waitid(P_PID, (id_t)child->pid, &child->end, WEXITED | WNOHANG | WNOWAIT) < 0 ||
        child->end.si_pid == 0)
        return 0;
    kill(-child->pid, SIGKILL); /* before the process id is free for others */
    waitpid(child->pid, NULL, 0);
    child->pid = 0;
    child->fresh = 1;
    l->running--;
    return 1;
}

/* Tells the store how the ranks that have just ended did so, the cause first. */
static void tell_ends(struct launcher *l, int32_t first)
{
    char what[128];
    if (first >= 0) {
        describe(&l->ranks[first].end, what, sizeof what);
        tn_store_bury(l->server, first, what);
    }
    for (int32_t rank = 0; rank < l->world; rank++) {
        struct child *child = &l->ranks[rank];
        describe(&child->end, what, sizeof what);
        if (child->fresh && is_failure(&child->end))
            tn_store_bury(l->server, rank, what);
        else if (child->fresh)
            tn_store_ended(l->server, rank);
        child->fresh = 0;
    }
}

/* Of ranks that ended at once, one that was killed is the likelier cause than one that exited. */
static void reap_all(struct launcher *l)
{
    int32_t first = -1;
    for (int32_t rank = 0; rank < l->world; rank++) {
        const siginfo_t *end = &l->ranks[rank].end;
        if (reap(l, rank) && is_failure(end) && (first < 0 || (was_killed(end) && !was_killed(&l->ranks[first].end))))
            first = rank;
    }
    tell_ends(l, first);
    if (first >= 0 && !l->failed)
        report_first(l, first);
}

/* SIGTSTP (Ctrl-Z) stops the ranks, then this process; both go on together. Others end the job: the first in good
 * order, the second at once, and whoever does not obey is killed. */
static void pass_on(struct launcher *l, int signal_number)
{
    if (signal_number == SIGTSTP) {
        signal_all(l, SIGSTOP);
        raise(SIGSTOP);
        signal_all(l, SIGCONT);
        return;
    }
    l->interrupts++;
    l->last_signal = signal_number == SIGHUP ? SIGTERM : signal_number;
    signal_all(l, l->last_signal);
    if (l->interrupts > 1)
        kill_by(l, tn_now_ns() + (l->interrupts == 2 ? obey_ns : 0));
}

static void take_signals(struct launcher *l)
{
    struct signalfd_siginfo info;
    while (read(l->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo == SIGCHLD)
            reap_all(l);
        else
            pass_on(l, (int)info.ssi_signo);
}

static void kill_rest(struct launcher *l)
{
    struct tn_buf list;
    tn_buf_init(&list);
    for (int32_t rank = 0; rank < l->world; rank++)
        if (l->ranks[rank].pid)
            tn_buf_printf(&list, "%s%d", list.length ? ", " : "", (int)rank);
    tn_log(TN_LOG_WARN, "killing what does not end by itself: rank %s", list.text);
    tn_buf_finish(&list);
    signal_all(l, SIGKILL);
    l->kill_at_ns = UINT64_MAX;
}

static void supervise(struct launcher *l)
{
    while (l->running > 0) {
        uint64_t now = tn_now_ns();
        int timeout_ms = -1;
        if (l->kill_at_ns && l->kill_at_ns < UINT64_MAX)
            timeout_ms = l->kill_at_ns > now ? (int)((l->kill_at_ns - now) / 1000000u) + 1 : 0;
        struct pollfd signals = { .fd = l->signal_fd, .events = POLLIN };
        if (poll(&signals, 1, timeout_ms) > 0)
            take_signals(l);
        if (l->running > 0 && l->kill_at_ns && l->kill_at_ns <= tn_now_ns())
            kill_rest(l);
    }
}

static void end_all(struct launcher *l)
{
    signal_all(l, SIGKILL);
    for (int32_t rank = 0; rank < l->world; rank++)
        if (l->ranks[rank].pid)
            waitpid(l->ranks[rank].pid, NULL, 0);
}

/* Signals that came too late to be passed on have done their work. */
static void finish(struct launcher *l)
{
    struct signalfd_siginfo late;
    tn_store_stop(l->server);
    while (l->signal_fd >= 0 && read(l->signal_fd, &late, sizeof late) == (ssize_t)sizeof late)
        ;
    if (l->signal_fd >= 0)
        close(l->signal_fd);
    if (l->null_fd >= 0)
        close(l->null_fd);
    signal(SIGCHLD, l->chld_before);
    sigprocmask(SIG_SETMASK, &l->mask_before, NULL);
    free(l->ranks);
}

int tn_launch_local(int32_t world, char **argv)
{
    struct launcher l = { .world = world, .argv = argv, .signal_fd = -1, .null_fd = -1 };
    if (world < 1 || world > WORLD_MAX) {
        tn_log(TN_LOG_ERROR, "cannot start %d ranks; use 1 to %d", (int)world, WORLD_MAX);
        return 2;
    }
    char error[256];
    if (tn_store_check_hosts(world, error, sizeof error) < 0) {
        tn_log(TN_LOG_ERROR, "%s", error);
        return 2;
    }
    if (prepare(&l) == 0) {
        if (start_all(&l) == 0)
            supervise(&l);
        else
            end_all(&l);
    }
    finish(&l);
    return l.exit_code;
}
