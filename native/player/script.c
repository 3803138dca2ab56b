/* Reads launch scripts: lines of NAME BLOCKS THREADS DURATION_NS INTERVAL_NS [STREAM], or @COPY BYTES INTERVAL_NS
 * [STREAM]. */
#include "player/player.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 7, LINE_LIMIT = 4096 };

static const struct {
    const char *word;
    enum pl_work work;
} COPIES[] = {{"@htod", PL_HTOD}, {"@dtoh", PL_DTOH}, {"@dtod", PL_DTOD}, {"@memset", PL_MEMSET}};

/* Makes space for one more element; doubles the size, so that a million lines need few reallocations. */
static void *grow_for_one(void *list, size_t count, size_t bytes)
{
    if (count & (count - 1))
        return list;
    return realloc(list, (count ? 2 * count : 1) * bytes);
}

static int parse_number(const char *word, uint64_t *value)
{
    char *end;
    if (!isdigit((unsigned char)word[0]))
        return 0;
    *value = strtoull(word, &end, 10);
    return *end == '\0' && *value < UINT64_C(1) << 63;
}

/* Returns the index of a name, which is added if it is new; -1 if out of memory. The latest name is compared first. */
static long name_index(struct pl_script *script, const char *name)
{
    for (size_t back = 1; back <= script->name_count; back++) {
        if (!strcmp(script->names[script->name_count - back], name))
            return (long)(script->name_count - back);
    }
    char **names = grow_for_one(script->names, script->name_count, sizeof *names);
    if (!names)
        return -1;
    script->names = names;
    names[script->name_count] = strdup(name);
    return names[script->name_count] ? (long)script->name_count++ : -1;
}

static long stream_index(struct pl_script *script, long stream)
{
    for (size_t i = 0; i < script->stream_count; i++) {
        if (script->streams[i] == stream)
            return (long)i;
    }
    long *streams = grow_for_one(script->streams, script->stream_count, sizeof *streams);
    if (!streams)
        return -1;
    script->streams = streams;
    streams[script->stream_count] = stream;
    return (long)script->stream_count++;
}

static int split(char *line, char **words)
{
    int count = 0;
    char *remaining = NULL;
    for (char *word = strtok_r(line, " \t\r", &remaining); word; word = strtok_r(NULL, " \t\r", &remaining)) {
        if (count == WORDS)
            return WORDS;
        words[count++] = word;
    }
    return count;
}

/* Returns 1 for a valid copy, 0 for an invalid line. */
static int read_copy(char **words, int count, struct pl_step *step, uint64_t *stream)
{
    for (size_t i = 0; i < sizeof COPIES / sizeof *COPIES; i++) {
        if (strcmp(words[0], COPIES[i].word))
            continue;
        step->work = COPIES[i].work;
        return (count == 3 || count == 4) && parse_number(words[1], &step->amount) && step->amount > 0 &&
               parse_number(words[2], &step->interval_ns) && (count == 3 || parse_number(words[3], stream));
    }
    return 0;
}

static int read_kernel(char **words, int count, struct pl_step *step, uint64_t *stream)
{
    uint64_t blocks, threads;
    if ((count != 5 && count != 6) || !parse_number(words[1], &blocks) || !parse_number(words[2], &threads) ||
        !parse_number(words[3], &step->amount) || !parse_number(words[4], &step->interval_ns) ||
            (count == 6 && !parse_number(words[5], stream)))
        return 0;
    step->blocks = (uint32_t)blocks;
    step->threads = (uint32_t)threads;
    return blocks > 0 && blocks <= INT32_MAX && threads > 0 && threads <= 1024;
}

/* Reads a line without its comment. Returns 1 if it is valid or blank, 0 if it is invalid, -1 if out of memory. */
static int read_line(struct pl_script *script, char *line)
{
    char *words[WORDS];
    struct pl_step step = {.work = PL_KERNEL};
    uint64_t stream = 0;
    int count = split(line, words), is_copy = count && words[0][0] == '@';
    if (!count)
        return 1;
    if (!(is_copy ? read_copy(words, count, &step, &stream) : read_kernel(words, count, &step, &stream)))
        return 0;
    long function = is_copy ? 0 : name_index(script, words[0]), stream_number = stream_index(script, (long)stream);
    struct pl_step *steps = grow_for_one(script->steps, script->count, sizeof *steps);
    if (steps)
        script->steps = steps;
    if (function < 0 || stream_number < 0 || !steps)
        return -1;
    step.function = (uint32_t)function;
    step.stream = (uint32_t)stream_number;
    if (is_copy && step.amount > script->max_bytes)
        script->max_bytes = step.amount;
    steps[script->count++] = step;
    return 1;
}

long pl_script_read(struct pl_script *script, const char *text, size_t length)
{
    const char *end = text + length;
    char line[LINE_LIMIT];
    long line_number = 0;
    memset(script, 0, sizeof *script);
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t bytes = (size_t)((stop ? stop : end) - text);
        line_number++;
        if (bytes >= sizeof line || memchr(text, '\0', bytes))
            return line_number;
        memcpy(line, text, bytes);
        line[bytes] = '\0';
        line[strcspn(line, "#")] = '\0';
        int read = read_line(script, line);
        if (read <= 0)
            return read ? -1 : line_number;
        text += bytes + 1;
    }
    return script->count ? 0 : line_number + 1;
}

void pl_script_free(struct pl_script *script)
{
    for (size_t i = 0; i < script->name_count; i++)
        free(script->names[i]);
    free(script->names);
    free(script->streams);
    free(script->steps);
    memset(script, 0, sizeof *script);
}
