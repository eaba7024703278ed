// The compiler in a process of its own: occ, which answers one request after the other.
#pragma once
#include "failure.h"

#include <mutex>
#include <sys/types.h>

namespace occ::onnxifi {

// A file descriptor that is closed with its owner.
class File {
public:
    explicit File(int fd = -1) : fd_(fd) {}
    File(File &&other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    File &operator=(File &&other) noexcept;
    ~File();
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }

private:
    int fd_;
};

struct Answer {
    std::string text;
    File file;
};

class Compiler {
public:
    // Asks for something, with a file if there is one. Starts the process if it does not run.
    // A refusal of the compiler is a Failure with its status and its words.
    Answer ask(const std::string &request, const File &payload = File());
    // What artifacts depend on in addition to the model: the version of occ, or the file that OCC_COMPILER names.
    static std::string identity();

private:
    void start();
    bool send(const std::string &request, int fd);
    bool receive(Answer &answer);

    std::mutex lock_;
    File socket_;
    pid_t owner_ = 0;  // the process that started it: one that was forked starts its own
};

// Memory as a file, with a copy of some bytes.
File memory_file(const std::string &bytes);
File memory_file(const void *bytes, size_t size, const std::string &more);

}  // namespace occ::onnxifi
