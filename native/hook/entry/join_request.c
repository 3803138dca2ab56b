/* Makes the request to join from the environment, and sets the variables of the answer. */
#define _GNU_SOURCE
#include "hook/entry/join_request.h"

#include "hook/entry/gang_name.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    VALUE_MAX_BYTES = 4096,
    GRANT_MAX_BYTES = 16 << 10,
    COMMAND_BYTES = 4096,
    VARIABLE_BYTES = 256,
    LAST_ENTRIES_BYTES = 64 /* more than the index and the generation with their keys need */
};

static const struct {
    const char *variable, *field;
} FIELDS[] = {
    {"COTENANT_KIND", "kind"}, {"COTENANT_PRIORITY", "priority"}, {"COTENANT_SLO", "slo"},
    {"COTENANT_MEMORY", "memory"}, {"COTENANT_SHARE", "share"}, {"COTENANT_TASK", "task"}, {"COTENANT_NAME", "name"},
    {"COTENANT_GPUS", "gpus"},
};
enum { FIELD_COUNT = sizeof FIELDS / sizeof FIELDS[0] };

/* Returns the value of a variable; NULL if it is not set or empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

int ct_join_is_required(void)
{
    const char *value = variable("COTENANT_REQUIRED");
    return value && strcmp(value, "1") == 0;
}

/* ---- files -------------------------------------------------------------------------------------------------------- */

/* Reads the beginning of a file; returns the number of bytes, or a negative errno value. A pipe or device could block
 * or have effects, and is refused. */
static ssize_t read_file(const char *path, char *into, size_t capacity)
{
    struct stat status;
    ssize_t count = 0, total = 0;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0)
        return -errno;
    if (fstat(descriptor, &status) < 0 || !S_ISREG(status.st_mode))
        count = -EINVAL;
    while (count >= 0 && (size_t)total < capacity && (count = read(descriptor, into + total, capacity - (size_t)total)) > 0)
        total += count;
    if (count < 0 && count != -EINVAL)
        count = -errno;
    close(descriptor);
    return count < 0 ? count : total;
}

/* Finds `key = value` in the lines of a grant file; returns the length of the value, 0 if there is none. */
static size_t grant_value(const char *text, size_t length, const char *key, const char **value)
{
    const char *end = text + length;
    for (const char *line = text, *next; line < end; line = next) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        stop = stop ? stop : end;
        next = stop < end ? stop + 1 : end;
        while (line < stop && isspace((unsigned char)*line))
            line++;
        while (stop > line && isspace((unsigned char)stop[-1]))
            stop--;
        if ((size_t)(stop - line) < strlen(key) || strncmp(line, key, strlen(key)) != 0)
            continue;
        for (line += strlen(key); line < stop && (*line == ' ' || *line == '\t'); line++)
            ;
        if (line == stop || *line != '=')
            continue;
        for (line++; line < stop && isspace((unsigned char)*line); line++)
            ;
        *value = line;
        return (size_t)(stop - line);
    }
    return 0;
}

/* Returns the length of the command line, with spaces between its arguments. */
static size_t read_command(char *into)
{
    const ssize_t count = read_file("/proc/self/cmdline", into, COMMAND_BYTES);
    size_t length = count > 0 ? (size_t)count : 0;
    while (length && !into[length - 1])
        length--;
    for (size_t i = 0; i < length; i++)
        into[i] = into[i] ? into[i] : ' ';
    return length;
}

/* ---- the request -------------------------------------------------------------------------------------------------- */

static enum ct_join_status impossible(struct ct_join_request *request, const char *format, const char *first,
                                    const char *second)
{
    snprintf(request->reason, sizeof request->reason, format, first, second);
    return CT_JOIN_IMPOSSIBLE;
}

/* Determines the path of the node's socket. */
static enum ct_join_status find_socket(struct ct_join_request *request, const char *grant, size_t grant_bytes)
{
    struct stat status;
    const char *path = variable("COTENANT_SOCKET"), *in_grant = NULL;
    const size_t length = path ? strlen(path) : grant_value(grant, grant_bytes, "socket", &in_grant);
    const char *source = path ? "COTENANT_SOCKET" : "socket in the file of COTENANT_GRANT";
    path = path ? path : length ? in_grant : CT_DEFAULT_SOCKET;
    if (path[0] != '/')
        return impossible(request, "%s must be an absolute path%s", source, "");
    if (length >= sizeof request->socket_path)
        return impossible(request, "%s is longer than a socket's path may be%s", source, "");
    memcpy(request->socket_path, path, length ? length : strlen(path));
    if (!length && stat(CT_DEFAULT_SOCKET, &status) < 0)
        return impossible(request, "%s: %s; start a node, or set COTENANT_SOCKET", CT_DEFAULT_SOCKET, strerror(errno));
    return CT_JOIN_REQUESTED;
}

static void put_fields(struct ct_message_writer *writer)
{
    uint32_t count = 0;
    for (int i = 0; i < FIELD_COUNT; i++)
        count += variable(FIELDS[i].variable) != NULL;
    ct_message_map(writer, count);
    for (int i = 0; i < FIELD_COUNT; i++)
        if (variable(FIELDS[i].variable)) {
            ct_message_text(writer, FIELDS[i].field);
            ct_message_text(writer, variable(FIELDS[i].variable));
        }
}

