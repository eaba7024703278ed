#include "program.h"

namespace occ::onnxifi {

namespace {

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

    int output_extents(const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out, std::string &text) override {
        return told(occ_output_extents(model_, in.data(), in.size(), out.data(), out.size()), text);
    }
    int run(const std::vector<occ_tensor> &in, std::vector<occ_tensor> &out, std::string &text) override {
        return told(occ_run(model_, in.data(), in.size(), out.data(), out.size()), text);
    }

private:
    int told(int status, std::string &text) {
        if (status) text = occ_error_text(model_);
        return status;
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
