/* The table of kernel times: read from a profile, then learned from measurements. */
#define _GNU_SOURCE
#include "hook/timing/kernel_times.h"

#include "gate/slice.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t MAGIC = UINT64_C(0x31574f4e4b544f43); /* "COTKNOW1" in little-endian bytes */

/* A kernel whose longest runs exceed the mean by this factor varies strongly. */
enum { STRONG_VARIATION = 4, PATH_BYTES = 1024 };
/* Other shapes of a function that are compared with an unseen one. */
enum { ESTIMATE_MAX = 64 };
/* A measured launch represents at most this many launches of its kernel, and this much of their time. */
enum { LAUNCHES_PER_CHECK = 16, TIME_PER_CHECK_NS = 2 * 1000 * 1000, PPM = 1000 * 1000 };
/* And at least this much time, so that the two events of a measurement cost little compared with what they measure. */
enum { TIME_PER_CHECK_MIN_NS = 100 * 1000 };
/* For a kernel that varies, a measurement represents fewer launches. */
enum { VARYING_FACTOR = 8 };
/* A measurement may be postponed by this factor until a more informative launch. */
enum { POSTPONE_FACTOR = 4, USUAL_SPACING = 1 << 8 };
/* Ranks among the measurements next to active neighbours: a short one and a long one. */
enum { LOW_RANK = 1, HIGH_RANK = 4 };
enum { MANY_WAVES = 1000 * 1000 };

static int open_file(const char *directory)
{
    char path[PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/kernel-times", directory);
    if (length < 0 || (size_t)length >= sizeof path)
        return -1;
    return open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
}

void ct_kernel_time_file_read(struct ct_kernel_time_file *file, const char *directory)
{
    struct stat status;
    uint64_t magic = 0;
    int descriptor = open_file(directory);
    file->count = 0;
    if (descriptor < 0)
        return;
    if (fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
        read(descriptor, &magic, sizeof magic) == (ssize_t)sizeof magic && magic == MAGIC) {
        ssize_t bytes = read(descriptor, file->entries, sizeof file->entries);
        file->count = bytes > 0 ? (uint32_t)((size_t)bytes / sizeof file->entries[0]) : 0;
    }
    close(descriptor);
}

static uint64_t hash_bytes(uint64_t key, const void *bytes, size_t count)
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
    uint64_t key = hash_bytes(UINT64_C(0xcbf29ce484222325), device, strlen(device) + 1);
    key = hash_bytes(key, kernel->name, strlen(kernel->name) + 1);
    key = hash_bytes(key, kernel->grid, sizeof kernel->grid);
    key = hash_bytes(key, kernel->block, sizeof kernel->block);
    key = hash_bytes(key, &kernel->shared_bytes, sizeof kernel->shared_bytes);
    return hash_bytes(key, &kernel->work, sizeof kernel->work);
}

static void set_time(struct ct_kernel_time *kernel_time, uint64_t mean_ns, uint64_t p90_ns, uint64_t p99_ns)
{
    kernel_time->expect_ns = mean_ns ? mean_ns : 1; /* 0 means unknown */
    /* A kernel that varies strongly only goes into a gap of twice its longest runs, except if these are short. */
    const int varies_strongly = mean_ns < UINT64_MAX / STRONG_VARIATION && p99_ns > STRONG_VARIATION * mean_ns;
    const uint64_t rare_ns = !varies_strongly ? p90_ns : p99_ns <= CT_GATE_DEPTH_NS ? p99_ns : 2 * p99_ns;
    kernel_time->upper_ns = rare_ns > kernel_time->expect_ns ? rare_ns : kernel_time->expect_ns;
    /* If launches are alike, the 90th percentile is close to the mean. */
    kernel_time->varies = varies_strongly || (p90_ns > mean_ns ? p90_ns - mean_ns > mean_ns / 4
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
            ct_duration_from_profile(&kernel_time->duration, file->entries[i].mean_ns, file->entries[i].p90_ns,
                                     file->entries[i].p99_ns);
            set_time(kernel_time, file->entries[i].mean_ns, file->entries[i].p90_ns, file->entries[i].p99_ns);
            return;
        }
}

static void refresh(struct ct_kernel_time *kernel_time)
{
    const struct ct_duration *duration = &kernel_time->duration;
    const uint64_t expect_ns = ct_duration_expected(duration);
    kernel_time->is_doubtful = (uint32_t)ct_duration_is_doubtful(duration);
    if (duration->count) {
        set_time(kernel_time, expect_ns, duration->range.high_ns, duration->peak_ns);
        return;
    }
    kernel_time->expect_ns = kernel_time->upper_ns = expect_ns; /* only a bound, which is not exceeded */
    kernel_time->may_fill = 1;
}

