/* Runs a fuzz target as an ordinary test: every file of a corpus folder, then mutations of them from a seed.
 *
 * usage: TARGET FOLDER ROUNDS [SEED]. A failing assert prints which round and seed it was, so that it can be run
 * again. Mutations: flip, insert, delete, copy and swap bytes; splice two inputs; put in a word of the format. */
#include <glob.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/philox.h"

enum { MOST_BYTES = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
    uint8_t bytes[MOST_BYTES];
    size_t size;
};

static uint64_t seed = 1, round_number, draw_number;

static uint32_t draw(uint32_t below)
{
    uint32_t out[4];
    tn_philox(seed, round_number, draw_number++, out);
    return out[0] % below;
}

static void say_where(int sig)
{
    char line[128];
    int n = snprintf(line, sizeof line, "fuzz: signal %d in round %llu of seed %llu\n", sig,
                     (unsigned long long)round_number, (unsigned long long)seed);
    if (write(STDERR_FILENO, line, (size_t)n) < 0)
        _exit(2);
    signal(sig, SIG_DFL);
    raise(sig);
}

static void read_input(const char *path, struct input *input)
{
    FILE *file = fopen(path, "rb");
    input->size = file ? fread(input->bytes, 1, MOST_BYTES, file) : 0;
    if (file)
        fclose(file);
}

/* Replaces `cut` bytes at `at` by `n` of `bytes`, as far as there is room. */
static void put(struct input *input, size_t at, size_t cut, const void *bytes, size_t n)
{
    if (at > input->size)
        at = input->size;
    if (cut > input->size - at)
        cut = input->size - at;
    if (input->size - cut + n > MOST_BYTES)
        return;
    memmove(input->bytes + at + n, input->bytes + at + cut, input->size - at - cut);
    memcpy(input->bytes + at, bytes, n);
    input->size = input->size - cut + n;
}

static void mutate(struct input *input, const struct input *other)
{
    static const char *const words[] = { "\n",
                                         "[",
                                         "]",
                                         "=",
                                         " ; ",
                                         ",",
                                         "auto",
                                         "-1",
                                         "0",
                                         "1e999",
                                         "nan",
                                         "\r\n",
                                         "9223372036854775808",
                                         "\xef\xbb\xbf",
                                         "\xc0\x80",
                                         "[data]\npath=x\n",
                                         "[s]\n",
                                         "\x1f",
                                         "\x1fs.int=3",
                                         ".",
                                         "K",
                                         "T",
                                         "ms",
                                         "h",
                                         "0x10",
                                         "%s%n",
                                         "\x1e",
                                         "{",
                                         "}",
                                         "\"a\":",
                                         "\"shape\":[2]",
                                         "\"F32\"",
                                         "\\u0000" };
    uint8_t byte = (uint8_t)draw(256), copied[64];
    size_t at = draw((uint32_t)input->size + 1), length = 1 + draw(sizeof copied);
    const char *word = words[draw(sizeof words / sizeof *words)];
    switch (draw(6)) {
    case 0: put(input, at, 1, &byte, 1); break;
    case 1: put(input, at, 0, &byte, 1); break;
    case 2: put(input, at, length, "", 0); break;
    case 3:
        if (length > input->size)
            length = input->size;
        memcpy(copied, input->bytes + draw((uint32_t)(input->size - length) + 1), length);
        put(input, at, draw(2) ? length : 0, copied, length);
        break;
    case 4: put(input, at, draw((uint32_t)input->size + 1), other->bytes, draw((uint32_t)other->size + 1)); break;
    default: put(input, at, draw(4), word, strlen(word));
    }
}

int main(int argc, char **argv)
{
    char pattern[1024];
    glob_t files;
    if (argc < 3) {
        fprintf(stderr, "usage: %s FOLDER ROUNDS [SEED]\n", argv[0]);
        return 2;
    }
    snprintf(pattern, sizeof pattern, "%s/*", argv[1]);
    if (glob(pattern, 0, NULL, &files) != 0) {
        fprintf(stderr, "fuzz: no corpus in %s\n", argv[1]);
        return 1;
    }
    uint64_t rounds = strtoull(argv[2], NULL, 10);
    seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    static struct input input, other;
    signal(SIGABRT, say_where);
    signal(SIGSEGV, say_where);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        read_input(files.gl_pathv[i], &input);
        LLVMFuzzerTestOneInput(input.bytes, input.size);
    }
    for (round_number = 1; round_number <= rounds; round_number++) {
        draw_number = 0;
        read_input(files.gl_pathv[draw((uint32_t)files.gl_pathc)], &input);
        read_input(files.gl_pathv[draw((uint32_t)files.gl_pathc)], &other);
        for (uint32_t n = 1 + draw(8); n > 0; n--)
            mutate(&input, &other);
        LLVMFuzzerTestOneInput(input.bytes, input.size);
    }
    printf("%zu inputs and %llu mutations of them, seed %llu\n", files.gl_pathc, (unsigned long long)rounds,
           (unsigned long long)seed);
    globfree(&files);
    return 0;
}
