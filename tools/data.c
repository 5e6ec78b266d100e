/* tenon data: writes and shows token files (Megatron's .bin and .idx), which [data] source = tokens reads.
 *
 * `pack` turns text into tokens, one document a file, in the order in which [data] source = text would read them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/input.h"
#include "data/bpe.h"
#include "data/find.h"
#include "data/idx.h"
#include "tool.h"

#define CHUNK (1 << 20) /* bytes read at once */

static const char usage[] =
    "usage: tenon data pack INPUT... -o PREFIX [options]\n"
    "       tenon data info PREFIX\n"
    "\n"
    "pack writes PREFIX.bin and PREFIX.idx from text files; an INPUT may be a glob, with ** for folders at any depth.\n"
    "  -o, --output PREFIX        where to write\n"
    "  --dtype u8|u16|i32|i64     type of a token (default: the narrowest that holds the vocabulary)\n"
    "  --documents per-file|one   one document a file (default), or a single one\n"
    "  --bpe VOCAB.json MERGES    GPT-2's byte-level BPE in place of bytes\n"
    "  --end-token ID             a token to add after each document\n"
    "info prints what PREFIX.bin and PREFIX.idx hold, after checking them.\n";

struct pack {
    const char **inputs;
    size_t n_inputs;
    const char *output, *vocabulary, *merges;
    const struct tn_idx_dtype *dtype;
    int one_document;
    int32_t end_token; /* -1: none */

    struct tn_files files;
    struct tn_bpe *bpe; /* NULL: bytes */
    struct tn_idx_writer *writer;
    struct tn_ids ids;
    char *text;
    size_t room;
    int64_t tokens, documents;
};

static int misuse(const char *what, const char *word)
{
    fprintf(stderr, "tenon data: %s%s%s\n%s", what, word ? ": " : "", word ? word : "", usage);
    return TOOL_USAGE;
}

static int failed(const char *error)
{
    fprintf(stderr, "tenon data: %s\n", error);
    return TOOL_FAILED;
}

/* A folder for a prefix would make hidden files in it: texts/.bin. */
static int check_output(const char *output)
{
    const char *slash = strrchr(output, '/'), *name = slash ? slash + 1 : output;
    if (*name && strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
        return TOOL_DONE;
    fprintf(stderr, "tenon data: -o %s: is a folder, not the prefix of files; use a name in it, such as %s%stokens\n",
            output, output, *name ? "/" : "");
    return TOOL_USAGE;
}

/* The options of pack. TOOL_DONE or TOOL_USAGE. */
static int parse(struct pack *pack, int argc, char **argv)
{
    int only_inputs = 0;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        int left = argc - i - 1;
        if (only_inputs || word[0] != '-' || !word[1]) {
            pack->inputs[pack->n_inputs++] = word;
        } else if (strcmp(word, "--") == 0) {
            only_inputs = 1;
        } else if (strcmp(word, "--bpe") == 0) {
            if (left < 2)
                return misuse("--bpe needs two files, VOCAB.json and MERGES", NULL);
            pack->vocabulary = argv[++i];
            pack->merges = argv[++i];
        } else if (left < 1) {
            return misuse("unknown option, or one without its value", word);
        } else if (strcmp(word, "-o") == 0 || strcmp(word, "--output") == 0) {
            pack->output = argv[++i];
        } else if (strcmp(word, "--dtype") == 0) {
            pack->dtype = tn_idx_dtype(argv[++i], 0);
            if (!pack->dtype)
                return misuse("--dtype is one of u8, u16, i32, i64, not", argv[i]);
        } else if (strcmp(word, "--documents") == 0) {
            pack->one_document = strcmp(argv[++i], "one") == 0;
            if (!pack->one_document && strcmp(argv[i], "per-file") != 0)
                return misuse("--documents is per-file or one, not", argv[i]);
        } else if (strcmp(word, "--end-token") == 0) {
            char *end;
            long id = strtol(argv[++i], &end, 10);
            if (end == argv[i] || *end || id < 0 || id > INT32_MAX)
                return misuse("--end-token is a token id, not", argv[i]);
            pack->end_token = (int32_t)id;
        } else {
            return misuse("unknown option", word);
        }
    }
    if (pack->n_inputs == 0)
        return misuse("pack needs text to read", NULL);
    return pack->output && *pack->output ? check_output(pack->output) : misuse("pack needs -o PREFIX", NULL);
}