void ct_kernel_time_learn(struct ct_kernel_time *kernel_time, uint64_t length_ns, uint64_t clock_ppm, int is_bound)
{
    if (is_bound)
        ct_duration_learn_bound(&kernel_time->duration, length_ns, clock_ppm);
    else
        ct_duration_learn(&kernel_time->duration, length_ns, clock_ppm);
    refresh(kernel_time);
}

void ct_kernel_time_learn_part(struct ct_kernel_time *kernel_time, uint64_t part_blocks, uint64_t length_ns,
                               uint64_t clock_ppm, int is_bound)
{
    struct ct_duration *parts = &kernel_time->parts;
    const uint64_t whole_ns = ct_slice_time(length_ns, part_blocks, kernel_time->blocks, kernel_time->slots);
    if (is_bound)
        ct_duration_learn_bound(parts, whole_ns, clock_ppm);
    else
        ct_duration_learn(parts, whole_ns, clock_ppm);
    if (kernel_time->is_known || kernel_time->duration.count + kernel_time->duration.bound_count)
        return;
    kernel_time->expect_ns = ct_duration_expected(parts);
    kernel_time->upper_ns = parts->count && parts->range.high_ns > kernel_time->expect_ns ? parts->range.high_ns
        : kernel_time->expect_ns;
    kernel_time->is_doubtful = (uint32_t)ct_duration_is_doubtful(parts);
    kernel_time->may_fill = kernel_time->expect_ns != 0;
}

/* Returns how many times one grid is larger than the other. */
static uint64_t grid_distance(uint64_t blocks, uint64_t other_blocks)
{
    const uint64_t low = blocks < other_blocks ? blocks : other_blocks,
        high = blocks < other_blocks ? other_blocks : blocks;
    return high / (low ? low : 1);
}

void ct_kernel_time_estimate(struct ct_kernel_time *kernel_time, const struct ct_kernel_time *all, uint32_t first)
{
    const struct ct_kernel_time *nearest = NULL;
    for (int i = 0; first && i < ESTIMATE_MAX; i++) {
        const struct ct_kernel_time *other = &all[first - 1];
        first = other->next_of_name;
        if (other->name_hash == kernel_time->name_hash && other->expect_ns && other->duration.count + other->is_known &&
            (!nearest || grid_distance(kernel_time->blocks, other->blocks) <
                             grid_distance(kernel_time->blocks, nearest->blocks)))
            nearest = other;
    }
    if (!nearest)
        return;
    kernel_time->expect_ns = ct_duration_for_grid(nearest->expect_ns, kernel_time->blocks, nearest->blocks,
                                                  kernel_time->slots);
    kernel_time->upper_ns = 2 * kernel_time->expect_ns;
    kernel_time->may_fill = kernel_time->is_doubtful = 1;
}

/* Returns the number of kernels in a launch. The hook's name of a graph contains the number of its nodes. */
static uint32_t kernel_count_of(const struct ct_record_kernel *kernel)
{
    unsigned long count = 0;
    if (kernel->work == CT_WORK_GRAPH && sscanf(kernel->name, "graph of %lu", &count) == 1 && count < UINT16_MAX)
        return (uint32_t)count;
    return 1;
}

/* Blocks are distributed over the SMs, and the last wave may be partial. */
uint32_t ct_kernel_free_ppm(uint64_t blocks, uint64_t blocks_per_sm, const struct ct_sms *device)
{
    const uint64_t total_sms = device->total ? device->total : device->usable, used_sms = device->usable;
    if (!used_sms || total_sms < used_sms)
        return 0;
    if (!blocks || !blocks_per_sm)
        return (uint32_t)(PPM - used_sms * PPM / total_sms);
    /* Among very many waves the last one does not matter. */
    const uint64_t slots = used_sms * blocks_per_sm, waves = blocks / slots < MANY_WAVES ? blocks / slots : MANY_WAVES;
    const uint64_t remainder = waves < MANY_WAVES ? blocks % slots : 0;
    const uint64_t last = remainder < used_sms ? remainder : used_sms;
    return (uint32_t)(PPM - (waves * used_sms + last) * PPM / ((waves + (remainder > 0)) * total_sms));
}

/* Returns the fraction of the device that stays free. A graph counts as the whole device; ct_function_set_free() can
 * replace that. */
