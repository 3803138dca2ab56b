/* The times of kernels as numbers to plan with: read once, then learned. */
#define _GNU_SOURCE
#include "hook/known.h"

#include "gate/gate.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t MAGIC = UINT64_C(0x31574f4e4b544f43); /* "COTKNOW1" in little-endian bytes */

/* Samples that count for more than a profile; a kernel that goes over this many times its mean varies wildly. */
enum { ENOUGH = 8, WILD = 4, PATH_ROOM = 1024 };
/* A measured launch stands for no more of its kind than these, and for no more of their time. */
enum { CHECKED_FOR = 16, CHECKED_NS = 2 * 1000 * 1000, PPM = 1000 * 1000 };
/* Of one whose launches differ, each measured one stands for fewer, and more are needed to know better than a profile. */
enum { VARIED = 8 };
/* One that tells more is waited for this many times as long. */
enum { CHECKED_LATE = 4, USUAL_TURN = 1 << 8 };
/* Of those measured beside a neighbour, by length: of the shorter and of the longer ones. */
enum { LOW = 1, HIGH = 4 };
enum { MANY_WAVES = 1000 * 1000 };

static int open_known(const char *directory)
{
    char path[PATH_ROOM];
    int length = snprintf(path, sizeof path, "%s/known", directory);
    if (length < 0 || (size_t)length >= sizeof path)
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
}

void ct_known_read(struct ct_known_file *file, const char *directory)
{
    struct stat found;
    uint64_t magic = 0;
    int descriptor = open_known(directory);
    file->count = 0;
    if (descriptor < 0)
        return;
    if (fstat(descriptor, &found) == 0 && S_ISREG(found.st_mode) &&
        read(descriptor, &magic, sizeof magic) == (ssize_t)sizeof magic && magic == MAGIC) {
        ssize_t bytes = read(descriptor, file->entries, sizeof file->entries);
        file->count = bytes > 0 ? (uint32_t)((size_t)bytes / sizeof file->entries[0]) : 0;
    }
    close(descriptor);
}

static uint64_t mix(uint64_t key, const void *bytes, size_t count)
{
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < count; i++)
        key = (key ^ byte[i]) * UINT64_C(0x100000001b3);
    return key;
}

/* FNV-1a of the device's name and of the kernel's, each with its zero, and of shape and work as in the record. */
static uint64_t key_of(const char *device, const struct ct_record_kernel *kernel)
{
    uint64_t key = mix(UINT64_C(0xcbf29ce484222325), device, strlen(device) + 1);
    key = mix(key, kernel->name, strlen(kernel->name) + 1);
    key = mix(key, kernel->grid, sizeof kernel->grid);
    key = mix(key, kernel->block, sizeof kernel->block);
    key = mix(key, &kernel->shared_bytes, sizeof kernel->shared_bytes);
    return mix(key, &kernel->work, sizeof kernel->work);
}

static void set(struct ct_known *known, uint64_t mean_ns, uint64_t p90_ns, uint64_t p99_ns)
{
    known->expect_ns = mean_ns ? mean_ns : 1; /* none means that nobody knows */
    /* One that varies wildly goes only where twice its longest runs would fit; many of a few microseconds are such. */
    const int is_wild = mean_ns < UINT64_MAX / WILD && p99_ns > WILD * mean_ns;
    const uint64_t hardly_ns = !is_wild ? p90_ns : p99_ns <= CT_GATE_DEPTH_NS ? p99_ns : 2 * p99_ns;
    known->sure_ns = hardly_ns > known->expect_ns ? hardly_ns : known->expect_ns;
    /* Nine in ten of those that are alike are near the mean, and none is far from it. */
    known->varies = is_wild || (p90_ns > mean_ns ? p90_ns - mean_ns > mean_ns / 4 : mean_ns - p90_ns > mean_ns / 10);
    known->may_fill = 1;
    known->is_known = 1;
}

