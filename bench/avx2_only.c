// Shows a process a processor without AVX-512, VNNI and AMX, so that other runtimes, which choose kernels by CPUID,
// compute as on a machine with AVX2 alone (Linux, x86-64).
//
//     gcc -O2 -shared -fPIC -o avx2_only.so bench/avx2_only.c
//     LD_PRELOAD=./avx2_only.so occ bench DIR --generate 128,64 --threads 1 --target-cpu x86-64-v3
//
// CPUID faults (arch_prctl, ARCH_SET_CPUID), and the handler of SIGSEGV answers with those bits cleared. An exec ends
// it, so the loader starts it again in each program; compilers keep a handler of SIGSEGV of their own, and are left out.
// Where CPUID does not fault (AMD), bench/trap_cpuid.py makes copies of libraries in which UD2 replaces it: SIGILL.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };

// Bits of leaf 7: F, DQ, IFMA, PF, ER, CD, BW, VL; VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ; 4VNNIW, 4FMAPS, VP2INTERSECT,
// AMX-BF16, FP16, AMX-TILE, AMX-INT8.
static const uint32_t ebx = 1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31;
static const uint32_t ecx = 1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14;
static const uint32_t edx = 1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25;
// Of its second part: AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA; AVX-VNNI-INT8, AVX-NE-CONVERT, AMX-COMPLEX,
// AVX-VNNI-INT16, AVX10.
static const uint32_t more_eax = 1u << 4 | 1u << 5 | 1u << 21 | 1u << 23;
static const uint32_t more_edx = 1u << 4 | 1u << 5 | 1u << 8 | 1u << 10 | 1u << 19;

static struct sigaction before, illegal_before;

static void answer(int number, siginfo_t *info, void *context) {
  (void)info;
  greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
  if (memcmp((const void *)g[REG_RIP], number == SIGILL ? "\x0f\x0b" : "\x0f\xa2", 2)) {
    sigaction(number, number == SIGILL ? &illegal_before : &before, 0);  // a fault of the program, which happens again
    return;
  }
  uint32_t leaf = (uint32_t)g[REG_RAX], part = (uint32_t)g[REG_RCX], a, b, c, d;
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1);
  __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(part));
  syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0);
  if (leaf == 7 && part == 0) b &= ~ebx, c &= ~ecx, d &= ~edx;
  if (leaf == 7 && part == 1) a &= ~more_eax, d &= ~more_edx;
  g[REG_RAX] = a, g[REG_RBX] = b, g[REG_RCX] = c, g[REG_RDX] = d;
  g[REG_RIP] += 2;
}

__attribute__((constructor)) static void start(void) {
  static const char *const left[] = {"cc1", "cc1plus", "g++", "gcc", "as", "ld", "collect2", "clang", "clang++"};
  for (unsigned k = 0; k < sizeof left / sizeof *left; k++)
    if (!strcmp(program_invocation_short_name, left[k])) return;
  struct sigaction made = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &made, &before);
  sigaction(SIGILL, &made, &illegal_before);
  if (syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0) && !getenv("AVX2_ONLY_TRAPS"))
    fputs("avx2_only: CPUID does not fault here, use bench/trap_cpuid.py\n", stderr);
}
