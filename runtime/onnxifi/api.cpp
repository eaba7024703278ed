// The functions of the interface: what is wrong with handles and pointers, and which object does the work.
#include "build.h"
#include "descriptors.h"
#include "graph.h"
#include "handles.h"

#include <cstring>
#include <map>
#include <new>
#include <system_error>

using namespace occ::onnxifi;

namespace {

// Kept until the process ends: threads may still call.
struct State {
    Compiler compiler;
    std::mutex lock;
    std::map<const Device *, size_t> given;  // IDs that were not released, of each device
    Handles<Backend, 2> backends;
    Handles<Event, 3> events;
    Handles<Graph, 4> graphs;
};

State &state() {
    static State *const made = new State;
    return *made;
}

// Does the work of a function. Refusals are logged at their level, our own failures as errors; `level` is the threshold.
template<typename F>
onnxStatus guarded(uint64_t level, const char *function, F work, uint64_t refusal = ONNXIFI_LOG_LEVEL_INFO) noexcept {
    try {
        try {
            return work();
        } catch (const Failure &f) {
            const bool ours = f.status == ONNXIFI_STATUS_INTERNAL_ERROR || f.status == ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
            log(ours ? ONNXIFI_LOG_LEVEL_ERROR : refusal, level, function, f.text);
            return f.status;
        }
    } catch (const std::bad_alloc &) {
        return ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
    } catch (const std::system_error &) {
        return ONNXIFI_STATUS_NO_SYSTEM_RESOURCES;  // a thread that cannot be started
    } catch (...) {
        return ONNXIFI_STATUS_INTERNAL_ERROR;
    }
}

// For functions that may return no status for missing resources other than memory: the backend cannot be reached.
onnxStatus without_resources(onnxStatus status) {
    const bool lacks = status >= ONNXIFI_STATUS_NO_DEVICE_MEMORY && status <= ONNXIFI_STATUS_NO_DEVICE_RESOURCES;
    return lacks ? ONNXIFI_STATUS_BACKEND_UNAVAILABLE : status;
}

// What waiting for a run may return of its outcome.
onnxStatus of_waiting(onnxStatus outcome) {
    const bool lacks = outcome >= ONNXIFI_STATUS_NO_SYSTEM_MEMORY && outcome <= ONNXIFI_STATUS_NO_DEVICE_RESOURCES;
    return lacks ? ONNXIFI_STATUS_INTERNAL_ERROR : outcome;
}

template<typename F> onnxStatus guarded(F work) noexcept { return guarded(ONNXIFI_LOG_LEVEL_WARNING, "", work); }

// The ID of a device is the address of what is known of it, never looked through.
const Device *device_of(onnxBackendID id) {
    State &s = state();
    std::lock_guard hold(s.lock);
    for (const auto &[device, count] : s.given) {
        if (device == id && count) return device;
    }
    return nullptr;
}

std::shared_ptr<Event> begin_of(const onnxMemoryFenceV1 &fence) {
    if (fence.type == ONNXIFI_SYNCHRONIZATION_IMPLICIT) {
        auto now = std::make_shared<Event>();
        now->signal();
        return now;
    }
    auto event = state().events.find(fence.event);
    if (!event) throw Failure{ONNXIFI_STATUS_INVALID_EVENT, "the event of the input fence is unknown"};
    return event;
}

void check_fence(const onnxMemoryFenceV1 &fence) {
    if (fence.tag != ONNXIFI_TAG_MEMORY_FENCE_V1) throw Failure{ONNXIFI_STATUS_UNSUPPORTED_TAG, "a fence has an unknown tag"};
}

void check_type(const onnxMemoryFenceV1 &fence) {
    if (fence.type != ONNXIFI_SYNCHRONIZATION_EVENT && fence.type != ONNXIFI_SYNCHRONIZATION_IMPLICIT) {
        throw Failure{ONNXIFI_STATUS_INVALID_FENCE_TYPE, "a fence has an unknown type"};
    }
}

// Runs a graph. An implicit output fence means that outputs are there when the function returns.
onnxStatus run_graph(Graph &graph, std::shared_ptr<Event> begin, onnxMemoryFenceV1 &fence) {
    auto end = std::make_shared<Event>(true);
    if (fence.type == ONNXIFI_SYNCHRONIZATION_IMPLICIT) {
        graph.run(std::move(begin), end);
        return end->wait();
    }
    void *const handle = state().events.add(end);  // before the run is queued: what fails has not begun
    try {
        graph.run(std::move(begin), std::move(end));
    } catch (...) {
        state().events.take(handle);
        throw;
    }
    fence.event = handle;
    return ONNXIFI_STATUS_SUCCESS;
}

onnxStatus check_io(const std::shared_ptr<Graph> &graph, uint32_t n, const void *inputs, const void *outputs) {
    if (!graph) return ONNXIFI_STATUS_INVALID_GRAPH;
    return (n && !inputs) || !outputs ? ONNXIFI_STATUS_INVALID_POINTER : ONNXIFI_STATUS_SUCCESS;
}

// As an extension function is given to a caller, who casts it back.
template<typename F> onnxExtensionFunctionPointer untyped(F *function) {
    return reinterpret_cast<onnxExtensionFunctionPointer>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

extern "C" {

ONNXIFI_PUBLIC onnxStatus onnxGetBackendIDs(onnxBackendID *ids, size_t *count) {
    if (!count) return ONNXIFI_STATUS_INVALID_POINTER;
    return guarded([&] {
        State &s = state();
        const std::vector<Device> &all = devices(s.compiler);
        const bool stored = ids && *count >= all.size();
        std::lock_guard hold(s.lock);
        for (size_t k = 0; stored && k < all.size(); k++) {
            s.given[&all[k]]++;
            ids[k] = const_cast<Device *>(&all[k]);
        }
        *count = all.size();
        return stored ? ONNXIFI_STATUS_SUCCESS : ONNXIFI_STATUS_FALLBACK;
    });
}

ONNXIFI_PUBLIC onnxStatus onnxReleaseBackendID(onnxBackendID id) {
    return guarded([&] {
        const Device *device = device_of(id);
        if (!device) return ONNXIFI_STATUS_INVALID_ID;
        State &s = state();
        std::lock_guard hold(s.lock);
        size_t &left = s.given[device];
        if (!left) return ONNXIFI_STATUS_INVALID_ID;
        left--;
        return ONNXIFI_STATUS_SUCCESS;
    });
}

ONNXIFI_PUBLIC onnxStatus onnxGetBackendInfo(onnxBackendID id, onnxBackendInfo wanted, void *value, size_t *size) {
    if (!size) return ONNXIFI_STATUS_INVALID_POINTER;
    return without_resources(guarded([&] {
        const Device *device = device_of(id);
        if (!device) return ONNXIFI_STATUS_INVALID_ID;
        std::string found;
        if (!backend_info(*device, wanted, found)) return ONNXIFI_STATUS_UNSUPPORTED_ATTRIBUTE;
        const bool fits = value && *size >= found.size();
        if (fits) memcpy(value, found.data(), found.size());
        *size = found.size();
        return fits ? ONNXIFI_STATUS_SUCCESS : ONNXIFI_STATUS_FALLBACK;
    }));
}

ONNXIFI_PUBLIC onnxStatus onnxGetBackendCompatibility(onnxBackendID id, size_t size, const void *model) {
    return without_resources(guarded(ONNXIFI_LOG_LEVEL_WARNING, "onnxGetBackendCompatibility", [&] {
        const Device *device = device_of(id);
        if (!device) return ONNXIFI_STATUS_INVALID_ID;
        if (!model) return ONNXIFI_STATUS_INVALID_POINTER;
        if (!size) return ONNXIFI_STATUS_INVALID_SIZE;
        check_model(*device, state().compiler, model, size);
        return ONNXIFI_STATUS_SUCCESS;
    }));
}

ONNXIFI_PUBLIC onnxStatus onnxInitBackend(onnxBackendID id, const uint64_t *properties, onnxBackend *backend) {
    if (!backend) return ONNXIFI_STATUS_INVALID_POINTER;
    *backend = nullptr;
    return guarded(ONNXIFI_LOG_LEVEL_WARNING, "onnxInitBackend", [&] {
        const Device *device = device_of(id);
        if (!device) return ONNXIFI_STATUS_INVALID_ID;
        auto made = std::shared_ptr<Backend>(new Backend{*device, state().compiler});
        set_properties(*made, properties);
        *backend = state().backends.add(std::move(made));
        return ONNXIFI_STATUS_SUCCESS;
    });
}

ONNXIFI_PUBLIC onnxStatus onnxReleaseBackend(onnxBackend backend) {
    return guarded([&] { return state().backends.take(backend) ? ONNXIFI_STATUS_SUCCESS : ONNXIFI_STATUS_INVALID_BACKEND; });
}

ONNXIFI_PUBLIC onnxStatus onnxInitEvent(onnxBackend backend, onnxEvent *event) {
    if (!event) return ONNXIFI_STATUS_INVALID_POINTER;
    *event = nullptr;
    return guarded([&] {
        if (!state().backends.find(backend)) return ONNXIFI_STATUS_INVALID_BACKEND;
        *event = state().events.add(std::make_shared<Event>());
        return ONNXIFI_STATUS_SUCCESS;
    });
}

ONNXIFI_PUBLIC onnxStatus onnxSignalEvent(onnxEvent event) {
    return guarded([&] {
        const auto found = state().events.find(event);
        if (!found) return ONNXIFI_STATUS_INVALID_EVENT;
        return found->signal() ? ONNXIFI_STATUS_SUCCESS : ONNXIFI_STATUS_INVALID_STATE;
    });
}

ONNXIFI_PUBLIC onnxStatus onnxGetEventState(onnxEvent event, onnxEventState *value) {
    if (!value) return ONNXIFI_STATUS_INVALID_POINTER;
    *value = ONNXIFI_EVENT_STATE_INVALID;
    return guarded([&] {
        const auto found = state().events.find(event);
        if (!found) return ONNXIFI_STATUS_INVALID_EVENT;
        *value = found->is_signalled() ? ONNXIFI_EVENT_STATE_SIGNALLED : ONNXIFI_EVENT_STATE_NONSIGNALLED;
        return ONNXIFI_STATUS_SUCCESS;
    });
}

ONNXIFI_PUBLIC onnxStatus onnxWaitEvent(onnxEvent event) {
    return guarded([&] {
        const auto found = state().events.find(event);
        return found ? of_waiting(found->wait()) : ONNXIFI_STATUS_INVALID_EVENT;
    });
}

ONNXIFI_PUBLIC onnxStatus onnxReleaseEvent(onnxEvent event) {
    return guarded([&] {
        const auto found = state().events.take(event);
        if (!found) return ONNXIFI_STATUS_INVALID_EVENT;
        found->abandon();
        return ONNXIFI_STATUS_SUCCESS;
    });
}

ONNXIFI_PUBLIC onnxStatus onnxInitGraph(onnxBackend handle, const uint64_t *properties, size_t size, const void *model,
                                        uint32_t count, const onnxTensorDescriptorV1 *weights, onnxGraph *graph) {
    if (!graph) return ONNXIFI_STATUS_INVALID_POINTER;
    *graph = nullptr;
    const std::shared_ptr<Backend> backend = state().backends.find(handle);
    if (!backend) return ONNXIFI_STATUS_INVALID_BACKEND;
    return guarded(backend->log_level, "onnxInitGraph", [&] {
        if (!model || (count && !weights)) return ONNXIFI_STATUS_INVALID_POINTER;
        if (!size) return ONNXIFI_STATUS_INVALID_SIZE;
        if (properties && *properties != ONNXIFI_GRAPH_PROPERTY_NONE) return ONNXIFI_STATUS_UNSUPPORTED_PROPERTY;
        check_all(weights, count, "weight", true);
        auto program = build(*backend, model, size, weights, count);
        *graph = state().graphs.add(std::make_shared<Graph>(backend, std::move(program)));
        return ONNXIFI_STATUS_SUCCESS;
    }, ONNXIFI_LOG_LEVEL_WARNING);
}

ONNXIFI_PUBLIC onnxStatus onnxSetGraphIO(onnxGraph handle, uint32_t n, const onnxTensorDescriptorV1 *inputs, uint32_t m,
                                         const onnxTensorDescriptorV1 *outputs) {
    return guarded(ONNXIFI_LOG_LEVEL_WARNING, "onnxSetGraphIO", [&] {
        const auto graph = state().graphs.find(handle);
        if (const onnxStatus status = check_io(graph, n, inputs, outputs)) return status;
        graph->bind(inputs, n, outputs, m);
        return ONNXIFI_STATUS_SUCCESS;
    });
}

ONNXIFI_PUBLIC onnxStatus onnxRunGraph(onnxGraph handle, const onnxMemoryFenceV1 *input, onnxMemoryFenceV1 *output) {
    return guarded(ONNXIFI_LOG_LEVEL_WARNING, "onnxRunGraph", [&] {
        const auto graph = state().graphs.find(handle);
        if (!graph) return ONNXIFI_STATUS_INVALID_GRAPH;
        if (!input || !output) return ONNXIFI_STATUS_INVALID_POINTER;
        for (const onnxMemoryFenceV1 *fence : {input, const_cast<const onnxMemoryFenceV1 *>(output)}) check_fence(*fence);
        for (const onnxMemoryFenceV1 *fence : {input, const_cast<const onnxMemoryFenceV1 *>(output)}) check_type(*fence);
        return run_graph(*graph, begin_of(*input), *output);
    });
}

ONNXIFI_PUBLIC onnxStatus onnxReleaseGraph(onnxGraph handle) {
    return guarded([&] {
        const auto graph = state().graphs.take(handle);
        if (!graph) return ONNXIFI_STATUS_INVALID_GRAPH;
        graph->close();
        return ONNXIFI_STATUS_SUCCESS;
    });
}

ONNXIFI_PUBLIC onnxStatus onnxSetIOAndRunGraph(onnxGraph handle, uint32_t n, const onnxTensorDescriptorV1 *inputs, uint32_t m,
                                               const onnxTensorDescriptorV1 *outputs, onnxMemoryFenceV1 *output) {
    return guarded(ONNXIFI_LOG_LEVEL_WARNING, "onnxSetIOAndRunGraph", [&] {
        const auto graph = state().graphs.find(handle);
        if (const onnxStatus status = check_io(graph, n, inputs, outputs)) return status;
        if (!output) return ONNXIFI_STATUS_INVALID_POINTER;
        check_fence(*output);
        check_type(*output);
        graph->bind(inputs, n, outputs, m);
        auto now = std::make_shared<Event>();
        now->signal();
        return run_graph(*graph, std::move(now), *output);
    });
}

ONNXIFI_PUBLIC onnxStatus onnxGetExtensionFunctionAddress(onnxBackendID id, const char *name,
                                                          onnxExtensionFunctionPointer *function) {
    if (!function) return ONNXIFI_STATUS_INVALID_POINTER;
    *function = nullptr;
    return guarded([&] {
        if (!device_of(id)) return ONNXIFI_STATUS_INVALID_ID;
        if (!name) return ONNXIFI_STATUS_INVALID_POINTER;
        // Clients differ in the name.
        for (const char *known : {"onnxSetIOAndRunGraph", "onnxSetIOAndRunGraphFunction"}) {
            if (!strcmp(name, known)) *function = untyped(onnxSetIOAndRunGraph);
        }
        if (!strcmp(name, "onnxGetExtensionFunctionAddress")) {
            *function = untyped(onnxGetExtensionFunctionAddress);
        }
        return *function ? ONNXIFI_STATUS_SUCCESS : ONNXIFI_STATUS_UNIDENTIFIED_NAME;
    });
}

}  // extern "C"
