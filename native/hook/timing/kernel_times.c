/* The table of kernel times: read from a profile, then learned from measurements. */
#define _GNU_SOURCE
#include "hook/timing/kernel_times.h"

#include "gate/gate.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t MAGIC = UINT64_C(0x31574f4e4b544f43); /* "COTKNOW1" in little-endian bytes */

/* Number of samples that replace a profile; a kernel whose longest runs exceed the mean by this factor varies
 * strongly. */
enum { ENOUGH = 8, WILD = 4, PATH_BYTES = 1024 };
/* A measured launch represents at most this many launches of its kernel, and this much of their time. */
enum { CHECKED_FOR = 16, CHECKED_NS = 2 * 1000 * 1000, PPM = 1000 * 1000 };
/* For a kernel that varies, a measurement represents fewer launches, and more are needed to replace a profile. */
enum { VARIED = 8 };
/* A launch that is more informative is waited for by this factor longer. */
enum { CHECKED_LATE_FACTOR = 4, USUAL_SPACING = 1 << 8 };
/* Ranks among the measurements next to active neighbours: of the shorter and of the longer ones. */
enum { LOW = 1, HIGH = 4 };
enum { MANY_WAVES = 1000 * 1000 };

static int open_file(const char *directory)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/known", directory);
    if (length < 0 || (size_t)length >= sizeof path)
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
}

