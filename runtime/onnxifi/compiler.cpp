#include "compiler.h"

#include "build_facts.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <csignal>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

extern char **environ;

namespace occ::onnxifi {

namespace {

constexpr int kGreeting = 60 * 1000;  // milliseconds until the compiler must have said that it is there
constexpr size_t kPacket = 8192;

std::vector<std::string> command() {
    const char *given = getenv("OCC_COMPILER");
    if (given && *given) return {given, "onnxifi"};
    return {kCompilerCommand, kCompilerCommand + sizeof kCompilerCommand / sizeof *kCompilerCommand};
}

[[noreturn]] void unavailable(const std::string &why, onnxStatus status = ONNXIFI_STATUS_BACKEND_UNAVAILABLE) {
    const std::string help = "; OCC_COMPILER names the program `occ`";
    throw Failure{status, "the compiler `" + command()[0] + "` " + why + help};
}

// The child has the socket as its standard input, no signals blocked, and says what it says on the standard error.
int spawn(int socket, pid_t &pid) {
    std::vector<std::string> words = command();
    std::vector<char *> argv;
    for (std::string &word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, socket, 0);
    posix_spawn_file_actions_adddup2(&actions, 2, 1);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    const int code = posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return code;
}

}  // namespace

File &File::operator=(File &&other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
}

File::~File() {
    if (fd_ >= 0) close(fd_);
}

File memory_file(const void *bytes, size_t size, const std::string &more) {
    File file(memfd_create("occ-onnxifi", MFD_CLOEXEC));
    if (!file) {
        const int error = errno;
        throw Failure{lacking(error, ONNXIFI_STATUS_INTERNAL_ERROR), std::string("there is no file for a model: ") + strerror(error)};
    }
    const std::pair<const void *, size_t> parts[] = {{bytes, size}, {more.data(), more.size()}};
    for (auto [data, left] : parts) {
        for (const char *at = static_cast<const char *>(data); left;) {
            const ssize_t n = write(file.get(), at, left);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) throw Failure{ONNXIFI_STATUS_NO_SYSTEM_MEMORY, std::string("a model cannot be copied: ") + strerror(errno)};
            at += n;
            left -= size_t(n);
        }
    }
    return file;
}

File memory_file(const std::string &bytes) { return memory_file(bytes.data(), bytes.size(), ""); }

std::string Compiler::identity() {
    const char *given = getenv("OCC_COMPILER");
    if (!given || !*given) return kIdentity;
    struct stat s;
    if (stat(given, &s)) return given;
    return std::string(given) + " " + std::to_string(s.st_size) + " " + std::to_string(s.st_mtim.tv_sec) + "." +
           std::to_string(s.st_mtim.tv_nsec);
}

void Compiler::start() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) {
        const int error = errno;
        throw Failure{lacking(error, ONNXIFI_STATUS_INTERNAL_ERROR), std::string("there is no socket: ") + strerror(error)};
    }
    File mine(ends[0]);
    pid_t pid = 0;
    {
        const File child(ends[1]);
        if (const int code = spawn(child.get(), pid)) {
            unavailable(std::string("does not start: ") + strerror(code), lacking(code, ONNXIFI_STATUS_BACKEND_UNAVAILABLE));
        }
    }
    // It forks at once and goes on in the child, which is not ours to wait for.
    socket_ = std::move(mine);
    owner_ = getpid();
    pollfd wanted{socket_.get(), POLLIN, 0};
    int found;
    while ((found = poll(&wanted, 1, kGreeting)) < 0 && errno == EINTR) {}
    Answer greeting;
    const bool there = found > 0 && receive(greeting);
    if (!there) {
        socket_ = File();
        kill(pid, SIGKILL);
    }
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {}
    if (!there) unavailable("does not answer");
}

bool Compiler::send(const std::string &request, int fd) {
    iovec part{const_cast<char *>(request.data()), request.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    ssize_t n;
    while ((n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL)) < 0 && errno == EINTR) {}
    return n == ssize_t(request.size());
}

// A packet of the compiler: the status as a number, a blank, and a text; false if there is none.
bool Compiler::receive(Answer &answer) {
    std::string text(kPacket, 0);
    iovec part{text.data(), text.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t n;
    while ((n = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {}
    if (n <= 0) return false;
    const cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS) {
        int fd;
        memcpy(&fd, CMSG_DATA(head), sizeof fd);
        answer.file = File(fd);
    }
    text.resize(size_t(n));
    char *end = nullptr;
    const long status = strtol(text.c_str(), &end, 10);
    if (end == text.c_str()) return false;
    answer.text = *end ? end + 1 : "";
    if (status) throw Failure{onnxStatus(status), answer.text};
    if (message.msg_flags & MSG_CTRUNC) throw Failure{ONNXIFI_STATUS_NO_SYSTEM_RESOURCES, "a file of the compiler cannot be received"};
    return true;
}

Answer Compiler::ask(const std::string &request, const File &payload) {
    std::lock_guard hold(lock_);
    for (;;) {
        const bool fresh = !socket_ || owner_ != getpid();
        if (fresh) start();
        Answer answer;
        if (send(request, payload.get()) && receive(answer)) return answer;
        socket_ = File();
        // One that was idle for long has ended, and another one takes its place.
        if (fresh) throw Failure{ONNXIFI_STATUS_INTERNAL_ERROR, "the compiler ended without an answer"};
    }
}

}  // namespace occ::onnxifi