void ct_known_find(const struct ct_known_file *file, const char *device, const struct ct_record_kernel *kernel,
                   struct ct_known *known)
{
    if (!file->count || known->is_known)
        return;
    uint64_t key = key_of(device, kernel);
    for (uint32_t i = 0; i < file->count; i++)
        if (file->entries[i].key == key) {
            set(known, file->entries[i].mean_ns, file->entries[i].p90_ns, file->entries[i].p99_ns);
            return;
        }
}

static uint64_t top_of(unsigned bucket)
{
    if (bucket < 2u << CT_RECORD_OCTAVE_BITS)
        return bucket;
    unsigned shift = (bucket >> CT_RECORD_OCTAVE_BITS) - 1;
    return (((uint64_t)bucket - (shift << CT_RECORD_OCTAVE_BITS) + 1) << shift) - 1;
}

void ct_known_learn(struct ct_known *known, const struct ct_histogram *device)
{
    uint64_t count = atomic_load_explicit(&device->count, memory_order_relaxed), seen = 0, p90_ns = 0, p99_ns = 0;
    const uint64_t highest_ns = atomic_load_explicit(&device->highest, memory_order_relaxed);
    const uint64_t enough = known->varies ? VARIED * ENOUGH : ENOUGH;
    if (!count || (known->is_known && count < enough && known->tries == 0) || (count > 2 * ENOUGH && count % ENOUGH))
        return;
    for (unsigned i = 0; i < CT_RECORD_BUCKETS && seen < count; i++) {
        seen += atomic_load_explicit(&device->buckets[i], memory_order_relaxed);
        if (!p90_ns && 10 * seen >= 9 * count)
            p90_ns = top_of(i);
        if (!p99_ns && 100 * seen >= 99 * count)
            p99_ns = top_of(i);
    }
    uint64_t mean_ns = atomic_load_explicit(&device->total, memory_order_relaxed) / count;
    set(known, mean_ns, p90_ns < highest_ns ? p90_ns : highest_ns, p99_ns < highest_ns ? p99_ns : highest_ns);
}

/* The hook names a graph by the number of its nodes. */
static uint32_t pieces_of(const struct ct_record_kernel *kernel)
{
    unsigned long count = 0;
    if (kernel->work == CT_WORK_GRAPH && sscanf(kernel->name, "graph of %lu", &count) == 1 && count < UINT16_MAX)
        return (uint32_t)count;
    return 1;
}

/* They spread over the SMs before they pile up, and the last wave may be a small one. */
uint32_t ct_known_free(uint64_t blocks, uint64_t blocks_per_sm, const struct ct_sms *device)
{
    const uint64_t whole = device->whole ? device->whole : device->seen, used = device->seen;
    if (!used || whole < used)
        return 0;
    if (!blocks || !blocks_per_sm)
        return (uint32_t)(PPM - used * PPM / whole);
    /* Of very many waves the last one is nothing. */
    const uint64_t slots = used * blocks_per_sm, waves = blocks / slots < MANY_WAVES ? blocks / slots : MANY_WAVES;
    const uint64_t rest = waves < MANY_WAVES ? blocks % slots : 0;
    const uint64_t last = rest < used ? rest : used;
    return (uint32_t)(PPM - (waves * used + last) * PPM / ((waves + (rest > 0)) * whole));
}

/* A graph counts as all that it may use, unless whoever made it known tells better. */
static uint32_t free_of(const struct ct_record_kernel *kernel, const struct ct_sms *device)
{
    if (kernel->work == CT_WORK_COPY || kernel->work == CT_WORK_MEMSET)
        return PPM;
    const uint64_t blocks = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
    return ct_known_free(kernel->work == CT_WORK_KERNEL ? blocks : 0, kernel->blocks_per_sm, device);
}

static uint64_t use_of(const struct ct_known *known, uint64_t bound_ns)
{
    const uint64_t length_ns = known->expect_ns ? known->expect_ns : bound_ns;
    return (length_ns < CT_GATE_FAR_NS ? length_ns : CT_GATE_FAR_NS) * (PPM - known->free_ppm) / PPM;
}

void ct_known_charge(struct ct_known *known, uint64_t bound_ns)
{
    known->charges += known->charges < UINT32_MAX;
    known->charged_ns += use_of(known, bound_ns);
}

