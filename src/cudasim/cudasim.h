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
 *   values         0        1 if the driver tracks which bytes of device memory are known (cudasimValues*, below)
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

/* Known and unknown memory. No kernel runs here, so memory that one should have written holds leftovers. With the setting
 * `values`, every byte of device memory has a mark. Memory of the host is known.
 *
 *   UNKNOWN  it was not computed: fresh memory, and what a kernel may have written. Copies to the host deliver zeros
 *   KNOWN    it holds what a GPU would have put there
 *   ZERO     it was not computed either, but its bytes are to be read as they are: zeros, or what was computed from
 *            unknown bytes
 *
 * Marks change when work is queued, in the order of the program's calls, and not while it is captured. Copies from the
 * host and fills make memory known, copies on the device move marks, and a launch makes unknown every allocation that an
 * aligned word of its parameters points into. Work of a graph does this at each launch of the graph.
 * Marks belong to physical memory: they follow a handle to where it is mapped next. cudasimReset clears them.
 * Where the host or another process may write unseen (managed memory, and memory that was exported or imported), unknown
 * bytes are never replaced: they are ZERO. Managed memory is known until a kernel gets it.
 *
 * These functions do nothing while values are not tracked, and everything is known then. They accept any address and
 * size, and ignore what is not device memory. They are not calls of the program: nothing is counted, priced or checked
 * for races. */
#define CUDASIM_UNKNOWN 0
#define CUDASIM_KNOWN 1
#define CUDASIM_ZERO 2

/* The same as the setting. What was written before it was turned on is unknown. */
CUDASIM_API void cudasimValuesEnable(int on);
CUDASIM_API int cudasimValuesEnabled(void);

CUDASIM_API void cudasimValuesMark(unsigned long long address, unsigned long long size, int state);
/* 1 if all bytes are known, 0 if none is, 2 if some are. */
CUDASIM_API int cudasimValuesQuery(unsigned long long address, unsigned long long size);
/* One byte for each: 1 for known, 0 for unknown. Writing makes bytes KNOWN (not 0) or ZERO (0). */
CUDASIM_API void cudasimValuesRead(unsigned long long address, unsigned long long size, unsigned char* known);
CUDASIM_API void cudasimValuesWrite(unsigned long long address, unsigned long long size, const unsigned char* known);
/* Writes zeros where memory is UNKNOWN, and makes that ZERO: for a caller that will read the memory directly. Queued
 * work that writes it must be done (cudasimValuesDrain). */
CUDASIM_API void cudasimValuesSettle(unsigned long long address, unsigned long long size);

/* Waits for everything that was queued in a stream so far; for the legacy stream also for the streams that it waits for.
 * Default streams are those of the current context; null is the legacy one. Returns 0 when that is done, 1 without
 * waiting if the stream is being captured, and 2 if there is no such stream or context, or in a host function. */
CUDASIM_API int cudasimValuesDrain(void* stream);

/* Between these, which nest, launches of kernels by the calling thread change no marks but those of their modules'
 * variables: the caller marks what they would have written. Launches of graphs do. */
CUDASIM_API void cudasimValuesEnter(void);
CUDASIM_API void cudasimValuesLeave(void);

/* Queues a copy of these bytes for the calling thread. Its next copy to the host that has this size and reads bytes that
 * are not known delivers them, and is not reported. Copies of graphs are not meant. cudasimValuesForget empties the
 * queue. */
CUDASIM_API void cudasimValuesExpect(const void* bytes, unsigned long long size);
CUDASIM_API void cudasimValuesForget(void);

/* Called after a copy to the host that read bytes that are not known: where it began, its size, and how many. Called by
 * the thread that made the copy or launched its graph, at the end of that call, without a lock. Null for none. */
typedef void (*cudasimUnknownRead)(unsigned long long address, unsigned long long size, unsigned long long unknown);
CUDASIM_API void cudasimValuesOnRead(cudasimUnknownRead callback);

#ifdef __cplusplus
}
#endif
