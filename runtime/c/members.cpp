// Reads members of zips: APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3. Every offset is checked before it is used.
#ifdef __linux__
#include "members.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace occ::runtime {

namespace {

uint64_t number(const unsigned char *at, int bytes) {
    uint64_t n = 0;
    for (int k = bytes - 1; k >= 0; k--) n = n << 8 | at[k];
    return n;
}

bool is(const unsigned char *at, const char *signature) { return !memcmp(at, signature, 4); }

struct Directory {
    uint64_t count, size, offset;
};

// Finds the central directory by the record at the end of the zip.
bool find_directory(Bytes zip, Directory &found) {
    constexpr size_t kEnd = 22, kLocator = 20, kEnd64 = 56;
    if (zip.size < kEnd) return false;
    size_t at = zip.size - kEnd;
    const size_t first = at > 65535 ? at - 65535 : 0;  // a comment may follow
    while (!is(zip.data + at, "PK\5\6")) {
        if (at-- == first) return false;
    }
    const unsigned char *end = zip.data + at;
    found = {number(end + 10, 2), number(end + 12, 4), number(end + 16, 4)};
    if (at >= kLocator && is(end - kLocator, "PK\6\7")) {
        const uint64_t where = number(end - kLocator + 8, 8);
        if (where > zip.size || zip.size - where < kEnd64 || !is(zip.data + where, "PK\6\6")) return false;
        const unsigned char *end64 = zip.data + where;
        found = {number(end64 + 32, 8), number(end64 + 40, 8), number(end64 + 48, 8)};
    }
    return found.offset <= zip.size && found.size <= zip.size - found.offset;
}

struct Entry {
    uint64_t size, stored, offset;
    unsigned method, flags;
};

// An entry of the directory; sizes that do not fit 32 bits are in an extra field.
bool read_entry(const unsigned char *at, Entry &e) {
    e = {number(at + 24, 4), number(at + 20, 4), number(at + 42, 4), unsigned(number(at + 10, 2)), unsigned(number(at + 8, 2))};
    const unsigned char *extra = at + 46 + number(at + 28, 2), *end = extra + number(at + 30, 2);
    while (end - extra >= 4) {
        const unsigned kind = unsigned(number(extra, 2));
        const unsigned char *value = extra + 4, *last = value + number(extra + 2, 2);
        if (last > end) return false;
        uint64_t *const wide[] = {&e.size, &e.stored, &e.offset};
        for (int k = 0; kind == 1 && k < 3; k++) {
            if (*wide[k] != 0xffffffff) continue;
            if (last - value < 8) return false;
            *wide[k] = number(value, 8);
            value += 8;
        }
        extra = last;
    }
    return true;
}

// The bytes of a stored member.
Found locate(Bytes zip, const Entry &e, Bytes &member) {
    if (e.method != 0 || e.flags & 1 || e.size != e.stored) return Found::damaged;
    if (e.offset > zip.size || zip.size - e.offset < 30 || !is(zip.data + e.offset, "PK\3\4")) return Found::damaged;
    const unsigned char *head = zip.data + e.offset;
    const uint64_t start = e.offset + 30 + number(head + 26, 2) + number(head + 28, 2);
    if (start > zip.size || e.size > zip.size - start) return Found::damaged;
    member.data = zip.data + start;
    member.size = e.size;
    return Found::yes;
}

Found find_in_zip(Bytes zip, const char *name, Bytes &member) {
    Directory d;
    if (!find_directory(zip, d)) return Found::damaged;
    const unsigned char *at = zip.data + d.offset, *end = at + d.size;
    Found found = Found::missing;
    for (uint64_t k = 0; k < d.count && found != Found::yes; k++) {
        if (end - at < 46 || !is(at, "PK\1\2")) return Found::damaged;
        const uint64_t length = number(at + 28, 2), all = 46 + length + number(at + 30, 2) + number(at + 32, 2);
        if (uint64_t(end - at) < all) return Found::damaged;
        if (length == strlen(name) && !memcmp(at + 46, name, length)) {
            Entry e;
            if (!read_entry(at, e)) return Found::damaged;
            found = locate(zip, e, member);
            if (found == Found::damaged) return found;
        }
        at += all;
    }
    return found;
}

Found find_in_folder(const char *folder, const char *name, Mapping &member) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= int(sizeof path)) return Found::unreadable;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT || errno == ENOTDIR ? Found::missing : Found::unreadable;
    struct stat facts;
    const bool mapped = !fstat(fd, &facts) && S_ISREG(facts.st_mode) && !member.map(fd, 0, size_t(facts.st_size));
    close(fd);
    return mapped ? Found::yes : Found::unreadable;
}

}  // namespace

