/* Topology: all devices are on one NUMA node, connected through it, without NVLink. */
#define _GNU_SOURCE
#include "softgpu/nvml/internal.h"

#include <string.h>
#include <unistd.h>

enum { P2P_READ, P2P_WRITE, P2P_NVLINK, P2P_ATOMICS, P2P_PROP, P2P_INDEXES };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };

/* Check two devices; on success the lock is held. */
static nvmlReturn_t enter_pair(nvmlDevice_t one, nvmlDevice_t other)
{
    ENTER(one);
    nv_leave(NVML_SUCCESS);
    return nv_enter_device(other);
}

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level);
API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, unsigned *level)
{
    nvmlReturn_t result = enter_pair(one, other);
    if (result != NVML_SUCCESS)
        return result;
    NEED(level, NVML_ERROR_INVALID_ARGUMENT);
    *level = one == other ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_NODE;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *is_same);
API nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t one, nvmlDevice_t other, int *is_same)
{
    nvmlReturn_t result = enter_pair(one, other);
    if (result != NVML_SUCCESS)
        return result;
    NEED(is_same, NVML_ERROR_INVALID_ARGUMENT);
    *is_same = one == other;
    return nv_leave(NVML_SUCCESS);
}

/* As in cuDeviceGetP2PAttribute: only reads and writes are supported. */
API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned index, unsigned *status);
API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, unsigned index, unsigned *status)
{
    nvmlReturn_t result = enter_pair(one, other);
    if (result != NVML_SUCCESS)
        return result;
    NEED(status && one != other && index < P2P_INDEXES, NVML_ERROR_INVALID_ARGUMENT);
    *status = index == P2P_READ || index == P2P_WRITE ? P2P_OK : P2P_NOT_SUPPORTED;
    return nv_leave(NVML_SUCCESS);
}

/* List all devices except one. The lock is held and released. */
static nvmlReturn_t others(nvmlDevice_t excluded, int any, unsigned *count, nvmlDevice_t *devices)
{
    unsigned capacity = devices ? *count : 0, found = 0;
    for (unsigned i = 0; any && i < nv_device_count; i++) {
        if (&nv_devices[i] == excluded)
            continue;
        if (found < capacity)
            devices[found] = &nv_devices[i];
        found++;
    }
    *count = found;
    return nv_leave(devices && found > capacity ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count,
                                                  nvmlDevice_t *devices);
API nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned level, unsigned *count,
                                                  nvmlDevice_t *devices)
{
    ENTER(device);
    NEED(count && level <= NVML_TOPOLOGY_SYSTEM && level % 10 == 0, NVML_ERROR_INVALID_ARGUMENT);
    return others(device, level == NVML_TOPOLOGY_NODE, count, devices);
}

API nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned processor, unsigned *count, nvmlDevice_t *devices);
API nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned processor, unsigned *count, nvmlDevice_t *devices)
{
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(count && processor < (unsigned)sysconf(_SC_NPROCESSORS_CONF), NVML_ERROR_INVALID_ARGUMENT);
    return others(NULL, 1, count, devices);
}

/* All processors have the same distance. */
static nvmlReturn_t fill_affinity(nvmlDevice_t device, unsigned words, unsigned long *set, unsigned count)
{
    enum { WORD_BITS = 8 * sizeof *set };
    ENTER(device);
    NEED(set && words, NVML_ERROR_INVALID_ARGUMENT);
    NEED((count + WORD_BITS - 1) / WORD_BITS <= words, NVML_ERROR_INSUFFICIENT_SIZE);
    memset(set, 0, words * sizeof *set);
    for (unsigned i = 0; i < count; i++)
        set[i / WORD_BITS] |= 1ul << i % WORD_BITS;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *set);
API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *set)
{
    return fill_affinity(device, words, set, (unsigned)sysconf(_SC_NPROCESSORS_CONF));
}

API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *set,
                                                     unsigned scope);
API nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *set,
                                                     unsigned scope)
{
    return fill_affinity(device, words, scope <= 1 ? set : NULL, (unsigned)sysconf(_SC_NPROCESSORS_CONF));
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *set, unsigned scope);
API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *set, unsigned scope)
{
    return fill_affinity(device, words, scope <= 1 ? set : NULL, 1);
}

API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, int *is_active);
API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, int *is_active)
{
    ENTER(device);
    uint32_t architecture = device->board->architecture;
    unsigned links = architecture == CT_VOLTA ? 6 : architecture == CT_AMPERE ? 12 : architecture == CT_HOPPER ? 18 : 0;
    NEED(links, NVML_ERROR_NOT_SUPPORTED);
    NEED(is_active && link < links, NVML_ERROR_INVALID_ARGUMENT);
    *is_active = 0;
    return nv_leave(NVML_SUCCESS);
}
