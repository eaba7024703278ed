// A compiled model on a device: loading it, and running it on the inputs of a node.
#include "ascend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace occ::ort_plugin::ascend {

namespace {

constexpr char kGearInput[] = "ascend_mbatch_shape_data";

// Extents as `1,3,224,224`; nothing is a scalar.
Shape shape_of(const std::string &text) {
    Shape made;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, ',');) made.push_back(atoll(part.c_str()));
    return made;
}

std::vector<Shape> shapes_of(const std::string &text) {
    std::vector<Shape> made;
    size_t from = 0;
    while (true) {
        const size_t to = text.find(';', from);
        made.push_back(shape_of(text.substr(from, to == std::string::npos ? to : to - from)));
        if (to == std::string::npos) return made;
        from = to + 1;
    }
}

std::string text_of(const std::vector<Shape> &shapes) {
    std::string made;
    for (const Shape &shape : shapes) {
        made += made.empty() ? "[" : " [";
        for (size_t k = 0; k < shape.size(); k++) made += (k ? "," : "") + std::to_string(shape[k]);
        made += "]";
    }
    return made;
}

// The extents that gears of batches and pictures choose, which are the ones in which gears differ, in order and each once.
std::vector<uint64_t> chosen(const Record &record, const Gear &gear) {
    std::vector<uint64_t> made;
    for (size_t k = 0; k < gear.inputs.size(); k++) {
        for (size_t axis = 0; axis < gear.inputs[k].size(); axis++) {
            const auto differs = [&](const Gear &other) { return other.inputs[k][axis] != gear.inputs[k][axis]; };
            if (std::any_of(record.gears.begin(), record.gears.end(), differs)) made.push_back(uint64_t(gear.inputs[k][axis]));
        }
    }
    return made;
}

// A model that writes more than its record says would be given too little memory.
void check_extents(const Record &record, const std::string &name, const IoDims &dims, const Shape &told) {
    bool same = dims.count == told.size();
    for (size_t k = 0; k < told.size() && same; k++) same = dims.dims[k] < 0 || dims.dims[k] == told[k];
    if (!same) throw Failure("OCC0502: `" + name + "` of part `" + record.name + "` has other extents than its record: " + text_of({told}));
}

}  // namespace

Record::Record(const std::string &text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const size_t blank = line.find(' ');
        const std::string key = line.substr(0, blank), value = blank == std::string::npos ? "" : line.substr(blank + 1);
        if (key == "name") name = value;
        if (key == "soc") soc = value;
        if (key == "kind") kind = value;
        if (key == "input") inputs.push_back(value);
        if (key == "output") outputs.push_back(value);
        if (key != "gear") continue;
        const size_t arrow = value.find(" > ");
        Gear gear;
        if (arrow != std::string::npos) gear = {shapes_of(value.substr(0, arrow)), shapes_of(value.substr(arrow + 3))};
        if (inputs.empty()) gear.inputs.clear();
        if (gear.inputs.size() != inputs.size() || gear.outputs.size() != outputs.size()) throw Failure("the record of a compiled model is damaged");
        if (!gears.empty()) {
            for (size_t k = 0; k < inputs.size(); k++) {
                if (gear.inputs[k].size() != gears[0].inputs[k].size()) throw Failure("the record of a compiled model is damaged");
            }
        }
        gears.push_back(gear);
    }
    if (gears.empty() || outputs.empty()) throw Failure("this is not a model compiled by occ for an Ascend device");
}

// Buffers of the inputs or outputs of an execution.
class Model::Dataset {
  public:
    Dataset(const Acl &acl, const std::vector<Span> &spans, const std::string &doing) : acl_(acl) {
        handle = acl.made(acl.aclmdlCreateDataset(), "aclmdlCreateDataset", doing);
        try {
            for (const Span &span : spans) add(span, doing);
        } catch (...) {
            release();
            throw;
        }
    }
    ~Dataset() { release(); }
    void *handle;

  private:
    void add(const Span &span, const std::string &doing) {
        void *buffer = acl_.made(acl_.aclCreateDataBuffer(span.address, std::max<size_t>(span.size, 1)), "aclCreateDataBuffer", doing);
        buffers_.push_back(buffer);
        acl_.check(acl_.aclmdlAddDatasetBuffer(handle, buffer), "aclmdlAddDatasetBuffer", doing);
    }
    void release() {
        for (void *buffer : buffers_) acl_.aclDestroyDataBuffer(buffer);
        acl_.aclmdlDestroyDataset(handle);
    }
    const Acl &acl_;
    std::vector<void *> buffers_;
};

