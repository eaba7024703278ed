// Files and locks on Linux; portable.cpp has those of other systems.
#ifdef __linux__
#include "model.h"

#include <cerrno>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace occ::runtime {

// The forking thread holds it during a fork: a lock that another thread held would stay locked in the child.
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;

void lock_idle() { pthread_mutex_lock(&idle_lock); }
void unlock_idle() { pthread_mutex_unlock(&idle_lock); }
__attribute__((constructor)) static void register_fork_handlers() { pthread_atfork(lock_idle, unlock_idle, unlock_idle); }

int Mapping::map(int fd, size_t offset, size_t count) {
    const size_t page = size_t(sysconf(_SC_PAGESIZE)), before = offset % page;
    if (count) {
        void *made = mmap(nullptr, count + before, PROT_READ, MAP_PRIVATE, fd, off_t(offset - before));
        if (made == MAP_FAILED) return errno;
        base = made;
        length = (count + before + page - 1) / page * page;  // ThreadSanitizer does not forget a part of a page
        data = static_cast<unsigned char *>(made) + before;
    }
    size = count;
    return 0;
}

void Mapping::release() {
    if (base) munmap(base, length);
    *this = Mapping();
}

int Mapping::open(const char *path) {
    const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (fd < 0) return errno;
    const int code = fstat(fd, &facts) ? errno : S_ISREG(facts.st_mode) ? map(fd, 0, size_t(facts.st_size)) : EINVAL;
    close(fd);
    return code;
}

}  // namespace occ::runtime
#endif
