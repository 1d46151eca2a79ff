// Functions that the CUDA compiler makes for host and device, and any other for the host.
#pragma once

#ifdef __CUDACC__
#define DFLASH_HOST_DEVICE __host__ __device__
#else
#define DFLASH_HOST_DEVICE
#endif