Model::Model(std::shared_ptr<Arena> memory, Record told, std::string content) : record(std::move(told)), arena(std::move(memory)), content_(std::move(content)) {
    const Device &device = *arena->device;
    const Acl &acl = *device.acl;
    const std::string doing = "loading part `" + record.name + "`";
    if (!record.soc.empty() && record.soc != device.soc) {
        throw Failure("OCC0510: part `" + record.name + "` was compiled for `" + record.soc + "`, device " + std::to_string(device.number) +
                      " is `" + device.soc + "`: build it with `soc_version=" + device.soc + "`");
    }
    const char *data = content_.data();
    const size_t size = content_.size();
    try {
        size_t work = 0, weights = 0;
        const Device::Current here(device);
        acl.check(acl.aclmdlQuerySizeFromMem(data, size, &work, &weights), "aclmdlQuerySizeFromMem", doing);
        work_ = arena->take(work);
        weights_ = arena->take(weights);
        acl.check(acl.aclmdlLoadFromMemWithMem(data, size, &id_, work_, work, weights_, weights), "aclmdlLoadFromMemWithMem", doing);
        loaded_ = true;
        describe();
    } catch (...) {
        release();
        throw;
    }
}

Model::~Model() { release(); }

void Model::release() noexcept {
    const Acl &acl = *arena->device->acl;
    try {
        const Device::Current here(*arena->device);
        if (desc_) acl.aclmdlDestroyDesc(desc_);
        if (loaded_) acl.aclmdlUnload(id_);
    } catch (const Failure &) {  // there is no caller to report to
    }
    if (weights_) arena->give(weights_);
    if (work_) arena->give(work_);
    desc_ = weights_ = work_ = nullptr;
    loaded_ = false;
}

// Inputs go by name where the model has all of the names, else by their places. Its inputs and outputs are those in the record,
// or it would be given too little memory.
void Model::describe() {
    const Acl &acl = *arena->device->acl;
    const std::string doing = "reading the description of part `" + record.name + "`";
    desc_ = acl.made(acl.aclmdlCreateDesc(), "aclmdlCreateDesc", doing);
    acl.check(acl.aclmdlGetDesc(desc_, id_), "aclmdlGetDesc", doing);
    std::vector<std::string> names;
    std::vector<size_t> at;  // of the inputs that are not hidden
    for (size_t k = 0; k < acl.aclmdlGetNumInputs(desc_); k++) {
        const char *name = acl.aclmdlGetInputNameByIndex(desc_, k);
        if (name && !strcmp(name, kGearInput)) {
            hidden_ = k;
            hidden_size_ = acl.aclmdlGetInputSizeByIndex(desc_, k);
        } else {
            names.push_back(name ? name : "");
            at.push_back(k);
        }
    }
    const size_t outputs = acl.aclmdlGetNumOutputs(desc_);
    if (names.size() != record.inputs.size() || outputs != record.outputs.size()) {
        throw Failure("OCC0502: part `" + record.name + "` has " + std::to_string(names.size()) + " inputs and " + std::to_string(outputs) +
                      " outputs; " + std::to_string(record.inputs.size()) + " and " + std::to_string(record.outputs.size()) + " were expected");
    }
    const bool by_name = std::is_permutation(names.begin(), names.end(), record.inputs.begin());
    for (size_t k = 0; k < names.size(); k++) {
        const auto found = std::find(record.inputs.begin(), record.inputs.end(), names[k]);
        order_.push_back(by_name ? size_t(found - record.inputs.begin()) : k);
    }
    for (size_t k = 0; k < order_.size(); k++) {
        IoDims dims = {};
        acl.check(acl.aclmdlGetInputDims(desc_, at[k], &dims), "aclmdlGetInputDims", doing);
        types.inputs.resize(order_.size());
        types.inputs[order_[k]] = acl.aclmdlGetInputDataType(desc_, at[k]);
        for (const Gear &gear : record.gears) check_extents(record, record.inputs[order_[k]], dims, gear.inputs[order_[k]]);
    }
    for (size_t k = 0; k < outputs; k++) {
        IoDims dims = {};
        acl.check(acl.aclmdlGetOutputDims(desc_, k, &dims), "aclmdlGetOutputDims", doing);
        types.outputs.push_back(acl.aclmdlGetOutputDataType(desc_, k));
        for (const Gear &gear : record.gears) check_extents(record, record.outputs[k], dims, gear.outputs[k]);
    }
    if (record.kind.empty() != (hidden_ == SIZE_MAX)) throw Failure("OCC0502: part `" + record.name + "` and its record disagree about gears");
}

