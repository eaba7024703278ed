// Models and tensors for C++14 and later that free themselves. Errors are exceptions.
#pragma once
#if __cplusplus < 201402L
#error "occ.hpp needs C++14 or later: compile with -std=c++14, or include occ.h, which C++11 accepts"
#else
#include "occ.h"

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace occ {

namespace detail {
template<typename T> struct Dtype { static constexpr occ_dtype value = OCC_ANY; };
template<> struct Dtype<float> { static constexpr occ_dtype value = OCC_F32; };
template<> struct Dtype<double> { static constexpr occ_dtype value = OCC_F64; };
template<> struct Dtype<bool> { static constexpr occ_dtype value = OCC_BOOL; };
template<> struct Dtype<int8_t> { static constexpr occ_dtype value = OCC_I8; };
template<> struct Dtype<int16_t> { static constexpr occ_dtype value = OCC_I16; };
template<> struct Dtype<int32_t> { static constexpr occ_dtype value = OCC_I32; };
template<> struct Dtype<int64_t> { static constexpr occ_dtype value = OCC_I64; };
template<> struct Dtype<uint8_t> { static constexpr occ_dtype value = OCC_U8; };
template<> struct Dtype<uint16_t> { static constexpr occ_dtype value = OCC_U16; };
template<> struct Dtype<uint32_t> { static constexpr occ_dtype value = OCC_U32; };
template<> struct Dtype<uint64_t> { static constexpr occ_dtype value = OCC_U64; };
}  // namespace detail

template<typename T> constexpr occ_dtype dtype_of = detail::Dtype<T>::value;

// A tensor. Its memory is the caller's, or the library's and freed with the tensor.
struct Tensor : occ_tensor {
    Tensor() : occ_tensor{} {}
    template<typename T> Tensor(T *given, std::initializer_list<int64_t> shape) : Tensor() {
        if (shape.size() > OCC_MAX_RANK) throw std::invalid_argument("a tensor has too many axes");
        data = const_cast<std::remove_const_t<T> *>(given);
        dtype = dtype_of<std::remove_const_t<T>>;
        for (int64_t n : shape) extents[rank++] = n;
        bytes = size() * sizeof(T);
    }
    Tensor(Tensor &&other) noexcept : occ_tensor(std::exchange(static_cast<occ_tensor &>(other), occ_tensor{})) {}
    Tensor &operator=(Tensor other) noexcept {
        std::swap(static_cast<occ_tensor &>(*this), static_cast<occ_tensor &>(other));
        return *this;
    }
    ~Tensor() { occ_free(this); }

    size_t size() const {
        size_t n = 1;
        for (int32_t a = 0; a < rank; a++) n *= size_t(extents[a]);
        return n;
    }
    template<typename T> const T *begin() const { return static_cast<const T *>(data); }
};

class Model {
    occ_model *model = nullptr;
    void check(int status) const {
        if (status) throw std::runtime_error(occ_error_text(nullptr));
    }

public:
    explicit Model(const std::string &path) { check(occ_open(path.c_str(), &model)); }
    explicit Model(occ_model *opened) : model(opened) {}  // for example by NAME_open
    Model(Model &&other) noexcept : model(std::exchange(other.model, nullptr)) {}
    Model &operator=(Model other) noexcept { return std::swap(model, other.model), *this; }
    ~Model() { occ_close(model); }
    operator occ_model *() const { return model; }

    // Runs the model; reuses tensors of `outputs` if there are any.
    void run(const std::vector<Tensor> &inputs, std::vector<Tensor> &outputs) {
        outputs.resize(occ_outputs(model));
        std::vector<occ_tensor> in(inputs.begin(), inputs.end()), out(outputs.size());
        for (size_t k = 0; k < out.size(); k++) out[k] = std::exchange(static_cast<occ_tensor &>(outputs[k]), occ_tensor{});
        const int status = occ_run(model, in.data(), in.size(), out.data(), out.size());
        for (size_t k = 0; k < out.size(); k++) static_cast<occ_tensor &>(outputs[k]) = out[k];
        check(status);
    }
    template<typename... T> std::vector<Tensor> operator()(T &&...inputs) {
        std::vector<Tensor> in, out;
        const int in_order[] = {0, (in.push_back(std::forward<T>(inputs)), 0)...};
        (void)in_order;
        run(in, out);
        return out;
    }
};

}  // namespace occ
#endif
