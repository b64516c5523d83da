/* The simulated driver's own functions, in addition to the cu* functions of the CUDA driver API.
 *
 * All are safe to call from any thread, before or after cuInit. Functions that return int return 0 on
 * success and 1 on failure, with the reason in cudasimError(). Functions that fill a buffer return the length
 * of the whole text (without the final zero), as snprintf does, and write at most `size` bytes. arena.sim is
 * their Python interface. */
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDASIM_API __attribute__((visibility("default")))

/* Settings by name, as text; each is also read from the environment variable CUDASIM_<NAME> when the library is loaded.
 *
 *   name           default  meaning
 *   card                    path of the profile of a card (docs/cards.md), which describes the devices. Also sets memory and
 *                           integrated, which can be changed afterwards
 *   devices        1        number of devices
 *   memory         8GiB     bytes per device, or a list that also sets their number: "8GiB", "8GiB,24GiB"
 *   granularity    2MiB     the unit of cuMemCreate and cuMemMap
 *   vmm            1        0 for devices without virtual memory management
 *   version        13000    what cuDriverGetVersion returns
 *   peers          all      which devices can access each other: all, none, or pairs: "0-1,2-3"
 *   integrated     0        1 for devices that share the host's memory
 *   rdma           1        GPUDirect RDMA on virtual memory: 0 for no, broken if the device claims it but cuMemSetAccess fails
 *   delay          0        microseconds that each stream operation takes
 *   seed           0        not 0: an operation takes a random time up to the delay, the same in every run
 *   other          0        bytes held by another process on each device
 *   page_cache     0        bytes that cuMemGetInfo does not count as free on an integrated device, but that can be allocated
 *   address_space  0        bytes of addresses that can be reserved at a time; 0 for no limit
 *   exclusive      none     devices that another process uses exclusively: "0,2"
 *   sync_unmap     0        1 if cuMemUnmap and cuMemSetAccess wait for the queued work of their device
 *   reuse          1        whether a new stream, event, graph or pool gets the handle of the last one destroyed
 *   dead           report   when a dead handle is used: report a finding, also print it, or print it and abort
 *   prices         a100     price table of the virtual clock: a100, small, free, or the path of a file (docs/prices.md)
 *   races          0        the race checker: 1 turns it on, print also writes each report to standard error
 *   fail           none     planned failures, FUNCTION:NTH:ERROR or FUNCTION:NTH:ERROR:TIMES with commas; reading it returns
 *                           those still to come
 *
 * The first nine describe the machine: they can be set until cuInit, and again after cudasimReset. */
CUDASIM_API int cudasimSet(const char* setting, const char* value);
CUDASIM_API size_t cudasimGet(const char* setting, char* text, size_t size);

/* Why the last cudasim function of this thread failed, or why cuInit failed; "" if neither did. */
CUDASIM_API const char* cudasimError(void);

/* Ends all work, frees all memory, clears all counts, findings and planned failures, and returns to the state before
 * cuInit. Existing pointers, streams and contexts become invalid. Settings are kept. */
CUDASIM_API int cudasimReset(void);

/* From now on, functions passed to cuLaunchHostFunc or cuStreamAddCallback are not called: for an interpreter that ends
 * before the process does. Waits up to a second for those that are running. */
CUDASIM_API void cudasimStopHostFunctions(void);

/* Adds a device to the running machine and returns its number, or -1. `memory` has the format of the setting. */
CUDASIM_API int cudasimAddDevice(const char* memory);

/* Makes `times` calls of `function`, beginning with the `nth` from now (1 is the next), fail with `error`, a name or
 * a number. Such a call does nothing else. Names are those of the API, without _v2. */
CUDASIM_API int cudasimFail(const char* function, unsigned long long nth, unsigned long long times, const char* error);

/* How often `function` was called; for NULL, all functions together. cudasimCallTable returns "name count\n" lines. */
CUDASIM_API unsigned long long cudasimCalls(const char* function);
CUDASIM_API size_t cudasimCallTable(char* text, size_t size);
CUDASIM_API void cudasimResetCounts(void); /* call counts and the clock */

/* The virtual clock: what the calls so far would have cost, in microseconds, by the price table. */
CUDASIM_API double cudasimClock(void);

/* What one call of `function` on `bytes` of memory adds to the clock, in microseconds (0 for calls without a size).
 * cudasimPrices returns the whole table as a JSON object with the members name, facts and calls; calls has a list of
 * [bytes, microseconds] for each function that has a price. */
CUDASIM_API double cudasimPrice(const char* function, unsigned long long bytes);
CUDASIM_API size_t cudasimPrices(char* text, size_t size);

/* How often cuMemUnmap and cuMemSetAccess waited for queued work (setting sync_unmap), and how long in total, in
 * microseconds of real time. cudasimResetCounts resets both. */
CUDASIM_API unsigned long long cudasimStalls(void);
CUDASIM_API double cudasimStalled(void);

/* The driver's own count of physical bytes used on `device`, and its peak. */
CUDASIM_API unsigned long long cudasimUsed(int device);
CUDASIM_API unsigned long long cudasimPeak(int device);
/* What exists now, as "name count\n" lines: devices (0 before cuInit), handles, mappings, reservations, allocations,
 * streams, events, contexts, modules, libraries. */
CUDASIM_API size_t cudasimCensus(char* text, size_t size);

/* Findings: what the program did that is undefined on hardware, one JSON object per line with the members kind, call,
 * number and thread (of the call), handle, text, destroyed_by, destroyed_number, destroyed_thread, and race. Kinds are
 * "dead stream" (event, graph, graph exec, graph node, context, pool, module, function, library, kernel, user object),
 * "unknown handle", "graph memory gone", "module gone", and those of the race checker, "race" and "removed". Keeps the
 * first 1,000 races and the first 1,000 others; the count includes all. */
CUDASIM_API unsigned long long cudasimFindingCount(void);
CUDASIM_API size_t cudasimFindings(char* text, size_t size);
CUDASIM_API void cudasimClearFindings(void);

/* The race checker's reports, one JSON object per line. Keeps the first 1,000; the count includes all. */
CUDASIM_API unsigned long long cudasimRaceCount(void);
CUDASIM_API size_t cudasimRaces(char* text, size_t size);
CUDASIM_API void cudasimClearRaces(void);

#ifdef __cplusplus
}
#endif
