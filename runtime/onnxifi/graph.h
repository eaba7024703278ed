// Graphs: a program, the tensors that it is bound to, and the runs that wait for their events.
#pragma once
#include "event.h"
#include "program.h"

#include <deque>
#include <thread>

namespace occ::onnxifi {

struct Backend;

// What descriptors say, in the order of the program.
struct Bindings {
    std::vector<occ_tensor> inputs, outputs;
};

class Graph : public std::enable_shared_from_this<Graph> {
public:
    Graph(std::shared_ptr<Backend> backend, std::unique_ptr<Program> program);
    ~Graph();

    // Binds inputs and outputs; a failure leaves none bound.
    void bind(const onnxTensorDescriptorV1 *inputs, uint32_t n, const onnxTensorDescriptorV1 *outputs, uint32_t m);
    // Queues a run that begins when `begin` is signalled, and signals `end`; on failure there is no run.
    void run(std::shared_ptr<Event> begin, std::shared_ptr<Event> end);
    // Refuses further runs, and waits for those that are queued.
    void close();

private:
    struct Job {
        std::shared_ptr<const Bindings> io;
        std::shared_ptr<Event> begin, end;
    };

    void work();
    std::deque<Job>::iterator ready();
    onnxStatus execute(const Job &job);

    std::shared_ptr<Backend> backend_;
    std::unique_ptr<Program> program_;
    std::mutex lock_;
    std::condition_variable changed_;
    std::shared_ptr<const Bindings> bound_;
    std::deque<Job> jobs_;
    std::thread worker_;
    bool closing_ = false;
};

}  // namespace occ::onnxifi
