// A CUDA driver without a card, for tests: memory is the host's, and kernels run on the processor from the same source as
// the device's. Has the functions that Peregrine calls, and no others.
//
// The folder that FAKE_CUDA_FOLDER names holds files. Read when a card is opened: `cards` when they are counted, how many
// there are, otherwise one; `fail`, a card and after how many calls from then on every call to it fails, until its context
// is released; `hang`, a card and after how many started kernels it never gets done; `memory`, how many bytes a card has;
// `wrong`, a card and how many rows of a part it computes, others it leaves out. Written: `calls<card>`, how many there
// were; `rows<card>`, for how many rows it computed points; `sent<card>`, how many bytes were copied to it; `leaks`, a line
// for each memory that held something of a key and was given back with anything but zeros in it.
#include "../../../kernels/cuda/scan.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

constexpr int SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, NOT_READY = 600, LAUNCH_FAILED = 719;

std::string file(const std::string &name) {
    const char *folder = std::getenv("FAKE_CUDA_FOLDER");
    return std::string(folder ? folder : ".") + "/" + name;
}

struct Card {
    std::recursive_mutex mutex;
    std::map<u64, size_t> memory;
    std::set<u64> secrets;
    int number = 0, opened = 0;
    long calls_left = -1, calls = 0, kernels_left = -1, wrong = -1, rows = 0, sent = 0;
    size_t size = 0, used = 0;

    void count(const char *what, long value) {
        if (std::FILE *out = std::fopen(file(what + std::to_string(number)).c_str(), "w")) {
            std::fprintf(out, "%ld", value);
            std::fclose(out);
        }
    }

    // A number from a file that begins with this card's number; otherwise -1.
    long read(const char *name) {
        long card = -1, value = -1;
        if (std::FILE *in = std::fopen(file(name).c_str(), "r")) {
            if (std::fscanf(in, "%ld %ld", &card, &value) != 2) value = -1;
            std::fclose(in);
        }
        return card == number ? value : -1;
    }

    void open() {
        if (opened++ > 0) return;
        calls = rows = sent = 0;
        calls_left = read("fail");
        kernels_left = read("hang");
        wrong = read("wrong");
        long bytes = read("memory");
        size = bytes < 0 ? (size_t)1 << 30 : bytes;
    }

    void close() {
        if (--opened > 0) return;
        // What is left goes with the context.
        if (calls_left == 0) secrets.clear();
        while (!memory.empty()) give_back(memory.begin()->first);
        calls_left = kernels_left = -1;
        count("calls", calls);
        count("rows", rows);
        count("sent", sent);
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
        used -= memory[at];
        secrets.erase(at);
        memory.erase(at);
        std::free((void *)at);
    }
};

constexpr int MOST = 4;
Card cards[MOST];
thread_local Card *current;

}  // namespace

#define LOCKED                    \
    if (!current) return INVALID; \
    Card &card = *current;        \
    std::lock_guard<std::recursive_mutex> lock(card.mutex)
#define CALL \
    LOCKED;  \
    if (!card.goes_well()) return LAUNCH_FAILED

