#include "measure.h"

#include "build.h"
#include "model.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <numeric>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define FOR_AVX512 __attribute__((target("avx512f,avx512vl,f16c,fma")))
#define FOR_AVX2 __attribute__((target("avx2,f16c,fma")))
#endif

namespace occ::onnxifi {

namespace {

constexpr int kChains = 12;         // independent sums, enough for the latency of two units
constexpr long kTurns = 200000;     // about a millisecond
constexpr size_t kBytes = 96 << 20;  // more than caches hold
constexpr int kTrials = 5;

using Kernel = double (*)(const void *halves);  // returns the number of multiply-accumulates

volatile float sink;

// Sums of products over vectors of some bytes; `next` returns an operand.
#define SUMS(bytes, next)                                                              \
    typedef float V __attribute__((vector_size(bytes)));                               \
    V sums[kChains] = {}, a = V{} + 0.999f;                                            \
    for (long t = 0; t < kTurns; t++) {                                                \
        _Pragma("GCC unroll 12") for (int k = 0; k < kChains; k++) {                   \
            sums[k] = sums[k] * a + (next);                                            \
        }                                                                              \
        asm volatile("" : "+m"(sums[0][0]) : : );                                      \
    }                                                                                  \
    V all = {};                                                                        \
    for (const V &s : sums) all += s;                                                  \
    sink = all[0];                                                                     \
    return double(kTurns) * kChains * (bytes / 4);

double plain_f32(const void *) {
    SUMS(16, a)
}

#if defined(__x86_64__)
FOR_AVX512 double avx512_f32(const void *) {
    SUMS(64, a)
}
FOR_AVX2 double avx2_f32(const void *) {
    SUMS(32, a)
}
FOR_AVX512 double avx512_f16(const void *h) {
    SUMS(64, (V)_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i *>(h) + (t + k) % 16)))
}
FOR_AVX2 double avx2_f16(const void *h) {
    SUMS(32, (V)_mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i *>(h) + (t + k) % 16)))
}
#elif defined(__aarch64__)
double plain_f16(const void *h) {
    SUMS(16, (__builtin_convertvector(((const __fp16 __attribute__((vector_size(8))) *)h)[(t + k) % 16], V)))
}
#endif

Kernel f32_kernel() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return avx512_f32;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_f32;
#endif
    return plain_f32;
}

Kernel f16_kernel() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return avx512_f16;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2_f16;
    return nullptr;
#elif defined(__aarch64__)
    return plain_f16;
#else
    return nullptr;
#endif
}

// Seconds that this thread was computing: others that run on the machine just now do not count.
double now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Threads that are always joined: starting one may throw, and destroying a joinable one terminates the process.
struct Joined {
    std::vector<std::thread> threads;
    std::atomic<bool> &given_up;

    ~Joined() {
        given_up = true;
        for (auto &t : threads) {
            if (t.joinable()) t.join();
        }
    }
};

// The best rate of each thread that does `work(thread)` while the others do, which says how much it did; their sum.
template<typename F> uint64_t best(F work) {
    const int threads = occ::runtime::default_threads();
    std::vector<double> rates(static_cast<size_t>(threads));
    std::atomic<int> there{0};
    std::atomic<bool> given_up{false};
    Joined all{{}, given_up};
    for (int k = 0; k < threads; k++) {
        all.threads.emplace_back([&, k] {
            for (there++; there < threads && !given_up;) std::this_thread::yield();
            if (given_up) return;
            for (int trial = 0; trial < kTrials; trial++) {
                const double start = now(), done = work(k);
                rates[size_t(k)] = std::max(rates[size_t(k)], done / (now() - start));
            }
        });
    }
    for (auto &t : all.threads) t.join();
    return uint64_t(std::accumulate(rates.begin(), rates.end(), 0.0));
}

uint64_t macs(Kernel kernel) {
    if (!kernel) return 0;
    std::vector<uint16_t> halves(1024, 0x3800);
    return best([&](int) { return kernel(halves.data()); });
}

double read_all(const std::vector<uint64_t> &words) {
    uint64_t sums[8] = {};
    for (size_t k = 0; k + 8 <= words.size(); k += 8) {
        for (size_t j = 0; j < 8; j++) sums[j] += words[k + j];
    }
    uint64_t all = 0;
    for (uint64_t s : sums) all ^= s;
    sink = float(all);
    return double(words.size() * 8);
}

Speed measured() {
    Speed s;
    s.macs_f32 = macs(f32_kernel());
    s.macs_f16 = macs(f16_kernel());
    const size_t threads = size_t(occ::runtime::default_threads()), words = kBytes / 8 / threads;
    std::vector<std::vector<uint64_t>> from(threads, std::vector<uint64_t>(words, 1)), to(from);
    s.read = best([&](int k) { return read_all(from[size_t(k)]); });
    s.write = best([&](int k) {
        memset(to[size_t(k)].data(), 7, words * 8);
        return double(words * 8);
    });
    const uint64_t copied = best([&](int k) {
        memcpy(to[size_t(k)].data(), from[size_t(k)].data(), words * 8);
        return double(words * 16);
    });
    s.memory = std::max({s.read, s.write, copied});
    return s;
}

bool load(const std::string &path, Speed &s) {
    std::ifstream in(path);
    return bool(in >> s.macs_f32 >> s.macs_f16 >> s.memory >> s.read >> s.write);
}

void save(const std::string &folder, const std::string &path, const Speed &s) {
    mkdir(folder.substr(0, folder.rfind('/')).c_str(), 0777);
    mkdir(folder.c_str(), 0777);
    const std::string made = path + "." + std::to_string(getpid());
    std::ofstream out(made);
    out << s.macs_f32 << " " << s.macs_f16 << " " << s.memory << " " << s.read << " " << s.write << "\n";
    out.close();
    if (!out || rename(made.c_str(), path.c_str())) unlink(made.c_str());
}

}  // namespace

std::string processor_name() {
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);) {
        const size_t colon = line.find(": ");
        if (!line.compare(0, 10, "model name") && colon != std::string::npos) return line.substr(colon + 2);
    }
    return "CPU";
}

const Speed &speed_of_machine() {
    static const Speed speed = [] {
        const std::string cache = cache_folder(), folder = cache + "/tuned";
        const std::string key = sha256("2 " + processor_name() + " " + std::to_string(occ::runtime::default_threads()));
        const std::string path = folder + "/" + key.substr(0, 32) + ".speed";
        Speed s;
        if (!cache.empty() && load(path, s)) return s;
        s = measured();
        if (!cache.empty()) save(folder, path, s);
        return s;
    }();
    return speed;
}

}  // namespace occ::onnxifi
