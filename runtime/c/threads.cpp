// The default number of threads of a run, as in runtime/threads.py.
#ifdef __linux__
#include "model.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sched.h>
#include <unistd.h>

namespace occ::runtime {

namespace {

// Whole processors that one control group allows, rounded up; 0 for no limit.
int quota_of(const char *folder, const char *group) {
    char path[1400], text[64];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "%s%s/cpu.max", folder, group);
    if (FILE *f = fopen(path, "r")) {
        const int found = fscanf(f, "%63s %lld", text, &period);
        fclose(f);
        if (found == 2) quota = strcmp(text, "max") ? atoll(text) : 0;
    } else {
        const char *const names[] = {"quota", "period"};
        long long *const values[] = {&quota, &period};
        for (int k = 0; k < 2; k++) {
            snprintf(path, sizeof path, "%s%s/cpu.cfs_%s_us", folder, group, names[k]);
            FILE *g = fopen(path, "r");
            if (!g) return 0;
            if (fscanf(g, "%lld", values[k]) != 1) *values[k] = 0;
            fclose(g);
        }
    }
    return quota > 0 && period > 0 ? int((quota + period - 1) / period) : 0;
}

// The lowest limit of a control group and its ancestors.
int quota_above(const char *mount, char *group) {
    int least = 0;
    for (;;) {
        const int n = quota_of(mount, group);
        if (n && (!least || n < least)) least = n;
        char *slash = strrchr(group, '/');
        if (!slash) return least;
        *slash = 0;
    }
}

bool lists_cpu(const char *kinds) {
    for (const char *word = kinds; word; word = strchr(word, ',') ? strchr(word, ',') + 1 : nullptr) {
        if (!strncmp(word, "cpu", 3) && (!word[3] || word[3] == ',')) return true;
    }
    return false;
}

int cgroup_quota() {
    FILE *f = fopen("/proc/self/cgroup", "r");
    if (!f) return 0;
    int least = 0;
    char line[1200];
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *kinds = strchr(line, ':'), *group = kinds ? strchr(kinds + 1, ':') : nullptr;
        if (!group) continue;
        *kinds++ = 0;
        *group++ = 0;
        char named[128];
        snprintf(named, sizeof named, "/sys/fs/cgroup/%.100s", kinds);
        const bool second = !strcmp(line, "0") && !*kinds;
        const bool first = lists_cpu(kinds);
        const char *const mounts[2][2] = {{named, "/sys/fs/cgroup/cpu"}, {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}};
        if (!first && !second) continue;
        for (const char *mount : mounts[second]) {
            char copy[1200];
            snprintf(copy, sizeof copy, "%s", group);
            const int n = quota_above(mount, copy);
            if (n && (!least || n < least)) least = n;
        }
    }
    fclose(f);
    return least;
}

}  // namespace

int default_threads() {
    const char *asked = getenv("OCC_NUM_THREADS");
    if (asked && atoi(asked) >= 1) return atoi(asked) < 4096 ? atoi(asked) : 4096;
    cpu_set_t allowed;
    const long all = sysconf(_SC_NPROCESSORS_ONLN);
    int usable = sched_getaffinity(0, sizeof allowed, &allowed) ? int(all > 0 ? all : 1) : CPU_COUNT(&allowed);
    const int quota = cgroup_quota();
    return quota && quota < usable ? quota : usable > 0 ? usable : 1;
}

}  // namespace occ::runtime
#endif
