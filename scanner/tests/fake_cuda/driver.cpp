// A CUDA driver without a card, for tests: memory is the host's, and kernels run on the processor from the same source as the
// device's. Has the functions that Peregrine calls, and no others.
//
// The folder that FAKE_CUDA_FOLDER names holds three files. `fail`: after how many calls from the driver's start on every
// call fails, until the context is released; no file, never. `calls` is written: how many there were. `leaks` is written: a line for each memory that held something
// of a key and was given back with anything but zeros in it.
#include "../../../kernels/cuda/scan.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

constexpr int SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, LAUNCH_FAILED = 719;

std::recursive_mutex mutex;
std::map<u64, size_t> memory;
std::set<u64> secrets;
long calls_left = -1, calls = 0;

std::string file(const char *name) {
    const char *folder = std::getenv("FAKE_CUDA_FOLDER");
    return std::string(folder ? folder : ".") + "/" + name;
}

// One more call; false if it fails.
bool goes_well() {
    calls++;
    if (calls_left > 0) calls_left--;
    return calls_left != 0;
}

bool is_ours(u64 at, size_t bytes) {
    auto next = memory.upper_bound(at);
    if (next == memory.begin()) return false;
    auto [from, size] = *--next;
    return at + bytes <= from + size;
}

void give_back(u64 at) {
    const unsigned char *bytes = (const unsigned char *)at;
    bool dirty = false;
    for (size_t i = 0; i < memory[at]; i++) dirty = dirty || bytes[i] != 0;
    if (secrets.count(at) && dirty) {
        if (std::FILE *leaks = std::fopen(file("leaks").c_str(), "a")) {
            std::fprintf(leaks, "%zu bytes\n", memory[at]);
            std::fclose(leaks);
        }
    }
    secrets.erase(at);
    memory.erase(at);
    std::free((void *)at);
}

}  // namespace

#define LOCKED std::lock_guard<std::recursive_mutex> lock(mutex)
#define CALL \
    LOCKED;  \
    if (!goes_well()) return LAUNCH_FAILED

extern "C" {

int cuInit(unsigned) {
    LOCKED;
    if (memory.empty()) {
        calls_left = -1, calls = 0;
        if (std::FILE *fail = std::fopen(file("fail").c_str(), "r")) {
            if (std::fscanf(fail, "%ld", &calls_left) != 1) calls_left = -1;
            std::fclose(fail);
        }
    }
    return SUCCESS;
}

int cuGetErrorName(int error, const char **text) { return *text = error == LAUNCH_FAILED ? "FAILED" : "WRONG", SUCCESS; }
int cuGetErrorString(int, const char **text) { return *text = "as the test wants it", SUCCESS; }
int cuDeviceGetCount(int *count) { return *count = 1, SUCCESS; }
int cuDeviceGet(int *device, int number) { return *device = number, number == 0 ? SUCCESS : INVALID; }
int cuDeviceGetName(char *name, int length, int) { return std::snprintf(name, length, "no card"), SUCCESS; }
int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = (size_t)1 << 30, SUCCESS; }
int cuDeviceGetAttribute(int *value, int what, int) {
    *value = what == 75 ? 9 : what == 16 ? 2 : 0;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int) { return *context = (void *)&memory, SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int) {
    LOCKED;
    // What is left goes with the context.
    bool failed = calls_left == 0;
    while (!memory.empty()) {
        if (failed) secrets.clear();
        give_back(memory.begin()->first);
    }
    calls_left = -1;
    if (std::FILE *count = std::fopen(file("calls").c_str(), "w")) {
        std::fprintf(count, "%ld", calls);
        std::fclose(count);
    }
    return SUCCESS;
}
int cuCtxSetCurrent(void *context) { return context == (void *)&memory ? SUCCESS : INVALID; }
int cuCtxSynchronize() {
    CALL;
    return SUCCESS;
}
int cuMemAlloc_v2(u64 *at, size_t bytes) {
    CALL;
    void *got = std::malloc(bytes);
    if (!got) return OUT_OF_MEMORY;
    std::memset(got, 0xa5, bytes);
    memory[*at = (u64)got] = bytes;
    return SUCCESS;
}
int cuMemFree_v2(u64 at) {
    CALL;
    if (!memory.count(at)) return INVALID;
    give_back(at);
    return SUCCESS;
}
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t bytes) {
    CALL;
    if (!is_ours(to, bytes)) return INVALID;
    std::memcpy((void *)to, from, bytes);
    return SUCCESS;
}
int cuMemcpyDtoH_v2(void *to, u64 from, size_t bytes) {
    CALL;
    if (!is_ours(from, bytes)) return INVALID;
    std::memcpy(to, (const void *)from, bytes);
    return SUCCESS;
}
int cuMemsetD8_v2(u64 at, unsigned char value, size_t bytes) {
    CALL;
    if (!is_ours(at, bytes)) return INVALID;
    std::memset((void *)at, value, bytes);
    return SUCCESS;
}
int cuModuleLoadData(void **module, const void *image) {
    CALL;
    *module = (void *)1;
    return std::strstr((const char *)image, ".entry peregrine_ladder") ? SUCCESS : INVALID;
}
int cuModuleUnload(void *) {
    CALL;
    return SUCCESS;
}
int cuModuleGetFunction(void **function, void *, const char *name) {
    CALL;
    const char *names[] = {"peregrine_ladder", "peregrine_comb", "peregrine_match"};
    for (size_t i = 0; i < 3; i++) {
        if (std::strcmp(name, names[i]) == 0) return *function = (void *)(i + 1), SUCCESS;
    }
    return NOT_FOUND;
}
int cuLaunchKernel(void *function, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned, unsigned, void *,
                   void **arguments, void **) {
    CALL;
    const Scan &s = *(const Scan *)arguments[0];
    const u64 rows = s.rows;
    struct {
        const void *at;
        u64 bytes;
        bool secret;
    } areas[] = {
        {s.points, 64 * rows, false},         {s.output_ends, 4 * rows, false},
        {s.outputs, 8 * (u64)(s.output_ends[rows - 1] - s.outputs_base), false},
        {s.schedule, s.operations, true},     {s.top, 64 * 512, true},
        {s.labels, 64 * s.label_count, true}, {s.table, 64 * WINDOWS * HALF, false},
        {s.sums, 96 * rows, true},            {s.products, 32 * rows, true},
        {s.reports, 12 * (u64)s.report_room, true}, {s.report_count, 4, false},
    };
    for (auto &area : areas) {
        if (!is_ours((u64)area.at, area.bytes)) return INVALID;
        if (area.secret) secrets.insert(std::prev(memory.upper_bound((u64)area.at))->first);
    }
    for (u32 thread = 0; thread < grid * block; thread++) {
        if (function == (void *)1 && thread < rows) ladder_row(s, thread);
        if (function == (void *)2) comb_rows(s, thread);
        if (function == (void *)3) match_rows(s, thread);
    }
    return SUCCESS;
}
}
