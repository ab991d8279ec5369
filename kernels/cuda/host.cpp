// The kernels on a host, for tests: the same text, a thread after the other. Reads questions from its standard input and
// writes answers to its standard output, both in the byte order of the host, which must be little-endian.
//
//   field   any number of: operation, 1 byte; two numbers, 32 bytes each. Answers 32 bytes each.
//   scan    rows, threads, outputs_base, outputs, operations, labels, report_room, 4 bytes each; then points, output_ends,
//           outputs, schedule, top, labels, table as kernels/src/gpu.rs has them. Answers the number of reports and the
//           reports.
#include "scan.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static bool take(void *to, size_t bytes) { return bytes == 0 || std::fread(to, 1, bytes, stdin) == bytes; }

template <typename T>
static std::vector<T> take_all(size_t count) {
    std::vector<T> list(count);
    if (!take(list.data(), count * sizeof(T))) {
        std::fputs("the input ends early\n", stderr);
        std::exit(1);
    }
    return list;
}

static Fe answer(int operation, const Fe &a, const Fe &b) {
    switch (operation) {
        case 0: return mul(a, b);
        case 1: return sqr(a);
        case 2: return add(a, b);
        case 3: return sub(a, b);
        case 4: return times_power<1>(a);
        case 5: return times_power<2>(a);
        case 6: return times_power<3>(a);
        case 7: return canonical(a);
        case 8: return invert(a);
        case 9: return shared_secret_hash(a, b.v[0] & 1);
        case 10: return is_scalar(a) ? one() : zero();
        default: std::fputs("no such operation\n", stderr); std::exit(1);
    }
}

static void field() {
    unsigned char operation;
    while (take(&operation, 1)) {
        std::vector<u32> words = take_all<u32>(16);
        Fe result = answer(operation, load_words(words.data()), load_words(words.data() + 8));
        std::fwrite(result.v, 4, 8, stdout);
    }
}

static void scan() {
    std::vector<u32> head = take_all<u32>(7);
    u32 rows = head[0], threads = head[1], outputs = head[3], operations = head[4], labels = head[5], room = head[6];
    std::vector<u32> points = take_all<u32>(16 * (size_t)rows), ends = take_all<u32>(rows);
    std::vector<u32> prefixes = take_all<u32>(2 * (size_t)outputs);
    std::vector<unsigned char> schedule = take_all<unsigned char>(operations);
    std::vector<u32> top = take_all<u32>(16 * 512), label = take_all<u32>(16 * (size_t)labels);
    std::vector<u32> table = take_all<u32>(16 * (size_t)WINDOWS * HALF);
    std::vector<u32> sums(24 * (size_t)rows), products(8 * (size_t)rows), reports(3 * (size_t)room);
    u32 count = 0;
    Scan s = {points.data(), ends.data(), prefixes.data(), head[2],      rows,           threads,         schedule.data(),
              top.data(),    label.data(), operations,     labels,       7,              table.data(),    sums.data(),
              products.data(), reports.data(), &count,     room};
    for (u32 row = 0; row < rows; row++) ladder_row(s, row);
    for (u32 thread = 0; thread < threads; thread++) comb_rows(s, thread);
    for (u32 thread = 0; thread < threads; thread++) match_rows(s, thread);
    std::fwrite(&count, 4, 1, stdout);
    std::fwrite(reports.data(), 12, count < room ? count : room, stdout);
}

int main(int count, char **words) {
    if (count == 2 && std::strcmp(words[1], "field") == 0) {
        field();
    } else if (count == 2 && std::strcmp(words[1], "scan") == 0) {
        scan();
    } else {
        std::fputs("usage: host field|scan\n", stderr);
        return 2;
    }
    return std::fflush(stdout) == 0 ? 0 : 1;
}
