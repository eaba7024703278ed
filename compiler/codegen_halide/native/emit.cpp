// Compiles registered generators to object files: `emit OUT_DIR TARGET JOBS SECONDS NAME...`. Every kernel is compiled in
// a process forked from this one, JOBS at a time, so that libHalide is loaded once and so that what a kernel becomes does
// not depend on which kernels came before it. One that takes longer than SECONDS (0: any time) is given up. A kernel that
// fails has a line on stderr and no object file; the others are compiled all the same.

#include "Halide.h"
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

// Errors end the process at once: exceptions of libHalide do not reach sources that are compiled without RTTI.
struct Reporter : Halide::CompileTimeErrorReporter {
    void warning(const char *) override {}
    void error(const char *message) override {
        fprintf(stderr, "%s\n", message);
        fflush(nullptr);
        _exit(1);
    }
};

static int compile(const std::string &name, const std::string &directory, const std::string &target) {
    try {
        Halide::Internal::ExecuteGeneratorArgs args;
        args.output_dir = directory;
        args.output_types = {Halide::OutputFileType::object};
        args.targets = {Halide::Target(target)};
        args.generator_name = name;
        args.function_name = name;
        args.file_base_name = name;
        Halide::Internal::execute_generator(args);
        return 0;
    } catch (const std::exception &e) {
        fprintf(stderr, "%s: %s\n", name.c_str(), e.what());
        return 1;
    }
}

int main(int argc, char **argv) {
    if (argc < 5) {
        fprintf(stderr, "usage: %s OUT_DIR TARGET JOBS SECONDS NAME...\n", argv[0]);
        return 2;
    }
    static Reporter reporter;
    Halide::set_custom_compile_time_error_reporter(&reporter);
    const int jobs = atoi(argv[3]) > 0 ? atoi(argv[3]) : 1;
    std::map<pid_t, std::string> running;
    int failed = 0;
    auto wait_one = [&] {
        int status;
        pid_t pid = wait(&status);
        if (pid <= 0) return;
        const std::string name = running[pid];
        running.erase(pid);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
        failed = 1;
        if (WIFSIGNALED(status)) fprintf(stderr, "%s: ended by signal %d\n", name.c_str(), WTERMSIG(status));
        unlink((std::string(argv[1]) + "/" + name + ".o").c_str());
    };
    for (int i = 5; i < argc; i++) {
        if ((int)running.size() == jobs) wait_one();
        fflush(nullptr);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(atoi(argv[4]));
            int code = compile(argv[i], argv[1], argv[2]);
            fflush(nullptr);
            _exit(code);
        }
        if (pid < 0) return 1;
        running[pid] = argv[i];
    }
    while (!running.empty()) wait_one();
    return failed;
}
