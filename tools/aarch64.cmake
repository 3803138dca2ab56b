# Cross compilation for AArch64 on Debian: apt-get install gcc-aarch64-linux-gnu. `make wheel-aarch64` uses this file.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
# Python's headers have no machine code, and its stable ABI is the same on both processors.
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
