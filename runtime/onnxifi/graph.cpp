#include "graph.h"

#include "backend.h"
#include "descriptors.h"

#include <cstring>

namespace occ::onnxifi {

namespace {

// Compares the extents that come of the inputs with those of the descriptors.
void check_outputs(Program &program, const Bindings &io) {
    std::vector<occ_tensor> made = io.outputs;
    program.output_extents(io.inputs, made);
    for (size_t k = 0; k < made.size(); k++) {
        if (memcmp(made[k].extents, io.outputs[k].extents, size_t(made[k].rank) * sizeof(int64_t))) {
            throw Failure{ONNXIFI_STATUS_MISMATCHING_SHAPE,
                          "the output `" + program.outputs[k].name + "` has another shape for these inputs"};
        }
    }
}

}  // namespace

Graph::Graph(std::shared_ptr<Backend> backend, std::unique_ptr<Program> program)
    : backend_(std::move(backend)), program_(std::move(program)) {}

Graph::~Graph() { close(); }

void Graph::bind(const onnxTensorDescriptorV1 *inputs, uint32_t n, const onnxTensorDescriptorV1 *outputs, uint32_t m) {
    {
        std::lock_guard hold(lock_);
        bound_ = nullptr;
    }
    check_all(inputs, n, "input", false);
    check_all(outputs, m, "output", false);
    auto made = std::make_shared<Bindings>();
    made->inputs = bind_ports(program_->inputs, inputs, n, "input");
    made->outputs = bind_ports(program_->outputs, outputs, m, "output");
    check_symbols(program_->inputs, made->inputs);
    check_outputs(*program_, *made);
    std::lock_guard hold(lock_);
    bound_ = std::move(made);
}

void Graph::run(std::shared_ptr<Event> begin, std::shared_ptr<Event> end) {
    begin->watch([weak = weak_from_this()] {
        if (auto graph = weak.lock()) {
            std::lock_guard hold(graph->lock_);
            graph->changed_.notify_all();
        }
    });
    std::lock_guard hold(lock_);
    if (closing_) throw Failure{ONNXIFI_STATUS_INVALID_GRAPH, "the graph is being released"};
    if (!bound_) throw Failure{ONNXIFI_STATUS_UNIDENTIFIED_NAME, "inputs and outputs of the graph are not set"};
    if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
    jobs_.push_back({bound_, std::move(begin), std::move(end)});
    changed_.notify_all();
}

void Graph::close() {
    {
        std::lock_guard hold(lock_);
        closing_ = true;
        changed_.notify_all();
    }
    if (worker_.joinable()) worker_.join();
}

// The first run that may begin: runs of the same tensors keep their order, others pass one that waits.
std::deque<Graph::Job>::iterator Graph::ready() {
    for (auto at = jobs_.begin(); at != jobs_.end(); ++at) {
        bool first = true;
        for (auto before = jobs_.begin(); before != at; ++before) first &= before->io != at->io;
        if (first && !at->begin->is_open()) return at;
    }
    return jobs_.end();
}

void Graph::work() {
    std::unique_lock hold(lock_);
    for (;;) {
        const auto at = ready();
        if (at == jobs_.end()) {
            if (closing_ && jobs_.empty()) return;
            changed_.wait(hold);
            continue;
        }
        Job job = std::move(*at);
        jobs_.erase(at);
        hold.unlock();
        job.end->signal(execute(job));
        job = Job();
        hold.lock();
    }
}

// The outcome of a run: one of the statuses of onnxRunGraph, whatever there is no memory for.
onnxStatus Graph::execute(const Job &job) {
    onnxStatus status = ONNXIFI_STATUS_INTERNAL_ERROR;
    std::string text;
    try {
        if (!job.begin->is_signalled()) throw Failure{status, "the event of its input was released"};
        std::vector<occ_tensor> outputs = job.io->outputs;
        program_->run(job.io->inputs, outputs);
        return ONNXIFI_STATUS_SUCCESS;
    } catch (Failure &f) {
        const bool lacks = f.status >= ONNXIFI_STATUS_NO_SYSTEM_MEMORY && f.status <= ONNXIFI_STATUS_BACKEND_UNAVAILABLE;
        if (lacks) status = f.status;
        text.swap(f.text);
    } catch (const std::bad_alloc &) {
        status = ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
    } catch (...) {}
    log(ONNXIFI_LOG_LEVEL_ERROR, backend_->log_level, "a run failed", text);
    return status;
}

}  // namespace occ::onnxifi
