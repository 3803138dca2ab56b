/* Identity of a device: name, numbers, PCI address and hardware properties. */
#define _GNU_SOURCE
#include "softgpu/nvml/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { BASE_CLASS_DISPLAY = 3, SUB_CLASS_3D = 2, PCI_NAME_BYTES = 32 };

ANSWER_TEXT(nvmlDeviceGetName, device->config.name)
ANSWER_TEXT(nvmlDeviceGetVbiosVersion, device->board->vbios)
ANSWER_TEXT(nvmlDeviceGetBoardPartNumber, device->board->part_number)

ANSWER(nvmlDeviceGetIndex, unsigned, device - nv_devices)
ANSWER(nvmlDeviceGetMinorNumber, unsigned, device->index)
ANSWER(nvmlDeviceGetBrand, int, device->board->architecture == CT_VOLTA ? NVML_BRAND_TESLA : NVML_BRAND_NVIDIA)
ANSWER(nvmlDeviceGetArchitecture, unsigned, device->board->architecture)
ANSWER(nvmlDeviceGetBoardId, unsigned, (SG_PCI_BUS_FIRST + device->index) << 8)
ANSWER(nvmlDeviceGetMultiGpuBoard, unsigned, 0)
ANSWER(nvmlDeviceGetNumGpuCores, unsigned, device->board->cores_per_sm *device->config.sm_count)
ANSWER(nvmlDeviceGetMemoryBusWidth, unsigned, device->config.memory_bus_bits)
ANSWER(nvmlDeviceGetBusType, unsigned, 2) /* PCI Express */
ANSWER(nvmlDeviceGetPowerSource, unsigned, 0)
ANSWER(nvmlDeviceGetIrqNum, unsigned, 100 + device->index)

/* The PCIe link always runs at its maximum width and speed. */
ANSWER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, device->board->pcie_generation)
ANSWER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, device->board->pcie_generation)
ANSWER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, device->board->pcie_generation)
ANSWER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, device->board->pcie_width)
ANSWER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, device->board->pcie_width)
ANSWER(nvmlDeviceGetPcieReplayCounter, unsigned, 0)
/* Megatransfers per second per PCIe link lane: 8,000 in generation 3, doubling with each generation. */
ANSWER(nvmlDeviceGetPcieSpeed, unsigned, 1000u << device->board->pcie_generation)
/* The value is an enumeration; 1 is generation 1. */
ANSWER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned, device->board->pcie_generation)

/* Thirteen digits, as on NVIDIA boards, derived from the UUID. */
static void serial_of(nvmlDevice_t device, char text[16])
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number = number << 8 | device->uuid[i];
    snprintf(text, 16, "%013" PRIu64, number % UINT64_C(10000000000000));
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length);
API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    char text[16];
    ENTER(device);
    serial_of(device, text);
    return nv_leave(nv_text(serial, length, text));
}

API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device);
API nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    char text[16];
    nvmlReturn_t result = nv_enter();
    if (result != NVML_SUCCESS)
        return result;
    NEED(serial && device, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned i = 0; i < nv_device_count; i++) {
        serial_of(&nv_devices[i], text);
        if (strcmp(text, serial) == 0) {
            *device = &nv_devices[i];
            return nv_leave(NVML_SUCCESS);
        }
    }
    return nv_leave(NVML_ERROR_NOT_FOUND);
}

nvmlReturn_t nv_uuid_text(nvmlDevice_t device, char *buffer, unsigned length)
{
    const uint8_t *u = device->uuid;
    char text[48];
    snprintf(text, sizeof text, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
             u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return nv_text(buffer, length, text);
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length);
API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    ENTER(device);
    return nv_leave(nv_uuid_text(device, uuid, length));
}

static void bus_name(nvmlDevice_t device, char *text, size_t bytes, int domain_digits)
{
    snprintf(text, bytes, "%0*X:%02X:00.0", domain_digits, 0u, (SG_PCI_BUS_FIRST + device->index) & 0xff);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci);
API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    ENTER(device);
    NEED(pci, NVML_ERROR_INVALID_ARGUMENT);
    *pci = (nvmlPciInfo_t){.bus = SG_PCI_BUS_FIRST + device->index, .pciDeviceId = device->board->pci_device_id,
                           .pciSubSystemId = device->board->pci_subsystem_id};
    bus_name(device, pci->busIdLegacy, sizeof pci->busIdLegacy, 4);
    bus_name(device, pci->busId, sizeof pci->busId, 8);
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci);
API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    ENTER(device);
    NEED(pci, NVML_ERROR_INVALID_ARGUMENT);
    *pci = (nvmlPciInfo_v2_t){.bus = SG_PCI_BUS_FIRST + device->index, .pciDeviceId = device->board->pci_device_id,
                              .pciSubSystemId = device->board->pci_subsystem_id};
    bus_name(device, pci->busId, sizeof pci->busId, 4);
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *pci) ALIAS(nvmlDeviceGetPciInfo_v2);

API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci);
API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *pci)
{
    ENTER(device);
    NEED(pci, NVML_ERROR_INVALID_ARGUMENT);
    NEED(pci->version == NVML_VERSION(nvmlPciInfoExt_v1_t, 1), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    pci->domain = pci->device = 0;
    pci->bus = SG_PCI_BUS_FIRST + device->index;
    pci->pciDeviceId = device->board->pci_device_id;
    pci->pciSubSystemId = device->board->pci_subsystem_id;
    pci->baseClass = BASE_CLASS_DISPLAY;
    pci->subClass = SUB_CLASS_3D;
    bus_name(device, pci->busId, sizeof pci->busId, 8);
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor);
API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER(device);
    NEED(major && minor, NVML_ERROR_INVALID_ARGUMENT);
    *major = (int)device->config.compute_major;
    *minor = (int)device->config.compute_minor;
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes);
API nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    ENTER(device);
    NEED(attributes, NVML_ERROR_INVALID_ARGUMENT);
    NEED(device->board->architecture >= CT_AMPERE, NVML_ERROR_NOT_SUPPORTED); /* the attributes describe MIG devices */
    *attributes = (nvmlDeviceAttributes_t){.multiprocessorCount = device->config.sm_count,
                                           .sharedCopyEngineCount = device->config.copy_engines,
                                           .memorySizeMB = device->config.memory_bytes >> 20};
    return nv_leave(NVML_SUCCESS);
}

API nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
    ALIAS(nvmlDeviceGetAttributes_v2);