void ct_kernel_time_file_read(struct ct_kernel_time_file *file, const char *directory)
{
    struct stat found;
    uint64_t magic = 0;
    int descriptor = open_file(directory);
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

/* FNV-1a hash of the names of the device and the kernel, each with its terminating zero, and of shape and kind as in
 * the record. */
static uint64_t key_of(const char *device, const struct ct_record_kernel *kernel)
{
    uint64_t key = mix(UINT64_C(0xcbf29ce484222325), device, strlen(device) + 1);
    key = mix(key, kernel->name, strlen(kernel->name) + 1);
    key = mix(key, kernel->grid, sizeof kernel->grid);
    key = mix(key, kernel->block, sizeof kernel->block);
    key = mix(key, &kernel->shared_bytes, sizeof kernel->shared_bytes);
    return mix(key, &kernel->work, sizeof kernel->work);
}

static void set(struct ct_kernel_time *kernel_time, uint64_t mean_ns, uint64_t p90_ns, uint64_t p99_ns)
{
    kernel_time->expect_ns = mean_ns ? mean_ns : 1; /* 0 means unknown */
    /* A kernel that varies strongly only goes into a gap of twice its longest runs, except if these are short. */
    const int is_wild = mean_ns < UINT64_MAX / WILD && p99_ns > WILD * mean_ns;
    const uint64_t hardly_ns = !is_wild ? p90_ns : p99_ns <= CT_GATE_DEPTH_NS ? p99_ns : 2 * p99_ns;
    kernel_time->upper_ns = hardly_ns > kernel_time->expect_ns ? hardly_ns : kernel_time->expect_ns;
    /* If launches are alike, the 90th percentile is close to the mean. */
    kernel_time->varies = is_wild || (p90_ns > mean_ns ? p90_ns - mean_ns > mean_ns / 4
                                      : mean_ns - p90_ns > mean_ns / 10);
    kernel_time->may_fill = 1;
    kernel_time->is_known = 1;
}

void ct_kernel_time_find(const struct ct_kernel_time_file *file, const char *device,
                         const struct ct_record_kernel *kernel,
                   struct ct_kernel_time *kernel_time)
{
    if (!file->count || kernel_time->is_known)
        return;
    uint64_t key = key_of(device, kernel);
    for (uint32_t i = 0; i < file->count; i++)
        if (file->entries[i].key == key) {
            set(kernel_time, file->entries[i].mean_ns, file->entries[i].p90_ns, file->entries[i].p99_ns);
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

void ct_kernel_time_learn(struct ct_kernel_time *kernel_time, const struct ct_histogram *device)
{
    uint64_t count = load_relaxed(&device->count), seen = 0, p90_ns = 0, p99_ns = 0;
    const uint64_t highest_ns = load_relaxed(&device->highest);
    const uint64_t enough = kernel_time->varies ? VARIED * ENOUGH : ENOUGH;
    if (!count || (kernel_time->is_known && count < enough && kernel_time->tries == 0) ||
        (count > 2 * ENOUGH && count % ENOUGH))
        return;
    for (unsigned i = 0; i < CT_RECORD_BUCKETS && seen < count; i++) {
        seen += load_relaxed(&device->buckets[i]);
        if (!p90_ns && 10 * seen >= 9 * count)
            p90_ns = top_of(i);
        if (!p99_ns && 100 * seen >= 99 * count)
            p99_ns = top_of(i);
    }
    uint64_t mean_ns = load_relaxed(&device->total) / count;
    set(kernel_time, mean_ns, p90_ns < highest_ns ? p90_ns : highest_ns, p99_ns < highest_ns ? p99_ns : highest_ns);
}

/* The hook's name of a graph contains the number of its nodes. */
static uint32_t kernels_of(const struct ct_record_kernel *kernel)
{
    unsigned long count = 0;
    if (kernel->work == CT_WORK_GRAPH && sscanf(kernel->name, "graph of %lu", &count) == 1 && count < UINT16_MAX)
        return (uint32_t)count;
    return 1;
}

/* Blocks are distributed over the SMs, and the last wave may be partial. */
uint32_t ct_kernel_free_ppm(uint64_t blocks, uint64_t blocks_per_sm, const struct ct_sms *device)
{
    const uint64_t whole = device->whole ? device->whole : device->seen, used = device->seen;
    if (!used || whole < used)
        return 0;
    if (!blocks || !blocks_per_sm)
        return (uint32_t)(PPM - used * PPM / whole);
    /* Among very many waves the last one does not matter. */
    const uint64_t slots = used * blocks_per_sm, waves = blocks / slots < MANY_WAVES ? blocks / slots : MANY_WAVES;
    const uint64_t remainder = waves < MANY_WAVES ? blocks % slots : 0;
    const uint64_t last = remainder < used ? remainder : used;
    return (uint32_t)(PPM - (waves * used + last) * PPM / ((waves + (remainder > 0)) * whole));
}

/* A graph counts as the whole device, unless the caller knows better. */
static uint32_t free_of(const struct ct_record_kernel *kernel, const struct ct_sms *device)
{
    if (kernel->work == CT_WORK_COPY || kernel->work == CT_WORK_MEMSET)
        return PPM;
    const uint64_t blocks = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
    return ct_kernel_free_ppm(kernel->work == CT_WORK_KERNEL ? blocks : 0, kernel->blocks_per_sm, device);
}

static uint64_t use_of(const struct ct_kernel_time *kernel_time, uint64_t bound_ns)
{
    const uint64_t length_ns = kernel_time->expect_ns ? kernel_time->expect_ns : bound_ns;
    return (length_ns < CT_GATE_HORIZON_NS ? length_ns : CT_GATE_HORIZON_NS) * (PPM - kernel_time->free_ppm) / PPM;
}

void ct_kernel_time_charge(struct ct_kernel_time *kernel_time, uint64_t bound_ns)
{
    kernel_time->charges += kernel_time->charges < UINT32_MAX;
    kernel_time->charged_ns += use_of(kernel_time, bound_ns);
}

int ct_kernel_time_must_check(const struct ct_kernel_time *kernel_time)
{
    const uint64_t spacing = kernel_time->spacing ? kernel_time->spacing : USUAL_SPACING,
        fewer = USUAL_SPACING * (kernel_time->varies ? VARIED : 1);
    return kernel_time->free_ppm < PPM && (!kernel_time->is_known ||
                                           kernel_time->charges + UINT64_C(1) >= CHECKED_FOR * spacing / fewer ||
                                     kernel_time->charged_ns + use_of(kernel_time, 0) >= CHECKED_NS * spacing / fewer);
}

void ct_kernel_time_checked(struct ct_kernel_time *kernel_time, uint64_t random)
{
    kernel_time->charged_ns = kernel_time->charges = 0;
    kernel_time->spacing = USUAL_SPACING / 2 + (uint32_t)(random % (USUAL_SPACING + 1)); /* between half of the usual spacing and one and a half times it */
}

int ct_kernel_time_can_wait(const struct ct_kernel_time *kernel_time)
{
    return kernel_time->is_known && kernel_time->charges < CHECKED_LATE_FACTOR * CHECKED_FOR &&
        kernel_time->charged_ns < CHECKED_LATE_FACTOR * CHECKED_NS;
}

/* Returns the recent measurement of this rank; rank 0 is the shortest. */
static uint64_t ranked(const struct ct_kernel_time *kernel_time, int rank)
{
    uint64_t found_ns = 0;
    for (int i = 0; i < CT_KERNEL_TIME_CORUNS; i++) {
        int shorter = 0, same = 0;
        for (int j = 0; j < CT_KERNEL_TIME_CORUNS; j++) {
            shorter += kernel_time->corun_ns[j] < kernel_time->corun_ns[i];
            same += kernel_time->corun_ns[j] == kernel_time->corun_ns[i];
        }
        if (shorter <= rank && shorter + same > rank)
            found_ns = kernel_time->corun_ns[i];
    }
    return found_ns;
}

/* A time slice of a neighbour only makes a measurement longer: if hardly any is as short as expected, the kernel takes
 * longer, and if most are shorter, it takes less. Otherwise the expected time is kept. */
uint64_t ct_kernel_time_corun(struct ct_kernel_time *kernel_time, uint64_t length_ns, int has_waited)
{
    kernel_time->corun_ns[kernel_time->corun_count++ % CT_KERNEL_TIME_CORUNS] =
        has_waited && length_ns > kernel_time->expect_ns ? kernel_time->expect_ns : length_ns;
    if (kernel_time->corun_count < CT_KERNEL_TIME_CORUNS)
        return 0;
    const uint64_t low_ns = ranked(kernel_time, kernel_time->varies ? 0 : LOW), high_ns = ranked(kernel_time, HIGH);
    uint64_t shown_ns = kernel_time->expect_ns < low_ns ? low_ns : kernel_time->expect_ns > high_ns ? high_ns : 0;
    if (kernel_time->varies) /* most may be shorter than the mean, and several longer */
        shown_ns = low_ns > kernel_time->upper_ns ? low_ns : 0;
    return shown_ns <= CT_KERNEL_TIME_CORUN_MAX_NS ? shown_ns : 0;
}

void ct_kernel_time_learn_corun(struct ct_kernel_time *kernel_time, uint64_t length_ns)
{
    kernel_time->corun_ns[kernel_time->corun_count++ % CT_KERNEL_TIME_CORUNS] = length_ns;
    if (kernel_time->corun_count >= CT_KERNEL_TIME_CORUNS && ranked(kernel_time, LOW) <= CT_KERNEL_TIME_CORUN_MAX_NS)
        set(kernel_time, ranked(kernel_time, LOW), ranked(kernel_time, HIGH), ranked(kernel_time, HIGH));
    kernel_time->varies = 0; /* the longer measurements contain time slices of neighbours */
}

void ct_kernel_time_set_layout(struct ct_kernel_time *kernel_time, const struct ct_record_kernel *kernel,
                               const struct ct_sms *device)
{
    const uint32_t sms = device->yielding;
    kernel_time->kernel_count = kernels_of(kernel);
    kernel_time->granularity_part = 0;
    kernel_time->free_ppm = free_of(kernel, device);
    if (sms && kernel->work == CT_WORK_GRAPH && kernel_time->kernel_count > 1)
        kernel_time->granularity_part = (1u << 16) / kernel_time->kernel_count;
    if (!sms || kernel->work != CT_WORK_KERNEL || !kernel->blocks_per_sm)
        return;
    const uint64_t blocks = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
    const uint64_t slots = (uint64_t)sms * kernel->blocks_per_sm;
    const uint64_t waves = blocks ? (blocks + slots - 1) / slots : 1, filled = blocks < slots ? blocks : slots;
    const uint64_t part = (filled << 16) / slots / waves;
    kernel_time->granularity_part = part ? (uint32_t)part : 1;
}
