// Whether this processor has what kernels were compiled for.
#include "machine.h"

#include <cstring>

namespace occ::runtime {

namespace {

struct Feature {
    const char *name;  // of Halide
    bool (*here)();
};

#if defined(__x86_64__) || defined(__i386__)
#define HAS(name) bool(__builtin_cpu_supports(name))
const Feature features[] = {
    {"sse41", [] { return HAS("sse4.1"); }},
    {"avx", [] { return HAS("avx"); }},
    {"avx2", [] { return HAS("avx2"); }},
    {"fma", [] { return HAS("fma"); }},
    {"avx512", [] { return HAS("avx512f") && HAS("avx512cd"); }},
    {"avx512_skylake", [] { return HAS("avx512f") && HAS("avx512vl") && HAS("avx512bw") && HAS("avx512dq"); }},
    {"avx512_cannonlake", [] { return HAS("avx512ifma") && HAS("avx512vbmi"); }},
    {"avx512_zen4", [] { return HAS("avx512vnni") && HAS("avx512bf16"); }},
};
#else
const Feature features[] = {{"", [] { return true; }}};
#endif

}  // namespace

const char *missing_feature(const char *machine) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    if (strncmp(machine, "x86-", 4) != 0) return nullptr;
#endif
    for (const char *word = machine; word; word = strchr(word, '-') ? strchr(word, '-') + 1 : nullptr) {
        const size_t length = strcspn(word, "-");
        for (const Feature &f : features) {
            if (strlen(f.name) == length && !strncmp(f.name, word, length) && !f.here()) return f.name;
        }
    }
    return nullptr;
}

}  // namespace occ::runtime