extern "C" {

int cuInit(unsigned) { return SUCCESS; }
int cuGetErrorName(int error, const char **text) { return *text = error == LAUNCH_FAILED ? "FAILED" : "WRONG", SUCCESS; }
int cuGetErrorString(int, const char **text) { return *text = "as the test wants it", SUCCESS; }
int cuDeviceGetCount(int *count) {
    *count = 1;
    if (std::FILE *in = std::fopen(file("cards").c_str(), "r")) {
        if (std::fscanf(in, "%d", count) != 1 || *count > MOST) *count = 1;
        std::fclose(in);
    }
    return SUCCESS;
}
int cuDeviceGet(int *device, int number) { return *device = number, number >= 0 && number < MOST ? SUCCESS : INVALID; }
int cuDeviceGetName(char *name, int length, int device) {
    return std::snprintf(name, length, device == 0 ? "no card" : "no card either"), SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int) { return *bytes = (size_t)1 << 30, SUCCESS; }
int cuDeviceGetAttribute(int *value, int what, int) {
    *value = what == 75 ? 9 : what == 16 ? 2 : 0;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    Card &card = cards[device];
    std::lock_guard<std::recursive_mutex> lock(card.mutex);
    card.number = device;
    card.open();
    return *context = (void *)&card, SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    std::lock_guard<std::recursive_mutex> lock(cards[device].mutex);
    return cards[device].close(), SUCCESS;
}
int cuCtxSetCurrent(void *context) { return current = (Card *)context, SUCCESS; }
int cuCtxSynchronize() {
    CALL;
    return SUCCESS;
}
int cuStreamCreate(void **stream, unsigned) {
    CALL;
    return *stream = (void *)&card, SUCCESS;
}
int cuStreamSynchronize(void *) {
    CALL;
    return SUCCESS;
}
int cuStreamDestroy_v2(void *) {
    CALL;
    return SUCCESS;
}
int cuEventCreate(void **event, unsigned) {
    CALL;
    return *event = (void *)&card, SUCCESS;
}
int cuEventRecord(void *, void *) {
    CALL;
    return SUCCESS;
}
int cuEventQuery(void *) {
    CALL;
    return card.kernels_left == 0 ? NOT_READY : SUCCESS;
}
int cuEventDestroy_v2(void *) {
    CALL;
    return SUCCESS;
}
int cuMemGetInfo_v2(size_t *left, size_t *total) {
    CALL;
    *left = card.size - card.used;
    return *total = card.size, SUCCESS;
}
int cuMemHostAlloc(void **at, size_t bytes, unsigned) {
    CALL;
    *at = std::malloc(bytes);
    return *at ? SUCCESS : OUT_OF_MEMORY;
}
int cuMemFreeHost(void *at) { return std::free(at), SUCCESS; }
int cuMemAlloc_v2(u64 *at, size_t bytes) {
    CALL;
    void *got = card.used + bytes > card.size ? nullptr : std::malloc(bytes);
    if (!got) return OUT_OF_MEMORY;
    std::memset(got, 0xa5, bytes);
    card.used += bytes;
    card.memory[*at = (u64)got] = bytes;
    return SUCCESS;
}
int cuMemFree_v2(u64 at) {
    CALL;
    if (!card.memory.count(at)) return INVALID;
    card.give_back(at);
    return SUCCESS;
}
int cuMemcpyHtoD_v2(u64 to, const void *from, size_t bytes) {
    CALL;
    if (!card.is_ours(to, bytes)) return INVALID;
    std::memcpy((void *)to, from, bytes);
    card.sent += bytes;
    return SUCCESS;
}
int cuMemcpyHtoDAsync_v2(u64 to, const void *from, size_t bytes, void *) { return cuMemcpyHtoD_v2(to, from, bytes); }
int cuMemcpyDtoHAsync_v2(void *to, u64 from, size_t bytes, void *) {
    CALL;
    if (!card.is_ours(from, bytes)) return INVALID;
    std::memcpy(to, (const void *)from, bytes);
    return SUCCESS;
}
int cuMemsetD8_v2(u64 at, unsigned char value, size_t bytes) {
    CALL;
    if (!card.is_ours(at, bytes)) return INVALID;
    std::memset((void *)at, value, bytes);
    return SUCCESS;
}
int cuMemsetD8Async(u64 at, unsigned char value, size_t bytes, void *) { return cuMemsetD8_v2(at, value, bytes); }
int cuModuleLoadData(void **module, const void *image) {
    CALL;
    *module = (void *)1;
    bool cubin = std::memcmp(image, "\x7f" "ELF", 4) == 0;
    return cubin || std::strstr((const char *)image, ".entry peregrine_ladder") ? SUCCESS : INVALID;
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
    if (card.kernels_left > 0) card.kernels_left--;
    if (function == (void *)1) card.rows += rows;
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
        if (!card.is_ours((u64)area.at, area.bytes)) return INVALID;
        if (area.secret) card.secrets.insert(std::prev(card.memory.upper_bound((u64)area.at))->first);
    }
    for (u32 thread = 0; thread < grid * block; thread++) {
        if (function == (void *)1 && thread < rows && (card.wrong < 0 || thread < card.wrong)) ladder_row(s, thread);
        if (function == (void *)2) comb_rows(s, thread);
        if (function == (void *)3) match_rows(s, thread);
    }
    return SUCCESS;
}
}
