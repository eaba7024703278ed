#include "program.h"

#include "failure.h"

namespace occ::onnxifi {

namespace {

onnxStatus status_of(int code) {
    switch (code) {
        case OCC_ERROR_INPUT: return ONNXIFI_STATUS_UNSUPPORTED_SHAPE;  // all that libocc still finds there
        case OCC_ERROR_MEMORY: return ONNXIFI_STATUS_NO_SYSTEM_MEMORY;
        default: return ONNXIFI_STATUS_INTERNAL_ERROR;
    }
}

std::vector<Port> ports_of(const occ_model *m, size_t count, const occ_port *(*port)(const occ_model *, size_t)) {
    std::vector<Port> made;
    for (size_t k = 0; k < count; k++) {
        const occ_port &p = *port(m, k);
        Port q{p.name, int32_t(p.dtype), {p.extents, p.extents + (p.rank < 0 ? 0 : p.rank)}, {}};
        for (int a = 0; a < p.rank; a++) q.symbols.emplace_back(p.symbols[a] ? p.symbols[a] : "");
        made.push_back(std::move(q));
    }
    return made;
}

class Local : public Program {
public:
    explicit Local(occ_model *m) : model_(m) {
        inputs = ports_of(m, occ_inputs(m), occ_input);
        outputs = ports_of(m, occ_outputs(m), occ_output);
    }
    ~Local() override { occ_close(model_); }

    void output_extents(const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out) override {
        check(occ_output_extents(model_, in.data(), in.size(), out.data(), out.size()));
    }
    void run(const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out) override {
        check(occ_run(model_, in.data(), in.size(), out.data(), out.size()));
    }

private:
    void check(int code) {
        if (code) throw Failure{status_of(code), occ_error_text(model_)};
    }
    occ_model *model_;
};

}  // namespace

std::unique_ptr<Program> local_program(occ_model *model) {
    std::unique_ptr<occ_model, void (*)(occ_model *)> held(model, occ_close);
    auto made = std::make_unique<Local>(model);
    held.release();
    return made;
}

}  // namespace occ::onnxifi
