/* Data, text: the bytes of all files of a glob, one file after the other.
 *
 * Only the sizes are known from the start; a read opens its file, takes what it needs and closes it again. A file
 * that has vanished or become shorter since is an error with its name (a mapping would be a SIGBUS). */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tenon/host.h>

#include "base/log.h"
#include "data/data_source.h"
#include "data/find.h"

struct text {
    struct tn_source source;
    struct tn_arena arena;
    struct tn_files files;
    int64_t *first; /* position of each file's first byte; one more for the end */
};

/* The file that holds the byte at `position`: the last one that starts at or before it and is not empty. */
static size_t file_at(const struct text *text, int64_t position)
{
    size_t low = 0, high = text->files.count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (text->first[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int read_file(const struct tn_file *file, int64_t offset, int64_t count, int32_t *tokens)
{
    /* O_NONBLOCK: a pipe put in the file's place must not hang us. */
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        tn_log(TN_LOG_ERROR, "data: cannot open %s: %s (it was there when the run began)", file->path, strerror(errno));
        return -1;
    }
    uint8_t bytes[8192];
    int64_t done = 0;
    int error = 0;
    while (done < count) {
        int64_t want = count - done < (int64_t)sizeof bytes ? count - done : (int64_t)sizeof bytes;
        ssize_t got = pread(fd, bytes, (size_t)want, offset + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            error = got < 0 ? errno : 0;
            break;
        }
        for (ssize_t i = 0; i < got; i++)
            tokens[done + i] = bytes[i];
        done += got;
    }
    close(fd);
    if (done == count)
        return 0;
    if (error)
        tn_log(TN_LOG_ERROR, "data: cannot read %s: %s", file->path, strerror(error));
    else
        tn_log(TN_LOG_ERROR, "data: %s ends at byte %lld; it had %lld bytes when the run began", file->path,
               (long long)(offset + done), (long long)file->bytes);
    return -1;
}

static int text_read(const struct tn_source *source, int64_t first, int64_t count, int32_t *tokens)
{
    const struct text *text = (const struct text *)source;
    size_t i = count > 0 ? file_at(text, first) : 0;
    for (int64_t done = 0; done < count; i++) {
        int64_t here = text->first[i + 1] - (first + done);
        int64_t take = here < count - done ? here : count - done;
        if (take > 0 && read_file(&text->files.items[i], first + done - text->first[i], take, tokens + done) != 0)
            return -1;
        done += take;
    }
    return 0;
}

static int64_t text_document(const struct tn_source *source, int64_t position)
{
    const struct text *text = (const struct text *)source;
    return text->first[file_at(text, position)];
}

static void text_close(struct tn_source *source)
{
    struct text *text = (struct text *)source;
    tn_arena_finish(&text->arena);
    free(text);
}

struct tn_source *tn_source_text(const char *path, const char *folder, int64_t vocab, struct tn_diag *diag,
                                 struct tn_where where)
{
    struct text *text = calloc(1, sizeof *text);
    if (!text) {
        tn_diag_add(diag, where, NULL, "out of memory");
        return NULL;
    }
    size_t before = diag->count;
    text->source = (struct tn_source){ .read = text_read, .document = text_document, .close = text_close };
    tn_arena_init(&text->arena);
    text->files.arena = &text->arena;
    if (vocab < 256)
        tn_diag_add(diag, where, "give the model a vocabulary of 256 or more",
                    "text is read as bytes, of which the model's vocabulary of %lld leaves some out", (long long)vocab);
    tn_files_find_list(&text->files, path, folder, diag, where);
    if (diag->count > before) {
        text_close(&text->source);
        return NULL;
    }
    tn_files_sort(&text->files);
    text->first = tn_arena_alloc(&text->arena, (text->files.count + 1) * sizeof *text->first);
    for (size_t i = 0; i < text->files.count; i++)
        text->first[i + 1] = text->first[i] + text->files.items[i].bytes;
    text->source.tokens = text->first[text->files.count];
    return &text->source;
}