const Gear &Model::choose(const std::vector<Shape> &shapes) const {
    for (const Gear &gear : record.gears) {
        if (gear.inputs == shapes) return gear;
    }
    std::string known;
    for (size_t k = 0; k < std::min<size_t>(record.gears.size(), 8); k++) known += (k ? "; " : "") + text_of(record.gears[k].inputs);
    if (record.gears.size() > 8) known += "; and " + std::to_string(record.gears.size() - 8) + " more";
    throw Failure("OCC0501: part `" + record.name + "` was compiled for inputs of " + known + ", not " + text_of(shapes) +
                  ": pad them to one of these, or compile for this size too");
}

void Model::set_gear(const Gear &gear, void *dataset) const {
    const Acl &acl = *arena->device->acl;
    const std::string doing = "choosing a gear of part `" + record.name + "`";
    if (record.kind == "dims") {
        IoDims dims = {};
        for (size_t k : order_) {
            for (int64_t extent : gear.inputs[k]) dims.dims[dims.count++ % 128] = extent;
        }
        return acl.check(acl.aclmdlSetInputDynamicDims(id_, dataset, hidden_, &dims), "aclmdlSetInputDynamicDims", doing);
    }
    const std::vector<uint64_t> sizes = chosen(record, gear);
    if (record.kind == "batch" && !sizes.empty()) {
        return acl.check(acl.aclmdlSetDynamicBatchSize(id_, dataset, hidden_, sizes[0]), "aclmdlSetDynamicBatchSize", doing);
    }
    for (size_t k = 0; k < gear.inputs.size(); k++) {
        const Shape &shape = gear.inputs[k];
        const auto differs = [&](const Gear &other) { return other.inputs[k] != shape; };
        if (shape.size() != 4 || std::none_of(record.gears.begin(), record.gears.end(), differs)) continue;
        return acl.check(acl.aclmdlSetDynamicHWSize(id_, dataset, hidden_, uint64_t(shape[2]), uint64_t(shape[3])), "aclmdlSetDynamicHWSize", doing);
    }
}

void Model::run(const Gear &gear, const std::vector<Span> &inputs, const std::vector<Span> &outputs) {
    const Acl &acl = *arena->device->acl;
    const std::string doing = "running part `" + record.name + "`";
    std::vector<Span> ordered;
    for (size_t k : order_) ordered.push_back(inputs[k]);
    const std::lock_guard<std::mutex> hold(lock_);
    const Device::Current here(*arena->device);
    void *choice = nullptr;
    const std::shared_ptr<void> kept(nullptr, [&](void *) {
        if (choice) arena->give(choice);
    });
    if (hidden_ != SIZE_MAX) {
        choice = arena->take(hidden_size_);
        ordered.insert(ordered.begin() + std::ptrdiff_t(hidden_), {choice, hidden_size_});
    }
    const Dataset in(acl, ordered, doing), out(acl, outputs, doing);
    if (choice) set_gear(gear, in.handle);
    acl.check(acl.aclmdlExecute(id_, in.handle, out.handle), "aclmdlExecute", doing);
}

Shape extents(const void *api, const OrtValue *value) {
    OrtTensorTypeAndShapeInfo *info = nullptr;
    check(api, ort::GetTensorTypeAndShape(api, value, &info));
    size_t rank = 0;
    OrtStatus *status = ort::GetDimensionsCount(api, info, &rank);
    Shape made(rank);
    if (!status) status = ort::GetDimensions(api, info, made.data(), rank);
    ort::ReleaseTensorTypeAndShapeInfo(api, info);
    check(api, status);
    return made;
}