int ct_known_must_check(const struct ct_known *known)
{
    const uint64_t turn = known->turn ? known->turn : USUAL_TURN, fewer = USUAL_TURN * (known->varies ? VARIED : 1);
    return known->free_ppm < PPM && (!known->is_known || known->charges + UINT64_C(1) >= CHECKED_FOR * turn / fewer ||
                                     known->charged_ns + use_of(known, 0) >= CHECKED_NS * turn / fewer);
}

void ct_known_checked(struct ct_known *known, uint64_t chance)
{
    known->charged_ns = known->charges = 0;
    known->turn = USUAL_TURN / 2 + (uint32_t)(chance % (USUAL_TURN + 1)); /* from half to half as many again */
}

int ct_known_can_wait(const struct ct_known *known)
{
    return known->is_known && known->charges < CHECKED_LATE * CHECKED_FOR && known->charged_ns < CHECKED_LATE * CHECKED_NS;
}

/* The so-manieth of the latest, counted from the shortest. */
static uint64_t ranked(const struct ct_known *known, int rank)
{
    uint64_t found_ns = 0;
    for (int i = 0; i < CT_KNOWN_BESIDE; i++) {
        int below = 0, same = 0;
        for (int j = 0; j < CT_KNOWN_BESIDE; j++) {
            below += known->beside_ns[j] < known->beside_ns[i];
            same += known->beside_ns[j] == known->beside_ns[i];
        }
        if (below <= rank && below + same > rank)
            found_ns = known->beside_ns[i];
    }
    return found_ns;
}

/* A slice only ever makes it longer: hardly any being as short as expected shows that it takes longer, and most being
 * shorter that it takes less. In between, what was expected is as good. */
uint64_t ct_known_beside(struct ct_known *known, uint64_t length_ns, int has_waited)
{
    known->beside_ns[known->besides++ % CT_KNOWN_BESIDE] =
        has_waited && length_ns > known->expect_ns ? known->expect_ns : length_ns;
    if (known->besides < CT_KNOWN_BESIDE)
        return 0;
    const uint64_t low_ns = ranked(known, known->varies ? 0 : LOW), high_ns = ranked(known, HIGH);
    uint64_t shown_ns = known->expect_ns < low_ns ? low_ns : known->expect_ns > high_ns ? high_ns : 0;
    if (known->varies) /* most may well be shorter than the mean, and several longer */
        shown_ns = low_ns > known->sure_ns ? low_ns : 0;
    return shown_ns <= CT_KNOWN_BESIDE_MOST_NS ? shown_ns : 0;
}

void ct_known_guess(struct ct_known *known, uint64_t length_ns)
{
    known->beside_ns[known->besides++ % CT_KNOWN_BESIDE] = length_ns;
    if (known->besides >= CT_KNOWN_BESIDE && ranked(known, LOW) <= CT_KNOWN_BESIDE_MOST_NS)
        set(known, ranked(known, LOW), ranked(known, HIGH), ranked(known, HIGH));
    known->varies = 0; /* the longer ones have slices in them */
}

void ct_known_spread(struct ct_known *known, const struct ct_record_kernel *kernel, const struct ct_sms *device)
{
    const uint32_t sms = device->yielding;
    known->pieces = pieces_of(kernel);
    known->grain_part = 0;
    known->free_ppm = free_of(kernel, device);
    if (sms && kernel->work == CT_WORK_GRAPH && known->pieces > 1)
        known->grain_part = (1u << 16) / known->pieces;
    if (!sms || kernel->work != CT_WORK_KERNEL || !kernel->blocks_per_sm)
        return;
    const uint64_t blocks = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
    const uint64_t slots = (uint64_t)sms * kernel->blocks_per_sm;
    const uint64_t waves = blocks ? (blocks + slots - 1) / slots : 1, filled = blocks < slots ? blocks : slots;
    const uint64_t part = (filled << 16) / slots / waves;
    known->grain_part = part ? (uint32_t)part : 1;
}