/* A path that exists is taken as it is, whatever characters it has; any other is a glob. */
static int find_inputs(struct pack *pack)
{
    struct tn_diag diag;
    struct stat info;
    tn_diag_init(&diag);
    for (size_t i = 0; i < pack->n_inputs; i++) {
        if (lstat(pack->inputs[i], &info) == 0)
            tn_files_add(&pack->files, pack->inputs[i], &diag, (struct tn_where){ 0 });
        else
            tn_files_find(&pack->files, pack->inputs[i], NULL, &diag, (struct tn_where){ 0 });
    }
    tn_files_sort(&pack->files);
    for (size_t i = 0; i < diag.count; i++)
        failed(tn_diag_text(&diag, &diag.problems[i]));
    int result = diag.count ? TOOL_FAILED : TOOL_DONE;
    tn_diag_finish(&diag);
    return result;
}

/* An output that is also an input would be read again the next time. */
static int refuse_own_output(const struct pack *pack)
{
    static const char *const suffixes[] = { "bin", "idx" };
    char path[4096], error[4400];
    struct stat output, input;
    for (int s = 0; s < 2; s++) {
        snprintf(path, sizeof path, "%s.%s", pack->output, suffixes[s]);
        if (stat(path, &output) != 0)
            continue;
        for (size_t i = 0; i < pack->files.count; i++)
            if (stat(pack->files.items[i].path, &input) == 0 && input.st_dev == output.st_dev &&
                input.st_ino == output.st_ino) {
                snprintf(error, sizeof error, "%s is both input and output; use another -o or a narrower pattern",
                         path);
                return failed(error);
            }
    }
    return TOOL_DONE;
}

static int choose_dtype(struct pack *pack, char *error)
{
    int64_t most = pack->bpe ? tn_bpe_vocab(pack->bpe) - 1 : 255;
    most = pack->end_token > most ? pack->end_token : most;
    if (!pack->dtype)
        pack->dtype = tn_idx_dtype(most <= UINT8_MAX ? "u8" : most <= UINT16_MAX ? "u16" : "i32", 0);
    if (most <= pack->dtype->most)
        return TOOL_DONE;
    snprintf(error, 256, "ids up to %lld do not fit in %s; use a wider --dtype", (long long)most, pack->dtype->name);
    return TOOL_FAILED;
}

/* Tokens of the first `bytes` of the text. */
static int add_tokens(struct pack *pack, size_t bytes, char *error)
{
    pack->ids.count = 0;
    if (pack->bpe) {
        if (tn_bpe_encode(pack->bpe, pack->text, bytes, &pack->ids) != 0)
            return snprintf(error, 256, "out of memory"), TOOL_FAILED;
        pack->tokens += (int64_t)pack->ids.count;
        return tn_idx_add(pack->writer, pack->ids.ids, pack->ids.count, error) == 0 ? TOOL_DONE : TOOL_FAILED;
    }
    int32_t block[4096];
    pack->tokens += (int64_t)bytes;
    for (size_t done = 0, take; done < bytes; done += take) {
        take = bytes - done < 4096 ? bytes - done : 4096;
        for (size_t i = 0; i < take; i++)
            block[i] = (unsigned char)pack->text[done + i];
        if (tn_idx_add(pack->writer, block, take, error) != 0)
            return TOOL_FAILED;
    }
    return TOOL_DONE;
}

static int end_document(struct pack *pack, char *error)
{
    if (pack->end_token >= 0 && tn_idx_add(pack->writer, &pack->end_token, 1, error) != 0)
        return TOOL_FAILED;
    pack->tokens += pack->end_token >= 0;
    pack->documents++;
    return tn_idx_end_document(pack->writer, error) == 0 ? TOOL_DONE : TOOL_FAILED;
}

/* Room for CHUNK more bytes than the `kept` that are there. */
static int make_room(struct pack *pack, size_t kept)
{
    if (pack->room - kept >= CHUNK)
        return 0;
    char *grown = realloc(pack->text, kept * 2 + CHUNK);
    if (!grown)
        return -1;
    pack->text = grown;
    pack->room = kept * 2 + CHUNK;
    return 0;
}

/* Reads the file piece by piece, each as far as it can be encoded alone. */
static int add_text(struct pack *pack, FILE *file, const char *path, char *error)
{
    for (size_t kept = 0;;) {
        if (make_room(pack, kept) != 0)
            return snprintf(error, 256, "out of memory for %.200s", path), TOOL_FAILED;
        size_t have = kept + fread(pack->text + kept, 1, CHUNK, file);
        if (ferror(file))
            return snprintf(error, 256, "cannot read %.180s: %s", path, strerror(errno)), TOOL_FAILED;
        size_t take = feof(file) || !pack->bpe ? have : tn_bpe_cut(pack->text, have);
        if (add_tokens(pack, take, error) != TOOL_DONE)
            return TOOL_FAILED;
        kept = have - take;
        memmove(pack->text, pack->text + take, kept);
        if (feof(file))
            return TOOL_DONE;
    }
}

