/* The library that a program finds as libcuda.so.1 (or as NVML) in the shim directory. It has no code, only two
 * dependencies: first the hook, then the driver.
 *
 * A symbol lookup in this library searches its dependencies in that order, so hooked names resolve to the hook, and all
 * other names to the driver. */
extern const char ct_shim[];
const char ct_shim[] = "cotenant's shim";