static uint32_t free_part_of(const struct ct_record_kernel *kernel, const struct ct_sms *device)
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
        divisor = USUAL_SPACING * (kernel_time->varies ? VARYING_FACTOR : 1);
    const uint64_t charged_ns = kernel_time->charged_ns + use_of(kernel_time, 0);
    return kernel_time->free_ppm < PPM &&
           (!kernel_time->is_known ||
            (kernel_time->charges + UINT64_C(1) >= LAUNCHES_PER_CHECK * spacing / divisor &&
             charged_ns >= TIME_PER_CHECK_MIN_NS * spacing / divisor) ||
            charged_ns >= TIME_PER_CHECK_NS * spacing / divisor);
}

void ct_kernel_time_checked(struct ct_kernel_time *kernel_time, uint64_t random)
{
    kernel_time->charged_ns = kernel_time->charges = 0;
    /* between half of the usual spacing and one and a half times it */
    kernel_time->spacing = USUAL_SPACING / 2 + (uint32_t)(random % (USUAL_SPACING + 1));
}

int ct_kernel_time_can_wait(const struct ct_kernel_time *kernel_time)
{
    return kernel_time->is_known && kernel_time->charges < POSTPONE_FACTOR * LAUNCHES_PER_CHECK &&
        kernel_time->charged_ns < POSTPONE_FACTOR * TIME_PER_CHECK_NS;
}

/* Returns the recent measurement of this rank; rank 0 is the shortest. */
static uint64_t ranked_corun(const struct ct_kernel_time *kernel_time, int rank)
{
    uint64_t ranked_ns = 0;
    for (int i = 0; i < CT_KERNEL_TIME_CORUNS; i++) {
        int shorter = 0, same = 0;
        for (int j = 0; j < CT_KERNEL_TIME_CORUNS; j++) {
            shorter += kernel_time->corun_ns[j] < kernel_time->corun_ns[i];
            same += kernel_time->corun_ns[j] == kernel_time->corun_ns[i];
        }
        if (shorter <= rank && shorter + same > rank)
            ranked_ns = kernel_time->corun_ns[i];
    }
    return ranked_ns;
}

/* A time slice of a neighbour only makes a measurement longer: if hardly any is as short as expected, the kernel takes
 * longer, and if most are shorter, it takes less. Otherwise the expected time is kept. */
uint64_t ct_kernel_time_corun(struct ct_kernel_time *kernel_time, uint64_t length_ns, int has_waited)
{
    kernel_time->corun_ns[kernel_time->corun_count++ % CT_KERNEL_TIME_CORUNS] =
        has_waited && length_ns > kernel_time->expect_ns ? kernel_time->expect_ns : length_ns;
    if (kernel_time->corun_count < CT_KERNEL_TIME_CORUNS)
        return 0;
    const uint64_t low_ns = ranked_corun(kernel_time, kernel_time->varies ? 0 : LOW_RANK),
        high_ns = ranked_corun(kernel_time, HIGH_RANK);
    uint64_t corrected_ns = kernel_time->expect_ns < low_ns ? low_ns : kernel_time->expect_ns > high_ns ? high_ns : 0;
    if (kernel_time->varies) /* most may be shorter than the mean, and several longer */
        corrected_ns = low_ns > kernel_time->upper_ns ? low_ns : 0;
    return corrected_ns <= CT_KERNEL_TIME_CORUN_MAX_NS ? corrected_ns : 0;
}

void ct_kernel_time_learn_corun(struct ct_kernel_time *kernel_time, uint64_t length_ns)
{
    kernel_time->corun_ns[kernel_time->corun_count++ % CT_KERNEL_TIME_CORUNS] = length_ns;
    if (kernel_time->corun_count >= CT_KERNEL_TIME_CORUNS &&
        ranked_corun(kernel_time, LOW_RANK) <= CT_KERNEL_TIME_CORUN_MAX_NS)
        set_time(kernel_time, ranked_corun(kernel_time, LOW_RANK), ranked_corun(kernel_time, HIGH_RANK),
                 ranked_corun(kernel_time, HIGH_RANK));
    kernel_time->varies = 0; /* the longer measurements contain time slices of neighbours */
}

void ct_kernel_time_set_layout(struct ct_kernel_time *kernel_time, const struct ct_record_kernel *kernel,
                               const struct ct_sms *device)
{
    const uint32_t sms = device->yielding;
    kernel_time->blocks = (uint64_t)kernel->grid[0] * kernel->grid[1] * kernel->grid[2];
    kernel_time->slots = (uint64_t)device->usable * kernel->blocks_per_sm;
    kernel_time->kernel_count = kernel_count_of(kernel);
    kernel_time->granularity_part = 0;
    kernel_time->free_ppm = free_part_of(kernel, device);
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
