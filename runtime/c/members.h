// Members of an artifact: a zip in memory, or a folder.
#pragma once
#include "model.h"

namespace occ::runtime {

enum class Found { yes, missing, damaged, unreadable };

struct Members {
    Bytes zip;                     // or, if `folder` is set, nothing
    const char *folder = nullptr;  // path

    // Prefix of names, for the members of a further machine: `machines/NAME/`.
    char prefix[256] = "";

    // A member. Those of folders are mapped, and released by the caller.
    Found find(const char *name, Mapping &member) const;
};

// The digest of a member in a manifest; false if it has none. The manifest is not parsed. `"name":"64 digits"` can only
// be an entry of its table of digests, since quotes within texts are escaped; and a damaged manifest has no right
// digest.
bool digest_in(Bytes manifest, const char *name, char hex[65]);
bool contains(Bytes text, const char *part);
// The first machine in a manifest, with the features that its code needs; empty if there is none.
void machine_in(Bytes manifest, char *machine, size_t size);
// The next machine after `at` that a manifest has code for; moves `at` past it. False if there is none.
bool next_machine(Bytes manifest, size_t &at, char *machine, size_t size);
// Whether all brackets of a JSON text are closed, so that it is not cut off.
bool is_whole(Bytes json);

}  // namespace occ::runtime