Found Members::find(const char *name, Mapping &member) const {
    char path[512];
    if (snprintf(path, sizeof path, "%s%s", prefix, name) >= int(sizeof path)) return Found::missing;
    return folder ? find_in_folder(folder, path, member) : find_in_zip(zip, path, member);
}

static const unsigned char *search(Bytes text, const char *part) {
    if (!text.size) return nullptr;
    return static_cast<const unsigned char *>(memmem(text.data, text.size, part, strlen(part)));
}

// The text from `start` on, between its prefix and its suffix; false if they are missing or the text is too long.
static bool between(Bytes text, const unsigned char *start, const char *before, const char *after, char *found, size_t size) {
    const size_t skipped = strlen(before), left = size_t(text.data + text.size - start);
    if (left < skipped || memcmp(start, before, skipped)) return false;
    Bytes rest;
    rest.data = start + skipped;
    rest.size = left - skipped < size ? left - skipped : size;
    const unsigned char *end = search(rest, after);
    if (!end) return false;
    memcpy(found, rest.data, size_t(end - rest.data));
    found[end - rest.data] = 0;
    return !strpbrk(found, "\"/\\");
}

void machine_in(Bytes manifest, char *machine, size_t size) {
    constexpr char kKey[] = "\"machine\":\"";
    const unsigned char *at = search(manifest, kKey);
    if (!at || !between(manifest, at, kKey, "\"", machine, size)) *machine = 0;
}

bool next_machine(Bytes manifest, size_t &at, char *machine, size_t size) {
    constexpr char kFolder[] = "\"machines/";
    for (;;) {
        Bytes rest;
        rest.data = manifest.data + at;
        rest.size = manifest.size - at;
        const unsigned char *found = search(rest, kFolder);
        if (!found) return false;
        at = size_t(found - manifest.data) + strlen(kFolder);
        if (between(manifest, found, kFolder, "/manifest.json\"", machine, size)) return true;
    }
}

bool contains(Bytes text, const char *part) { return search(text, part) != nullptr; }

bool is_whole(Bytes json) {
    size_t depth = 0, closed = 0;
    bool quoted = false;
    for (size_t k = 0; k < json.size; k++) {
        const unsigned char c = json.data[k];
        if (quoted && c == '\\') {
            k++;
        } else if (c == '"') {
            quoted = !quoted;
        } else if (!quoted && (c == '{' || c == '[')) {
            depth++;
        } else if (!quoted && (c == '}' || c == ']')) {
            if (!depth--) return false;
            closed += depth == 0;
        }
    }
    return closed == 1 && !depth && !quoted;
}

bool digest_in(Bytes manifest, const char *name, char hex[65]) {
    char quoted[512];
    snprintf(quoted, sizeof quoted, "\"%s\"", name);
    const unsigned char *end = manifest.data + manifest.size;
    while (const unsigned char *at = search(manifest, quoted)) {
        at += strlen(quoted);
        manifest.data = at;
        manifest.size = size_t(end - at);
        int marks = 0;  // a colon, then a quote
        for (; at < end && marks < 2 && (*at == ' ' || *at == ":\""[marks]); at++) marks += *at != ' ';
        if (marks < 2 || end - at < 65 || at[64] != '"') continue;
        memcpy(hex, at, 64);
        hex[64] = 0;
        if (strspn(hex, "0123456789abcdef") == 64) return true;
    }
    return false;
}

}  // namespace occ::runtime
#endif
