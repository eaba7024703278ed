// Members of an artifact: a zip in memory, or a folder.
#pragma once
#include "model.h"

namespace occ::runtime {

enum class Found { yes, missing, damaged, unreadable };

struct Members {
    Bytes zip;                     // or, if `folder` is set, nothing
    const char *folder = nullptr;  // path

    // A member. Those of folders are mapped, and released by the caller.
    Found find(const char *name, Mapping &member) const;
};

// The digest that a manifest gives a member; false if it has none. The manifest is not parsed: `"name":"64 digits"` can only be
// an entry of its table of digests, as quotes within texts are escaped, and a damaged manifest has no right digest.
bool digest_in(Bytes manifest, const char *name, char hex[65]);
bool contains(Bytes text, const char *part);
// Whether all that is opened in a text of JSON is closed, so that it is not cut off.
bool is_whole(Bytes json);

}  // namespace occ::runtime
