/* Input: see input.h. */
#include "base/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int tn_input_open(const char *path, const char **why)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0)
        *why = strerror(errno);
    else if (S_ISREG(info.st_mode))
        return fd;
    else
        *why = S_ISDIR(info.st_mode) ? "is a folder, not a file" : "is a pipe or device, not a file";
    int error = fd < 0 ? errno : 0;
    if (fd >= 0)
        close(fd);
    errno = error;
    return -1;
}

FILE *tn_input_stream(const char *path, const char **why)
{
    int fd = tn_input_open(path, why);
    FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (fd >= 0 && !file) {
        *why = strerror(errno);
        close(fd);
    }
    return file;
}

json_t *tn_input_json(const char *path, json_error_t *problem)
{
    const char *why;
    FILE *file = tn_input_stream(path, &why);
    if (!file) {
        *problem = (json_error_t){ .line = -1 };
        snprintf(problem->text, sizeof problem->text, "%s", why);
        return NULL;
    }
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, problem);
    fclose(file);
    return root;
}