static int add_file(struct pack *pack, const struct tn_file *input, char *error)
{
    const char *why; /* it was a regular file when it was found */
    FILE *file = tn_input_stream(input->path, &why);
    if (!file)
        return snprintf(error, 256, "cannot read %.170s: %.60s", input->path, why), TOOL_FAILED;
    int64_t before = pack->tokens;
    int result = add_text(pack, file, input->path, error);
    fclose(file);
    if (result == TOOL_DONE && !pack->one_document && pack->tokens > before)
        result = end_document(pack, error);
    return result;
}

static int write_pack(struct pack *pack, char *error)
{
    if (pack->vocabulary && tn_bpe_open(&pack->bpe, pack->vocabulary, pack->merges, error) != 0)
        return TOOL_FAILED;
    if (choose_dtype(pack, error) != TOOL_DONE || tn_idx_create(&pack->writer, pack->output, pack->dtype, error) != 0)
        return TOOL_FAILED;
    for (size_t i = 0; i < pack->files.count; i++)
        if (add_file(pack, &pack->files.items[i], error) != TOOL_DONE)
            return TOOL_FAILED;
    if (pack->tokens == 0)
        return snprintf(error, 256, "the input has no text"), TOOL_FAILED;
    if (pack->one_document && end_document(pack, error) != TOOL_DONE)
        return TOOL_FAILED;
    struct tn_idx_writer *writer = pack->writer;
    pack->writer = NULL;
    return tn_idx_publish(writer, error) == 0 ? TOOL_DONE : TOOL_FAILED;
}

static int data_pack(int argc, char **argv)
{
    struct tn_arena arena;
    char error[256] = "";
    tn_arena_init(&arena);
    struct pack pack = { .end_token = -1, .files = { .arena = &arena } };
    pack.inputs = tn_arena_alloc(&arena, (size_t)(argc + 1) * sizeof *pack.inputs);
    int result = parse(&pack, argc, argv);
    if (result == TOOL_DONE)
        result = find_inputs(&pack);
    if (result == TOOL_DONE)
        result = refuse_own_output(&pack);
    if (result == TOOL_DONE) {
        result = write_pack(&pack, error);
        if (result != TOOL_DONE)
            failed(error);
    }
    if (result == TOOL_DONE) {
        printf("%s.bin, %s.idx: %lld document%s, %lld tokens of type %s\n", pack.output, pack.output,
               (long long)pack.documents, pack.documents == 1 ? "" : "s", (long long)pack.tokens, pack.dtype->name);
        result = tool_printed(result);
    }
    tn_idx_discard(pack.writer);
    tn_bpe_close(pack.bpe);
    free(pack.ids.ids);
    free(pack.text);
    tn_arena_finish(&arena);
    return result;
}

/* The largest id of all tokens, or -1 with a message logged. */
static int64_t largest_id(const struct tn_idx *idx)
{
    int32_t tokens[4096];
    int64_t largest = 0;
    for (int64_t first = 0, take; first < idx->tokens; first += take) {
        take = idx->tokens - first < 4096 ? idx->tokens - first : 4096;
        if (tn_idx_read(idx, first, take, (int64_t)INT32_MAX + 1, tokens) != 0)
            return -1;
        for (int64_t i = 0; i < take; i++)
            largest = tokens[i] > largest ? tokens[i] : largest;
    }
    return largest;
}

static int data_info(const char *prefix)
{
    struct tn_idx idx;
    struct tn_diag diag;
    tn_diag_init(&diag);
    int opened = tn_idx_open(&idx, prefix, &diag, (struct tn_where){ 0 });
    for (size_t i = 0; i < diag.count; i++)
        failed(tn_diag_text(&diag, &diag.problems[i]));
    tn_diag_finish(&diag);
    if (opened != 0)
        return TOOL_FAILED;
    int64_t largest = largest_id(&idx);
    if (largest >= 0) {
        printf("tokens      %lld\n", (long long)idx.tokens);
        printf("type        %s\n", idx.dtype->name);
        printf("largest id  %lld\n", (long long)largest);
        printf("documents   %lld\n", (long long)idx.documents);
        printf("sequences   %lld, of %lld to %lld tokens\n", (long long)idx.sequences, (long long)idx.shortest,
               (long long)idx.longest);
        printf("bytes       %lld\n", (long long)idx.bin_bytes);
    }
    tn_idx_close(&idx);
    return largest < 0 ? TOOL_FAILED : tool_printed(TOOL_DONE);
}

/* argv[0] is "data". */
int tenon_data_main(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (tool_is_help(argv[i])) {
            fputs(usage, stdout);
            return tool_printed(TOOL_DONE);
        }
    if (argc < 2)
        return misuse("needs pack or info", NULL);
    if (strcmp(argv[1], "pack") == 0)
        return data_pack(argc - 2, argv + 2);
    if (strcmp(argv[1], "info") != 0)
        return misuse("needs pack or info, not", argv[1]);
    return argc == 3 ? data_info(argv[2]) : misuse("info needs one PREFIX", NULL);
}
