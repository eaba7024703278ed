// The last error of each thread.
#include "model.h"

#include <cstdarg>
#include <cstdio>

namespace occ::runtime {

namespace {
thread_local char last_text[1024];
thread_local const occ_model *last_model = nullptr;
}  // namespace

int fail(const occ_model *model, int status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_text, sizeof last_text, format, arguments);
    va_end(arguments);
    last_model = model;
    return status;
}

const char *last_error(const occ_model *model) { return !model || model == last_model ? last_text : ""; }

}  // namespace occ::runtime

extern "C" const char *occ_error_text(const occ_model *model) { return occ::runtime::last_error(model); }

extern "C" void occ_free(occ_tensor *tensor) {
    if (!tensor || !tensor->owned) return;
    occ::runtime::free_memory(tensor->data);
    *tensor = occ_tensor{};
}
