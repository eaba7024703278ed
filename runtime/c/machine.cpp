// Whether this machine has the features that kernels were compiled for.
#include "machine.h"

#include <cstring>
#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace occ::runtime {

#if defined(__x86_64__)
const char kKind[] = "x86-64-";
#elif defined(__aarch64__)
const char kKind[] = "arm-64-";
#elif defined(__arm__)
const char kKind[] = "arm-32-";
#elif defined(__riscv) && __riscv_xlen == 64
const char kKind[] = "riscv-64-";
#elif defined(__powerpc64__)
const char kKind[] = "powerpc-64-";
#else
const char kKind[] = "";
#endif

namespace {

struct Feature {
    const char *name;  // of Halide
    bool (*here)();
};

#if defined(__x86_64__)
#define HAS(name) bool(__builtin_cpu_supports(name))

bool has_f16c() {  // older compilers do not know it by name
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

bool has_avx_vnni() {
    unsigned a, b, c, d;
    return HAS("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
}

// Linux grants tiles (AMX) to a process that asks, with all its threads, before the first instruction that uses them:
// Documentation/arch/x86/xstate.rst. It refuses if a thread's signal stack is too small for them.
bool has_tiles() {
#if defined(__linux__)
    constexpr int kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (kTile | kInt8)) != (kTile | kInt8)) return false;
    return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
#else
    return false;
#endif
}

const Feature features[] = {
    {"sse41", [] { return HAS("sse4.1"); }},
    {"avx", [] { return HAS("avx"); }},
    {"f16c", has_f16c},
    {"avx2", [] { return HAS("avx2"); }},
    {"fma", [] { return HAS("fma"); }},
    {"avx512", [] { return HAS("avx512f") && HAS("avx512cd"); }},
    {"avx512_skylake", [] { return HAS("avx512f") && HAS("avx512vl") && HAS("avx512bw") && HAS("avx512dq"); }},
    {"avx512_cannonlake", [] { return HAS("avx512ifma") && HAS("avx512vbmi"); }},
    {"avx512_zen4", [] { return HAS("avx512vnni") && HAS("avx512bf16"); }},
    {"avx512_sapphirerapids", [] { return HAS("avx512vnni") && HAS("avx512bf16") && has_avx_vnni(); }},
    {"avxvnni", has_avx_vnni},
    {"amx_int8", has_tiles},
};
#elif defined(__aarch64__)
// Bits of AT_HWCAP, from Linux: arch/arm64/include/uapi/asm/hwcap.h.
const Feature features[] = {
    {"arm_fp16", [] { return bool(getauxval(AT_HWCAP) & 1ul << 10); }},
    {"arm_dot_prod", [] { return bool(getauxval(AT_HWCAP) & 1ul << 20); }},
};
#else
const Feature features[] = {{"", [] { return true; }}};
#endif

// Calls `found` for each feature in the name of a Halide target, until it returns true.
template<typename F> const Feature *find(const char *machine, F found) {
    for (const char *word = machine; word; word = strchr(word, '-') ? strchr(word, '-') + 1 : nullptr) {
        const size_t length = strcspn(word, "-");
        for (const Feature &f : features) {
            if (strlen(f.name) == length && !strncmp(f.name, word, length) && found(f)) return &f;
        }
    }
    return nullptr;
}

bool is_kind_here(const char *machine) { return *kKind && !strncmp(machine, kKind, strlen(kKind)); }

}  // namespace

const char *missing_feature(const char *machine) {
    if (!is_kind_here(machine)) return nullptr;
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    const Feature *f = find(machine, [](const Feature &f) { return !f.here(); });
    return f ? f->name : nullptr;
}

const char *refused(const char *feature) { return strcmp(feature, "amx_int8") ? "" : " or its system does not allow"; }

bool runs_here(const char *machine) { return (!*kKind || is_kind_here(machine)) && !missing_feature(machine); }

int features_of(const char *machine) {
    int count = 0;
    find(machine, [&](const Feature &) { return count++, false; });
    return count;
}

}  // namespace occ::runtime
