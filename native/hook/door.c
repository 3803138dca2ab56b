/* What a program finds as libcuda.so.1 (or NVML) in the shim directory: no code, only an order. First the hook, then the driver.
 *
 * Whoever looks a name up in this library looks in what it depends on, in this order: a hooked name is the hook's, any
 * other the driver's own, those we have never heard of too. */
extern const char ct_door[];
const char ct_door[] = "cotenant's door";