static void put_variable(struct ct_message_writer *writer, const char *key, const char *name)
{
    ct_message_text(writer, key);
    ct_message_text(writer, variable(name) ? variable(name) : "");
}

static const char *too_long(void)
{
    static const char *const others[] = {"COTENANT_TOKEN", "CUDA_VISIBLE_DEVICES"};
    for (size_t i = 0; i < FIELD_COUNT + sizeof others / sizeof others[0]; i++) {
        const char *name = i < FIELD_COUNT ? FIELDS[i].variable : others[i - FIELD_COUNT];
        if (variable(name) && strlen(variable(name)) > VALUE_MAX_BYTES)
            return name;
    }
    return NULL;
}

enum ct_join_status ct_join_request_make(struct ct_join_request *request, uint32_t device)
{
    static char grant[GRANT_MAX_BYTES + 1], command[COMMAND_BYTES]; /* used by one thread at a time */
    struct ct_gang_name gang;
    const char *grant_path = variable("COTENANT_GRANT");
    ssize_t grant_bytes = 0;
    request->socket_path[0] = request->reason[0] = 0;
    request->device = device;
    if (!variable("COTENANT_SOCKET") && !variable("COTENANT_KIND") && !grant_path && !ct_join_is_required())
        return CT_JOIN_NOT_REQUESTED;
    if (grant_path) {
        grant_bytes = read_file(grant_path, grant, sizeof grant);
        if (grant_bytes < 0)
            return impossible(request, "COTENANT_GRANT names %s, which cannot be read: %s", grant_path,
                              strerror((int)-grant_bytes));
        if (grant_bytes > GRANT_MAX_BYTES)
            return impossible(request, "COTENANT_GRANT names %s, which is larger than 16 KiB%s", grant_path, "");
    }
    if (too_long())
        return impossible(request, "%s is longer than 4096 bytes%s", too_long(), "");
    memset(request->socket_path, 0, sizeof request->socket_path);
    const enum ct_join_status status = find_socket(request, grant, (size_t)grant_bytes);
    if (status != CT_JOIN_REQUESTED)
        return status;
    struct ct_message_writer writer = {request->bytes, sizeof request->bytes - LAST_ENTRIES_BYTES, CT_FRAME_LENGTH_BYTES};
    const int has_gang = ct_gang_name_find(&gang);
    ct_message_map(&writer, 9 + (has_gang ? 2 : 0) + (device ? 1 : 0));
    ct_message_text(&writer, "type");
    ct_message_text(&writer, "attach");
    ct_message_text(&writer, "version");
    ct_message_integer(&writer, CT_MESSAGE_VERSION);
    ct_message_text(&writer, "fields");
    put_fields(&writer);
    ct_message_text(&writer, "grant");
    ct_message_bytes(&writer, grant, (size_t)grant_bytes);
    put_variable(&writer, "token", "COTENANT_TOKEN");
    ct_message_text(&writer, "command");
    ct_message_bytes(&writer, command, read_command(command));
    put_variable(&writer, "visible", "CUDA_VISIBLE_DEVICES");
    if (has_gang) {
        ct_message_text(&writer, "gang");
        ct_message_text(&writer, gang.name);
        ct_message_text(&writer, "ranks");
        ct_message_integer(&writer, gang.ranks);
    }
    if (device) { /* otherwise omitted: a node of an earlier version does not know it */
        ct_message_text(&writer, "ordinal");
        ct_message_integer(&writer, device);
    }
    request->count = writer.count;
    return writer.count <= writer.capacity ? CT_JOIN_REQUESTED
                                           : impossible(request, "the variables COTENANT_... are too long%s%s", "", "");
}

size_t ct_join_request_complete(const struct ct_join_request *request, int64_t index, uint64_t generation,
                                unsigned char *bytes)
{
    struct ct_message_writer writer = {bytes, sizeof request->bytes, request->count};
    memcpy(bytes, request->bytes, request->count);
    ct_message_text(&writer, "index");
    ct_message_integer(&writer, index);
    ct_message_text(&writer, "generation");
    ct_message_integer(&writer, (int64_t)generation);
    return writer.count;
}

/* ---- the answer --------------------------------------------------------------------------------------------------- */

/* Returns whether a comma-separated list of devices contains one. */
static int list_contains(const char *list, const char *device)
{
    const size_t length = strlen(device);
    for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, device, length) == 0 && (!at[length] || at[length] == ','))
            return 1;
    return 0;
}

static int may_set(const char *name, const char *value)
{
    const char *present = getenv(name);
    if (strncmp(name, "CUDA_", 5) != 0 && strncmp(name, "COTENANT_", 9) != 0)
        return 0;
    /* An empty list is a choice as well: the program does not want to use a device. */
    return strcmp(name, "CUDA_VISIBLE_DEVICES") != 0 || !present || list_contains(present, value);
}

void ct_join_set_environment(const unsigned char *map, size_t count)
{
    struct ct_message_reader reader;
    struct ct_message_value key, value;
    ct_message_open(&reader, map, count);
    while (ct_message_next(&reader, &key, &value)) {
        char name[VARIABLE_BYTES], text[VALUE_MAX_BYTES];
        if (value.kind != CT_MESSAGE_TEXT || key.count >= sizeof name || value.count >= sizeof text)
            continue;
        ct_message_copy_text(&key, name, sizeof name);
        ct_message_copy_text(&value, text, sizeof text);
        if (!strchr(name, '=') && may_set(name, text))
            setenv(name, text, 1);
    }
}
