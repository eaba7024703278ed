// Compiles generators to object files: `emit OUT_DIR TARGET JOBS SECONDS UNIT... NAME...`. A unit contains generators:
// UNIT.cpp is read (reader.h), UNIT.so is what a C++ compiler made of one. Every kernel is compiled in a process forked
// from this one, JOBS at a time, so that libHalide is loaded once and no kernel depends on which ones were compiled
// before it. One that takes more than SECONDS of processor time (0: unlimited) is given up. A kernel that fails gets a
// line on stderr and no object file; the others are compiled anyway. Processor seconds are written to
// OUT_DIR/seconds.txt, `inf` for kernels given up.

#include "large_pages.h"
#include "memory.h"
#include "reader.h"
#include "te.h"
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <map>
#include <string>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

// Schedules decide what is vectorised. LLVM's own search for more finds the row addresses of a tile: it computes them
// as one vector and extracts them lane by lane, in the innermost loop (100 rows by [1575, 256] on Zen 4: 0.91 ms, 0.74
// without). Its search for induction variables takes 0.08 of the time of compiling, but without it the innermost loops
// of Winograd have 1.16 times as many instructions, and a BERT takes 1.02 of the time (Sapphire Rapids).
static void leave_scalars() {
    const char *given = getenv("HL_LLVM_ARGS");
    setenv("HL_LLVM_ARGS", (std::string("-vectorize-slp=0") + (given ? std::string(" ") + given : "")).c_str(), 1);
}

// A process makes one kernel: memory that it frees need not go back.
static void keep_memory() {
#ifdef __GLIBC__
    mallopt(M_TOP_PAD, 64 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
#endif
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: %s OUT_DIR TARGET JOBS SECONDS UNIT... NAME...\n", argv[0]);
        return 2;
    }
    leave_scalars();
    keep_memory();
    const int jobs = atoi(argv[3]) > 0 ? atoi(argv[3]) : 1;
    std::map<pid_t, std::string> running;
    FILE *seconds = fopen((std::string(argv[1]) + "/seconds.txt").c_str(), "w");
    int failed = 0;
    auto wait_one = [&] {
        int status;
        rusage used;
        pid_t pid = wait4(-1, &status, 0, &used);
        if (pid <= 0) return;
        const std::string name = running[pid];
        running.erase(pid);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
            const timeval &user = used.ru_utime, &system = used.ru_stime;
            const double took = double(user.tv_sec + system.tv_sec) + double(user.tv_usec + system.tv_usec) * 1e-6;
            if (seconds) fprintf(seconds, "%s %.6f\n", name.c_str(), took);
            return;
        }
        failed = 1;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF && seconds) fprintf(seconds, "%s inf\n", name.c_str());
        if (WIFSIGNALED(status)) fprintf(stderr, "%s: ended by signal %d\n", name.c_str(), WTERMSIG(status));
        unlink((std::string(argv[1]) + "/" + name + ".o").c_str());
    };
    int first = 5;
    for (; first < argc && strchr(argv[first], '.'); first++) {
        const bool is_text = strstr(argv[first], ".cpp");
        if (is_text ? te::Reader::load(argv[first]) : dlopen(argv[first], RTLD_NOW) != nullptr) continue;
        fprintf(stderr, "%s\n", is_text ? argv[first] : dlerror());
        return 1;
    }
    if (argc - first > 3) large_pages::use("libHalide");  // for fewer kernels it takes longer than it saves
    for (int i = first; i < argc; i++) {
        if ((int)running.size() == jobs) wait_one();
        fflush(nullptr);
        pid_t pid = fork();
        if (pid == 0) {
            const double most = atof(argv[4]);
            const itimerval limit{{0, 0}, {time_t(most), suseconds_t((most - time_t(most)) * 1e6)}};
            setitimer(ITIMER_PROF, &limit, nullptr);
            te::compile(argv[i], argv[1], argv[2]);
            fflush(nullptr);
            _exit(0);
        }
        if (pid < 0) return 1;
        running[pid] = argv[i];
    }
    while (!running.empty()) wait_one();
    if (seconds) fclose(seconds);
    return failed;
}
