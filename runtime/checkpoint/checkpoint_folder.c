/* Folder: how a checkpoint appears all at once (checkpoint.h).
 *
 *     folder/.step-00000200.tmp   while the ranks write; a killed run leaves it, the next one removes it
 *     folder/step-00000200        after a rename, once every file in it is on the disk
 *     folder/latest               a symlink, replaced by rename after that */
#include "checkpoint/checkpoint_parts.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_MOST = 4096 };

static tn_status fail(const char *path, char *error, size_t error_bytes)
{
    snprintf(error, error_bytes, "checkpoint: %s: %s", path, strerror(errno));
    return TN_IO;
}

void tn_checkpoint_path(const struct tn_job *job, const char *given, char *path, size_t bytes)
{
    if (given[0] == '/')
        snprintf(path, bytes, "%s", given);
    else
        snprintf(path, bytes, "%s/%s", job->manifest.folder, given);
}

int tn_checkpoint_resumes(const struct tn_job *job, const char *folder)
{
    char latest[PATH_MOST];
    struct stat info;
    snprintf(latest, sizeof latest, "%.4000s/latest", folder);
    return job->settings.resume && lstat(latest, &info) == 0;
}

void tn_checkpoint_temporary(const char *folder, int64_t step, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/.step-%08" PRId64 ".tmp", folder, step);
}

void tn_checkpoint_remove(const char *path)
{
    char inside[PATH_MOST];
    DIR *dir = opendir(path);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        if (snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name) < (int)sizeof inside)
            unlink(inside); /* "." and ".." are folders and stay */
    if (dir)
        closedir(dir);
    rmdir(path);
}

static int make_folders(const char *path)
{
    char part[PATH_MOST];
    snprintf(part, sizeof part, "%s", path);
    for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(part, 0777) && errno != EEXIST)
            return -1;
        *slash = '/';
    }
    return mkdir(part, 0777) && errno != EEXIST ? -1 : 0;
}

/* The step between the two texts of a name; -1 if it is another's. */
static int64_t step_of(const char *name, const char *before, const char *after)
{
    size_t length = strlen(before);
    char *end;
    if (strncmp(name, before, length) != 0 || name[length] < '0' || name[length] > '9')
        return -1;
    errno = 0;
    long long step = strtoll(name + length, &end, 10);
    return errno || strcmp(end, after) != 0 ? -1 : step;
}

tn_status tn_checkpoint_folder_prepare(const char *folder, char *error, size_t error_bytes)
{
    char path[PATH_MOST];
    if (make_folders(folder))
        return fail(folder, error, error_bytes);
    DIR *dir = opendir(folder);
    if (!dir || access(folder, W_OK)) {
        tn_status status = fail(folder, error, error_bytes);
        if (dir)
            closedir(dir);
        return status;
    }
    for (struct dirent *entry; (entry = readdir(dir));)
        if (step_of(entry->d_name, ".step-", ".tmp") >= 0 &&
            snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < (int)sizeof path)
            tn_checkpoint_remove(path);
    closedir(dir);
    return TN_OK;
}

static int sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd);
    int why = errno;
    if (fd >= 0)
        close(fd);
    errno = why;
    return failed ? -1 : 0;
}

/* Of several checkpoints the lowest steps go, but never the one just written. */
static void remove_old(const char *folder, int64_t newest, int64_t keep)
{
    char path[PATH_MOST];
    for (;;) {
        int64_t lowest = INT64_MAX, count = 0;
        DIR *dir = opendir(folder);
        for (struct dirent *entry; dir && (entry = readdir(dir));) {
            int64_t step = step_of(entry->d_name, "step-", "");
            count += step >= 0;
            if (step >= 0 && step != newest && step < lowest)
                lowest = step;
        }
        if (dir)
            closedir(dir);
        if (count <= keep || lowest == INT64_MAX)
            return;
        snprintf(path, sizeof path, "%s/step-%08" PRId64, folder, lowest);
        tn_checkpoint_remove(path);
        if (access(path, F_OK) == 0)
            return; /* somebody else's files are in it */
    }
}

/* A checkpoint of this step may stand there already, of a run that did not resume: the two change places. */
static int rename_folder(const char *from, const char *to)
{
    if (rename(from, to) == 0)
        return 0;
    if ((errno != ENOTEMPTY && errno != EEXIST) || renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE))
        return -1;
    tn_checkpoint_remove(from);
    return 0;
}

tn_status tn_checkpoint_publish(const char *folder, int64_t step, int64_t keep, char *error, size_t error_bytes)
{
    char temporary[PATH_MOST], path[PATH_MOST], link[PATH_MOST], name[64];
    tn_checkpoint_temporary(folder, step, temporary, sizeof temporary);
    snprintf(name, sizeof name, "step-%08" PRId64, step);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (sync_folder(temporary) || rename_folder(temporary, path) || sync_folder(folder))
        return fail(path, error, error_bytes);
    snprintf(link, sizeof link, "%s/.latest.tmp", folder);
    snprintf(path, sizeof path, "%s/latest", folder);
    unlink(link);
    if (symlink(name, link) || rename(link, path) || sync_folder(folder))
        return fail(path, error, error_bytes);
    if (keep > 0)
        remove_old(folder, step, keep);
    return TN_OK;
}