namespace {

// A model as the computation of a node. Values of the node are in device memory; others are copied there.
class Computed : public OrtNodeComputeInfo {
  public:
    Computed(const void *api, std::shared_ptr<Model> model, const std::vector<std::string> &inputs, const std::vector<std::string> &outputs)
        : OrtNodeComputeInfo(), api_(api), model_(std::move(model)), inputs_(places(model_->record.inputs, inputs)),
          outputs_(places(model_->record.outputs, outputs)) {
        ort_version_supported = kOrtMemoryLevel;
        CreateState = [](OrtNodeComputeInfo *self, OrtNodeComputeContext *, void **state) -> OrtStatus * {
            *state = self;
            return nullptr;
        };
        Compute = [](OrtNodeComputeInfo *self, void *, OrtKernelContext *context) {
            Computed *c = static_cast<Computed *>(self);
            return guarded(c->api_, [&] { c->run(context); });
        };
        ReleaseState = [](OrtNodeComputeInfo *, void *) {};
    }

  private:
    void check_type(const OrtValue *value, int type, const std::string &name) const {
        constexpr int kTypes[] = {-1, 0, 4, 2, 7, 6, 3, 9, -1, 12, 1, 11, 8, 10, 16, 17, 27};  // aclDataType of onnxruntime's
        OrtTensorTypeAndShapeInfo *info = nullptr;
        check(api_, ort::GetTensorTypeAndShape(api_, value, &info));
        int kind = 0;
        OrtStatus *status = ort::GetTensorElementType(api_, info, &kind);
        ort::ReleaseTensorTypeAndShapeInfo(api_, info);
        check(api_, status);
        if (kind < 1 || size_t(kind) >= std::size(kTypes) || kTypes[kind] != type) {
            throw Failure("OCC0502: `" + name + "` has the element type " + std::to_string(kind) + " of ONNX, and its compiled model aclDataType " +
                          std::to_string(type));
        }
    }

    void run(OrtKernelContext *context) {
        Arena &arena = *model_->arena;
        std::vector<void *> taken;
        const std::shared_ptr<void> kept(nullptr, [&](void *) {
            for (void *address : taken) arena.give(address);
        });
        const auto room = [&](size_t size) {
            taken.push_back(nullptr);
            return taken.back() = arena.take(size);
        };
        std::vector<Span> in, out;
        std::vector<Shape> shapes;
        for (size_t n = 0; n < inputs_.size(); n++) {
            const OrtValue *value = nullptr;
            check(api_, ort::KernelContext_GetInput(api_, context, inputs_[n], &value));
            check_type(value, model_->types.inputs[n], model_->record.inputs[n]);
            shapes.push_back(extents(api_, value));
            Span span = {};
            check(api_, ort::GetTensorSizeInBytes(api_, value, &span.size));
            check(api_, ort::GetTensorMutableData(api_, const_cast<OrtValue *>(value), &span.address));
            if (!span.size) span.address = room(0);
            if (span.size && !is_on_npu(api_, value)) {
                void *copied = room(span.size);
                arena.device->upload(copied, span.address, span.size);
                span.address = copied;
            }
            in.push_back(span);
        }
        const Gear &gear = model_->choose(shapes);
        std::vector<std::pair<Span, void *>> downloads;
        for (size_t k = 0; k < outputs_.size(); k++) {
            OrtValue *value = nullptr;
            const Shape &shape = gear.outputs[k];
            check(api_, ort::KernelContext_GetOutput(api_, context, outputs_[k], shape.data(), shape.size(), &value));
            check_type(value, model_->types.outputs[k], model_->record.outputs[k]);
            Span span = {};
            check(api_, ort::GetTensorSizeInBytes(api_, value, &span.size));
            check(api_, ort::GetTensorMutableData(api_, value, &span.address));
            if (!span.size) span.address = room(0);
            if (!span.address) throw Failure(kNoMemory);
            if (span.size && !is_on_npu(api_, value)) {
                void *target = span.address;
                span.address = room(span.size);
                downloads.push_back({span, target});
            }
            out.push_back(span);
        }
        model_->run(gear, in, out);
        for (const auto &[span, target] : downloads) arena.device->download(target, span.address, span.size);
    }

    const void *api_;
    const std::shared_ptr<Model> model_;
    const std::vector<size_t> inputs_, outputs_;  // of the node, for each of the model
};

}  // namespace

OrtNodeComputeInfo *make_computed(const void *api, std::shared_ptr<Model> model, const std::vector<std::string> &inputs,
                                  const std::vector<std::string> &outputs) {
    return new Computed(api, std::move(model), inputs, outputs);
}

void release_computed(OrtNodeComputeInfo *computed) { delete static_cast<Computed *>(computed); }

}  // namespace occ::ort_plugin::ascend
