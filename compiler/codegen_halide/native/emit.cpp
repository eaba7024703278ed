// Compiles registered generators to object files: `emit OUT_DIR TARGET JOBS NAME...`. Every kernel is compiled in a
// process forked from this one, JOBS at a time, so that libHalide is loaded once and so that what a kernel becomes does
// not depend on which kernels came before it.

#include "Halide.h"
#include <cstdio>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

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
    if (argc < 4) {
        fprintf(stderr, "usage: %s OUT_DIR TARGET JOBS NAME...\n", argv[0]);
        return 2;
    }
    const int jobs = atoi(argv[3]) > 0 ? atoi(argv[3]) : 1;
    int running = 0, failed = 0;
    auto wait_one = [&] {
        int status;
        if (wait(&status) > 0) {
            running--;
            failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        }
    };
    for (int i = 4; i < argc; i++) {
        if (running == jobs) wait_one();
        fflush(nullptr);
        pid_t pid = fork();
        if (pid == 0) {
            int code = compile(argv[i], argv[1], argv[2]);
            fflush(nullptr);
            _exit(code);
        }
        if (pid < 0) return 1;
        running++;
    }
    while (running) wait_one();
    return failed;
}
