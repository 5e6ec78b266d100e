/* Loader, step 2: whether a file may be opened with dlopen.
 *
 * Safe: nobody but root and the user can have put or changed it. The file and its folder belong to one of them and
 * are writable for neither group nor others; so is every folder above, save that a sticky one (/tmp) may be writable:
 * there only its owner can rename or remove what it holds. A link's own folder is held to the same.
 *
 * Whole: the ELF header fits this process, and every segment and table lies inside the file. dlopen would map a
 * truncated file and die of SIGBUS. */
#include "loader/loader_steps.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if UINTPTR_MAX > UINT32_MAX
typedef Elf64_Ehdr elf_header;
typedef Elf64_Phdr elf_segment;
#else
typedef Elf32_Ehdr elf_header;
typedef Elf32_Phdr elf_segment;
#endif

/* ---- safe ---- */

static enum tn_load check_owner(const char *plugin, const char *path, const struct stat *info, int may_be_sticky,
                                struct tn_load_error *error)
{
    const char *what = S_ISDIR(info->st_mode) ? "the folder" : "the file";
    if (info->st_uid != 0 && info->st_uid != geteuid())
        return tn_load_fail(
            error, TN_LOAD_UNSAFE_FILE,
            "%s: %s %s belongs to user %u, who is neither root nor you; use chown, or copy the plugin elsewhere",
            plugin, what, path, (unsigned)info->st_uid);
    if (may_be_sticky && (info->st_mode & S_ISVTX))
        return TN_LOAD_OK;
    if (info->st_mode & (S_IWGRP | S_IWOTH))
        return tn_load_fail(error, TN_LOAD_UNSAFE_FILE, "%s: %s %s is %s-writable (mode %04o); use chmod go-w", plugin,
                            what, path, info->st_mode & S_IWOTH ? "world" : "group", (unsigned)info->st_mode & 07777);
    return TN_LOAD_OK;
}

/* The folder of `path` and all above it, up to "/". */
static enum tn_load check_folders(const char *plugin, const char *path, struct tn_load_error *error)
{
    char folder[4096];
    if (strlen(path) >= sizeof folder)
        return tn_load_fail(error, TN_LOAD_NOT_FOUND, "%s: the path is too long", path);
    strcpy(folder, path);
    for (int above = 0; strcmp(folder, "/") != 0; above = 1) {
        char *slash = strrchr(folder, '/');
        slash[slash == folder] = 0;
        struct stat info;
        if (stat(folder, &info) != 0)
            return tn_load_fail(error, TN_LOAD_UNSAFE_FILE, "%s: %s: %s", plugin, folder, strerror(errno));
        enum tn_load reason = check_owner(plugin, folder, &info, above, error);
        if (reason)
            return reason;
    }
    return TN_LOAD_OK;
}

static enum tn_load check_link(const char *found, const char *path, struct tn_load_error *error)
{
    char folder[4096], real[4096];
    const char *slash = strrchr(found, '/');
    if (snprintf(folder, sizeof folder, "%.*s/", (int)(slash - found), found) >= (int)sizeof folder ||
        !realpath(folder, real) || strlen(real) + 2 > sizeof real)
        return tn_load_fail(error, TN_LOAD_NOT_FOUND, "%s: %s", found, strerror(errno));
    if (strncmp(path, real, strlen(real)) == 0 && strrchr(path, '/') == path + strlen(real))
        return TN_LOAD_OK; /* the file's own folder, checked as such */
    strcat(real, "/");
    return check_folders(path, real, error);
}

/* ---- whole ---- */

/* What every ELF file has alike, whatever its class. */
struct ident {
    unsigned char ident[EI_NIDENT];
    uint16_t type, machine;
};

static int read_at(int fd, void *into, size_t bytes, uint64_t offset)
{
    return pread(fd, into, bytes, (off_t)offset) == (ssize_t)bytes;
}

static int own_ident(struct ident *own)
{
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int read = fd >= 0 && read_at(fd, own, sizeof *own, 0);
    if (fd >= 0)
        close(fd);
    return read;
}

static enum tn_load check_ident(int fd, const char *path, struct tn_load_error *error)
{
    struct ident file = { 0 }, own;
    if (!read_at(fd, &file, sizeof file, 0) || memcmp(file.ident, ELFMAG, SELFMAG) != 0)
        return tn_load_fail(error, TN_LOAD_NOT_ELF, "%s: is not a shared object (no ELF header)", path);
    if (own_ident(&own)) {
        if (file.ident[EI_CLASS] != own.ident[EI_CLASS])
            return tn_load_fail(error, TN_LOAD_WRONG_ARCH, "%s: is a %s-bit object; build it for this machine", path,
                                file.ident[EI_CLASS] == ELFCLASS64 ? "64" : "32");
        if (file.ident[EI_DATA] != own.ident[EI_DATA] || file.machine != own.machine)
            return tn_load_fail(error, TN_LOAD_WRONG_ARCH,
                                "%s: is for ELF machine %u, this is machine %u; build it for this machine", path,
                                file.machine, own.machine);
    }
    if (file.type != ET_DYN)
        return tn_load_fail(error, TN_LOAD_NOT_ELF,
                            "%s: is an ELF file of type %u, not a shared object; link it with -shared", path,
                            file.type);
    return TN_LOAD_OK;
}

static int inside(uint64_t offset, uint64_t bytes, uint64_t file_bytes)
{
    return offset <= file_bytes && bytes <= file_bytes - offset;
}

static enum tn_load check_whole(int fd, uint64_t file_bytes, const char *path, struct tn_load_error *error)
{
    elf_header header;
    int whole = read_at(fd, &header, sizeof header, 0) && header.e_phentsize == sizeof(elf_segment) &&
                header.e_phnum > 0 &&
                inside(header.e_phoff, (uint64_t)header.e_phnum * sizeof(elf_segment), file_bytes) &&
                inside(header.e_shoff, (uint64_t)header.e_shnum * header.e_shentsize, file_bytes);
    for (unsigned i = 0; whole && i < header.e_phnum; i++) {
        elf_segment segment;
        whole = read_at(fd, &segment, sizeof segment, header.e_phoff + i * sizeof segment) &&
                inside(segment.p_offset, segment.p_filesz, file_bytes);
    }
    if (!whole)
        return tn_load_fail(error, TN_LOAD_NOT_ELF, "%s: is cut off or damaged (%llu bytes; its headers name more)",
                            path, (unsigned long long)file_bytes);
    return TN_LOAD_OK;
}

enum tn_load tn_load_check_file(const char *found, const char *path, struct tn_load_error *error)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &info) != 0) {
        tn_load_fail(error, TN_LOAD_NOT_FOUND, "%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return TN_LOAD_NOT_FOUND;
    }
    enum tn_load reason = TN_LOAD_OK;
    if (!S_ISREG(info.st_mode))
        reason = tn_load_fail(error, TN_LOAD_NOT_ELF, "%s: is not a file", path);
    if (!reason)
        reason = check_owner(path, path, &info, 0, error);
    if (!reason)
        reason = check_folders(path, path, error);
    if (!reason)
        reason = check_link(found, path, error);
    if (!reason)
        reason = check_ident(fd, path, error);
    if (!reason)
        reason = check_whole(fd, (uint64_t)info.st_size, path, error);
    close(fd);
    return reason;
}
